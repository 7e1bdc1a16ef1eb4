"""What a test measured of each arm: its runs, and their mean over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpobench.analysis.findings.censored import clip, count_reached
from grpobench.analysis.findings.record import Record
from grpobench.analysis.statistics.intervals import Estimate, seed_mean


@dataclass(frozen=True)
class ArmMean:
    """The runs of an arm on a task that have a number."""

    arm: str
    task: str
    values: tuple[float, ...]
    mean: Estimate
    """With the t interval over seeds, within what is possible."""
    horizon: float = math.nan
    """Most that a run can measure, where the outcome ends with the run; else NaN."""
    reached: int = 0
    """Runs that measure that: the mean is a lower bound of how long they last."""


def arm_means(record: Record, test: str) -> list[ArmMean]:
    """By arm and task, in the order of the runs."""
    horizons = record.horizons.get(test, {})
    found = []
    for cell in dict.fromkeys(run[:2] for run in record.states):
        values = {
            run: value
            for run, value in record.values[test].items()
            if run[:2] == cell and math.isfinite(value)
        }
        mean, end = seed_mean([*values.values()]), math.nan
        if horizons:
            end = max((horizons[run] for run in values if run in horizons), default=math.nan)
            mean = clip(mean, 0.0, end)
        reached = count_reached(values, horizons)
        found.append(ArmMean(*cell, tuple(values.values()), mean, end, reached))
    return found
