"""Safe points of a run (`runs/tools/process.py`), at which it checks whether to stop and reports that it is
alive."""

# A run that is asked to stop raises `Preempted` at its next safe point. Before the first update of a step
# this loses only the current step, since the state before it can still be saved. After the first update the
# run finishes the step if that takes no longer than `FINISH`; else it falls back to its last checkpoint.

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grpobench.runs.models.ranks import ALONE, DeviceRanks
from grpobench.runs.tools.process import asking
from grpobench.runs.train.devices import together
from grpobench.runs.train.progress import SAVING, Preempted, Progress
from grpobench.tasks.data import bounded

if TYPE_CHECKING:
    from grpobench.runs.runfolder.folder import RunFolder
    from grpobench.runs.train.trainer import Trainer

ASK = 0.25
"""Seconds between two checks for a request to stop; each is a system call."""
BEAT = 2.0
"""Seconds after which a phase without news reports that it is alive."""
FINISH = 10.0
"""Seconds that a step may go on after a request to stop, once it has begun its updates. A launcher waits 25 s
for the report that a checkpoint is being written."""


class Stopping:
    """Called at the safe points of a run."""

    def __init__(self, report: Callable[[Progress], None], stop: Callable[[], bool]) -> None:
        self.passed_on, self.stop = report, stop
        self.last: Progress | None = None
        self.altered: Callable[[], bool] = lambda: False
        """Whether the current step has changed weights, so that the state before it is gone."""
        self.reported = self.last_asked = time.monotonic()
        self.stopping: float | None = None
        """When the request to stop was first seen."""
        self.ranks = ALONE
        """Of the run. A single one may stop wherever it is; several must stop at one place."""

    def report(self, progress: Progress) -> None:
        """Report the progress to the launcher."""
        self.last, self.reported = progress, time.monotonic()
        self.passed_on(progress)

    def ask(self) -> None:
        """Raises Preempted if the run is asked to stop and may do so now, and OSError if a rank has died."""
        now = time.monotonic()
        if now - self.last_asked < ASK:
            return
        self.last_asked = now
        # Even without news: a launcher takes a silent worker for one that hangs.
        if self.last is not None and now - self.reported >= BEAT:
            self.report(self.last)
        self.ranks.demand()
        if self.ranks.alone and self.due():
            raise Preempted

    def due(self) -> bool:
        """Whether the run is asked to stop and may do so now."""
        now = time.monotonic()
        # The time of the first answer counts: `FINISH` begins there.
        if self.stopping is None and self.stop():
            self.stopping = now
        return self.stopping is not None and (not self.altered() or now - self.stopping >= FINISH)

    @contextlib.contextmanager
    def heeded(self, ranks: DeviceRanks = ALONE) -> Iterator[None]:
        """Within, safe points call `ask`. A run of several ranks stops where these meet."""
        self.ranks = ranks
        if not ranks.alone:
            ranks.asks = self.due
        with asking(self.ask):
            yield


class Before:
    """The state before a step, as long as the step has changed no weights. Curriculum and counters change
    while it samples, so they are kept as text; the algorithm's state, which may be large, is never changed in
    place."""

    def __init__(self, trainer: Trainer, folder: RunFolder, done: int) -> None:
        self.trainer, self.folder, self.done = trainer, folder, done
        state = trainer.state()
        self.algorithm = state.pop("algorithm")
        self.state = json.dumps(state)

    def save(self) -> None:
        """Save a checkpoint of the step before, if that is still possible and there is none. Before the first
        step there is nothing to save: the next start begins with the same weights."""
        if self.folder.saving is not None:
            self.trainer.tell(self.done, SAVING)  # as in `save`: the launcher waits for this one, too
        # First: the one that is being written may be of this very step.
        self.folder.finish_saving()
        if self.done and not self.trainer.updater.begun and self.done not in self.folder.steps():
            self.trainer.tell(self.done, SAVING)
            state = bounded.parse_json(self.state) | {"algorithm": self.algorithm}
            save(self.trainer, self.folder, self.done, state)


def save(trainer: Trainer, folder: RunFolder, step: int, state: Mapping[str, Any]) -> None:
    """Write a checkpoint with a `state`, to which the step is added. Several ranks go on to write theirs in
    the background, until `folder.finish_saving`."""
    state = {**state, "step": step}
    if trainer.models.ranks.alone:
        folder.save(step, trainer.models.state(), state)
    else:
        folder.save_sharded(step, functools.partial(together, trainer, "save"), state)


@contextlib.contextmanager
def keep_state_before(trainer: Trainer, folder: RunFolder, step: int) -> Iterator[None]:
    """Around a step: a step that is given up leaves a checkpoint of the step before it."""
    before = Before(trainer, folder, step - 1)
    try:
        yield
    except Preempted:
        before.save()
        raise
