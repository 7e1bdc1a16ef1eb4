"""`grpobench export`."""

from __future__ import annotations

import argparse
import sys

from grpobench.runs.commands.output import DONE, say
from grpobench.runs.evaluation.export import export


def export_command(options: argparse.Namespace) -> int:
    """Write a run's policy as a Hugging Face folder."""
    found = export(options.run, options.folder, options.dtype)
    if found.caution:
        say(f"careful: these are {found.caution}", file=sys.stderr)
    say(f"{found.folder}: the policy after step {found.step}; its README.md says how to load it")
    return DONE
