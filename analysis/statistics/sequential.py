"""Tests for experiments to which seeds are added between interim analyses, with valid error rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.runfolder.interim import InterimPlan
from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.statistics.permutation import (
    EXACT_SEEDS,
    equivalence_p,
    sign_flip_p,
    sign_patterns,
    smallest_p,
)

POWER_OF_TIME = 2.0
"""The share of the level that is spent by n of N seeds is (n/N)²: between the spending like Pocock's (power
1) and like O'Brien and Fleming's (about 3) of Kim and DeMets (1987)."""
HALVINGS = 26
"""Of the search for the smallest level: to within 2⁻²⁶."""


def spending(seeds: Sequence[int], pairs: int, alpha: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Which of these numbers of seeds can decide, and the share of the level that each of them may spend.

    An analysis at which even the largest difference would not be found, as one of so many pairs under Holm,
    is left out and its share goes to the next. Empty where none can decide.
    """
    analyses: list[int] = []
    weights: list[float] = []
    spent = 0.0
    for n in seeds:
        share = (n / seeds[-1]) ** POWER_OF_TIME - spent
        if smallest_p(n) <= share * alpha / pairs * (1 + 1e-12):
            analyses.append(n)
            weights.append(share)
            spent += share
    if analyses and analyses[-1] != seeds[-1]:  # a last step that cannot decide by itself
        return (), ()
    return tuple(analyses), tuple(weights)


@dataclass(frozen=True)
class InterimAnalysis:
    """One interim analysis of one pair."""

    p: Floats
    """(2^seeds,): the two-sided p of every sign pattern, the observed one first; (1,) where they are too many
    to count, the observed one's alone."""
    order: np.ndarray
    ends: np.ndarray
    """(2^seeds,): place of the last pattern in `order` whose p is the same."""
    weight: float
    counts: bool
    """Whether the difference has the sign that it has at the last analysis."""

    @property
    def exact(self) -> bool:
        """Whether all patterns were counted."""
        return self.p.size > 1


def stages(
    differences: ArrayLike, analyses: Sequence[int], weights: Sequence[float]
) -> list[InterimAnalysis]:
    """The analyses that these differences, in the order of the plan, have reached."""
    array = np.asarray(differences, dtype=np.float64)
    reached_stages = []
    for seeds, weight in zip(analyses, weights, strict=True):
        if seeds > array.size:
            break
        stage_differences = array[:seeds]
        if seeds <= EXACT_SEEDS:
            blocks = [signs @ stage_differences for signs in sign_patterns(seeds, 1)]
            sums = np.abs(np.concatenate(blocks))
            slack = 1e-9 * float(np.abs(stage_differences).sum())  # equal sums may differ in their last bits
            p = 1 - np.searchsorted(np.sort(sums), sums - slack, side="left") / sums.size
        else:
            p = np.array([sign_flip_p(stage_differences)])
        order = np.argsort(p, kind="stable")
        ends = np.searchsorted(p[order], p[order], side="right") - 1
        same = float(stage_differences.mean()) * float(array.mean()) > 0 or seeds == array.size
        reached_stages.append(InterimAnalysis(np.asarray(p, dtype=np.float64), order, ends, weight, same))
    return reached_stages


def rejects(reached: Sequence[InterimAnalysis], level: float) -> bool:
    """Whether the test of a difference has rejected by now at a level over all analyses."""
    before = np.zeros(1, dtype=bool)
    for stage in reached:
        spend = stage.weight * level * (1 + 1e-12)
        if not stage.exact:  # what was rejected before is unknown: the analysis has its own share only
            if stage.counts and stage.p[0] <= spend:
                return True
            continue
        before = before[np.arange(stage.p.size) & (before.size - 1)]
        fresh = np.cumsum(~before[stage.order])[stage.ends] / stage.p.size
        allowed = stage.p[stage.order][fresh <= spend]
        bound = float(allowed[-1]) if allowed.size else 0.0
        if stage.counts and stage.p[0] <= bound:
            return True
        before = before | (stage.p <= bound)
    return False


def sequential_p(differences: ArrayLike, plan: InterimPlan) -> float:
    """p against "no difference" that is valid whichever analysis is the last: the smallest level at
    which it would have been rejected by now. 1 before the first analysis.

    An analysis at which the difference had the other sign does not count. Never too small; too large by 2⁻²⁶
    at most.

    Each interim analysis j may spend w_j α, fixed beforehand, Σ w_j = 1. Given the sizes |d| of the
    differences, their signs are fair coins where there is no difference. Every sign pattern of an analysis is
    known, and so is whether it would have been rejected before; the analysis rejects the largest sums for
    which the share of patterns that are rejected now and were not before is at most w_j α. Whatever the sizes
    are, the chance of ever rejecting is at most Σ w_j α = α. The level is exact like the test itself and no
    normal theory is in it.

    The rejections at a lower level are among those at a higher one: the higher level spends more at every
    analysis and has fewer patterns left that were not rejected before, so its bound is at least as wide (by
    induction over analyses). The smallest level that would have rejected by now is therefore a p value at
    whatever analysis one stops, and Holm's correction may be used on it (closed testing; sequential p values
    of Liu and Anderson, 2008).

    Pairs keep Holm here, where a single analysis has max-T (`maxima`): the patterns that were rejected before
    differ between families of pairs, so a wider family no longer has the wider bound. Step-down would have no
    proof, and closed testing would need the search above for each family."""
    reached = stages(differences, plan.analyses, plan.weights)
    if not reached or not rejects(reached, 1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rejects(reached, middle) else (middle, high)
    return high


def sequential_equivalence_p(differences: ArrayLike, margin: float, plan: InterimPlan) -> float:
    """p against "the margin or more from 0" likewise: the smallest p of an analysis over its weight, at most
    1.

    The nulls of the two one-sided tests are no single point, so each analysis has its own p over w_j
    (Bonferroni over analyses). Equivalence keeps Holm everywhere: joint flips about the margin are exact for
    pairs exactly a margin apart, but arms further apart are no single point, and no proof covers maxima
    there."""
    array = np.asarray(differences, dtype=np.float64)
    reached_stages = [
        equivalence_p(array[:seeds], margin) / weight
        for seeds, weight in zip(plan.analyses, plan.weights, strict=True)
        if seeds <= array.size
    ]
    return min([1.0, *reached_stages])
