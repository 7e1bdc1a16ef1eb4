"""Outcomes that end with the run, such as the number of updates before a collapse.

A run that reaches its last update without a collapse is censored: it might have lasted longer. A t interval
assumes normal values without bounds, so it is cut to possible values, and censored runs are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from grpobench.analysis.findings.outcomes import Key
from grpobench.analysis.statistics.intervals import Estimate

Horizons: TypeAlias = Mapping[str, Mapping[Key, float]]
"""Test whose outcome ends with the run -> planned updates of each run."""


def clip(mean: Estimate, low: float, high: float) -> Estimate:
    """The estimate cut to possible values; NaN stays NaN."""
    return Estimate(*(one if math.isnan(one) else min(max(one, low), high) for one in _ends(mean)))


def count_reached(values: Mapping[Key, float], horizons: Mapping[Key, float]) -> int:
    """Number of runs that made all their updates before the outcome ended."""
    return sum(value >= horizons.get(run, math.inf) for run, value in values.items())


def horizons_of_finished(values: Mapping[Key, float], states: Mapping[Key, str]) -> dict[Key, float]:
    """Of a table that was kept without the planned updates: the longest of its finished runs, which made all
    of theirs. Empty where no run finished."""
    ends = [value for run, value in values.items() if states.get(run) == "finished"]
    return dict.fromkeys(values, max(ends)) if ends else {}


def _ends(mean: Estimate) -> tuple[float, float, float]:
    return mean.value, mean.low, mean.high
