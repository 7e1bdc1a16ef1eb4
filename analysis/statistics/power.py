"""Power of the paired sign-flip permutation test, corrected for several pairs."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from grpobench.analysis.statistics.intervals import Floats, t_quantile
from grpobench.tasks.data import bounded

Correction: TypeAlias = Literal["max-t", "holm"]
"""Of p values over several pairs: closed max-T tests by joint sign flips, or Holm's."""

POWER = 0.8
"""An effect is detectable if it is found in this share of repetitions."""
REPETITIONS = 10_000
"""Simulated experiments; the power at the effect stated is off by √(.8 · .2/10,000) = .004 (one error)."""
BLOCK = 2000
"""Largest number of simulated experiments in memory at once."""
MOST_VALUES = 2**22
"""Largest number of simulated statistics in memory at once."""
SEED = 0
TABLE = Path(__file__).parent / "detectable_by_max_t.json"
TABLE_ALPHA = 0.05
MOST_PATTERNS = 64
"""k up to which repetitions are simulated. Above, the t test at the same level stands in: at the effect
that it calls detectable there, the permutation test's power is .79 to .80 up to 14 seeds and .78 at 16."""
SEARCHED_PATTERNS = 16
"""The same in a search for enough seeds for equivalence, which tries many numbers of seeds. Beyond, the t
test's margins are smaller by at most 1.5 %."""
MOST_MAXIMA = 4096
"""Patterns × pairs up to which repetitions of max-T are simulated. Above, the t test at the level
1 − (1 − α)^(1/m) of independent pairs stands in: at the effect that it calls detectable there, the power is
.77 to .80 for eight seeds and more. Six and seven seeds have few patterns (.67 at 128 pairs) and are always
simulated."""
FEW = 7
MOST_SEEDS = 1000
"""Largest number of seeds in the search for enough seeds."""
STEPPED = 60
"""Seeds up to which the steps of the smallest possible p count; beyond, any level can be met as it is."""


def deviation_factors(seeds: int) -> tuple[float, float]:
    """How far the true standard deviation may be from one estimated on two seeds or more: factors of a 95 %
    interval, √((n−1)/χ²) with n − 1 degrees of freedom at both ends; .52 and 6.3 for three seeds."""
    from scipy import special  # takes half a second, and listings import this file

    tails = 2 * special.gammaincinv((seeds - 1) / 2, [0.5 + 0.95 / 2, 0.5 - 0.95 / 2])
    low, high = np.sqrt((seeds - 1) / tails)
    return float(low), float(high)


def allowed(seeds: int, pairs: int, alpha: float = 0.05, sides: int = 2) -> int:
    """k: the subsets, the empty one included, that p ≤ α/m leaves room for. 0: nothing can be found."""
    return math.floor(alpha / pairs * 2.0**seeds / sides * (1 + 1e-12))


@lru_cache(maxsize=4096)
def detectable(seeds: int, pairs: int, alpha: float = 0.05, correction: Correction = "holm") -> float:
    """Smallest effect, in standard deviations of the paired differences, that n seeds find in 80 % of
    repetitions as one of m pairs; NaN where n seeds cannot find any effect."""
    if pairs < 1 or not 0 < alpha < 1:
        raise ValueError("detectable: needs pairs >= 1 and 0 < alpha < 1")
    if not _level(seeds, pairs, alpha, correction):
        return math.nan
    if not _simulated(seeds, pairs, alpha, correction):
        return _by_t(seeds, _level(seeds, pairs, alpha, correction))
    stored = _table().get(seeds, ()) if alpha == TABLE_ALPHA and (correction == "max-t" or pairs == 1) else ()
    if pairs <= len(stored):
        return stored[pairs - 1]
    return float(np.quantile(_effects(seeds, pairs, alpha, correction), POWER))


@cache
def _table() -> dict[int, list[float]]:
    """By number of seeds, `detectable` of 1, 2, … pairs under max-T at `TABLE_ALPHA`: a simulation of each
    takes up to a second. `tests/analysis/test_power.py` recomputes entries."""
    read = bounded.read_object(TABLE)
    return {int(seeds): effects for seeds, effects in read.items()}


