"""Intervals of a difference between two arms over seeds and problems."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.statistics.intervals import Estimate, Floats, t_quantile


def mean_squares(table: Floats) -> tuple[float, float, float]:
    """Mean squares of a table (seeds, problems) without repetition, with at least two seeds and two problems:
    between seeds, between problems, and of the rest. The model is d[s, p] = μ + seed[s] + problem[p] +
    rest[s, p], all three random. Expected are problems · σ²_seed + σ²_rest, seeds · σ²_problem + σ²_rest and
    σ²_rest."""
    seeds, problems = table.shape
    mean, rows, columns = table.mean(), table.mean(axis=1), table.mean(axis=0)
    residuals = table - rows[:, None] - columns[None, :] + mean
    return (
        problems * float(np.square(rows - mean).sum()) / (seeds - 1),
        seeds * float(np.square(columns - mean).sum()) / (problems - 1),
        float(np.square(residuals).sum()) / ((seeds - 1) * (problems - 1)),
    )


def crossed_interval(differences: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Estimate:
    """Mean of (seeds, problems) paired differences with its 95 % interval over seeds × problems.

    Var(mean) = σ²_seed/n + σ²_problem/m + σ²_rest/(nm), by moments: (MS_seed + MS_problem − MS_rest)/(nm)
    with Satterthwaite's degrees of freedom. A negative σ²_problem counts as 0, which leaves the t interval
    over seeds: the crossed standard error is never the smaller one. Problems that share a cluster (a
    template) are drawn together. NaN bounds with fewer than two seeds or clusters.

    A bootstrap that draws seeds and problems with replacement counts σ²_rest three times (Owen, The
    pigeonhole bootstrap, 2007), which makes its intervals too wide.

    The test over seeds asks whether a difference would appear with other seeds on the same problems. This
    interval asks whether it would also appear on other problems like these."""
    table = np.asarray(differences, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(table.mean())
    gathered = _by_cluster(table, clusters) if clusters is not None else table
    if min(gathered.shape) < 2:
        return Estimate(mean, math.nan, math.nan)
    between_seeds, between_problems, residual = parts = mean_squares(gathered)
    seeds, problems = gathered.shape
    variance, freedom = between_seeds / gathered.size, float(seeds - 1)
    if between_problems > residual:
        variance = (between_seeds + between_problems - residual) / gathered.size
        degrees = seeds - 1, problems - 1, (seeds - 1) * (problems - 1)
        squares = sum((part / gathered.size) ** 2 / n for part, n in zip(parts, degrees, strict=True))
        freedom = variance**2 / squares
    half = float(t_quantile(freedom)) * math.sqrt(variance)
    return Estimate(mean, mean - half, mean + half)


def _by_cluster(table: Floats, clusters: Sequence[Hashable]) -> Floats:
    """(seeds, clusters): each cluster's sum of deviations from the mean, scaled so that the means of rows and
    of the table stay what they are up to the mean; with one problem per cluster the deviations themselves."""
    _, index = np.unique([str(cluster) for cluster in clusters], return_inverse=True)
    groups = int(index.max()) + 1
    member = np.zeros((table.shape[1], groups))
    member[np.arange(table.shape[1]), index] = groups / table.shape[1]
    return np.asarray((table - table.mean()) @ member, dtype=np.float64)
