"""Intervals of a difference between two arms over seeds and problems."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from grpobench.analysis.statistics.intervals import Estimate, Floats


@dataclass(frozen=True)
class Components:
    """Mean squares of a table of seeds × problems without repetition; the model is
    d[s, p] = μ + seed[s] + problem[p] + rest[s, p], all three random."""

    seeds: int
    problems: int
    between_seeds: float
    """E = problems · σ²_seed + σ²_rest."""
    between_problems: float
    """E = seeds · σ²_problem + σ²_rest."""
    residual: float
    """E = σ²_rest."""


def components(differences: ArrayLike) -> Components:
    """Mean squares of (seeds, problems) differences, with at least two seeds and two problems."""
    table = np.asarray(differences, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 2:
        raise ValueError("components: needs at least two seeds and two problems")
    seeds, problems = table.shape
    mean, rows, columns = table.mean(), table.mean(axis=1), table.mean(axis=0)
    residuals = table - rows[:, None] - columns[None, :] + mean
    return Components(
        seeds,
        problems,
        problems * float(np.square(rows - mean).sum()) / (seeds - 1),
        seeds * float(np.square(columns - mean).sum()) / (problems - 1),
        float(np.square(residuals).sum()) / ((seeds - 1) * (problems - 1)),
    )


def crossed_interval(
    differences: ArrayLike, clusters: Sequence[Hashable] | None = None, level: float = 0.95
) -> Estimate:
    """Mean of (seeds, problems) paired differences with its interval over seeds × problems.

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
    mean_squares = components(gathered)
    cells = mean_squares.seeds * mean_squares.problems
    variance, freedom = mean_squares.between_seeds / cells, float(mean_squares.seeds - 1)
    if mean_squares.between_problems > mean_squares.residual:
        parts = (mean_squares.between_seeds, mean_squares.between_problems, mean_squares.residual)
        variance = (parts[0] + parts[1] - parts[2]) / cells
        degrees = (
            *(mean_squares.seeds - 1, mean_squares.problems - 1),
            (mean_squares.seeds - 1) * (mean_squares.problems - 1),
        )
        squares = sum((part / cells) ** 2 / degree for part, degree in zip(parts, degrees, strict=True))
        freedom = variance**2 / squares
    half = float(special.stdtrit(freedom, 0.5 + level / 2)) * math.sqrt(variance)
    return Estimate(mean, mean - half, mean + half)


def _by_cluster(table: Floats, clusters: Sequence[Hashable]) -> Floats:
    """(seeds, clusters): each cluster's sum of deviations from the mean, scaled so that the means of rows and
    of the table stay what they are up to the mean; with one problem per cluster the deviations themselves."""
    _, index = np.unique([str(cluster) for cluster in clusters], return_inverse=True)
    groups = int(index.max()) + 1
    member = np.zeros((table.shape[1], groups))
    member[np.arange(table.shape[1]), index] = groups / table.shape[1]
    return np.asarray((table - table.mean()) @ member, dtype=np.float64)
