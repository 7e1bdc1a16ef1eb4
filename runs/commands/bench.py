"""`grpobench bench`."""

from __future__ import annotations

import argparse

from grpobench.runs.bench import bench, sandbox
from grpobench.runs.commands.output import DONE
from grpobench.runs.tools.strict import ConfigError


def bench_command(options: argparse.Namespace) -> int:
    if options.sandbox and options.case:
        raise ConfigError(["--sandbox measures no case; leave --case away"])
    if options.sandbox:
        sandbox.main(options.json)
    else:
        bench.main(options.model, options.case, options.json)
    return DONE
