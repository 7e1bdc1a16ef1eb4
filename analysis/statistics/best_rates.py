"""Which arm is better if each has its best learning rate: tests that choose no rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import TypeAlias

import numpy as np

from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.statistics.maxima import MOST_PARTITIONED, families_of
from grpobench.analysis.statistics.permutation import holm, sign_patterns
from grpobench.analysis.statistics.rates import RateCurve, cross_fit

Pair: TypeAlias = tuple[str, str]
EXACT_SEEDS = 12
"""Up to this many seeds all sign patterns are counted."""
DRAWS = 10_000
"""Sign patterns above that: at p = .05 the standard error is .002."""
MOST_COMBINATIONS = 20_000
"""Up to this many combinations of best rates all families of pairs are tested; above, Holm corrects."""
SLACK = 1e-9
"""Equal sums may differ in their last bits."""
WIDEST = 1.0
"""Scores are shares, which cannot differ by more."""
LEVEL = 0.95
"""Of the interval."""
STEPS = 21
"""Bisections of an interval's bound: to 1e-6 of `WIDEST`."""


@dataclass(frozen=True)
class BestRatePair:
    """Two arms on one task, each at its best learning rate. Effects are first − second, as shares."""

    first: str
    second: str
    seeds: tuple[int, ...]
    differences: Mapping[int, float]
    """Seed → cross-fitted difference; empty for fewer than two seeds. If their mean is outside of `low` to
    `high`, because halves of the seeds choose rates at which other seeds fail, all are shifted so that it is
    the difference of the two best means, which is always inside."""
    effect: float
    """Their mean."""
    low: float
    """The differences of the best rates that the test at 5 % does not reject, from `low` to `high`."""
    high: float
    p: float
    """Two-sided p of "the best rates are equally good"."""
    p_adjusted: float
    """p corrected over the pairs."""
    first_is_better: bool
    """The direction of the evidence."""
    p_equivalence: float
    """p of "the best rates differ by the margin or more"."""
    p_equivalence_holm: float


def compare_best_rates(
    curves: Mapping[str, RateCurve], pairs: Sequence[Pair], margin: float
) -> list[BestRatePair]:
    """The pairs, corrected together. `margin` is a share. Raises ValueError for a margin that is not above 0.

    "The best rate of A is no better than the best rate of B" means: there is a rate β of B whose expected
    score no rate of A exceeds. For a fixed β the contrasts A(α) − B(β) of all rates α are tested together by
    max-T over joint sign flips of the seeds. The claim "A is better" needs a rejection for every β, since
    nobody knows which one is best (intersection-union test: Berger, 1982). Every rate uses all seeds, and
    nothing is chosen by results. Several pairs of arms are corrected by closed testing over the same families
    as `maxima`; a family's null hypothesis says which rate of each arm is its best, and all combinations must
    be rejected. `_family_p` says when the level is proven.

    This test is a construction of this project. It replaces a sign-flip test of cross-fitted differences,
    whose seeds share the choice of the rate: that test rejects 3 to 20 % of true null hypotheses at 5 %
    (docs/comparisons.md). Estimates of the difference are cross-fitted (`rates.cross_fit`), as long as they
    lie in the interval."""
    if not margin > 0:
        raise ValueError(f"equivalence at best rates needs a margin above 0, not {margin:g}")
    seeds = sorted({seed for arm in {arm for pair in pairs for arm in pair} for seed in curves[arm].seeds})
    contrasts = {pair: _contrasts(*_shared(curves[pair[0]], curves[pair[1]]), seeds) for pair in pairs}
    p = [_family_p([pair], contrasts) for pair in pairs]
    adjusted = _adjusted(pairs, contrasts, p)
    close = [inside_p_at_best(curves[a], curves[b], (-margin, margin)) for a, b in pairs]
    close_adjusted = holm(close)
    compared = []
    for index, (a, b) in enumerate(pairs):
        first, second = _shared(curves[a], curves[b])
        differences: dict[int, float] = {}
        if len(first.seeds) > 1:
            at_best, other = cross_fit(first), cross_fit(second)
            differences = {seed: at_best[seed] - other[seed] for seed in first.seeds}
        low, high = interval_at_best(first, second)
        effect = float(np.mean([*differences.values()])) if differences else math.nan
        if differences and not low <= effect <= high:
            shift = _of_best_means(_contrasts(first, second, first.seeds)) - effect
            differences = {seed: difference + shift for seed, difference in differences.items()}
            effect += shift
        compared.append(
            BestRatePair(
                first=a,
                second=b,
                seeds=first.seeds,
                differences=differences,
                effect=effect,
                low=low,
                high=high,
                p=p[index],
                p_adjusted=adjusted[index],
                first_is_better=_evidence(contrasts[a, b]) >= _evidence(-_turned(contrasts[a, b])),
                p_equivalence=close[index],
                p_equivalence_holm=float(close_adjusted[index]),
            )
        )
    return compared


