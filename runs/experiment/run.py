"""One run of an experiment as its launcher sees it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpobench.runs.runfolder import checkpoints
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.train.progress import SAVING, Progress

FORWARD_AND_BACKWARD = 3
"""The cost of an update in forward passes."""
RunState = Literal[
    "waiting", "running", "finished", "diverged", "collapsed", "crashed", "preempted", "refused", "disk full"
]


@dataclass
class ExperimentRun:
    """One run as the launcher sees it."""

    config: RunConfig
    path: Path
    state: RunState = "waiting"
    why: str = ""
    progress: Progress | None = None
    began: float = 0.0
    first_step: int = 0
    """Steps that were done when this attempt began to report."""
    seconds: float = 0.0
    due: float = 0.0
    """The run must not start before this time of the monotonic clock."""
    attempts: int = 0
    """Attempts that the machine lost since the run last saved a checkpoint."""
    saved: int = 0
    """The last checkpoint when the last attempt was lost, or before the first."""
    before: int = 0
    """Attempts recorded in its folder when it was last started here."""
    silent: float = 0.0
    """Seconds without a report while the launcher was listening."""
    unresponsive: str = ""
    """Why the launcher gave it up."""
    logged: int = 0
    """Bytes of its log.txt when it was last started here."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def cost(self) -> float:
        """The cost of a run, in tokens of forward passes."""
        train, algorithm, task = self.config.train, self.config.algorithm, self.config.task
        tokens = (
            (self.config.sampler.max_completion_tokens or task.max_completion_tokens)
            * train.prompts_per_step
            * train.group_size
        )
        written = 0 if algorithm.off_policy else 1
        read = train.epochs * (
            len(algorithm.reference_roles) + FORWARD_AND_BACKWARD * len(algorithm.trained_roles)
        )
        return train.steps * tokens * (written + read)

    @property
    def saving(self) -> bool:
        """Whether its last report said that it writes a checkpoint or its final weights."""
        return self.progress is not None and self.progress.phase == SAVING

    def checkpoint(self) -> int:
        """The step of its last checkpoint; 0 without one."""
        return max(checkpoints.steps(self.path), default=0)

    def heard(self, progress: Progress) -> None:
        if self.progress is None:
            self.first_step = progress.step
        self.progress, self.silent = progress, 0.0
        self.seconds = time.monotonic() - self.began

    def left(self) -> float:
        """Seconds for the remaining steps at the pace so far; NaN before the first step."""
        done = self.progress.step - self.first_step if self.progress else 0
        if not self.progress or done <= 0:
            return math.nan
        return self.seconds / done * (self.progress.steps - self.progress.step)
