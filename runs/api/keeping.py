"""Keep results in the project's checkout: of an experiment, of a finding, or of a contributed file set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpobench.analysis import kept, readable
from grpobench.analysis.findings import record as registration
from grpobench.analysis.readable import ReadableRow
from grpobench.analysis.record import as_text
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.runs.handover.publishing.contribute import accept, checked
from grpobench.runs.handover.publishing.verify import verify
from grpobench.runs.inventory import folders
from grpobench.runs.inventory.findings.parts import part_path, read_part, with_part
from grpobench.runs.inventory.findings.records import demand_whole, set_aside
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError

WRITTEN = "grpobench docs writes it into the pages"


def keep(source: Path, to: Path | None = None, part: bool = False) -> list[str]:
    """Keep what an experiment or a finding in `source` measured, in the folder `to`, by default the project's
    own; with `part` the runs of a finding that have a result. Returns what was written, a line each.

    Raises ConfigError where nothing can be written, DataError where the runs are not the whole experiment,
    LogError for damaged logs.
    """
    if part and to:
        raise ConfigError(["--part: parts are kept in the project's checkout; leave --to out"])
    folder = to or folders.docs_folder("name one: --to DIR") / folders.FOLDER
    if to:
        files.demand_writable(to, "--to")
    if (source / registration.FILE).exists():
        return keep_finding(source, folder / registration.FOLDER, part)
    if part:
        raise DataError(f"{source}: --part is for the folder of a finding")
    content = kept.keep(load(source))
    path = folder / f"{content['name']}.json"
    with contextlib.suppress(LogError):  # a damaged table may be written again
        if gaps := path.exists() and kept.partial(kept.read(path), content):
            raise DataError(
                f"{path} stands: {source} is not the whole experiment: {'; '.join(gaps)}; keep it "
                "elsewhere with --to DIR, or delete the kept table first"
            )
    folder.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, as_text(content).encode())
    return [f"{path}; {WRITTEN}"]


def kept_file(name: str) -> Path:
    """The kept table of a command's option `--keep`. Raises ConfigError outside of a checkout."""
    return folders.docs_folder("leave --keep out") / folders.FOLDER / f"{name}.json"


def keep_content(path: Path, content: Mapping[str, Any]) -> None:
    """Write the kept table of `grpobench theory`."""
    files.write_atomic(path, as_text(content).encode())


def keep_row(path: Path, row: ReadableRow) -> None:
    """Add a row of `grpobench tasks readable` to its kept table, in the place of the one that measured the
    same."""
    rows = readable.merge(readable.read(path) if path.exists() else [], [row])
    files.write_atomic(path, as_text(readable.content_of(rows)).encode())


def contribute(
    folder: Path,
    to: Path | None = None,
    only_check: bool = False,
    rerun: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Check the file set in `folder`, with `rerun` by running two seeds again, of which `tell` gets a line a
    run. Put it beside the kept results in `to`, by default the project's own, unless `only_check`. Returns
    what was written. Raises ConfigError for a file set that does not hold what it says, LogError for one
    whose name is taken."""
    with checked(folder) as file_set:
        verified = verify(file_set, tell) if rerun else None
        if only_check:
            return []
        results = to or folders.docs_folder("name a folder: --to DIR") / folders.FOLDER
        return accept(file_set, results, verified)


def keep_finding(source: Path, folder: Path, part: bool) -> list[str]:
    """Keep what was measured of a finding's runs, with those of a part that was kept before."""
    experiment, registered = load(source), registration.read_registration(source)
    name, scale = registered.finding.name, registered.scale
    earlier_part = read_part(name, scale)
    if part and earlier_part and earlier_part.registration != registered:
        raise DataError(f"{source}: registered apart from the part that is kept in {part_path(name, scale)}")
    record = with_part(experiment, earlier_part, registration.part_of if part else registration.record_of)
    if record.waits and not part:
        why = f"{len(record.waits)} runs without result; --part keeps the others until these have run"
        raise DataError(f"{source}: only whole experiments are kept; {why}")
    unfinished = part_path(name, scale)
    if record.waits and unfinished:
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(unfinished, registration.record_text(record).encode())
        return [f"{unfinished}; {len(record.states)} runs, and {len(record.waits)} to come"]
    path = folder / f"{name}-{scale}.json"
    demand_whole(record, path, source)
    folder.mkdir(parents=True, exist_ok=True)
    earlier = set_aside(path, record)
    files.write_atomic(path, registration.record_text(record).encode())
    if unfinished:
        unfinished.unlink(missing_ok=True)
    aside = f"{earlier}: the table by the earlier rule, whose conclusion the page shows beside"
    return [*([aside] if earlier else []), f"{path}; {WRITTEN}"]
