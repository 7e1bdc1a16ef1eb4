"""Saturating curves of accuracy against compute, and what they say about more compute.

ScaleRL (arXiv:2510.13786) describes the accuracy R after compute C by

    R_C − R_0 = (A − R_0) / (1 + (C_mid/C)^B)

with the accuracy R_0 before training, the ceiling A, the exponent B (how sharply the curve bends) and the
midpoint C_mid, at which half of the gain is reached. Before the bend, A and B are nearly free: many pairs of
them fit. `extrapolate` therefore gives intervals over seeds, and `topics.compute_curves` refuses a fit whose
ceiling they leave open.

Accuracies are shares from 0 to 1. Compute has any unit; the curve is the same in each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpobench.analysis.statistics.intervals import Estimate

Floats: TypeAlias = NDArray[np.float64]

LEVEL = 0.9
"""Of all intervals and of the band."""
RESAMPLES = 400
EXPONENTS = (0.5, 8.0)
"""Bounds of B. A curve that bends more sharply than at 8 jumps from one evaluation to the next."""
MIDPOINTS = (0.01, 10.0)
"""Bounds of C_mid in units of the last compute that the fit sees."""
GRID = (32, 16)
"""Midpoints and exponents of the grid with which each fit begins, both spaced evenly in logarithms."""
ZOOMS = 9
"""How often the grid is refined around its best point, each time to a third of its spacing."""
STARTS = 5
"""Best points of the grid from which the least squares of a single fit start."""
PARAMETERS = 3


@dataclass(frozen=True)
class Sigmoid:
    """One curve; call it with compute (K,) for accuracies (K,)."""

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
    with np.errstate(divide="ignore"):
        rise: Floats = special.expit(exponent * (np.log(compute) - np.log(midpoint)))
    return rise


# Fits


def fit(compute: ArrayLike, accuracy: ArrayLike, start: float) -> Sigmoid:
    """The least-squares curve through accuracies (K,) at rising compute (K,) above 0, with `start` given.
    Bounds are those of the module; the search starts from several points. Raises ValueError for fewer than
    three points."""
    from scipy import optimize  # the import takes a second, and few experiments have enough evaluations

    x, y = np.asarray(compute, dtype=np.float64), np.asarray(accuracy, dtype=np.float64)
    if x.size < PARAMETERS or not (x > 0).all():
        raise ValueError(f"fit: needs {PARAMETERS} points with compute above 0; got compute {x.tolist()}")
    unit = x.max()
    midpoints, exponents, gains, errors = _grid_errors(x[None] / unit, y[None] - start, _whole_grid(1), 1 - start)
    low = [np.log(MIDPOINTS[0]), np.log(EXPONENTS[0]), 0.0]
    high = [np.log(MIDPOINTS[1]), np.log(EXPONENTS[1]), max(1 - start, 1e-9)]

    def residuals(parameters: Floats) -> Floats:
        curve = parameters[2] * _rise(x / unit, math.exp(parameters[0]), math.exp(parameters[1]))
        return curve - (y - start)

    best = None
    for index in np.argsort(errors[0], kind="stable")[:STARTS]:
        first = np.clip([midpoints[0, index], exponents[0, index], gains[0, index]], low, high)
        found = optimize.least_squares(residuals, first, bounds=(low, high), xtol=1e-12, ftol=1e-12)
        best = found if best is None or found.cost < best.cost else best
    assert best is not None
    midpoint, exponent, gain = best.x
    return Sigmoid(start, start + float(gain), math.exp(exponent), math.exp(midpoint) * float(unit))


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

    For a given midpoint and exponent the best ceiling has a closed form, so that a grid of these two, refined
    around its best point, finds the optimum. Thousands of fits take less time than one by one takes for ten.
    """
    unit = compute.max(axis=1, keepdims=True)
    grid = _whole_grid(len(compute))
    spacing = np.array(
        [
            np.log(bounds[1] / bounds[0]) / (points - 1)
            for bounds, points in zip((MIDPOINTS, EXPONENTS), GRID, strict=True)
        ]
    )
    rows = np.arange(len(compute))
    for zoom in range(ZOOMS + 1):
        midpoints, exponents, gains, errors = _grid_errors(
            compute / unit, accuracy - start[:, None], grid, 1 - start
        )
        best = errors.argmin(axis=1)
        center = np.stack([midpoints[rows, best], exponents[rows, best]], axis=-1)
        steps = spacing / 3.0 ** (zoom + 1) * np.arange(-3, 4)[:, None]
        around = np.stack(np.meshgrid(steps[:, 0], steps[:, 1], indexing="ij"), axis=-1).reshape(1, -1, 2)
        bounds = np.log([MIDPOINTS, EXPONENTS])
        grid = np.clip(center[:, None] + around, bounds[:, 0], bounds[:, 1])
    gain = gains[rows, best]
    return Sigmoids(start, start + gain, np.exp(center[:, 1]), np.exp(center[:, 0]) * unit[:, 0])