def interval_at_best(first: RateCurve, second: RateCurve) -> tuple[float, float]:
    """The 95 % interval of "best of first − best of second" by inversion of the two-sided test, in shares:
    the differences with p above 1 − `LEVEL`. So it excludes 0 if and only if p is at most that. Infinite
    where these seeds reject nothing."""
    first, second = _shared(first, second)
    if not first.seeds:
        return -math.inf, math.inf
    contrasts = _contrasts(first, second, first.seeds)
    pair = (("first", "second"),)
    center = _of_best_means(contrasts)  # p is 1 here

    def bound(side: int) -> float:
        """By bisection: a difference of twice the widest is beyond every score."""

        def is_rejected(difference: float) -> bool:
            return _family_p(pair, {pair[0]: contrasts - difference}) <= 1 - LEVEL + SLACK

        accepted, rejected = center, center + side * 2 * WIDEST
        if not is_rejected(rejected):
            return side * math.inf
        middle = 0.0 if side * center < 0 else (accepted + rejected) / 2  # 0 first, so that p agrees
        for _ in range(STEPS):
            accepted, rejected = (accepted, middle) if is_rejected(middle) else (middle, rejected)
            middle = (accepted + rejected) / 2
        return rejected

    return bound(-1), bound(1)


def p_of_better(first: RateCurve, second: RateCurve, by: float = 0.0) -> float:
    """One-sided p of "the best rate of `first` is at most `by` better than that of `second`". 1 without
    seeds. It grows with `by`; where `first` has several rates, single sign patterns may make it fall a
    little."""
    first, second = _shared(first, second)
    if not first.seeds:
        return 1.0
    z = _normalized(_contrasts(first, second, first.seeds) - by)
    observed = z.sum(axis=2).max(axis=0)  # (rates of second,)
    reached = np.zeros(len(observed))
    total = 0
    for signs in _patterns(len(first.seeds), z.shape[0] * z.shape[1]):
        reached += (np.einsum("rqn,pn->prq", z, signs).max(axis=1) >= observed - SLACK).sum(axis=0)
        total += len(signs)
    return float(reached.max() / total)


def _shared(first: RateCurve, second: RateCurve) -> tuple[RateCurve, RateCurve]:
    """Both curves over the seeds that both have."""
    seeds = tuple(seed for seed in first.seeds if seed in set(second.seeds))
    if seeds == first.seeds == second.seeds:
        return first, second
    return _over(first, seeds), _over(second, seeds)


def _over(curve: RateCurve, seeds: tuple[int, ...]) -> RateCurve:
    columns = [curve.seeds.index(seed) for seed in seeds]
    return RateCurve(curve.rates, seeds, curve.scores[:, columns])


def _contrasts(first: RateCurve, second: RateCurve, seeds: Sequence[int]) -> Floats:
    """(rates of first, rates of second, seeds): differences of the scores of two curves over the same seeds;
    0 for seeds that they lack, which adds nothing to any sum."""
    columns = [*seeds]
    table = np.zeros((len(first.rates), len(second.rates), len(columns)))
    indices = [columns.index(seed) for seed in first.seeds]
    table[:, :, indices] = first.scores[:, None, :] - second.scores[None, :, :]
    return table


def _of_best_means(contrasts: Floats) -> float:
    """The best mean of the first less the best mean of the second."""
    return float(contrasts.mean(axis=2).max(axis=0).min())


def _normalized(contrasts: Floats) -> Floats:
    """Each contrast over √(Σ d²) of its seeds, so that the sum has variance 1 over sign flips; 0 for one that
    is 0 everywhere."""
    norms = np.sqrt((contrasts**2).sum(axis=2, keepdims=True))
    return np.asarray(np.divide(contrasts, norms, out=np.zeros_like(contrasts), where=norms > 1e-12))


def _turned(contrasts: Floats) -> Floats:
    """The contrasts of the pair the other way round, but for their sign."""
    return np.swapaxes(contrasts, 0, 1)


def _evidence(contrasts: Floats) -> float:
    """The statistic of "first is better": the smallest, over rates of the second, of the largest z over rates
    of the first."""
    return float(_normalized(contrasts).sum(axis=2).max(axis=0).min())


