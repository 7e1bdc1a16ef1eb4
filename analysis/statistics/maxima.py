"""Correction over pairs of arms: closed max-T tests by joint sign flips (Westfall and Young, 1993)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.statistics.permutation import count_patterns, sign_flip_ps, sign_patterns

MOST_PARTITIONED = 6
"""Arms up to which the partitions are tested: 203 of six arms, 877 of seven."""


def max_t_ps(pairs: Mapping[tuple[str, str], Mapping[int, float]]) -> tuple[list[float], list[float]]:
    """The two-sided p of each pair of arms, as `sign_flip_p` has it, and its adjusted p over all pairs.
    `pairs` is arms → seed → difference; pairs may have different seeds.

    With one pair both are the same; the smallest is 2/2ⁿ for any number of pairs. All patterns of the seeds
    of all pairs are counted up to `EXACT_SEEDS` seeds; above, `DRAWS` random patterns and the observed one.
    An adjusted p is never below the p. A pair without seeds has 1.

    Pairs that share seeds share their noise. So a seed's sign is flipped in all pairs at once, which takes 2ⁿ
    patterns for any number of pairs. The statistic of a pair in a pattern is z = |Σ d|/√(Σ d²). The p of "all
    pairs of a family are without a difference" is the share of patterns in which the family's largest z
    reaches the observed largest one. The adjusted p of a pair is the largest p of all families that it
    belongs to (closed testing: Marcus, Peritz and Gabriel, 1976). Holm would multiply p by the number of
    pairs instead.

    The level holds whichever differences are 0 (family-wise error in the strong sense). Let T be the pairs
    whose true difference is 0. If the errors of a seed are jointly symmetric (ε and −ε are equally likely),
    all joint flips of the differences in T are equally likely, so the p of T is valid, whatever the pairs
    outside T are. A pair of T is rejected only if T is. Nothing is assumed of spreads, correlations or
    normality. Permuting arms inside seeds would allow skewed errors, but demands that arms have equal
    spreads.

    z orders as the t statistic does, t² = (n−1) z²/(n − z²). It is at most √n, so equal differences need no
    infinite value, and its variance over flips is 1 for any number of seeds, so a pair with few seeds does
    not outweigh the others. Differences that are all 0 have z = 0."""
    arms = {arm for pair in pairs for arm in pair}
    return joint_ps([*pairs.values()], families_of([*pairs]) if len(arms) <= MOST_PARTITIONED else ())


def joint_ps(
    samples: Sequence[Mapping[int, float]], families: Sequence[tuple[int, ...]] = ()
) -> tuple[list[float], list[float]]:
    """The same of any samples of seed → contrast. Without `families` none of them follows from others: every
    set of them is a family (step-down)."""
    alone = sign_flip_ps([[*sample.values()] for sample in samples])
    table = _table(samples)
    if len(samples) < 2 or not len(table):
        return alone, list(alone)
    together = _over_families(table, families) if families else _step_down(table)
    return alone, [max(both) for both in zip(alone, map(float, together), strict=True)]


def families_of(pairs: Sequence[tuple[str, str]]) -> list[tuple[int, ...]]:
    """The sets of pairs, by place, that can be all pairs without a difference.

    If A = B and B = C then A = C, so the families are the pairs inside the blocks of a partition of the arms
    (Shaffer, 1986): 14 for four arms, 202 for six. For more arms every set of pairs is a family, and only
    those that a pair's own and all smaller statistics make need a test (step-down; Romano and Wolf, 2005).
    The pairs of one arm, a control, with the others do not imply each other, so every set of them is a
    family, for any number of arms. This is the permutation form of the step-down test of Dunnett and Tamhane
    (1991), without normality."""
    arms = list(dict.fromkeys(arm for pair in pairs for arm in pair))
    families = {
        tuple(index for index, (a, b) in enumerate(pairs) if block_of[a] == block_of[b])
        for block_of in _partitions(arms)
    }
    return sorted(families - {()})


def _partitions(arms: Sequence[str]) -> Iterator[dict[str, int]]:
    """Every partition, as arm → number of its block."""
    if not arms:
        yield {}
        return
    for block_of in _partitions(arms[:-1]):
        for block in range(max(block_of.values(), default=-1) + 2):
            yield {**block_of, arms[-1]: block}


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


def _least(table: Floats) -> tuple[Floats, Floats]:
    """(pairs,): the observed statistics, and the values that reach them: equal sums may differ in their last
    bits."""
    observed = np.abs(table.sum(axis=0))
    return observed, observed - 1e-9 * np.abs(table).sum(axis=0)


def _over_families(table: Floats, families: Sequence[tuple[int, ...]]) -> Floats:
    """(pairs,): the largest p of the families of each pair; `table` is (seeds, pairs)."""
    seeds, pairs = table.shape
    observed, least = _least(table)
    members = [list(family) for family in families]
    bounds = [least[family[int(np.argmax(observed[family]))]] for family in members]
    reached = np.zeros(len(members))
    for signs in sign_patterns(seeds, pairs):
        statistics = np.abs(table.T @ signs.T)  # (pairs, patterns)
        for index, family in enumerate(members):
            reached[index] += np.count_nonzero(statistics[family].max(axis=0) >= bounds[index])
    shares = reached / count_patterns(seeds)
    adjusted = np.zeros(pairs)
    for share, family in zip(shares, members, strict=True):
        adjusted[family] = np.maximum(adjusted[family], share)
    return adjusted


def _step_down(table: Floats) -> Floats:
    """(pairs,): the largest p of all sets of pairs that a pair belongs to; `table` is (seeds, pairs)."""
    seeds, pairs = table.shape
    observed, least = _least(table)
    order = np.argsort(observed, kind="stable")
    reached = np.zeros(pairs)
    for signs in sign_patterns(seeds, pairs):
        statistics = np.abs(signs @ table[:, order])
        np.maximum.accumulate(statistics, axis=1, out=statistics)
        reached += (statistics >= least[order]).sum(axis=0)
    shares = reached / count_patterns(seeds)
    adjusted = np.empty(pairs)
    adjusted[order] = np.maximum.accumulate(shares[::-1])[::-1]
    return adjusted
