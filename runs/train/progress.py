"""What a run tells its worker while it goes on.

Rollouts as a rollouts file holds them, for people to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.episodes import conversation
from grpobench.runs.sample.rollouts import Group


class Preempted(BaseException):
    """Raised because the run was told to stop, once it has saved a checkpoint where there was something to
    save. No `except Exception` of a library or of a recipe's own code may take it for an error."""


SAVING = "saving"
"""The phase in which a run writes a checkpoint or its final weights: who stops it waits for that."""


@dataclass(frozen=True)
class Progress:
    """Where a run is. `reward` and `tokens_per_second` are NaN before the first step."""

    step: int
    steps: int
    reward: float
    tokens_per_second: float
    phase: str

    @property
    def pressing(self) -> bool:
        """Whether the launcher must hear of it: others may be left out where there are many."""
        return self.step >= self.steps or self.phase == SAVING


def progress_reporter(report: Callable[[Progress], None], steps: int) -> Callable[[str], None]:
    """Reports what is going on before the first of `steps` steps."""
    return lambda phase: report(Progress(0, steps, math.nan, math.nan, phase))


def transcript(group: Group, loaded: Loaded) -> dict[str, Any]:
    """One row of a rollouts file."""
    return {
        "problem": group.problem.id,
        "prompt": group.problem.prompt,
        "completions": [
            {
                "text": loaded.decode(rollout.completion),
                **conversation(loaded, rollout),
                "tokens": rollout.length,
                "stopped": rollout.stopped,
                "scores": dict(verdict.scores),
                "outcome": verdict.outcome,
                "reward": reward,
                "components": {
                    name: column[place]
                    for name, column in group.components.items()
                    if not math.isnan(column[place])
                },
            }
            for place, (rollout, verdict, reward) in enumerate(
                zip(group.rollouts, group.verdicts, group.reward, strict=True)
            )
        ],
    }
