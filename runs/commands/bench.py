"""`grpobench bench`."""

from __future__ import annotations

import argparse

from grpobench.runs.bench import compare, sandbox
from grpobench.runs.commands.output import DONE


def bench_command(options: argparse.Namespace) -> int:
    if options.sandbox:
        sandbox.main(options.json)
    else:
        compare.main(options.model, options.json)
    return DONE
