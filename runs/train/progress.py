"""A run's progress reports to its worker, and its rollouts as a rollouts file holds them for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.episodes import conversation
from grpobench.runs.sample.rollouts import Group
from grpobench.tasks.data.messages import as_json


class Preempted(BaseException):
    """The run was asked to stop, and has saved a checkpoint if there was something to save. A BaseException,
    so that no `except Exception` of a library or of a recipe's code takes it for an error."""


SAVING = "saving"
"""The phase in which a run writes a checkpoint or its final weights. A launcher waits for its end."""


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
        """Whether the launcher must get this report; it may skip others if there are many."""
        return self.step >= self.steps or self.phase == SAVING


def progress_reporter(report: Callable[[Progress], None], steps: int) -> Callable[[str], None]:
    """Reports the current phase before the first of `steps` steps."""
    return lambda phase: report(Progress(0, steps, math.nan, math.nan, phase))


def transcript(
    group: Group, loaded: Loaded, token_numbers: Sequence[Mapping[str, Any] | None]
) -> dict[str, Any]:
    """One row of a rollouts file, with what is stored of the tokens of each rollout, if anything is."""
    return {
        "problem": group.problem.id,
        "prompt": as_json(group.problem.prompt),
        "completions": [
            {
                "text": loaded.decode(rollout.completion),
                **conversation(loaded, group.problem, rollout),
                "tokens": rollout.length,
                "stopped": rollout.stopped,
                "scores": dict(verdict.scores),
                "outcome": verdict.outcome,
                "answer": verdict.answer,
                **({"fault": verdict.fault} if verdict.fault else {}),
                **({"failed_test": verdict.failed_test} if verdict.failed_test else {}),
                **({"token_numbers": numbers} if (numbers := token_numbers[index]) else {}),
                "reward": reward,
                "components": {
                    name: column[index]
                    for name, column in group.components.items()
                    # JSON has no NaN, which marks a component that does not apply.
                    if not math.isnan(column[index])
                },
            }
            for index, (rollout, verdict, reward) in enumerate(
                zip(group.rollouts, group.verdicts, group.reward, strict=True)
            )
        ],
    }
