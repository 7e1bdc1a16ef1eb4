"""Exact paired permutation tests over seeds, of a difference and of equivalence; Holm's correction."""

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
    sums = np.abs(signed_sums(array, draws, seed))
    return float(np.mean(sums >= abs(float(array.sum())) - rounding(array)))


def sign_flip_above_p(values: ArrayLike, draws: int = 100_000, seed: int = 0) -> float:
    """One-sided p against "the mean is at most 0": the share of sign patterns whose mean reaches ours. The
    smallest is 1/2ⁿ; no value at all gives 1."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return 1.0
    return float(np.mean(signed_sums(array, draws, seed) >= float(array.sum()) - rounding(array)))


def equivalence_p(differences: ArrayLike, margin: float) -> float:
    """p against "the mean difference is `margin` or more from 0": two one-sided sign-flip tests, of the
    differences plus and minus the margin, the larger p of both (Schuirmann, 1987).

    Exact like `sign_flip_p` where differences are symmetric about their mean. No pair at all gives 1.
    """
    if not margin > 0:
        raise ValueError("equivalence_p: needs margin > 0")
    array = np.asarray(differences, dtype=np.float64)
    return max(sign_flip_above_p(array + margin), sign_flip_above_p(margin - array))


def signed_sums(array: Floats, draws: int = 100_000, seed: int = 0) -> Floats:
    """(patterns,): the sum under every sign pattern, the first of them the observed one; above `EXACT_SEEDS`
    values under so many random patterns."""
    if array.size <= EXACT_SEEDS:
        patterns = (np.arange(2**array.size)[:, None] >> np.arange(array.size)) & 1
    else:
        patterns = np.random.default_rng(seed).integers(2, size=(draws, array.size))
        patterns[0] = 0  # the observed pattern is one of the possible ones
    return np.asarray((1.0 - 2.0 * patterns) @ array, dtype=np.float64)


def rounding(array: Floats) -> float:
    """By how much equal sums of these values may differ in their last bits."""
    return 1e-9 * float(np.abs(array).sum())


def smallest_p(seeds: int, sides: int = 2) -> float:
    """Smallest p that the sign-flip test can give: 2/2ⁿ two-sided, .25 for three seeds; 1/2ⁿ one-sided."""
    return min(1.0, sides / 2.0**seeds)


def seeds_needed(alpha: float = 0.05, comparisons: int = 1, sides: int = 2) -> int:
    """Fewest seeds at which the smallest p, times the comparisons that Holm pays for, is at most alpha; with
    one side, for the two one-sided tests of equivalence."""
    if not 0 < alpha < 1 or comparisons < 1:
        raise ValueError("seeds_needed: needs 0 < alpha < 1 and comparisons >= 1")
    seeds = 1
    while sides / 2.0**seeds * comparisons > alpha:
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
