"""Two arms on one task, paired by seed: the difference, what the test says, and what it could have found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.aggregates import probability_of_improvement
from grpobench.analysis.statistics.intervals import Estimate, Floats, seed_mean
from grpobench.analysis.statistics.permutation import holm, seeds_needed, sign_flip_p, smallest_p

ALPHA = 0.05
"""Level of the tests over all pairs of a task."""
SAME = 1e-12
"""Differences of accuracies below this are rounding."""


@dataclass(frozen=True)
class Comparison:
    """Two arms on one task, paired by seed. Effects are first − second, as shares."""

    task: str
    first: str
    second: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    effect: float
    low: float
    high: float
    p: float
    p_holm: float
    pairs: int
    """Pairs of the task that Holm pays for."""
    detectable: float
    """Smallest effect that this many seeds find in 80 % of repetitions under Holm, were the SD of the paired
    differences the one observed; NaN where so few seeds can find none, or show no spread."""
    detectable_low: float
    detectable_high: float
    """The same at both ends of the 95 % interval of that SD."""
    improvement: float
    """P(first > second) over all pairs of runs."""
    verdict: Literal["first", "second", "unresolved"]
    needs: str
    """Why it is unresolved and what it would take; for a verdict, what it stands on."""

    @property
    def text(self) -> str:
        """`A > B`, `B > A` or `unresolved`."""
        return {
            "first": f"{self.first} > {self.second}",
            "second": f"{self.second} > {self.first}",
            "unresolved": "unresolved",
        }[self.verdict]

    def turned(self) -> Comparison:
        """The same comparison as second − first."""
        verdicts: dict[str, Literal["first", "second", "unresolved"]] = {"first": "second", "second": "first"}
        return replace(
            self,
            first=self.second,
            second=self.first,
            differences=tuple(-difference for difference in self.differences),
            effect=-self.effect,
            low=-self.high,
            high=-self.low,
            improvement=1 - self.improvement,
            verdict=verdicts.get(self.verdict, self.verdict),
        )


def compare(
    task: str,
    values: Mapping[str, Mapping[int, float]],
    waiting: Mapping[str, Sequence[int | str]] | None = None,
    alpha: float = ALPHA,
) -> list[Comparison]:
    """Every pair of arms on one task; `values` is arm → seed → score, `waiting` arm → seeds without a result,
    each as it is to be named.

    A verdict needs three things: no run of either arm is without a result, there are as many paired seeds as
    the test needs to be able to reach alpha after Holm over all pairs of the task, and the Holm p is at most
    alpha. Everything else is `unresolved`.
    """
    pairs = list(combinations(values, 2))
    shared = [tuple(sorted(set(values[one]) & set(values[other]))) for one, other in pairs]
    differences = [
        np.array([values[one][seed] - values[other][seed] for seed in seeds])
        for (one, other), seeds in zip(pairs, shared, strict=True)
    ]
    p = [sign_flip_p(difference) for difference in differences]
    adjusted = holm(p)
    found = []
    for index, (one, other) in enumerate(pairs):
        mean = seed_mean(differences[index])
        late = {arm: tuple((waiting or {}).get(arm, ())) for arm in (one, other)}
        verdict, needs = _judge(differences[index], float(adjusted[index]), len(pairs), late, alpha)
        findable = findable_effect(differences[index], len(shared[index]), len(pairs), alpha)
        found.append(
            Comparison(
                task=task,
                first=one,
                second=other,
                seeds=shared[index],
                differences=tuple(map(float, differences[index])),
                effect=mean.value,
                low=mean.low,
                high=mean.high,
                p=p[index],
                p_holm=float(adjusted[index]),
                pairs=len(pairs),
                detectable=findable.value,
                detectable_low=findable.low,
                detectable_high=findable.high,
                improvement=probability_of_improvement(
                    [[*values[one].values()]], [[*values[other].values()]]
                ),
                verdict=verdict,
                needs=needs,
            )
        )
    return found


def _judge(
    differences: Floats, adjusted: float, pairs: int, late: Mapping[str, Sequence[int | str]], alpha: float
) -> tuple[Literal["first", "second", "unresolved"], str]:
    seeds, needed = differences.size, seeds_needed(alpha, pairs)
    if any(late.values()):
        named = "; ".join(f"{arm} seed {', '.join(map(str, seeds))}" for arm, seeds in late.items() if seeds)
        return "unresolved", f"waits for runs without a result: {named}"
    if seeds == 0:
        return "unresolved", f"no seed that both arms ran; needs {needed}"
    beside = _beside(differences)
    if seeds < needed:
        return "unresolved", (
            f"{seeds} of the {needed} seeds that {pairs} pair{'s' * (pairs > 1)} under Holm need (smallest "
            f"possible p now {smallest_p(seeds):.3g}){_outlook(differences, needed, pairs, alpha)}{beside}"
        )
    if adjusted > alpha:
        if np.ptp(differences) < SAME and abs(differences[0]) < SAME:
            return "unresolved", f"Holm p {adjusted:.3g}: the arms do not differ in these {seeds} seeds"
        return "unresolved", (
            f"Holm p {adjusted:.3g} > {alpha:g}; if difference and spread are as they look, "
            f"{_enough(differences, max(needed, seeds + 1), pairs, alpha)}{beside}"
        )
    verdict: Literal["first", "second"] = "first" if differences.mean() > 0 else "second"
    return verdict, f"Holm p {adjusted:.3g} over {seeds} paired seeds and {pairs} pair{'s' * (pairs > 1)}"


def findable_effect(differences: ArrayLike, seeds: int, pairs: int, alpha: float = ALPHA) -> Estimate:
    """The effect that `seeds` seeds find in 80 % of repetitions as one of so many pairs under Holm, from
    the SD of the differences seen, with the values at the ends of that SD's 95 % interval. NaN where so few
    seeds can find none, and where fewer than two differences or equal ones tell nothing of the spread."""
    array = np.asarray(differences, dtype=np.float64)
    if array.size < 2 or np.ptp(array) < SAME:
        return Estimate(math.nan, math.nan, math.nan)
    value = power.detectable(seeds, pairs, alpha) * float(array.std(ddof=1))
    factor = power.spread(array.size)
    return Estimate(value, factor.low * value, factor.high * value)


def _enough(differences: Floats, least: int, pairs: int, alpha: float) -> str:
    """How many seeds would find the difference that is observed."""
    mean, spread = abs(float(differences.mean())), float(differences.std(ddof=1))
    wanted = power.seeds_for(mean / spread, pairs, alpha, least) if spread > 0 else float(least)
    if not math.isfinite(wanted):
        return f"more than {power.MOST_SEEDS:,} seeds would be needed to find it"
    return f"about {wanted:.0f} seeds would find it in {power.POWER:.0%} of repetitions"


def _outlook(differences: Floats, needed: int, pairs: int, alpha: float) -> str:
    """What the fewest seeds that can decide would find."""
    effect = findable_effect(differences, needed, pairs, alpha)
    if math.isnan(effect.value):
        return ""
    high = f"{100 * effect.high:.1f}" if effect.high < 1 else "no limit"  # accuracies differ by 1 at most
    return (
        f"; {needed} would find {100 * effect.value:.1f} points in {power.POWER:.0%} of repetitions "
        f"({100 * effect.low:.1f} to {high} for all that {differences.size} tell of the SD)"
    )


def _beside(differences: Floats) -> str:
    """Why the interval that is shown leaves 0 out although the test does not reject."""
    mean = seed_mean(differences)
    if not mean.low * mean.high > 0:  # NaN without an interval
        return ""
    return "; the t interval leaves 0 out, but takes the differences as normal and this pair as the only one"
