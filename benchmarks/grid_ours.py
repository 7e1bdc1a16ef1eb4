"""Our side of `--case grid`: an experiment with two one-thread workers.

python -m grpobench.benchmarks.grid_ours OUT RECIPE [KEY=VALUE ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

from grpobench.runs.tools.deferred import defer

AT_ONCE = 2
"""Runs side by side, on either side."""


def main(out: str, recipe: str, *sets: str) -> int:
    """`grpobench run` without the report, because the other side writes none. Returns the exit code."""
    defer("torch")  # like the command: only the workers need it
    from grpobench.runs.experiment.experiment import run_experiment
    from grpobench.runs.settings.recipe import read_recipe

    return run_experiment(read_recipe(recipe, sets), Path(out), AT_ONCE).code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
