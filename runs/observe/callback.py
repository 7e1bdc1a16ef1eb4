"""The interface of callbacks: `begin`, then steps and evaluations as they come, then `end`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Callback:
    """The base class of callbacks; its methods do nothing. Inheriting from it is optional: any object will
    do, and methods that it lacks are not called. A callback runs in a process of its own, beside the run. It
    cannot change the results of the run, and an exception ends the callback but not the run."""

    def begin(self, config: Mapping[str, Any], folder: Path, done: int) -> None:
        """A run begins or resumes. `config` is run.toml as tables, `folder` the run's folder, `done` the
        number of steps before a resumed run. An earlier attempt's callback may have seen steps after `done`:
        the run repeats them with the same numbers."""

    def step(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl: ``step`` and numbers by metric, None for numbers that are not finite. Row 0
        is the evaluation before training. A row includes the evaluations of its step."""

    def evaluation(self, step: int, split: str, summary: Mapping[str, Any]) -> None:
        """An evaluation after `step` steps on ``validation`` or ``test``: numbers by metric. It comes before
        the row of the step."""

    def end(self, state: str, why: str) -> None:
        """How the run ended: ``finished``, ``diverged``, ``collapsed``, ``preempted`` or ``crashed``, and
        why."""
