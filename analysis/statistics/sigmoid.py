"""Saturating curves of accuracy against compute, and what they say about more compute."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.statistics.intervals import Estimate, Floats, normal_quantile, t_quantile

LEVEL = 0.9
"""Of all intervals and of the band."""
TAILS = (1 - LEVEL) / 2, (1 + LEVEL) / 2
RESAMPLES = 400
EXPONENTS = (0.5, 8.0)
"""Bounds of B. A curve that bends more sharply than at 8 jumps from one evaluation to the next."""
MIDPOINTS = (0.01, 10.0)
"""Bounds of C_mid in units of the last compute that the fit sees."""
GRID = (32, 16)
"""Midpoints and exponents of the grid with which each fit begins, both spaced evenly in logarithms."""
WINDOW = 2
"""Points on each side of the best one that are tried next."""
MOVES = 40
"""How often the search moves on from its best point or refines its steps around it."""
STARTS = 5
"""Best points of the grid from which the least squares of a single fit start."""
PARAMETERS = 3


@dataclass(frozen=True)
class Sigmoid:
    """One curve; call it with compute (K,) for accuracies (K,).

    ScaleRL (arXiv:2510.13786) describes the accuracy R after compute C by

        R_C − R_0 = (A − R_0) / (1 + (C_mid/C)^B)

    with the accuracy R_0 before training, the ceiling A, the exponent B (how sharply the curve bends) and the
    midpoint C_mid, at which half of the gain is reached. Accuracies are shares from 0 to 1. Compute has any
    unit; the curve is the same in each."""

    start: float
    """R_0, the accuracy before training."""
    ceiling: float
    """A, from R_0 to 1."""
    exponent: float
    """B."""
    midpoint: float
    """C_mid in the unit of the compute."""

    def __call__(self, compute: ArrayLike) -> Floats:
        gain = _rise(np.asarray(compute, dtype=np.float64), self.midpoint, self.exponent)
        return self.start + (self.ceiling - self.start) * gain


def _rise(compute: Floats, midpoint: float | Floats, exponent: float | Floats) -> Floats:
    """1/(1 + (C_mid/C)^B), which is 0 at C = 0."""
    from scipy import special  # takes half a second, and listings import this file

    with np.errstate(divide="ignore"):
        logarithm = np.log(compute)
    rise: Floats = special.expit(exponent * (logarithm - np.log(midpoint)))
    return rise


# Fits


def fit(compute: ArrayLike, accuracy: ArrayLike, start: float) -> Sigmoid:
    """The least-squares curve through accuracies (K,) at rising compute (K,) above 0, with `start` given.
    Bounds are those of the module; the search starts from the best points of a grid. Raises ValueError for
    fewer than three points."""
    from scipy import optimize  # the import takes a second, and few experiments have enough evaluations

    x, y = np.asarray(compute, dtype=np.float64), np.asarray(accuracy, dtype=np.float64) - start
    if x.size < PARAMETERS or not (x > 0).all():
        raise ValueError(f"fit: needs {PARAMETERS} points with compute above 0; got compute {x.tolist()}")
    unit, grid = float(x.max()), _whole_grid()
    gains, errors = _profile(x[None] / unit, y[None], grid, np.array([1.0 - start]))
    low, high = np.log([MIDPOINTS, EXPONENTS]).T
    low, high = np.append(low, 0.0), np.append(high, max(1.0 - start, 1e-9))

    def residuals(parameters: Floats) -> Floats:
        midpoint, exponent = np.exp(parameters[:2])
        return np.asarray(parameters[2] * _rise(x / unit, midpoint, exponent) - y, dtype=np.float64)

    starts = np.argsort(errors[0], kind="stable")[:STARTS]
    solutions = [
        optimize.least_squares(
            residuals,
            np.clip([*grid[0, i], gains[0, i]], low, high),
            bounds=(low, high),
            xtol=1e-12,
            ftol=1e-12,
        )
        for i in starts
    ]
    midpoint, exponent, gain = min(solutions, key=lambda solution: float(solution.cost)).x
    return Sigmoid(start, start + float(gain), math.exp(exponent), math.exp(midpoint) * unit)


@dataclass(frozen=True)
class Sigmoids:
    """R curves, each parameter (R,)."""

    start: Floats
    ceiling: Floats
    exponent: Floats
    midpoint: Floats

    def __call__(self, compute: ArrayLike) -> Floats:
        """Accuracies (R, K) at compute (K,)."""
        x = np.asarray(compute, dtype=np.float64)[None]
        gain = _rise(x, self.midpoint[:, None], self.exponent[:, None])
        return self.start[:, None] + (self.ceiling - self.start)[:, None] * gain


def fit_many(compute: Floats, accuracy: Floats, start: Floats) -> Sigmoids:
    """The least-squares curves of `fit` for R data sets at once: compute and accuracy (R, K), start (R,).

    For a given midpoint and exponent the best ceiling has a closed form. So the search is over these two: the
    best point of a grid, then of ever finer grids around it. Hundreds of fits take as long as a few of `fit`.
    """
    unit = compute.max(axis=1)
    limits = np.log([MIDPOINTS, EXPONENTS])
    rows, grid = np.arange(len(compute)), _whole_grid()
    step = np.tile((limits[:, 1] - limits[:, 0]) / (np.array(GRID) - 1), (len(rows), 1))
    window = _pairs(np.arange(-WINDOW, WINDOW + 1.0), np.arange(-WINDOW, WINDOW + 1.0))
    for move in range(MOVES + 1):
        gains, errors = _profile(compute / unit[:, None], accuracy - start[:, None], grid, 1.0 - start)
        best = errors.argmin(axis=1)
        center, gain = np.broadcast_to(grid, (len(rows), *grid.shape[1:]))[rows, best], gains[rows, best]
        if move:  # finer steps once the best point is inside the window; until then the window moves on
            at_edge = np.abs(window[0][best]).max(axis=1) == WINDOW
            step = np.where(at_edge[:, None], step, step / 2)
        grid = np.clip(center[:, None] + window * step[:, None], limits[:, 0], limits[:, 1])
    midpoint, exponent = np.exp(center).T
    return Sigmoids(start, start + gain, exponent, midpoint * unit)


def _whole_grid() -> Floats:
    """(1, G, 2): logarithms of midpoint, in units of the largest compute, and exponent."""
    bounds = zip((MIDPOINTS, EXPONENTS), GRID, strict=True)
    return _pairs(*(np.log(np.geomspace(low, high, points)) for (low, high), points in bounds))


def _pairs(first: Floats, second: Floats) -> Floats:
    """All pairs of two sets of numbers, (1, G, 2)."""
    return np.stack(np.meshgrid(first, second, indexing="ij"), axis=-1).reshape(1, -1, 2)


def _profile(compute: Floats, gained: Floats, grid: Floats, most: Floats) -> tuple[Floats, Floats]:
    """Best gain from 0 to `most` (R,) and its squared error, each (R, G), at the points of a grid (1 or R, G,
    2), for compute in units of its largest and accuracies above the start, both (R, K)."""
    rise = _rise(compute[:, None], np.exp(grid[..., 0, None]), np.exp(grid[..., 1, None]))
    along, square = (rise * gained[:, None]).sum(-1), (rise * rise).sum(-1)
    gain = np.clip(along / np.maximum(square, 1e-300), 0.0, most[:, None])
    return gain, (gained**2).sum(-1)[:, None] - 2 * gain * along + gain**2 * square


# Predictions


@dataclass(frozen=True)
class Extrapolation:
    """A curve that was fitted to the first evaluations, and what it says about all of them."""

    curve: Sigmoid
    ceiling: Estimate
    exponent: Estimate
    midpoint: Estimate
    low: Floats
    """(K,): the lower end of the band for the mean over seeds at each evaluation."""
    high: Floats


def extrapolate(
    compute: Floats,
    accuracy: Floats,
    start: Floats,
    fitted: int,
    rng: np.random.Generator,
    shape: float = 0.0,
) -> Extrapolation:
    """Fit the mean over S seeds at the first `fitted` of K evaluations. Compute and accuracy are (S, K),
    start is (S,).

    Intervals and band come from fits to resampled seeds. The resampled means are stretched about the mean so
    that the interval of a plain mean is its t interval: with four seeds the bootstrap alone is .6 times as
    wide. The band is for the measured mean of as many seeds. It adds the noise of an evaluation of that mean:
    the scatter of seeds about their own levels, or that of the mean about the curve if it is larger. It also
    adds an error of the curve itself, since no three parameters describe training exactly: normal, common to
    all evaluations and the ceiling, and within `shape` as often as the band's level says.

    Before the bend, A and B are nearly free: many pairs of them fit. `topics.compute` refuses a fit whose
    ceiling the intervals leave open."""
    seeds = len(accuracy)
    if seeds < 2 or not PARAMETERS < fitted <= accuracy.shape[1]:
        raise ValueError(f"extrapolate: needs two seeds and {PARAMETERS + 1} points; got {seeds}, {fitted}")
    drawn, stretch = rng.integers(seeds, size=(RESAMPLES, seeds)), stretch_of(seeds)

    def resampled(values: Floats) -> Floats:
        mean = values.mean(0)
        return np.asarray(mean + stretch * (values[drawn].mean(1) - mean), dtype=np.float64)

    spent, first = compute.mean(0), accuracy[:, :fitted]
    curve = fit(spent[:fitted], first.mean(0), float(start.mean()))
    same = np.broadcast_to(spent[:fitted], (RESAMPLES, fitted))
    curves = fit_many(same, resampled(first), resampled(start))
    noise = _noise(first, curve(spent[:fitted])) * rng.standard_normal((RESAMPLES, len(spent)))
    off = shape / normal_quantile(LEVEL) * rng.standard_normal((RESAMPLES, 1))
    low, high = np.clip(np.quantile(curves(spent) + noise + off, TAILS, axis=0), 0.0, 1.0)

    def interval(value: float, values: Floats) -> Estimate:
        return Estimate(value, *map(float, np.quantile(values, TAILS)))

    return Extrapolation(
        curve,
        interval(curve.ceiling, np.clip(curves.ceiling + off[:, 0], 0.0, 1.0)),
        interval(curve.exponent, curves.exponent),
        interval(curve.midpoint, curves.midpoint),
        low,
        high,
    )


def stretch_of(seeds: int) -> float:
    """√(n/(n−1)) · t/z at the level of the band: 1.65 for four seeds, 1.23 for eight."""
    return math.sqrt(seeds / (seeds - 1)) * float(t_quantile(seeds - 1, LEVEL) / normal_quantile(LEVEL))


def _noise(accuracy: Floats, curve: Floats) -> float:
    """Standard deviation of an evaluation's mean over seeds about the curve (K,), from accuracies (S, K): the
    larger of what seeds scatter about their own levels, and what the mean scatters about the curve."""
    seeds, points = accuracy.shape
    means = accuracy.mean(0)
    within = accuracy - means
    within = within - within.mean(1, keepdims=True)
    of_seeds = float((within**2).sum()) / ((seeds - 1) * (points - 1)) / seeds
    of_mean = float(((means - curve) ** 2).sum()) / (points - PARAMETERS)
    return math.sqrt(max(of_seeds, of_mean))
