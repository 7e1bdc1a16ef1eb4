"""The largest possible value of outcomes that are censored, such as the updates before a collapse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from grpobench.analysis.statistics.intervals import Estimate

Key: TypeAlias = tuple[str, str, int]
"""Arm, task, seed."""
Values: TypeAlias = Mapping[str, Mapping[Key, float]]
"""Test, check or control -> run -> measured value."""
Horizons: TypeAlias = Mapping[str, Mapping[Key, float]]
"""By test whose outcome is censored: the planned updates of each run, or the budget of a target."""


def clip(mean: Estimate, low: float, high: float) -> Estimate:
    """The estimate within what is possible; NaN stays NaN.

    A run that reaches its last update without a collapse is censored: it might have lasted longer. A t
    interval takes the numbers as normal and knows no such limit."""
    ends = mean.value, mean.low, mean.high
    return Estimate(*(end if math.isnan(end) else min(max(end, low), high) for end in ends))


def count_reached(values: Mapping[Key, float], horizons: Mapping[Key, float]) -> int:
    """Runs that made all of their updates without what ends the outcome."""
    return sum(value >= horizons.get(run, math.inf) for run, value in values.items())


def horizons_of_finished(values: Mapping[Key, float], states: Mapping[Key, str]) -> dict[Key, float]:
    """Of a table that was kept without the planned updates: the longest of its finished runs, which made all
    of theirs. Empty where no run finished."""
    ends = [value for run, value in values.items() if states.get(run) == "finished"]
    return dict.fromkeys(values, max(ends)) if ends else {}
