"""The exact paired permutation test over seeds, and Holm's correction for several pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.statistics.intervals import Floats

EXACT_SEEDS = 16
"""Most pairs whose 2^n sign patterns are all counted; above, random patterns are drawn."""


def sign_flip_p(differences: ArrayLike, draws: int = 100_000, seed: int = 0) -> float:
    """Two-sided p of the paired permutation test: the share of sign patterns whose |mean| reaches ours.

    All 2ⁿ patterns are counted up to `EXACT_SEEDS` pairs, so the smallest p is 2/2ⁿ; above, `draws` random
    patterns and the observed one. No pair at all gives 1.
    """
    array = np.asarray(differences, dtype=np.float64)
    if array.size == 0:
        return 1.0
    if array.size <= EXACT_SEEDS:
        patterns = (np.arange(2**array.size)[:, None] >> np.arange(array.size)) & 1
    else:
        patterns = np.random.default_rng(seed).integers(2, size=(draws, array.size))
        patterns[0] = 0  # the observed pattern is one of the possible ones
    sums = np.abs((1.0 - 2.0 * patterns) @ array)
    slack = 1e-9 * float(np.abs(array).sum())  # patterns with equal sums differ in the last bits
    return float(np.mean(sums >= abs(float(array.sum())) - slack))


def smallest_p(seeds: int) -> float:
    """Smallest two-sided p that the sign-flip test can give: 2/2ⁿ; .25 for three seeds."""
    return min(1.0, 2.0 / 2.0**seeds)


def seeds_needed(alpha: float = 0.05, comparisons: int = 1) -> int:
    """Fewest seeds at which the smallest p, times the comparisons that Holm pays for, is at most alpha."""
    if not 0 < alpha < 1 or comparisons < 1:
        raise ValueError("seeds_needed: needs 0 < alpha < 1 and comparisons >= 1")
    seeds = 1
    while 2.0 / 2.0**seeds * comparisons > alpha:
        seeds += 1
    return seeds


def holm(p: ArrayLike) -> Floats:
    """Holm's adjusted p values, in the order given: the k-th smallest times (m − k + 1), made monotone."""
    array = np.asarray(p, dtype=np.float64)
    order = np.argsort(array, kind="stable")
    adjusted = np.maximum.accumulate(array[order] * np.arange(array.size, 0, -1))
    out = np.empty_like(array)
    out[order] = np.minimum(adjusted, 1.0)
    return out
