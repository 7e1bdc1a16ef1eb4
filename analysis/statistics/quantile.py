"""Quantiles of few values, without assuming how they are distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """Two of n values in ascending order, as indices from 0, between which a quantile lies."""

    low: int
    high: int
    coverage: float
    """The least probability that it does, for values drawn independently."""


def quantile_ranks(n: int, share: float, level: float = 0.95) -> Ranks:
    """The closest two order statistics of n values that hold the `share` quantile with at least `level`
    probability; the smallest and the largest where no two do. The number of values below the quantile is
    binomial, so P(x_(i) ≤ q ≤ x_(j)) ≥ Σ_{k=i}^{j−1} C(n, k) share^k (1 − share)^(n−k), i and j counted from
    1 (David and Nagaraja, Order Statistics, section 7.1). Raises ValueError for no values."""
    if n < 1 or not 0 < share < 1:
        raise ValueError(f"quantile_ranks: needs n >= 1 and 0 < share < 1; got {n} and {share}")
    from scipy import stats  # the import takes a second, and only maps need it

    below = stats.binom(n, share)
    pairs = [
        Ranks(i - 1, j - 1, float(below.cdf(j - 1) - below.cdf(i - 1)))
        for i in range(1, n + 1)
        for j in range(i, n + 1)
    ]
    enough = [pair for pair in pairs if pair.coverage >= level]
    if not enough:
        return pairs[n - 1]
    return min(enough, key=lambda pair: (pair.high - pair.low, -pair.coverage))


def exact_share(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper–Pearson interval of a share; (NaN, NaN) for n = 0."""
    if n == 0:
        return math.nan, math.nan
    from scipy import stats

    found = stats.binomtest(count, n).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)
