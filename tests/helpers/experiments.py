"""Experiments of stand-ins for algorithm and task."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from grpobench.runs.experiment.experiment import ExperimentResult, run_experiment
from grpobench.runs.settings.recipe import Recipe, read_recipe

HEAD = 'name = "m"\ntasks = ["sums"]\nworkers = 2\n'


def recipe(folder: Path, *troubles: str, steps: int = 3, head: str = "") -> Recipe:
    """One arm per trouble; `fine` has none."""
    arms = "".join(
        f'[[arm]]\nalgorithm = "plain"\nname = "{trouble}"\n'
        f'settings.label = "{"" if trouble.startswith("fine") else trouble}"\n'
        for trouble in troubles
    )
    path = folder / "m.toml"
    path.write_text(f"{HEAD}{head}[train]\nsteps = {steps}\n{arms}")
    return read_recipe(str(path))


def launch(recipe: Recipe, out: Path, **options: Any) -> tuple[ExperimentResult, str]:
    console = Console(file=io.StringIO(), width=200)
    outcome = run_experiment(recipe, out, execute="helpers.stand_ins.execute", console=console, **options)
    assert isinstance(console.file, io.StringIO)
    return outcome, console.file.getvalue()


def states_by_arm(outcome: ExperimentResult) -> dict[str, str]:
    return {run.config.arm: run.state for run in outcome.runs}
