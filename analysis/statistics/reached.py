"""A metric at equal success: where another one has reached a level."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

WINDOW = 3
"""Steps over which both are averaged, because a step has few rollouts."""


def when_reached(values: Sequence[float], others: Sequence[float], level: float) -> float:
    """Mean of `values` over the first `WINDOW` steps in a row over which `others` average `level` or more;
    NaN if they never do. Both have one number per step; means leave out NaN, of a step that has none."""
    for start in range(len(others) - WINDOW + 1):
        steps = slice(start, start + WINDOW)
        if _mean(others[steps]) >= level:
            return _mean(values[steps])
    return math.nan


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan
