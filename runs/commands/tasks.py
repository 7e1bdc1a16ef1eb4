"""`grpobench tasks check`, `tasks pairs` and `tasks readings`: whether tasks grade as they should."""

from __future__ import annotations

import argparse
from typing import Any

from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, say
from grpobench.runs.inventory import check, pages
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.tools.ticker import Ticker
from grpobench.tasks.grading import pairs, readings


def check_command(options: argparse.Namespace) -> int:
    """0 unless a task fails, then 70. A task whose data is absent does not fail."""
    if options.all and options.names:
        raise ConfigError(["tasks check: --all takes every task; leave it or the names away"])
    most = check.MOST if options.problems is None else options.problems
    ticker = Ticker()
    told = options.json or ticker.status  # the lines of the text say enough where there is no terminal
    checks = check.checks(options.names, most, ticker.tell if told else lambda text: None)
    rows, failed = [], False
    while True:
        with ticker:  # not while lines are printed, which it would take for its own
            found = next(checks, None)
        if found is None:
            break
        failed |= found.state == "failed"
        rows.append(found.row())
        if not options.json:
            say("\n".join(check.as_lines(found)), flush=True)
    if options.json:
        say(as_json(rows))
    return INFRASTRUCTURE if failed else DONE


def pairs_command(options: argparse.Namespace) -> int:
    """0 where every verdict of ours is the one expected or a kept exception, else 70."""
    return compared(pairs, options)


def readings_command(options: argparse.Namespace) -> int:
    """0 where ours reads the program that should be read in every completion, else 70."""
    return compared(readings, options)


def compared(table: Any, options: argparse.Namespace) -> int:
    """Ask ours and others about the rows of a kept table, and say or keep what they tell now."""
    if options.keep:
        pages.own_folder("--keep writes into one")
    kept = table.load()
    now, lacking = table.ask(kept)
    faults = list(table.faults(kept, now))
    if options.json:
        say(as_json([row.row() for row in now]))
    else:
        say("\n".join([*table.as_lines(now), *lacking, *faults]))
    if options.keep:
        files.write_atomic(table.TABLE, table.as_text(now).encode())
    return INFRASTRUCTURE if faults else DONE
