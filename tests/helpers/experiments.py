"""Experiments of stand-ins for algorithm and task, and launchers of stand-ins for engines."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from grpobench.runs.experiment.executor import News
from grpobench.runs.experiment.experiment import ExperimentResult, run_experiment
from grpobench.runs.experiment.launcher import Launcher
from grpobench.runs.experiment.run import ExperimentRun
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
    console = recorder()
    outcome = run_experiment(recipe, out, execute="helpers.stand_ins.execute", console=console, **options)
    return outcome, printed(console)


def recorder(**options: Any) -> Console:
    """A console without a terminal, of which `printed` is the text."""
    return Console(file=io.StringIO(), **{"width": 200, **options})


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def states_by_arm(outcome: ExperimentResult) -> dict[str, str]:
    return {run.config.arm: run.state for run in outcome.runs}


class Engine:
    """An engine of one worker, which begins every run that it is given; what is heard of them is told by a
    subclass."""

    workers = 1
    queues = False

    def __init__(self) -> None:
        self.begun: list[ExperimentRun] = []

    def start(self, queue: Sequence[ExperimentRun]) -> list[ExperimentRun]:
        self.begun += queue[: self.workers]
        return list(queue[: self.workers])

    def news(self, seconds: float) -> list[News]:
        raise NotImplementedError

    def abandon(self, run: ExperimentRun) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


def launched(runs: Sequence[ExperimentRun], engine: Engine, **options: Any) -> str:
    """What a launcher prints of the runs that it hands to an engine."""
    console = recorder()
    Launcher(list(runs), engine, console, **options).launch()
    return printed(console)
