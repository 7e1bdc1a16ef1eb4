"""Exact paired permutation tests over seeds, of a difference and of equivalence; Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grpobench.analysis.statistics.intervals import Floats

EXACT_SEEDS = 16
"""Up to this many pairs, all 2^n sign patterns are counted; above it, random patterns are drawn."""
DRAWS = 100_000
"""Random patterns, the observed one included."""
BLOCK = 2**22
"""Largest number of values in memory at once."""


def sign_flip_p(differences: ArrayLike) -> float:
    """Two-sided p of the paired permutation test: the share of sign patterns whose |mean| reaches ours.

    All 2ⁿ patterns are counted up to `EXACT_SEEDS` pairs, so the smallest p is 2/2ⁿ; above, `DRAWS` random
    patterns and the observed one. Without pairs it is 1.
    """
    return sign_flip_ps([differences])[0]


def sign_flip_ps(differences: Sequence[ArrayLike]) -> list[float]:
    """`sign_flip_p` of each sample. Samples of equal size share their sign patterns, which are made once."""
    return _shares(differences, np.abs)


def equivalence_p(differences: ArrayLike, margin: float) -> float:
    """p against "the mean difference is `margin` or more from 0": two one-sided sign-flip tests, of the
    differences plus and minus the margin, the larger p of both (Schuirmann, 1987).

    Exact like `sign_flip_p` where differences are symmetric about their mean. Without pairs it is 1.
    """
    return equivalence_ps([differences], margin)[0]


def equivalence_ps(differences: Sequence[ArrayLike], margin: float) -> list[float]:
    """`equivalence_p` of each sample, with sign patterns that are made once."""
    if not margin > 0:
        raise ValueError("equivalence_p: needs margin > 0")
    return inside_ps(differences, (-margin, margin))


def inside_ps(differences: Sequence[ArrayLike], bounds: tuple[float, float]) -> list[float]:
    """For each sample, p against "the mean difference is not between the bounds": the larger p of one-sided
    sign-flip tests at the finite bounds. With one infinite bound it is a test of non-inferiority."""
    low, high = bounds
    arrays = [np.asarray(sample, dtype=np.float64) for sample in differences]
    sides = [[array - low for array in arrays]] * math.isfinite(low)
    sides += [[high - array for array in arrays]] * math.isfinite(high)
    shares = _shares([array for side in sides for array in side], np.asarray)
    count = len(arrays)
    return [max(shares[index::count], default=1.0) for index in range(count)]


def _shares(samples: Sequence[ArrayLike], size_of: Callable[[Floats], Floats]) -> list[float]:
    """For each sample, the share of sign patterns whose sum is at least the observed sum according to
    `size_of`."""
    arrays = [np.asarray(sample, dtype=np.float64) for sample in samples]
    p_values = [1.0] * len(arrays)
    for count in dict.fromkeys(array.size for array in arrays if array.size):
        indices = [index for index, array in enumerate(arrays) if array.size == count]
        together = np.stack([arrays[index] for index in indices], axis=1)  # (seeds, samples)
        slack = 1e-9 * np.abs(together).sum(axis=0)  # equal sums may differ in their last bits
        least = size_of(together.sum(axis=0)) - slack
        reached = np.zeros(len(indices))
        for signs in sign_patterns(count, len(indices)):
            reached += (size_of(signs @ together) >= least).sum(axis=0)
        for index, p in zip(indices, reached / count_patterns(count), strict=True):
            p_values[index] = float(p)
    return p_values


def count_patterns(count: int) -> int:
    """How many patterns `sign_patterns` has of so many values."""
    return 2**count if count <= EXACT_SEEDS else DRAWS


def sign_patterns(count: int, columns: int, draws: int = DRAWS) -> Iterator[Floats]:
    """(rows, count) of 1 and −1, in blocks: all patterns of so many values, above `EXACT_SEEDS` so many
    random ones, the observed one first. With so many `columns` a product with a block fits into memory."""
    rows = max(1, BLOCK // max(count, columns))
    if count <= EXACT_SEEDS:
        patterns = _every_pattern(count)
        yield from (patterns[start : start + rows] for start in range(0, len(patterns), rows))
        return
    signs = _random_patterns(count, draws)
    yield from (signs[start : start + rows].astype(np.float64) for start in range(0, draws, rows))


@lru_cache(maxsize=8)
def _random_patterns(count: int, draws: int) -> NDArray[np.int8]:
    """(draws, count) of 1 and −1, the observed pattern first, as one of the possible ones; read-only."""
    rng = np.random.default_rng(0)
    signs = np.empty((draws, count), dtype=np.int8)
    rows = max(1, BLOCK // count)
    for start in range(0, draws, rows):
        part = signs[start : start + rows]
        part[:] = 1 - 2 * rng.integers(2, size=part.shape)
    signs[:1] = 1
    signs.flags.writeable = False
    return signs


@cache
def _every_pattern(count: int) -> Floats:
    """(2^count, count) of 1 and −1, the observed pattern first; read-only, since all tests share it."""
    flipped = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    patterns = np.asarray(1.0 - 2.0 * flipped, dtype=np.float64)
    patterns.flags.writeable = False
    return patterns


def smallest_p(seeds: int) -> float:
    """Smallest p that the two-sided sign-flip test can give: 2/2ⁿ, .25 for three seeds."""
    return min(1.0, 2 / 2.0**seeds)


def seeds_needed(alpha: float = 0.05, comparisons: int = 1, sides: int = 2) -> int:
    """Fewest seeds for which the smallest p, times the number of comparisons in Holm's correction, is at most
    alpha. `sides=1` is for the two one-sided tests of equivalence."""
    if not 0 < alpha < 1 or comparisons < 1:
        raise ValueError("seeds_needed: needs 0 < alpha < 1 and comparisons >= 1")
    seeds = 1
    while sides / 2.0**seeds * comparisons > alpha:
        seeds += 1
    return seeds


def holm(p: ArrayLike) -> Floats:
    """Holm's adjusted p values in the given order: the k-th smallest times (m − k + 1), made monotone."""
    array = np.asarray(p, dtype=np.float64)
    order = np.argsort(array, kind="stable")
    adjusted = np.maximum.accumulate(array[order] * np.arange(array.size, 0, -1))
    out = np.empty_like(array)
    out[order] = np.minimum(adjusted, 1.0)
    return out
