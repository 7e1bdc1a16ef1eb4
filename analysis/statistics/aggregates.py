"""Many tasks as one number: interquartile mean and probability of improvement, with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.statistics.intervals import Estimate, Floats

RESAMPLES = 5000
"""Of the interquartile mean."""
LEVEL = 0.95
"""Of its interval."""
IMPROVEMENTS = 2000
"""Resamples of the probability of improvement."""


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half; a quarter of the values, rounded down, is cut at each end."""
    return float(_interquartile(np.asarray(values, dtype=np.float64).reshape(1, -1))[0])


def _interquartile(values: Floats) -> Floats:
    count = values.shape[1]
    cut = count // 4
    middle = np.partition(values, (cut, count - cut - 1), axis=1)[:, cut : count - cut]
    return np.asarray(middle.mean(axis=1), dtype=np.float64)


def bootstrap_interquartile_mean(by_task: Sequence[ArrayLike], seed: int) -> Estimate:
    """Interquartile mean over all runs × tasks, with a percentile interval; seeds are resampled inside each
    task.

    With n seeds a task has only nⁿ different resamples (27 for three), so the interval is rough. With one
    seed per task it has no width, and is NaN.
    """
    tasks = [values for values in (np.asarray(scores, dtype=np.float64) for scores in by_task) if values.size]
    if not tasks:
        return Estimate(math.nan, math.nan, math.nan)
    mean = interquartile_mean(np.concatenate(tasks))
    if max(values.size for values in tasks) < 2:
        return Estimate(mean, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    drawn = [values[rng.integers(values.size, size=(RESAMPLES, values.size))] for values in tasks]
    low, high = np.quantile(_interquartile(np.concatenate(drawn, axis=1)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean, float(low), float(high))


def probability_of_improvement(first: Sequence[ArrayLike], second: Sequence[ArrayLike]) -> float:
    """P(X > Y): mean over tasks of U/(n_x·n_y), ties ½. Tasks in which either side is empty are left out."""
    shares = []
    for first_scores, second_scores in zip(first, second, strict=True):
        x, y = (
            np.asarray(first_scores, dtype=np.float64)[:, None],
            np.asarray(second_scores, dtype=np.float64)[None, :],
        )
        if x.size and y.size:
            shares.append(float(((x > y) + 0.5 * (x == y)).mean()))
    return float(np.mean(shares)) if shares else math.nan


def bootstrap_improvement(first: list[Any], second: list[Any], seed: int) -> Estimate:
    """Probability of improvement; both arms' seeds are resampled inside each task."""
    if not first:
        return Estimate(math.nan, math.nan, math.nan)
    value = probability_of_improvement(first, second)
    if max(len(values) for values in (*first, *second)) < 2:
        return Estimate(value, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    total = np.zeros(IMPROVEMENTS)
    for of_task in zip(first, second, strict=True):
        x, y = (scores[rng.integers(len(scores), size=(IMPROVEMENTS, len(scores)))] for scores in of_task)
        x, y = x[:, :, None], y[:, None, :]
        total += ((x > y) + 0.5 * (x == y)).mean(axis=(1, 2))
    low, high = np.quantile(total / len(first), [0.025, 0.975])
    return Estimate(value, float(low), float(high))