def power(
    seeds: int, pairs: int, effect: float, alpha: float = 0.05, correction: Correction = "holm"
) -> float:
    """Share of repetitions in which n seeds find an effect (in standard deviations) as one of m pairs.

    Differences inside a seed are taken as normal with a standard deviation σ, so power depends on n, the
    level and effect/σ only. Under Holm the level is the smallest that it asks of a pair, α/m for m pairs,
    which every pair must meet unless others are rejected before it: the power is this or more. Under max-T
    (`maxima`) a pair is compared with the maxima over all m pairs, the others without effect and independent:
    the power is this or more, because no family is larger and pairs with an arm in common have smaller
    maxima."""
    level = _level(seeds, pairs, alpha, correction)
    if not level:
        return 0.0
    if not _simulated(seeds, pairs, alpha, correction):
        return float(_power_of_t(seeds, abs(effect), level))
    return float(np.mean(_effects(seeds, pairs, alpha, correction) <= abs(effect)))


def _simulated(seeds: int, pairs: int, alpha: float, correction: Correction) -> bool:
    """Whether power is counted in repetitions of the test itself, not that of the t test."""
    if seeds > STEPPED:
        return False
    if correction == "max-t" and pairs > 1:
        return seeds <= FEW or pairs * 2 ** (seeds - 1) <= MOST_MAXIMA
    return allowed(seeds, pairs, alpha) <= MOST_PATTERNS


def _effects(seeds: int, pairs: int, alpha: float, correction: Correction) -> Floats:
    """(REPETITIONS,): the effect from which each simulated experiment is found."""
    if correction == "max-t" and pairs > 1:
        return _thresholds_of_maxima(seeds, pairs, allowed(seeds, 1, alpha))
    return _thresholds(seeds, allowed(seeds, pairs, alpha))


def power_of_equivalence(seeds: int, pairs: int, margin: float, alpha: float = 0.05) -> float:
    """Share of repetitions in which n seeds show two equal arms to be equivalent within a
    margin (in standard deviations) as one of m pairs: both one-sided sign-flip tests reject."""
    shown = _detectable_margins(seeds, pairs, alpha)
    return float(np.mean(shown <= margin)) if shown.size else 0.0


def power_of_interval(values: int, margin: float, equal: bool = False, alpha: float = 0.05) -> float:
    """Share of repetitions in which the t interval of n values, two or more, excludes 0 where their mean is
    `margin` (in standard deviations of a value) or, with `equal`, lies inside ±margin where their mean is
    0."""
    if not equal:
        return float(_power_of_t(values, margin, alpha))
    rng = np.random.default_rng(SEED)
    means = rng.standard_normal(REPETITIONS) / math.sqrt(values)
    errors = np.sqrt(rng.chisquare(values - 1, REPETITIONS) / (values - 1) / values)
    return float(np.mean(np.abs(means) + t_quantile(values - 1, 1 - alpha) * errors < margin))


def detectable_margin(seeds: int, pairs: int, alpha: float = 0.05, most: int = MOST_PATTERNS) -> float:
    """Smallest margin (in standard deviations) within which n seeds show equal arms to be equivalent in
    80 % of repetitions; NaN where n seeds cannot show equivalence at any margin. Up to `most` patterns
    the test itself is simulated."""
    shown = _detectable_margins(seeds, pairs, alpha, most)
    return float(np.quantile(shown, POWER)) if shown.size else math.nan


@lru_cache(maxsize=256)
def _detectable_margins(seeds: int, pairs: int, alpha: float, most: int = MOST_PATTERNS) -> Floats:
    """(REPETITIONS,): the margin from which each simulated experiment without a difference is equivalent;
    empty where none is.

    The lower of the two tests asks whether z + margin is above 0, which is a threshold of an effect, and the
    upper whether −z + margin is.

    Equivalence is shown from where the margin passes the thresholds of z and of −z, k = ⌊α/m · 2ⁿ⌋, because
    its two tests have one side each."""
    from scipy import special  # takes half a second, and listings import this file

    rank = allowed(min(seeds, STEPPED), pairs, alpha, sides=1)
    if not rank:
        return np.zeros(0)
    if seeds > STEPPED or rank > most:
        level = alpha / pairs if seeds > STEPPED else rank / 2.0**seeds
        rng = np.random.default_rng(SEED)
        means = rng.standard_normal(REPETITIONS) / math.sqrt(seeds)
        errors = np.sqrt(rng.chisquare(seeds - 1, REPETITIONS) / (seeds - 1) / seeds)
        return np.asarray(np.abs(means) - special.stdtrit(seeds - 1, level) * errors, dtype=np.float64)
    return np.maximum(_thresholds(seeds, rank), _thresholds(seeds, rank, side=-1))


