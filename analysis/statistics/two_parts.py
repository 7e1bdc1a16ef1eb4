"""Outcomes of which some runs fail: the share of runs that fail, and the outcome of the others."""

# A mean over runs of which some collapse describes none of them: one run at 0 among eight moves it by more
# than most algorithms differ. A two-part model compares the share of failing runs and the outcome of the
# others (Lachenbruch, Analysis of data with clumping at zero, Biometrische Zeitschrift 18:351–356, 1976;
# Comparisons of two-part models with competitors, Statistics in Medicine 20:1215–1234, 2001). Lachenbruch
# adds the squares of both statistics. Here the larger one decides, by joint sign flips (`maxima.joint_ps`),
# which also says which part differs: swapping the arms of a seed swaps its failures and its outcomes at
# once.
#
# The outcome is that of seeds in which no arm fails. They are a selection: if one arm fails more often,
# they are those that survive it (principal stratification: Frangakis and Rubin, Biometrics 58:21–29, 2002).
# The difference between arms is real in these seeds and says nothing of the others.

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.statistics.intervals import Estimate, normal_quantile

FEWEST_IN_GAP = 6
"""Fewest runs of an arm in which a gap can be seen."""
TIMES = 3
"""How much wider than the range on either side a gap must be. Of arms of eight runs with normal outcomes no
arm in 1,000 has such a gap."""


@dataclass(frozen=True)
class TwoParts:
    """The two parts of a contrast."""

    fails: str
    """How runs fail, such as `collapse`."""
    failed: tuple[int, ...]
    """Runs that fail, by name of the contrast."""
    runs: tuple[int, ...]
    """Runs that either fail or have an outcome, by name of the contrast."""
    share: Estimate
    """Weighted sum of the shares that fail, with its 95 % interval."""
    p_share: float
    outcome: Estimate
    """Effect over the seeds in which no run fails, with the t interval."""
    p_outcome: float
    seeds: int
    """Number of these seeds."""


def share_difference(differences: ArrayLike) -> Estimate:
    """Mean of differences of shares from −1 to 1, one for each seed, with the 95 % interval of Agresti and
    Min (Simple improved confidence intervals for comparing matched proportions, Statistics in Medicine
    24:729–740, 2005): a normal interval after two seeds are added, with half a seed at −1, half at 1 and one
    at 0. It has a width where no run fails. NaN without seeds."""
    array = np.asarray(differences, dtype=np.float64)
    if not array.size:
        return Estimate(math.nan, math.nan, math.nan)
    count = array.size + 2
    mean = float(array.sum()) / count
    half = normal_quantile() * math.sqrt((float(array @ array) + 1) / count - mean**2) / math.sqrt(count)
    return Estimate(float(array.mean()), max(-1.0, mean - half), min(1.0, mean + half))


def widest_gap(values: ArrayLike, least: float) -> tuple[float, float] | None:
    """The ends of the widest gap between the values of an arm, if its runs are of two kinds: the gap is
    `TIMES` as wide as the range of the values on either side, and at least `least`. None for fewer than
    `FEWEST_IN_GAP` values."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if ordered.size < FEWEST_IN_GAP:
        return None
    index = int(np.argmax(np.diff(ordered)))
    low, high = float(ordered[index]), float(ordered[index + 1])
    widest_side = max(low - float(ordered[0]), float(ordered[-1]) - high)
    return (low, high) if high - low >= max(TIMES * widest_side, least) else None
