"""How often a step is repeated: as often as its length allows."""

from __future__ import annotations

from typing import Final

from grpobench.runs.bench.cases import MOST_WARM_UP

BUDGET: Final = 120.0
"""Seconds that the steps of a case may take, those of the warm-up included."""
LEAST: Final = 3
"""Counted steps that each side makes however long they take: fewer have no median worth the name."""
LONG: Final = 5.0
"""Seconds of a side's step from which one step of warm-up is enough: what is done once (allocations, planned
shapes) takes no longer in a large step than in a small one."""


def warm_up(slowest: float) -> int:
    """Steps of each side that are not counted, given the seconds that the slower side's first step took."""
    return 1 if slowest >= LONG else MOST_WARM_UP


def counted(seconds: float, spent: float, most: int, budget: float = BUDGET) -> int:
    """Steps to count of each side: at most `most` (nor fewer than `LEAST`, if that many are allowed), where
    all sides together took `seconds` for a step at the end of the warm-up and `spent` are gone."""
    fit = int((budget - spent) / seconds) if seconds > 0 else most
    return min(most, max(LEAST, fit))
