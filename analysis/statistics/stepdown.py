"""Multiplicity over pairs of arms: step-down max-T over joint sign flips (Westfall and Young, 1993).

Pairs that share seeds share their noise. So a seed's sign is flipped in all pairs at once, which takes 2ⁿ
patterns for any number of pairs. With p of one pair in one pattern, Σ d/√(Σ d²), as its statistic, the
adjusted p of a pair is the share of patterns in which the largest statistic of this pair and of all with a
smaller one reaches its own. Holm would multiply p by the number of pairs instead.

Why it holds the level, whichever differences are 0 (family-wise error in the strong sense): let T be the
pairs whose true difference is 0. If the errors of a seed are jointly symmetric (ε and −ε are equally likely),
all joint flips of the differences in T are equally likely, so that the largest statistic of T reaches its own
upper α-quantile over flips with a chance of at most α. That quantile depends on no pair outside T. The first
pair of T that is tested is compared with a maximum over T and others, whose quantile is no smaller (Romano
and Wolf, 2005, theorem 1). Nothing is assumed of spreads, correlations or normality.

Departs from the t statistic of the book, to which it is equivalent: t² = (n−1) z²/(n − z²). z is at most √n,
so that equal differences need no infinite value, and its variance over flips is 1 for any number of seeds, so
that a pair with few seeds does not outweigh the others. Differences that are all 0 have z = 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.statistics.permutation import EXACT_SEEDS, sign_flip_ps, sign_patterns


def step_down_ps(
    pairs: Sequence[Mapping[int, float]], draws: int = 100_000, seed: int = 0
) -> tuple[list[float], list[float]]:
    """The two-sided p of each pair, as `sign_flip_p` has it, and its adjusted p over all pairs. `pairs` is
    seed → difference of each pair, and pairs may have different seeds.

    With one pair both are the same; the smallest is 2/2ⁿ for any number of pairs. All patterns of the seeds
    of all pairs are counted up to `EXACT_SEEDS` seeds; above, `draws` random patterns and the observed one.
    An adjusted p is never below the p. A pair without seeds has 1.
    """
    alone = sign_flip_ps([[*pair.values()] for pair in pairs], draws, seed)
    if len(pairs) < 2:
        return alone, list(alone)
    together = _share_of_maxima(_table(pairs), draws, seed)
    return alone, [max(both) for both in zip(alone, map(float, together), strict=True)]


def _table(pairs: Sequence[Mapping[int, float]]) -> Floats:
    """(seeds, pairs): differences over √(Σ d²) of their pair; 0 for a seed that a pair lacks, which adds
    nothing to either sum."""
    seeds = {seed: row for row, seed in enumerate(sorted({seed for pair in pairs for seed in pair}))}
    table = np.zeros((len(seeds), len(pairs)))
    for column, pair in enumerate(pairs):
        table[[seeds[seed] for seed in pair], column] = [*pair.values()]
    largest = np.abs(table).max(axis=0, initial=0)
    table /= np.where(largest > 0, largest, 1)  # squares of tiny differences would be 0
    norms = np.sqrt((table**2).sum(axis=0))
    return np.asarray(table / np.where(norms > 0, norms, 1), dtype=np.float64)


def _share_of_maxima(table: Floats, draws: int, seed: int) -> Floats:
    """(pairs,): adjusted p from the statistics' terms (seeds, pairs)."""
    seeds, pairs = table.shape
    if not seeds:
        return np.ones(pairs)
    observed = np.abs(table.sum(axis=0))
    order = np.argsort(observed, kind="stable")
    slack = 1e-9 * np.abs(table).sum(axis=0)  # equal sums may differ in their last bits
    least, rising = (observed - slack)[order], table[:, order]
    reached = np.zeros(pairs)
    for signs in sign_patterns(seeds, pairs, draws, seed):
        statistics = np.abs(signs @ rising)
        np.maximum.accumulate(statistics, axis=1, out=statistics)
        reached += (statistics >= least).sum(axis=0)
    shares = reached / (2**seeds if seeds <= EXACT_SEEDS else draws)
    adjusted = np.empty(pairs)
    adjusted[order] = np.maximum.accumulate(shares[::-1])[::-1]  # no pair before one with a larger statistic
    return adjusted
