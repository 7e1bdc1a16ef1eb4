"""All steps of a run."""

from __future__ import annotations

from collections.abc import Callable

from grpobench.runs.record.folder import RunFolder
from grpobench.runs.train.course import begin, end, record, save_when_due
from grpobench.runs.train.stopping import kept_before
from grpobench.runs.train.trainer import Trainer


def carry(trainer: Trainer, folder: RunFolder, stop: Callable[[], bool], began: float) -> None:
    """All steps that are left, and the end. `began` is the attempt's start in seconds."""
    done = begin(trainer, folder, folder.latest(), began)
    for step in range(done + 1, trainer.config.train.steps + 1):
        if trainer.over:
            break
        with kept_before(trainer, folder, step):
            row = trainer.step(step)
        record(trainer, folder, step, row, began)
        if trainer.over:
            break
        save_when_due(trainer, folder, step, stop)
    end(trainer, folder)