def _patterns(seeds: int, columns: int) -> Iterator[Floats]:
    """Sign patterns (rows, seeds) in blocks, the observed one among them."""
    if seeds <= EXACT_SEEDS:
        yield from sign_patterns(seeds, columns)
        return
    rng = np.random.default_rng(0)
    rows = max(1, 2**22 // max(columns, seeds))
    yield np.ones((1, seeds))
    for start in range(1, DRAWS, rows):
        yield rng.choice(np.array([1.0, -1.0]), size=(min(rows, DRAWS - start), seeds))


# Several pairs


def _adjusted(pairs: Sequence[Pair], contrasts: Mapping[Pair, Floats], alone: Sequence[float]) -> list[float]:
    """p of each pair corrected over all: the largest p of all families of pairs that it belongs to, or after
    Holm where these are too many."""
    if len(pairs) < 2:
        return list(alone)
    arms = {arm for pair in pairs for arm in pair}
    families = families_of(pairs) if len(arms) <= MOST_PARTITIONED else []
    members = [[pairs[index] for index in family] for family in families]
    if not members or sum(_combinations(family, contrasts) for family in members) > MOST_COMBINATIONS:
        return [*map(float, holm(alone))]
    adjusted = list(alone)
    for indices, family in zip(families, members, strict=True):
        if len(family) < 2:
            continue
        p = _family_p(family, contrasts)
        for index in indices:
            adjusted[index] = max(adjusted[index], p)
    return adjusted


def _rates_by_arm(family: Sequence[Pair], contrasts: Mapping[Pair, Floats]) -> dict[str, int]:
    """How many rates each arm of the family has."""
    counts: dict[str, int] = {}
    for pair in family:
        counts |= dict(zip(pair, contrasts[pair].shape[:2], strict=True))
    return counts


def _combinations(family: Sequence[Pair], contrasts: Mapping[Pair, Floats]) -> int:
    return math.prod(_rates_by_arm(family, contrasts).values())


def _family_p(family: Sequence[Pair], contrasts: Mapping[Pair, Floats]) -> float:
    """p of "all pairs of the family are without a difference": the largest p over all combinations of the
    arms' best rates. A combination's statistic is the largest z of any rate of any arm against the best rate
    of another.

    If the errors of a seed are jointly symmetric, the level is exact where all rates of an arm are equally
    good, and with one rate of each arm. Worse rates change the scale of their own z, so that a proof is
    missing: contrasts with errors ±1 and means 0 and −.3 reject 3 % at 1.6 %, six seeds. Simulated normal,
    skewed and collapsing errors stay within the level (docs/comparisons.md). Sums that are not divided by
    their scale have a proof, but one rate at which runs collapse hides all others."""
    rates = _rates_by_arm(family, contrasts)
    z = _over_seeds_in_use({pair: _normalized(contrasts[pair]) for pair in family})
    seeds = z[family[0]].shape[2]
    observed = _largest(z, rates, np.ones((1, seeds)))
    choices = [*product(*(range(count) for count in rates.values()))]
    reached = np.zeros(len(choices))
    total = 0
    for signs in _patterns(seeds, sum(table.shape[0] * table.shape[1] for table in z.values())):
        flipped = _largest(z, rates, signs)
        for index, chosen in enumerate(choices):
            bound = max(observed[arm][rate, 0] for arm, rate in zip(rates, chosen, strict=True))
            rows = [flipped[arm][rate] for arm, rate in zip(rates, chosen, strict=True)]
            reached[index] += np.count_nonzero(reduce(np.maximum, rows) >= bound - SLACK)
        total += len(signs)
    return float(reached.max() / total)


def _over_seeds_in_use(z: Mapping[Pair, Floats]) -> dict[Pair, Floats]:
    """Without the seeds that all contrasts of the family lack: their signs change nothing, and all patterns
    of the others may be few enough to be counted."""
    in_use = np.any([table.any(axis=(0, 1)) for table in z.values()], axis=0)
    return {pair: table[:, :, in_use] for pair, table in z.items()}


def _largest(z: Mapping[Pair, Floats], rates: Mapping[str, int], signs: Floats) -> dict[str, Floats]:
    """Arm → (rates of the arm, patterns): the largest z of any rate of any other arm of the family against
    each rate of the arm."""
    largest = {arm: np.full((count, len(signs)), -np.inf) for arm, count in rates.items()}
    for (first, second), table in z.items():
        sums = table @ signs.T  # (rates of first, rates of second, patterns)
        np.maximum(largest[second], sums.max(axis=0), out=largest[second])
        np.maximum(largest[first], -sums.min(axis=1), out=largest[first])
    return largest


# Equivalence


def inside_p_at_best(first: RateCurve, second: RateCurve, bounds: tuple[float, float]) -> float:
    """p against "best of first − best of second is at or outside the bounds", in shares: a one-sided test of
    each finite bound, the larger p of both. With one infinite bound it is a test of non-inferiority."""
    low, high = bounds
    below = p_of_better(first, second, low) if math.isfinite(low) else 0.0
    above = p_of_better(second, first, -high) if math.isfinite(high) else 0.0
    return max(below, above)
