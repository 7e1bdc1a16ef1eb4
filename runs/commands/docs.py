"""`grpobench docs`, which writes pages, and `grpobench keep`, which keeps the results that they show."""

from __future__ import annotations

import argparse
from pathlib import Path

from grpobench.analysis.findings import record as registration
from grpobench.analysis.kept.kept import as_text, keep
from grpobench.analysis.logs.files import LogError
from grpobench.analysis.logs.load import load
from grpobench.runs.commands.output import DONE, say
from grpobench.runs.inventory import filled, pages
from grpobench.runs.tools import files
from grpobench.tasks.data.errors import DataError


def docs_command(options: argparse.Namespace) -> int:
    for path in pages.write(options.folder or pages.own_folder()):
        say(path)
    return DONE


def keep_command(options: argparse.Namespace) -> int:
    folder = options.to or pages.own_folder("name one: --to DIR") / filled.FOLDER
    if options.to:
        files.demand_writable(options.to, "--to")
    if (options.folder / registration.FILE).exists():
        return keep_finding(options.folder, folder / registration.FOLDER)
    try:
        content = keep(load(options.folder))
    except LogError as error:  # analysis/ knows nothing of the errors of other rooms
        raise DataError(str(error)) from error
    folder.mkdir(parents=True, exist_ok=True)
    files.write_atomic(folder / f"{content['name']}.json", as_text(content).encode())
    say(f"{folder / content['name']}.json; grpobench docs writes it into the pages")
    return DONE


def keep_finding(source: Path, folder: Path) -> int:
    """Keep what was measured of a finding's runs."""
    try:
        record = registration.record_of(load(source))
    except LogError as error:
        raise DataError(str(error)) from error
    if record.waits:
        raise DataError(f"{source}: only whole matrices are kept; {len(record.waits)} runs without result")
    place = folder / f"{record.registration.finding.name}-{record.registration.scale}.json"
    demand_as_many(record, place, source)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_atomic(place, registration.kept_text(record).encode())
    say(f"{place}; grpobench docs writes it into the pages")
    return DONE


def demand_as_many(record: registration.Record, place: Path, source: Path) -> None:
    """Raises DataError where a rerun by the same rule would replace a kept table of more runs. A matrix of
    two seeds is whole by its own registration, and still no substitute for one of eight."""
    try:
        before = registration.read_kept(place) if place.exists() else None
    except LogError:
        return  # a damaged table may be written again
    if before is None or before.registration.finding.digest != record.registration.finding.digest:
        return
    if len(record.states) < len(before.states):
        raise DataError(
            f"{place} keeps {len(before.states)} runs by the same rule, {source} has {len(record.states)}; "
            "keep a smaller rerun elsewhere with --to DIR"
        )
