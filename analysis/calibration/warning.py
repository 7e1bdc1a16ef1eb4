"""The limit h of the early warning, set on healthy runs whose steps are resampled in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpobench.analysis.calibration.thresholds import MOST
from grpobench.analysis.detect.drift import Drift, cusum, streams
from grpobench.analysis.detect.history import Floats, History, Series

DRAWS = 2000
BLOCK = 8
"""Steps that stay together, as many as a rule asks for in a row."""


@dataclass(frozen=True)
class Limit:
    """A limit and what it stands on."""

    limit: float
    runs: int
    """Healthy runs that were resampled."""
    draws: int
    block: int
    above: int
    """Of these runs as they are, those whose sum passes it."""


def set_limit(histories: Sequence[History], draws: int = DRAWS, block: int = BLOCK, seed: int = 0) -> Limit:
    """The value that the largest sum of at most one in twenty resampled runs exceeds.

    A resampled run is the mean course of all runs plus residuals of one of them, in blocks of `block` steps
    that begin anywhere and go on at the run's first step behind its last; every metric takes the same
    blocks. So what is autocorrelated stays so within a block, and a run that learns faster than others stays
    one. Runs that logged fewer steps than others are left out; raises ValueError where there is none.
    """
    if not histories:
        raise ValueError("an early warning is set on healthy runs; there is none")
    detector = Drift()
    watched = [(series.name, sign) for series, sign in streams(histories[0])]
    logged = [min(len(history.updates(name)) for name, _ in watched) for history in histories]
    histories = [one for one, count in zip(histories, logged, strict=True) if count == max(logged)]
    values = {name: np.array([history.updates(name).values for history in histories]) for name, _ in watched}
    steps = histories[0].updates(watched[0][0]).steps
    rng = np.random.default_rng(seed)
    highs = np.zeros(draws)
    for draw in range(draws):
        run, order = int(rng.integers(len(histories))), blocks(len(steps), block, rng)
        for name, sign in watched:
            mean = values[name].mean(axis=0)
            series = Series(name, steps, mean + (values[name][run] - mean)[order])
            sums = cusum(histories[run], series, sign, detector.slack)
            highs[draw] = max(highs[draw], 0.0 if sums is None else float(sums.max()))
    limit = upper(highs, MOST)
    return Limit(limit, len(histories), draws, block, sum(highest(history) > limit for history in histories))


def blocks(count: int, block: int, rng: np.random.Generator) -> np.ndarray:
    """`count` positions in blocks of `block` that follow each other, each begun at random, (count,)."""
    starts = rng.integers(count, size=-(-count // block))
    return ((starts[:, None] + np.arange(block)) % count).ravel()[:count]


def upper(highs: Floats, share: float) -> float:
    """The least of the values that at most this share of them exceeds, rounded up to a tenth."""
    order = np.sort(highs)
    return float(np.ceil(10 * order[len(order) - 1 - int(share * len(order))]) / 10)


def highest(history: History) -> float:
    """The largest sum of a run as it is."""
    found = [cusum(history, series, sign, Drift().slack) for series, sign in streams(history)]
    return max((float(sums.max()) for sums in found if sums is not None and len(sums)), default=0.0)