def _whole_grid(count: int) -> Floats:
    """(count, grid points, 2): logarithms of midpoint and exponent."""
    axes = [
        np.linspace(*np.log(bounds), points)
        for bounds, points in zip((MIDPOINTS, EXPONENTS), GRID, strict=True)
    ]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(1, -1, 2)
    return np.broadcast_to(grid, (count, *grid.shape[1:]))


def _grid_errors(
    compute: Floats, gained: Floats, grid: Floats, most: float | Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """(log midpoint, log exponent, best gain from 0 to `most`, squared error), each (R, grid points), for
    compute in units of its largest and accuracies above the start, both (R, K)."""
    midpoint, exponent = grid[..., 0], grid[..., 1]
    rise = _rise(compute[:, None], np.exp(midpoint)[..., None], np.exp(exponent)[..., None])
    along, square = (rise * gained[:, None]).sum(-1), (rise * rise).sum(-1)
    gain = np.clip(along / np.maximum(square, 1e-300), 0.0, np.asarray(most).reshape(-1, 1))
    error = (gained * gained).sum(-1)[:, None] - 2 * gain * along + gain * gain * square
    return midpoint, exponent, gain, error


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
    compute: Floats, accuracy: Floats, start: Floats, fitted: int, rng: np.random.Generator
) -> Extrapolation:
    """Fit the mean over S seeds at the first `fitted` of K evaluations. Compute and accuracy are (S, K), start
    is (S,).

    Intervals and band come from fits to resampled seeds. The resampled means are stretched about the mean so
    that the interval of a plain mean is its t interval: with four seeds the bootstrap alone is .6 times as
    wide. The band is for the measured mean of as many seeds. It adds the noise of an evaluation of that mean:
    the scatter of seeds about their own levels, or that of the mean about the curve if it is larger.
    """
    seeds = len(accuracy)
    if seeds < 2 or not PARAMETERS < fitted <= accuracy.shape[1]:
        raise ValueError(f"extrapolate: needs two seeds and {PARAMETERS + 1} points; got {seeds}, {fitted}")
    means = compute.mean(0), accuracy.mean(0), float(start.mean())
    curve = fit(means[0][:fitted], means[1][:fitted], means[2])
    drawn = rng.integers(seeds, size=(RESAMPLES, seeds))
    stretch = stretch_of(seeds)

    def resampled(values: Floats) -> Floats:
        mean = values.mean(0)
        return np.asarray(mean + stretch * (values[drawn].mean(1) - mean), dtype=np.float64)

    curves = fit_many(
        np.broadcast_to(means[0][:fitted], (RESAMPLES, fitted)), resampled(accuracy[:, :fitted]), resampled(start)
    )
    noise = _noise(accuracy[:, :fitted], curve(means[0][:fitted]))
    predicted = curves(means[0]) + noise * rng.standard_normal((RESAMPLES, len(means[0])))
    low, high = np.clip(np.quantile(predicted, _tails(), axis=0), 0.0, 1.0)

    def interval(value: float, values: Floats) -> Estimate:
        return Estimate(value, *map(float, np.quantile(values, _tails())))

    return Extrapolation(
        curve,
        interval(curve.ceiling, curves.ceiling),
        interval(curve.exponent, curves.exponent),
        interval(curve.midpoint, curves.midpoint),
        low,
        high,
    )


def _tails() -> tuple[float, float]:
    return (1 - LEVEL) / 2, (1 + LEVEL) / 2


def stretch_of(seeds: int) -> float:
    """√(n/(n−1)) · t/z at the level of the band: 1.65 for four seeds, 1.23 for eight."""
    upper = (1 + LEVEL) / 2
    return math.sqrt(seeds / (seeds - 1)) * float(special.stdtrit(seeds - 1, upper) / special.ndtri(upper))


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
