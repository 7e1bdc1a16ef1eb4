"""Means and shares with their intervals: over seeds, and over the items of one evaluation."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with an interval; the bounds are NaN where it has no interval."""

    value: float
    low: float
    high: float


def t_quantile(freedom: ArrayLike, level: float = 0.95) -> Any:
    """Half the width of the interval of a level in standard errors, by degrees of freedom."""
    from scipy import special  # takes half a second, and listings import this file

    return special.stdtrit(freedom, 0.5 + level / 2)


def normal_quantile(level: float = 0.95) -> float:
    """The same for a normal distribution."""
    from scipy import special

    return float(special.ndtri(0.5 + level / 2))


def seed_mean(values: ArrayLike, level: float = 0.95) -> Estimate:
    """Mean over seeds with the t interval, mean ± t·s/√n. The interval needs two seeds, the mean one."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(array.mean())
    if array.size == 1:
        return Estimate(mean, math.nan, math.nan)
    half = float(t_quantile(array.size - 1, level)) * standard_error(array)
    return Estimate(mean, mean - half, mean + half)


def seed_means(table: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """`seed_mean` of every row of (steps, seeds), NaN where a seed has no value: means and both bounds, each
    (steps,). A row without a value has a NaN mean, a row with one value NaN bounds."""
    array = np.asarray(table, dtype=np.float64)
    finite = np.isfinite(array)
    count = finite.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(finite, array, 0.0).sum(axis=1) / count
        spread = np.where(finite, array - mean[:, None], 0.0)
        error = np.sqrt((spread**2).sum(axis=1) / (count - 1) / count)
    half = np.where(count > 1, t_quantile(np.maximum(count - 1, 1)), np.nan) * error
    return mean, mean - half, mean + half


def standard_error(values: ArrayLike) -> float:
    """s/√n with ddof = 1; NaN for fewer than two values."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.std(ddof=1)) / math.sqrt(array.size) if array.size > 1 else math.nan


def wilson(successes: float, trials: int, level: float = 0.95) -> Estimate:
    """Wilson score interval of a share of items. `successes` may be fractional: with several samples per
    problem, pass the sum of each problem's mean and the number of problems."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(
            f"wilson: needs 0 <= successes <= trials and trials >= 1; got {successes} of {trials}"
        )
    z = normal_quantile(level)
    share, spread = successes / trials, z * z / trials
    center = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return Estimate(share, max(0.0, center - half), min(1.0, center + half))


FEW_ITEMS = 300
"""With fewer items, a share gets Wilson's interval instead of the normal one."""
Interval: TypeAlias = Literal["Wilson", "clustered", "normal", "none"]


def clustered_error(values: ArrayLike, clusters: Sequence[Hashable]) -> float:
    """Standard error of the mean of items that come in clusters (arXiv:2411.00640, eq. 4) with the factor
    G/(G − 1) for few clusters: √(G/(G−1) · Σ_g (Σ_i∈g (x_i − x̄))²)/n. With one item per cluster it is s/√n;
    NaN for one cluster."""
    array = np.asarray(values, dtype=np.float64)
    index_by_cluster: dict[Hashable, int] = {}
    index = [index_by_cluster.setdefault(cluster, len(index_by_cluster)) for cluster in clusters]
    if len(index_by_cluster) < 2:
        return math.nan
    sums = np.bincount(index, weights=array - array.mean())
    return math.sqrt(len(index_by_cluster) / (len(index_by_cluster) - 1) * float(sums @ sums)) / array.size


def item_interval(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> tuple[Estimate, Interval]:
    """Mean of one model's scores from 0 to 1 over items, and which 95 % interval it has.

    `values` are one per item (with several samples the item's mean). Where items share clusters (templates),
    the clustered error with t over G − 1; below `FEW_ITEMS` items Wilson's; else the normal one. Clusters
    that all agree have no error to show: they count as so many items of a Wilson interval.
    """
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        return Estimate(math.nan, math.nan, math.nan), "none"
    mean = float(array.mean())
    groups = len(set(clusters)) if clusters is not None else array.size
    if clusters is not None and groups < array.size:
        error = clustered_error(array, clusters)
        if not error > 0:
            return wilson(mean * groups, groups), "Wilson"
        return _within(mean, float(t_quantile(groups - 1)) * error), "clustered"
    if array.size < FEW_ITEMS or np.ptp(array) == 0:
        return wilson(float(array.sum()), array.size), "Wilson"
    return _within(mean, normal_quantile() * standard_error(array)), "normal"


def _within(mean: float, half: float) -> Estimate:
    return Estimate(mean, max(0.0, mean - half), min(1.0, mean + half))
