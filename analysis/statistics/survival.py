"""How long runs last: Kaplan–Meier curves and the log-rank test, over few runs."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.statistics.intervals import Floats

MOST_SPLITS = 20_000
"""Up to this number, all ways to deal the runs to two arms are counted; above it, random ways are drawn."""


@dataclass(frozen=True)
class Survival:
    """Share of runs that have not collapsed, by step. All arrays have shape (number of collapse steps,)."""

    steps: Floats
    shares: Floats
    """The steps from which each share holds."""
    low: Floats
    high: Floats
    """95 % interval, log-log (Kalbfleisch and Prentice); NaN where all or none are left."""

    @property
    def last(self) -> float:
        """The share at the end."""
        return float(self.shares[-1]) if len(self.shares) else 1.0

    @property
    def median(self) -> float:
        """The first step at which at most half of the runs are left; infinite where more remain."""
        fallen = np.flatnonzero(self.shares <= 0.5)
        return float(self.steps[fallen[0]]) if len(fallen) else math.inf


def kaplan_meier(steps: ArrayLike, collapsed: ArrayLike) -> Survival:
    """The curve from each run's last step and whether it collapsed there. Other runs are censored: they
    lasted at least this long. Both have shape (runs,)."""
    times, ended = np.asarray(steps, dtype=np.float64), np.asarray(collapsed, dtype=bool)
    none = np.empty(0)
    if not ended.any():
        return Survival(none, none, none, none)
    from scipy import stats  # the import takes a second, and few experiments have collapses

    found = stats.ecdf(stats.CensoredData(uncensored=times[ended], right=times[~ended])).sf
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN says that there is none
        interval = found.confidence_interval(method="log-log")
    fell = np.isin(found.quantiles, times[ended])
    low, high = (bound.probabilities[fell] for bound in (interval.low, interval.high))
    return Survival(found.quantiles[fell], found.probabilities[fell], low, high)


def log_rank(
    first: tuple[ArrayLike, ArrayLike],
    second: tuple[ArrayLike, ArrayLike],
    draws: int = MOST_SPLITS,
    seed: int = 0,
) -> float:
    """Two-sided p of the log-rank test by permutation: the share of ways to deal all runs to arms of these
    sizes whose |Z| reaches ours. Each arm is (last steps, whether the run collapsed there). With n and m runs
    the smallest p is 1/C(n+m, n), twice that for n = m; NaN where no run collapsed or an arm has none.

    Exact where at most `draws` ways exist, which the asymptotic test of a handful of runs is not.
    """
    times = np.concatenate([np.asarray(arm[0], dtype=np.float64) for arm in (first, second)])
    ended = np.concatenate([np.asarray(arm[1], dtype=bool) for arm in (first, second)])
    own, count = len(np.asarray(first[0])), len(times)
    if not ended.any() or own in (0, count):
        return math.nan
    z = np.abs(log_rank_z(times, ended, deals(count, own, draws, seed)))
    return float(np.mean(z >= z[0] - 1e-9))


@lru_cache(maxsize=4)
def deals(count: int, own: int, draws: int, seed: int) -> Floats:
    """(ways, count): ways to deal so many runs, 1 for the `own` of the first arm, the observed one first. All
    pairs of arms with as many runs share them."""
    if math.comb(count, own) <= draws:
        chosen = np.array(list(itertools.combinations(range(count), own)))
    else:
        rng = np.random.default_rng(seed)
        chosen = np.array([rng.permutation(count)[:own] for _ in range(draws)])
        chosen[0] = np.arange(own)  # the observed deal is one of the possible ones
    dealt = np.zeros((len(chosen), count))
    np.put_along_axis(dealt, chosen, 1.0, axis=1)
    return dealt


def log_rank_z(times: Floats, ended: np.ndarray, dealt: Floats) -> Floats:
    """Σ(O − E)/√ΣV over the steps at which runs collapsed, for each row of `dealt` (ways, runs), which is 1
    for the runs of the first arm. 0 where there is no variance."""
    difference, variance = np.zeros(len(dealt)), np.zeros(len(dealt))
    for step in np.unique(times[ended]):
        at_risk = (times >= step).astype(float)
        fell = ((times == step) & ended).astype(float)
        everyone, all_fell = at_risk.sum(), fell.sum()
        ours = dealt @ at_risk
        difference += dealt @ fell - all_fell * ours / everyone
        if everyone > 1:
            share = ours / everyone
            variance += all_fell * share * (1 - share) * (everyone - all_fell) / (everyone - 1)
    return np.divide(difference, np.sqrt(variance), out=np.zeros_like(difference), where=variance > 0)
