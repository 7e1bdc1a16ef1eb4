"""`--case launcher`: what a launcher spends on a run, in processor time and in memory.

A thousand runs of a stub, which logs one step and ends, go through a whole launch: the survey of their
folders, experiment.json, worker processes, messages, the display. The result is the processor time of the
launcher's process, start and end included, divided by the number of runs; the workers' time does not count.
The launcher's resident memory is read at every hundredth end, and its growth from the first to the last
reading is what a run leaves behind.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console

from grpobench.benchmarks.cases import UNKNOWN, Tell
from grpobench.runs.experiment.engines import Where, engine
from grpobench.runs.experiment.executor import Engine, Lost, News
from grpobench.runs.experiment.experiment import survey, write_experiment
from grpobench.runs.experiment.launcher import Launcher
from grpobench.runs.experiment.run import Run
from grpobench.runs.experiment.worker import Ended, On
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.tools.lock import Lock
from grpobench.runs.train.progress import Progress

RECIPE: Final = "bench-grid"
RUNS: Final = 1000
WORKERS: Final = 2
SAMPLES: Final = 10
STUB: Final = "grpobench.benchmarks.launching.stub"
PACKAGES: Final[dict[On, str]] = {"local": "", "ray": "ray"}
"""Engines that are measured, and the package that each needs. A job of submitit is a process of its own,
which takes seconds, so a thousand of them would take hours."""


def stub(
    config: RunConfig, folder: RunFolder, report: Callable[[Progress], None], stop: Callable[[], bool]
) -> None:
    """A run of one step that trains nothing."""
    report(Progress(0, 1, 0.0, 0.0, "training"))
    folder.log({"step": 1, "reward/mean": 0.0})
    report(Progress(1, 1, 0.0, 0.0, "training"))
    folder.finish("finished")


class Watched:
    """An engine that records how large the launcher's process is while runs end."""

    def __init__(self, inner: Engine, runs: int, tell: Callable[[int], None]) -> None:
        self.inner, self.every, self.tell = inner, max(1, runs // SAMPLES), tell
        self.workers, self.queues = inner.workers, inner.queues
        self.ended = 0
        self.memory: list[float] = []
        """MiB at every `every`-th end."""

    def start(self, queue: Sequence[Run]) -> list[Run]:
        return self.inner.start(queue)

    def news(self, seconds: float) -> list[News]:
        found = self.inner.news(seconds)
        for _, message in found:
            if isinstance(message, Ended | Lost):
                self.ended += 1
                self.tell(self.ended)
                if self.ended % self.every == 0:
                    self.memory.append(resident())
        return found

    def abandon(self, run: Run) -> None:
        self.inner.abandon(run)

    def stop(self) -> None:
        self.inner.stop()

    def kill(self) -> None:
        self.inner.kill()

    def close(self) -> None:
        self.inner.close()


def launching(tell: Tell, runs: int = RUNS) -> dict[str, Any]:
    """Measure every engine that is installed."""
    engines: dict[str, Any] = {}
    for on, package in PACKAGES.items():
        if package and importlib.util.find_spec(package) is None:
            engines[on] = {"absent": f"{package} is not installed"}
            continue
        with TemporaryDirectory(prefix="grpobench-") as place:
            engines[on] = measure(on, Path(place), runs, tell)
    return {"runs": runs, "workers": WORKERS, "engines": engines}


def measure(on: On, folder: Path, count: int, tell: Tell) -> dict[str, Any]:
    """One launch. Raises RuntimeError if a stub did not finish."""
    recipe = many(count)
    began, used = time.perf_counter(), time.process_time()
    lock = Lock(folder)
    lock.take()
    try:
        runs = [Run(config, folder / config.folder) for config in recipe.runs()]
        survey(runs, allow_change=False)
        write_experiment(folder, recipe)
        found = engine(Where(on), folder, WORKERS, STUB, False)
        watched = Watched(found, count, lambda ended: tell(f"{on}: {ended} of {count} runs", UNKNOWN))
        Launcher(runs, watched, Console(file=io.StringIO())).launch()
    finally:
        lock.release()
    seconds, spent = time.perf_counter() - began, time.process_time() - used
    if failed := [run for run in runs if run.state != "finished"]:
        raise RuntimeError(f"{failed[0].name}: {failed[0].state}: {failed[0].why}")
    return {
        "own_ms_per_run": 1000 * spent / count,
        "wall_s": seconds,
        "memory_mib": watched.memory,
        "growth_kib_per_run": 1024 * (watched.memory[-1] - watched.memory[0]) / (count - watched.every),
    }


def many(count: int) -> Recipe:
    """A recipe of so many runs, which differ in their seeds."""
    recipe = read_recipe(RECIPE)
    first = recipe.configs[0]
    configs = tuple(dataclasses.replace(first, seed=seed) for seed in range(count))
    head = dataclasses.replace(recipe.head, seeds=tuple(range(count)))
    return dataclasses.replace(recipe, head=head, configs=configs)


def resident() -> float:
    """MiB of this process; NaN if the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
