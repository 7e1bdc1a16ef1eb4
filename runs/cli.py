"""The command line.

Exit codes: 0 done; 2 bad input or configuration; 3 a run diverged or collapsed and the recipe asks
to fail on that; 70 infrastructure; 75 preempted, and resumable by the same command.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from grpobench.runs.commands.arguments import parser
from grpobench.runs.commands.output import BAD_INPUT, DONE, INFRASTRUCTURE, PREEMPTED, complain
from grpobench.runs.tools.deferred import defer

COMMANDS: Mapping[str, str] = {
    "run": "run.run_command",
    "map": "run.map_command",
    "status": "status.status_command",
    "merge": "merge.merge_command",
    "report": "report.report_command",
    "figure": "figures.figure_command",
    "import": "importing.import_command",
    "eval": "evaluate.eval_command",
    "export": "export.export_command",
    "warmstart": "warmstart.warmstart_command",
    "list": "show.list_command",
    "show": "show.show_command",
    "keep": "docs.keep_command",
    "docs": "docs.docs_command",
    "calibrate": "calibrate.calibrate_command",
    "finding list": "finding.list_command",
    "finding show": "finding.show_command",
    "finding run": "finding.run_finding",
    "finding judge": "finding.judge_command",
    "findings": "finding.list_command",
    "doctor": "machine.doctor_command",
    "serve": "machine.serve_command",
    "bench": "bench.bench_command",
    "data fetch": "data.fetch_command",
    "data list": "data.list_command",
    "tasks check": "tasks.check_command",
    "tasks pairs": "tasks.pairs_command",
    "tasks readings": "tasks.readings_command",
}
"""By the words of a command, its module in runs/commands/ and the function there. The module is imported when
its command has been chosen and torch deferred: a mistake in a recipe is reported before torch could load."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run the command, turn its errors into a message and an exit code."""
    options = parser().parse_args(arguments)
    # Before torch loads, here and in every worker: its threads wait for each other in a loop that holds the
    # core, by default for milliseconds. With one other busy program that made a step 20 times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if options.light:
        defer("torch")
    from grpobench.runs.models.errors import NoRoom
    from grpobench.runs.tools.files import FULL
    from grpobench.runs.tools.lock import FolderError
    from grpobench.runs.tools.strict import ConfigError
    from grpobench.tasks.data.errors import DataError

    try:
        code = carry_out(options)
        sys.stdout.flush()
    except (ConfigError, DataError, FolderError) as error:
        return complain(str(error), BAD_INPUT)
    except NoRoom as error:
        return complain(str(error), INFRASTRUCTURE)
    except KeyboardInterrupt:
        return complain("interrupted", PREEMPTED)
    except BrokenPipeError:  # The reader of a pipe, such as `head`, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except OSError as error:
        if error.errno in FULL:
            return complain(
                f"the disk is full, or a quota: {error}; free space and start again", INFRASTRUCTURE
            )
        return complain(str(error), INFRASTRUCTURE)
    return code


def carry_out(options: argparse.Namespace) -> int:
    """Run the chosen command; its exit code."""
    from grpobench.runs.commands.options import use_places

    use_places(options)
    module, function = COMMANDS[options.command].split(".")
    code: int = getattr(import_module(f"grpobench.runs.commands.{module}"), function)(options)
    return code
