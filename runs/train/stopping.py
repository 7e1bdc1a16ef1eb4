"""What a run does at safe points (`runs/tools/process.py`): it looks whether it is to stop, and shows
that it goes on.

A run that is told to stop raises `Preempted` at its next safe point. Up to the first update of a step that
throws nothing away but the step under way, since the state before it can still be saved. Behind it the step
is finished where that takes no longer than `FINISH`; else the last checkpoint is what there is.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from grpobench.runs.tools.process import asking
from grpobench.runs.train.progress import SAVING, Preempted, Progress

if TYPE_CHECKING:
    from grpobench.runs.runfolder.folder import RunFolder
    from grpobench.runs.train.trainer import Trainer

ASK = 0.25
"""Seconds between two looks at what the launcher says, which ask the system."""
BEAT = 2.0
"""Seconds after which a phase that has nothing to tell says that it goes on."""
FINISH = 10.0
"""Seconds that a step in the middle of its updates may go on for when it is told to stop; a launcher gives
25 until it hears that a checkpoint is being written."""


class Stopping:
    """Asked at the safe points of a run."""

    def __init__(self, report: Callable[[Progress], None], stop: Callable[[], bool]) -> None:
        self.passed_on, self.stop = report, stop
        self.last: Progress | None = None
        self.altered: Callable[[], bool] = lambda: False
        """Whether the step under way has changed weights, so that the state before it is gone."""
        self.told = self.asked = time.monotonic()
        self.stopping: float | None = None
        """When it was first seen that the run is to stop."""

    def report(self, progress: Progress) -> None:
        """Tell the launcher where the run is."""
        self.last, self.told = progress, time.monotonic()
        self.passed_on(progress)

    def ask(self) -> None:
        """Raises Preempted where the run is to stop and can here."""
        now = time.monotonic()
        if now - self.asked < ASK:
            return
        self.asked = now
        if self.last is not None and now - self.told >= BEAT:
            self.report(self.last)
        if self.stopping is None and self.stop():
            self.stopping = now
        if self.stopping is not None and (not self.altered() or now - self.stopping >= FINISH):
            raise Preempted

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Within, safe points ask here."""
        with asking(self.ask):
            yield


class Before:
    """The state before a step, for as long as the step has changed no weights. What else changes while it
    samples (the curriculum, counters) is kept as text."""

    def __init__(self, trainer: Trainer, folder: RunFolder, done: int) -> None:
        self.trainer, self.folder, self.done = trainer, folder, done
        self.state = json.dumps(trainer.state())

    def save(self) -> None:
        """A checkpoint of the step before, if it can be made and there is none. Before the first step there
        is nothing to keep: the next start begins with the same weights."""
        if self.done and not self.trainer.updater.begun and self.done not in self.folder.steps():
            self.trainer.tell(self.done, SAVING)
            self.folder.save(self.done, self.trainer.models.state(), json.loads(self.state))


@contextlib.contextmanager
def keep_state_before(trainer: Trainer, folder: RunFolder, step: int) -> Iterator[None]:
    """Around a step: one that is given up leaves a checkpoint of the step before it."""
    before = Before(trainer, folder, step - 1)
    try:
        yield
    except Preempted:
        before.save()
        raise
