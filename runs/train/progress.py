"""What a run tells its worker while it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


class Preempted(Exception):
    """Raised by the loop after it has saved a checkpoint because it was told to stop."""


@dataclass(frozen=True)
class Progress:
    """Where a run is. `reward` and `tokens_per_second` are NaN before the first step."""

    step: int
    steps: int
    reward: float
    tokens_per_second: float
    phase: str


def told_to(report: Callable[[Progress], None], steps: int) -> Callable[[str], None]:
    """Reports what is going on before the first of `steps` steps."""
    return lambda phase: report(Progress(0, steps, math.nan, math.nan, phase))