@lru_cache(maxsize=4096)
def seeds_for(
    effect: float, pairs: int, alpha: float = 0.05, least: int = 1, correction: Correction = "holm"
) -> float:
    """Fewest seeds, from `least`, that find an effect (in standard deviations) in 80 % of repetitions; inf
    for none or more than `MOST_SEEDS`."""
    effect = abs(effect)
    for seeds in range(least, MOST_SEEDS + 1):
        if _level(seeds, pairs, alpha, correction) and not _simulated(seeds, pairs, alpha, correction):
            return _seeds_by_t(seeds, effect, pairs, alpha, correction)
        if detectable(seeds, pairs, alpha, correction) <= effect:
            return seeds
    return math.inf


@lru_cache(maxsize=4096)
def seeds_for_equivalence(margin: float, pairs: int, alpha: float = 0.05, least: int = 1) -> float:
    """Fewest seeds, from `least`, that show equal arms to be equivalent within a margin (in standard
    deviations) in 80 % of repetitions; inf for more than `MOST_SEEDS` and for no margin.

    The search halves, so below `STEPPED` seeds, where the level moves with their number, one seed fewer may
    do as well.
    """

    def enough(seeds: int) -> bool:
        return detectable_margin(seeds, pairs, alpha, SEARCHED_PATTERNS) <= margin  # not where it is NaN

    if enough(least):
        return float(least)
    low, high = least, 2 * least
    while high < MOST_SEEDS and not enough(high):
        low, high = high, 2 * high
    high = min(high, MOST_SEEDS)
    if not enough(high):
        return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return float(high)


def _seeds_by_t(
    least: int, effect: float, pairs: int, alpha: float, correction: Correction = "holm"
) -> float:
    """Fewest seeds, from `least`, at which the t test has the power; inf for more than `MOST_SEEDS`. Up to
    `STEPPED` seeds the level moves with their number, so that more may find less; beyond, more find more."""
    if least <= STEPPED:
        few = np.arange(least, STEPPED + 1)
        levels = np.array([_level(int(n), pairs, alpha, correction) for n in few])
        enough = _power_of_t(few, effect, levels) >= POWER
        if enough.any():
            return float(few[enough.argmax()])

    def power_of(seeds: int) -> float:
        return float(_power_of_t(seeds, effect, _level(seeds, pairs, alpha, correction)))

    many = range(max(least, STEPPED + 1), MOST_SEEDS + 1)
    weaker = bisect_left(many, POWER, key=power_of)
    return float(many[weaker]) if weaker < len(many) else math.inf


def _level(seeds: int, pairs: int, alpha: float, correction: Correction = "holm") -> float:
    """The largest p of one pair that the test can give and that the correction allows; 0 for none. Under
    max-T, the level at which m independent pairs have the level α, or what the steps of p leave of it."""
    if correction == "holm":
        return alpha / pairs if seeds > STEPPED else 2 * allowed(seeds, pairs, alpha) / 2.0**seeds
    together = alpha if seeds > STEPPED else 2 * allowed(seeds, 1, alpha) / 2.0**seeds
    return -math.expm1(math.log1p(-together) / pairs)


def _by_t(seeds: int, level: float) -> float:
    from scipy import optimize  # takes half a second, and few seeds do not need it

    return float(
        optimize.brentq(lambda effect: _power_of_t(seeds, effect, level) - POWER, 1e-6, 50.0, xtol=1e-6)
    )


def _power_of_t(seeds: object, effect: float, level: object) -> Floats:
    """Power of the two-sided t test on the right side of 0. `scipy.stats` has the same distribution, and its
    import takes as long as a tenth of a report."""
    from scipy import special  # takes half a second, and listings import this file

    n = np.asarray(seeds, dtype=np.float64)
    critical = np.abs(special.stdtrit(n - 1, np.asarray(level) / 2))  # infinite at level 0, with either sign
    missed = special.nctdtr(n - 1, effect * np.sqrt(n), critical)
    return np.asarray(1.0 - np.where(np.isnan(missed), 0.0, missed), dtype=np.float64)  # NaN: too small


