"""What a run tells its worker while it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


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


def told_to(report: Callable[[Progress], None], steps: int) -> Callable[[str], None]:
    """Reports what is going on before the first of `steps` steps."""
    return lambda phase: report(Progress(0, steps, math.nan, math.nan, phase))
