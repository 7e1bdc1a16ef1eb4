"""`grpobench calibrate`: how often detectors and verdicts are wrong."""

from __future__ import annotations

import argparse
import sys

from grpobench.analysis.calibration import markdown, table
from grpobench.analysis.logs.files import LogError
from grpobench.analysis.logs.load import load
from grpobench.runs.calibration import library
from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, complain, say
from grpobench.runs.inventory import filled, pages
from grpobench.runs.tools import files
from grpobench.tasks.data.errors import DataError

COMMAND = "grpobench calibrate"


def calibrate_command(options: argparse.Namespace) -> int:
    plan = library.planned()
    kept = (
        pages.own_folder("leave --keep out") / filled.FOLDER / f"{table.NAME}.json" if options.keep else None
    )
    try:
        outcome = library.run(plan, options.out, options.workers)
    except RuntimeError as error:
        return complain(str(error), INFRASTRUCTURE)
    if outcome.code:
        unfinished = [run.name for run in outcome.runs if run.place not in ("finished", "diverged")]
        say(f"without a result: {', '.join(unfinished[:5])}; the same command goes on", file=sys.stderr)
        return outcome.code
    try:
        content = table.calibrate(load(outcome.folder), plan.library, COMMAND)
    except LogError as error:  # analysis/ knows nothing of the errors of other rooms
        raise DataError(str(error)) from error
    if kept is not None:
        files.write_atomic(kept, table.as_text(content).encode())
    say(as_json(content) if options.json else "\n".join(markdown.as_lines(content)))
    if kept is not None:
        say(f"{kept}; grpobench docs writes it into the page", file=sys.stderr)
    return DONE
