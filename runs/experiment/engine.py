"""What a launcher asks of whatever executes runs: start these, how are they, stop.

The engines are the pool of this machine (`pool.py`), Ray (`on_ray.py`) and Slurm (`on_slurm.py`). None
decides anything about a run: what to try again, when to stop and what an experiment's end is are the
launcher's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from grpobench.runs.experiment.run import Run
from grpobench.runs.experiment.worker import Ended
from grpobench.runs.train.progress import Progress

On: TypeAlias = Literal["local", "ray", "slurm", "submitit-local"]


@dataclass(frozen=True)
class Lost:
    """What executed a run is gone, by no fault of the run: a process was killed, a node died."""

    why: str
    preempted: bool = False
    """Whether the scheduler took it away on purpose, which may happen any number of times."""
    machine: bool = True
    """Whether another attempt may help: no process that ended by itself."""


News: TypeAlias = tuple[Run, Progress | Ended | Lost]


class Engine(Protocol):
    """Executes runs. One thread calls its methods; none but `news` blocks for longer than a moment."""

    workers: int
    """Runs side by side, for the display and its estimates."""
    queues: bool
    """Whether a run that was begun may wait for a place, and so say nothing, for any time."""

    def start(self, queue: Sequence[Run]) -> list[Run]:
        """Begin as many of the first runs as there is room for now; those that were begun. Raises
        RuntimeError where nothing can be begun any more."""

    def news(self, seconds: float) -> list[News]:
        """What was heard of runs, at once or after at most so many seconds. A run that was begun ends with
        exactly one `Ended` or `Lost`."""

    def abandon(self, run: Run) -> None:
        """End what executes a run that hangs; its `Lost` comes with the news."""

    def stop(self) -> None:
        """Ask every run to save a checkpoint and end, and begin none."""

    def kill(self) -> None:
        """End whatever is still at work."""

    def close(self) -> None:
        """Leave nothing behind: no process, no job, no file of the engine's own."""
