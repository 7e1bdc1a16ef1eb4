"""The settings of errors that a verifier is made to commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from grpobench.runs.tools.strict import Settings


@dataclass(frozen=True)
class VerifierErrors(Settings):
    """How often a verifier accepts what is wrong and rejects what is right, and what shares an error."""

    false_positive: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Chance that a wrong answer gets the reward of a right one."""
    false_negative: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Chance that a right answer gets the reward of a wrong one."""
    by: Literal["completion", "group", "problem"] = "completion"
    """What one draw is for: a `completion`, all of a step's completions of a problem (`group`), or all of the
    run's (`problem`), so that some problems are always misjudged. The draw is compared with both chances: of
    two errors that share it, the rarer one happens only together with the other."""

    @classmethod
    def of(cls, flip: float | VerifierErrors) -> VerifierErrors:
        """What `reward.flip` says, of which a plain number is the chance of both errors."""
        return flip if isinstance(flip, VerifierErrors) else cls(flip, flip)

    def draw_key(self, stream: str, problem: str, index: int) -> tuple[str | int, ...]:
        """What the draw for a completion depends on, beside the run's seed: `stream` names its step."""
        return {"completion": (stream, problem, index), "group": (stream, problem), "problem": (problem,)}[
            self.by
        ]
