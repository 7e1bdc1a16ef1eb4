"""`grpobench report`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from grpobench.analysis.report.drawers import FORMATS, drawing_crew
from grpobench.analysis.tools.crew import usable_cores
from grpobench.analysis.tools.text import why_no_folder
from grpobench.runs.commands.output import DONE, say
from grpobench.runs.commands.results_table import lines
from grpobench.runs.tools.deferred import put_by
from grpobench.runs.tools.strict import ConfigError, nearest
from grpobench.tasks.data.errors import DataError


def report_command(options: argparse.Namespace) -> int:
    formats = [part.strip() for part in options.format.split(",") if part.strip()]
    faults = []
    for name in formats:
        if name not in FORMATS:
            guess = nearest(name, FORMATS)
            did = f"did you mean {guess}?" if guess else f"known: {', '.join(FORMATS)}"
            faults.append(f"--format: unknown format {name!r}; {did}")
    if not options.folder.is_dir():
        why = why_no_folder(options.folder)
        faults.append(f"{options.folder}: {why}; give a matrix folder such as results/quickstart")
    if faults:
        raise ConfigError(faults)
    say(f"report: {write_report(options.folder, formats, options.margin, options.strict)[0]}")
    return DONE


def write_report(
    folder: Path, formats: Sequence[str], margin: float | None = None, strict: bool = False
) -> tuple[Path, list[str]]:
    """Write the report, and say what is damaged and so left out. Where it is, and its table of accuracies as
    lines. Raises DataError, if `strict` for anything that is damaged."""
    with put_by("torch"), drawing_crew(formats, usable_cores()) as drawers:
        # These load pandas and matplotlib, as the crew's helpers do meanwhile.
        from grpobench.analysis.checks.alarms import DAMAGED, SPARED
        from grpobench.analysis.logs.files import LogError
        from grpobench.runs.interface.results import load

        try:
            results = load(folder, margin=margin, strict=strict)
            for title in (DAMAGED, SPARED):
                for fault in results.alarms.get(title, ()):
                    say(f"grpobench: {title[0].lower()}{title[1:]}: {fault}", file=sys.stderr)
            return results.write(drawers, formats=formats), lines(results.facts)
        except LogError as error:  # analysis/ knows nothing of the errors of other rooms
            raise DataError(str(error)) from error
