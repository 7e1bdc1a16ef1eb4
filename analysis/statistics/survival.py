"""How long runs last: Kaplan–Meier curves and the log-rank test, over few runs."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from grpobench.analysis.statistics.intervals import Estimate, Floats, t_quantile
from grpobench.analysis.statistics.permutation import sign_patterns

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

    curve = stats.ecdf(stats.CensoredData(uncensored=times[ended], right=times[~ended])).sf
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN says that there is none
        interval = curve.confidence_interval(method="log-log")
    fell = np.isin(curve.quantiles, times[ended])
    low, high = (bound.probabilities[fell] for bound in (interval.low, interval.high))
    return Survival(curve.quantiles[fell], curve.probabilities[fell], low, high)


def restricted_mean(steps: ArrayLike, collapsed: ArrayLike, horizon: float) -> Estimate:
    """Mean number of steps that runs last up to `horizon`: the area under the Kaplan–Meier curve (Royston and
    Parmar 2013). A run that is censored at the horizon is counted as the horizon, not as a collapse.

    The variance is Greenwood's, Σ_j A_j² d_j/(n_j (n_j − d_j)) with A_j the area after the j-th collapse,
    times n/(n − 1): without earlier censoring this is s²/n. The 95 % interval is a t interval over runs on
    the scale log(mean/(horizon − mean)), so that it lies between 0 and the horizon. It has NaN bounds for one
    run and where all runs last equally long. Raises ValueError without runs or for a horizon of 0 or less."""
    times = np.minimum(np.asarray(steps, dtype=np.float64), horizon)
    ended = np.asarray(collapsed, dtype=bool) & (np.asarray(steps, dtype=np.float64) < horizon)
    count = times.size
    if not count or not horizon > 0:
        raise ValueError(f"restricted_mean: needs a run and a horizon above 0; got {count} and {horizon}")
    ends = np.unique(times[ended])
    at_risk = np.array([(times >= end).sum() for end in ends], dtype=np.float64)
    fell = np.array([((times == end) & ended).sum() for end in ends], dtype=np.float64)
    shares = np.concatenate([[1.0], np.cumprod(1 - fell / at_risk)])
    areas = shares * np.diff(np.concatenate([[0.0], ends, [horizon]]))
    mean = float(areas.sum())
    after = areas[::-1].cumsum()[::-1][1:]  # the area that is left after each collapse
    left = at_risk > fell  # no area is left after the last run has collapsed
    variance = float((after[left] ** 2 * fell[left] / (at_risk * (at_risk - fell))[left]).sum())
    if count < 2 or not variance > 0 or not 0 < mean < horizon:
        return Estimate(mean, math.nan, math.nan)
    error = math.sqrt(variance * count / (count - 1))
    half = float(t_quantile(count - 1)) * error * horizon / (mean * (horizon - mean))
    low, high = (horizon * float(special.expit(special.logit(mean / horizon) + end)) for end in (-half, half))
    return Estimate(mean, low, high)


LastSteps: TypeAlias = tuple[ArrayLike, ArrayLike]
"""The last step of each run of an arm, and whether it collapsed there."""


def log_rank(first: LastSteps, second: LastSteps) -> float:
    """Two-sided p of the log-rank test by permutation: the share of ways to deal all runs to arms of these
    sizes whose |Z| reaches ours. With n and m runs the smallest p is 1/C(n+m, n), twice that for n = m; NaN
    where no run collapsed or an arm has none.

    Exact where at most `MOST_SPLITS` ways exist, which the asymptotic test of a handful of runs is not.
    """
    times, ended = _joined(first, second)
    first_count, count = len(np.asarray(first[0])), len(times)
    if not ended.any() or first_count in (0, count):
        return math.nan
    z = np.abs(log_rank_z(times, ended, deals(count, first_count)))
    return float(np.mean(z >= z[0] - 1e-9))


def paired_log_rank(first: LastSteps, second: LastSteps) -> float:
    """Two-sided p of the log-rank test by permutation inside pairs: the share of ways to swap the runs of
    some seeds between two arms whose |Z| reaches ours. Both arms are in the order of the seeds. With n seeds
    the smallest p is 2/2ⁿ; NaN where no run collapsed, and 1 without seeds."""
    times, ended = _joined(first, second)
    pairs = len(times) // 2
    if not pairs:
        return 1.0
    if not ended.any():
        return math.nan
    reached = total = 0
    observed = math.nan
    for signs in sign_patterns(pairs, 2 * pairs, MOST_SPLITS):
        unswapped = (signs > 0).astype(np.float64)
        z = np.abs(log_rank_z(times, ended, np.concatenate([unswapped, 1 - unswapped], axis=1)))
        observed = float(z[0]) if math.isnan(observed) else observed  # the first pattern swaps nothing
        reached += int(np.count_nonzero(z >= observed - 1e-9))
        total += len(z)
    return reached / total


def _joined(first: LastSteps, second: LastSteps) -> tuple[Floats, NDArray[np.bool_]]:
    """Last steps and collapses of the runs of both arms, (runs,) each."""
    times = np.concatenate([np.asarray(arm[0], dtype=np.float64) for arm in (first, second)])
    return times, np.concatenate([np.asarray(arm[1], dtype=bool) for arm in (first, second)])


@lru_cache(maxsize=4)
def deals(count: int, first_count: int) -> Floats:
    """(ways, count): ways to deal so many runs, 1 for the `first_count` of the first arm, the observed one
    first. All pairs of arms with as many runs share them."""
    if math.comb(count, first_count) <= MOST_SPLITS:
        chosen = np.array(list(itertools.combinations(range(count), first_count)))
    else:
        rng = np.random.default_rng(0)
        chosen = np.array([rng.permutation(count)[:first_count] for _ in range(MOST_SPLITS)])
        chosen[0] = np.arange(first_count)  # the observed deal is one of the possible ones
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
