"""What a comparison's numbers come to: better, worse, equivalent or unresolved, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.intervals import Estimate, Floats, seed_mean
from grpobench.analysis.statistics.permutation import seeds_needed, smallest_p

ALPHA = 0.05
"""Level of the tests over all pairs of a task: of those of a difference, and of those of equivalence."""
SAME = 1e-12
"""Differences of accuracies below this are rounding."""
Verdict: TypeAlias = Literal["better", "worse", "equivalent", "unresolved"]
TURNED: Mapping[Verdict, Verdict] = {"better": "worse", "worse": "better"}
"""What is said of the second arm where this is said of the first, where it is another word."""


@dataclass(frozen=True)
class Evidence:
    """What a verdict on one pair of arms rests on."""

    differences: Floats
    """(seeds,): first − second, as shares."""
    p: float
    """Of the test of a difference, after Holm."""
    p_equivalence: float
    """Of the test of equivalence, after Holm."""
    pairs: int
    """How many pairs Holm pays for."""
    margin: float
    late: Mapping[str, Sequence[str]]
    """Arm -> its seeds without a result that the pair waits for."""
    alpha: float = ALPHA
    looks: str = ""
    """Which of several looks this is; empty: there is one."""


def judge(known: Evidence) -> tuple[Verdict, str]:
    """The verdict on the first arm, and what it stands on; of an unresolved one, what it would take.

    A difference goes before equivalence: of arms that are both told apart and within the margin one is better
    and the reason says by how little.
    """
    seeds, pairs = known.differences.size, known.pairs
    needed = seeds_needed(known.alpha, pairs)
    over = f"over {seeds} paired seeds and {pairs} pair{'s' * (pairs > 1)}"
    if any(known.late.values()):
        named = "; ".join(f"{arm} seed {', '.join(own)}" for arm, own in known.late.items() if own)
        return "unresolved", f"waits for runs without a result: {named}"
    if seeds == 0:
        return "unresolved", f"no seed that both arms ran; needs {needed}"
    within, close = known.p_equivalence <= known.alpha, f"within {points(known.margin)} points"
    if known.p <= known.alpha:
        verdict: Verdict = "better" if known.differences.mean() > 0 else "worse"
        little = f"; the difference is {close}: {_p(known.p_equivalence)}" if within else ""
        return verdict, f"{_p(known.p)} {over}{little}"
    if within:
        return "equivalent", f"{close}: {_p(known.p_equivalence)} {over}"
    return "unresolved", _undecided(known, needed) + _not_equivalent(known) + _beside(known.differences)


def points(share: float) -> str:
    """A margin in points."""
    return f"{100 * share:.4g}"


def _p(value: float) -> str:
    return f"Holm p {value:.3g}"


def _undecided(known: Evidence, needed: int) -> str:
    """Why no difference is shown, and what it would take."""
    seeds, pairs = known.differences.size, known.pairs
    if known.looks:
        return f"{_p(known.p)} > {known.alpha:g} {known.looks}"
    if seeds < needed:
        return (
            f"{seeds} of the {needed} seeds that {pairs} pair{'s' * (pairs > 1)} under Holm need (smallest "
            f"possible p now {smallest_p(seeds):.3g}){_outlook(known, needed)}"
        )
    return (
        f"{_p(known.p)} > {known.alpha:g}; if difference and spread are as they look, "
        f"{_enough(known, max(needed, seeds + 1))}"
    )


def _not_equivalent(known: Evidence) -> str:
    """Why no equivalence is shown either, and whether so many seeds could show it."""
    seeds, needed = known.differences.size, seeds_needed(known.alpha, known.pairs, sides=1)
    within = f"within {points(known.margin)} points"
    if known.looks:
        return f"; equivalence {within}: {_p(known.p_equivalence)}"
    if seeds < needed:
        return f"; {seeds} seed{'s' * (seeds > 1)} can never show equivalence {within}, which takes {needed}"
    least = equivalence_margin(known.differences, seeds, known.pairs, known.alpha)
    told = f"; equivalence {within}: {_p(known.p_equivalence)}"
    if math.isnan(least):
        return told
    return f"{told}, and {seeds} seeds show arms without difference to be within {100 * least:.1f} at best"


def findable_effect(differences: ArrayLike, seeds: int, pairs: int, alpha: float = ALPHA) -> Estimate:
    """The effect that `seeds` seeds find in 80 % of repetitions as one of so many pairs under Holm, from
    the SD of the differences seen, with the values at the ends of that SD's 95 % interval. NaN where so few
    seeds can find none, and where fewer than two differences or equal ones tell nothing of the spread."""
    deviation = spread_of(differences)
    if math.isnan(deviation):
        return Estimate(math.nan, math.nan, math.nan)
    value = power.detectable(seeds, pairs, alpha) * deviation
    factor = power.spread(np.size(differences))
    return Estimate(value, factor.low * value, factor.high * value)


def equivalence_margin(differences: ArrayLike, seeds: int, pairs: int, alpha: float = ALPHA) -> float:
    """The smallest margin within which `seeds` seeds show arms without difference to be equivalent in 80 % of
    repetitions, from the SD of the differences seen; NaN as for `findable_effect`."""
    return power.detectable_margin(seeds, pairs, alpha) * spread_of(differences)


def spread_of(differences: ArrayLike) -> float:
    """SD of the differences (ddof = 1); NaN of fewer than two and of equal ones, which tell of no spread."""
    array = np.asarray(differences, dtype=np.float64)
    return math.nan if array.size < 2 or np.ptp(array) < SAME else float(array.std(ddof=1))


def _enough(known: Evidence, least: int) -> str:
    """How many seeds would find the difference that is observed."""
    mean, spread = abs(float(known.differences.mean())), float(known.differences.std(ddof=1))
    wanted = power.seeds_for(mean / spread, known.pairs, known.alpha, least) if spread > 0 else float(least)
    if not math.isfinite(wanted):
        return f"more than {power.MOST_SEEDS:,} seeds would be needed to find it"
    return f"about {wanted:.0f} seeds would find it in {power.POWER:.0%} of repetitions"


def _outlook(known: Evidence, needed: int) -> str:
    """What the fewest seeds that can decide would find."""
    effect = findable_effect(known.differences, needed, known.pairs, known.alpha)
    if math.isnan(effect.value):
        return ""
    high = f"{100 * effect.high:.1f}" if effect.high < 1 else "no limit"  # accuracies differ by 1 at most
    return (
        f"; {needed} would find {100 * effect.value:.1f} points in {power.POWER:.0%} of repetitions "
        f"({100 * effect.low:.1f} to {high} for all that {known.differences.size} tell of the SD)"
    )


def _beside(differences: Floats) -> str:
    """Why the interval that is shown leaves 0 out although the test does not reject."""
    mean = seed_mean(differences)
    if not mean.low * mean.high > 0:  # NaN without an interval
        return ""
    return "; the t interval leaves 0 out, but takes the differences as normal and this pair as the only one"
