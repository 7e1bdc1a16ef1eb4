"""Rank correlation with an interval from a bootstrap over clusters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grpobench.analysis.statistics.intervals import Estimate, Floats

DRAWS = 10_000
"""Resamples of the interval."""
FEWEST = 8
"""Clusters below which a rank correlation has no interval. Simulated 95 % intervals over 8 and 12 clusters of
one or three pairs cover correlations of 0, .6 and .9 in 90 to 99 % of cases, those over four single pairs one
of .9 in less than 80 % (`pytest -m slow tests/analysis/test_ranks.py`)."""


def spearman(clusters: Sequence[Floats], seed: int = 0) -> Estimate:
    """Spearman's correlation of all pairs, with the percentile interval of a bootstrap over clusters.

    `clusters` are arrays (n, 2) of pairs that depend on each other, such as the tests of one finding.
    Resamples in which one column has a single value are left out. NaN for fewer than three pairs; the ends
    are NaN for fewer than `FEWEST` clusters.
    """
    if sum(map(len, clusters)) < 3:
        return Estimate(math.nan, math.nan, math.nan)
    table = np.concatenate(clusters)
    if np.isnan(table).any():  # a NaN has no rank
        return Estimate(math.nan, math.nan, math.nan)
    value = float(_correlations(table, np.ones((1, len(table))))[0])
    if len(clusters) < FEWEST:
        return Estimate(value, math.nan, math.nan)
    count, sizes = len(clusters), [len(cluster) for cluster in clusters]
    drawn = np.random.default_rng(seed).integers(count, size=(DRAWS, count))
    cells = (drawn + count * np.arange(DRAWS)[:, None]).ravel()
    copies = np.bincount(cells, minlength=DRAWS * count).reshape(DRAWS, count).astype(np.float64)
    correlations = _correlations(table, np.repeat(copies, sizes, axis=1))
    if np.isnan(correlations).all():
        return Estimate(value, math.nan, math.nan)
    low, high = np.nanquantile(correlations, (0.025, 0.975))
    return Estimate(value, float(low), float(high))


def _correlations(table: Floats, copies: Floats) -> Floats:
    """Pearson's correlation (D,) of the ranks of two columns, ties at their mean rank, of `table` (n, 2) with
    each row taken as often as a row of `copies` (D, n) says; NaN if a column has a single value."""
    ranks = [_ranks_of_copies(column, copies) for column in table.T]
    middle = (copies.sum(axis=1, keepdims=True) + 1) / 2  # the mean of all ranks
    first, second = (of_column - middle for of_column in ranks)
    scale = np.sqrt((copies * first**2).sum(axis=1) * (copies * second**2).sum(axis=1))
    products: Floats = (copies * first * second).sum(axis=1)
    correlations: Floats = np.full(len(copies), math.nan)
    np.divide(products, scale, out=correlations, where=scale > 0)
    return correlations


def _ranks_of_copies(column: Floats, copies: Floats) -> Floats:
    """Ranks (D, n) of the values of a column (n,) among all copies, ties at their mean rank."""
    _, tied = np.unique(column, return_inverse=True)
    of_value = copies @ (tied[:, None] == np.arange(tied.max() + 1))  # copies of each value, (D, values)
    mean_ranks: Floats = np.cumsum(of_value, axis=1) - (of_value - 1) / 2
    return mean_ranks[:, tied]
