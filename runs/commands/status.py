"""`grpobench status`."""

from __future__ import annotations

import argparse

from rich.console import Console

from grpobench.runs.commands.output import DONE, as_json, say
from grpobench.runs.matrix import standing
from grpobench.runs.tools.strict import ConfigError


def status_command(options: argparse.Namespace) -> int:
    if options.json and options.watch:
        raise ConfigError(["status: --json shows one moment and --watch goes on; choose one of them"])
    if options.watch:
        standing.watch(options.folder, Console())
        return DONE
    found = standing.overviews(options.folder)
    if options.json:
        say(as_json([one.row() for one in found]))
    else:
        say("\n\n".join("\n".join(one.lines()) for one in found))
    return DONE