@lru_cache(maxsize=64)
def _thresholds(seeds: int, rank: int, side: int = 1) -> Floats:
    """(REPETITIONS,): the effect from which each simulated experiment is found; on the other `side` those of
    the same experiments with the sign turned.

    With a mean above 0, the test's p of n differences x is 2/2ⁿ times the number of subsets K, the empty one
    included, whose sum is at most 0. For x = δ + z these are the K with −mean_K(z) ≥ δ. So a repetition z is
    found from where δ passes the k-th largest −mean_K(z), k = ⌊α/m · 2ⁿ/2⌋, and the effect that is found in
    80 % of repetitions is the 80 % quantile of that. (On subset means: Hartigan, Using subsample values as
    typical values, 1969.)"""
    values = side * np.random.default_rng(SEED).standard_normal((REPETITIONS, seeds))
    values = -np.sort(values, axis=1)  # largest first, of −z
    subsets = _leading(seeds, rank)
    means = np.zeros((seeds, len(subsets)))
    for column, members in enumerate(subsets):
        means[list(members), column] = 1 / len(members)
    position = len(subsets) - rank
    blocks = [
        np.partition(values[start : start + BLOCK] @ means, position, axis=1)[:, position]
        for start in range(0, REPETITIONS, BLOCK)
    ]
    return np.concatenate(blocks)


@lru_cache(maxsize=64)
def _thresholds_of_maxima(seeds: int, pairs: int, rank: int) -> Floats:
    """(REPETITIONS,): the effect from which each simulated experiment is found as one of so many independent
    pairs under max-T; the others have no effect.

    A pattern counts against an effect δ in one more way than in `_thresholds`: another pair's statistic c in
    that pattern reaches that of x, which it does up to δ = c √(S/(n(n − c²))) − mean(z), S = Σ(z − mean(z))².
    The larger of the bounds is the pattern's, and δ is found from the k-th largest bound of all on, k = ⌊α
    2ⁿ/2⌋, patterns and their negatives counted once."""
    rng = np.random.default_rng(SEED)
    flipped = (np.arange(1, 2 ** (seeds - 1))[:, None] >> np.arange(seeds)) & 1  # without the negatives
    size, signs = flipped.sum(axis=1), (1.0 - 2.0 * flipped).T
    values = rng.standard_normal((REPETITIONS, seeds))
    rows = max(1, MOST_VALUES // (pairs * len(flipped)))
    thresholds = []
    for start in range(0, REPETITIONS, rows):
        z = values[start : start + rows]
        sums, mean = z @ flipped.T, z.mean(axis=1, keepdims=True)
        bounds = np.maximum(-sums / size, (sums - seeds * mean) / (seeds - size))
        others = rng.standard_normal((len(z), pairs - 1, seeds))
        others /= np.sqrt((others**2).sum(axis=2, keepdims=True))
        largest = np.abs(others @ signs).max(axis=1)
        squares = ((z - mean) ** 2).sum(axis=1, keepdims=True)
        reached = largest * np.sqrt(squares / (seeds * (seeds - largest**2))) - mean
        np.maximum(bounds, reached, out=bounds)
        thresholds.append(np.partition(bounds, -rank, axis=1)[:, -rank])
    return np.concatenate(thresholds)


def _leading(seeds: int, rank: int) -> list[tuple[int, ...]]:
    """Subsets of places in a falling sequence that can have one of the `rank` largest means.

    Taking out the last place, or moving a place forward, never lowers a mean. A subset that at least `rank`
    others precede in that order is not among the largest, nor is any that it precedes.
    """
    leading: list[tuple[int, ...]] = []
    waiting: list[tuple[int, ...]] = [(0,)]
    visited = set(waiting)
    while waiting:
        members = waiting.pop()
        if _before(members) > rank:
            continue
        leading.append(members)
        for child in _next(members, seeds):
            if child not in visited:
                visited.add(child)
                waiting.append(child)
    return leading


def _next(members: tuple[int, ...], seeds: int) -> list[tuple[int, ...]]:
    """The subsets just behind: one place moved back by one, or the next place added."""
    moved = [
        (*members[:i], position + 1, *members[i + 1 :])
        for i, position in enumerate(members)
        if position + 1 < (members[i + 1] if i + 1 < len(members) else seeds)
    ]
    return [*moved, (*members, members[-1] + 1)] if members[-1] + 1 < seeds else moved


def _before(members: tuple[int, ...]) -> int:
    """Number of subsets at or before this one in the order of `_leading`."""
    ends = [1]  # ways to place the first t members so that the last is at place v - 1; v = 0 stands for none
    total = 0
    for bound in members:
        summed = np.cumsum(ends)
        ends = [0] + [int(summed[min(v, len(summed) - 1)]) for v in range(bound + 1)]
        total += sum(ends)
    return total
