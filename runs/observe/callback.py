"""What a callback is told, in this order: `begin`, then steps and evaluations as they come, then `end`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Callback:
    """The base class of callbacks, which hears everything and does nothing. It need not be inherited from:
    any object will do, and a method that it lacks is not called.

    A callback lives in a process of its own, beside the run. Whatever it does there changes no number of the
    run, and what it raises ends it, not the run.
    """

    def begin(self, config: Mapping[str, Any], folder: Path, done: int) -> None:
        """A run begins or goes on. `config` is run.toml as tables, `folder` the run's, `done` the steps that
        a resumed run has behind it. Steps after `done` may have been told to an earlier attempt's callback:
        the run makes them again, with the same numbers."""

    def step(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl: ``step`` and numbers by metric, None for what is not finite. Row 0 holds
        the evaluation before training. Evaluations of the step are in it."""

    def evaluation(self, step: int, split: str, summary: Mapping[str, Any]) -> None:
        """An evaluation after `step` steps on ``validation`` or ``test``: numbers by metric. It comes before
        the row of the step."""

    def end(self, state: str, why: str) -> None:
        """How the run ended: ``finished``, ``diverged``, ``collapsed``, ``preempted`` or ``crashed``,
        and why."""
