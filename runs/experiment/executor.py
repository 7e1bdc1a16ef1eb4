"""The interface between the launcher and the engines that execute runs: start runs, report on them, stop
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.worker import Ended
from grpobench.runs.train.progress import Progress


@dataclass(frozen=True)
class Lost:
    """The process or node that executed a run is gone, by no fault of the run."""

    why: str
    preempted: bool = False
    """Whether the scheduler took it away on purpose. That may happen any number of times."""
    machine: bool = True
    """Whether another attempt may help. False if the process ended by itself."""


News: TypeAlias = tuple[ExperimentRun, Progress | Ended | Lost]


class RunExecutor(Protocol):
    """Executes runs. One thread calls the methods; only `news` blocks for longer than a moment.

    The engines are the pool of this machine (`pool.py`), Ray (`on_ray.py`) and Slurm (`on_slurm.py`). Engines
    decide nothing about a run: the launcher decides what to try again, when to stop and when an experiment
    ends."""

    workers: int
    """Number of runs side by side, for the display and its estimates."""
    queues: bool
    """Whether a started run may wait in a queue, and so report nothing, for any time."""

    def start(self, queue: Sequence[ExperimentRun]) -> list[ExperimentRun]:
        """Start as many of the first runs as there is room for now and return those. Raises RuntimeError if
        nothing can be started any more."""

    def news(self, seconds: float) -> list[News]:
        """Reports of runs, at once or after at most so many seconds. Each started run ends with exactly one
        `Ended` or `Lost`."""

    def abandon(self, run: ExperimentRun) -> None:
        """Kill whatever executes an unresponsive run; `news` then reports its `Lost`."""

    def stop(self) -> None:
        """Ask every run to save a checkpoint and end, and start no more."""

    def kill(self) -> None:
        """Kill whatever is still running."""

    def close(self) -> None:
        """Leave no process, job or file of the engine behind."""
