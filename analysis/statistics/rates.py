"""Scores of an arm over learning rates: its best rate by cross-fitting, and the loss at other rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from grpobench.analysis.statistics.intervals import Floats

Choices: TypeAlias = NDArray[np.intp]
MOST_HALVES = 100
"""All halves of the seeds are used up to this many, which eight seeds (70) do not exceed."""
FACTOR = 2.0
"""Neighbors of a rate are at least this factor away."""
TOLERANCE = 1.02
"""Rates within this factor count as equal: 1e-4 and 3 · 3.3e-5."""
SLACK = 1e-9
"""Equal sums of scores may differ in their last bits."""


@dataclass(frozen=True)
class RateCurve:
    """The scores of one arm on one task, by learning rate and seed."""

    rates: tuple[float, ...]
    """Ascending, absolute."""
    seeds: tuple[int, ...]
    """Those that have a score at every rate, ascending."""
    scores: Floats
    """(rates, seeds)."""

    @classmethod
    def of(cls, by_rate: Mapping[float, Mapping[int, float]]) -> RateCurve:
        """The curve of rate → seed → score. Raises ValueError for no rate, and for two equal rates."""
        rates = sorted(by_rate)
        if not rates:
            raise ValueError("a curve over learning rates needs at least one rate")
        for low, high in pairwise(rates):
            if not low * TOLERANCE < high:
                raise ValueError(f"learning rates {low:g} and {high:g} are equal; give one of them")
        seeds = sorted(set.intersection(*(set(by_rate[rate]) for rate in rates)))
        table = [[by_rate[rate][seed] for seed in seeds] for rate in rates]
        return cls(tuple(rates), tuple(seeds), np.array(table, dtype=np.float64).reshape(len(rates), -1))

    @property
    def best(self) -> int:
        """Index of the rate with the highest mean over all seeds; of equal means, the lowest rate. Raises
        ValueError without seeds."""
        if not self.seeds:
            raise ValueError("the rates of the curve share no seed")
        return int(first_largest(self.scores.mean(axis=1)))

    def neighbor(self, index: int, side: int) -> int | None:
        """Index of the nearest rate that is at most half (`side` −1) or at least twice (`side` 1) the rate at
        `index`; None where no such rate was tried."""
        rate = self.rates[index]
        if side < 0:
            below = [i for i, other in enumerate(self.rates) if other * FACTOR <= rate * TOLERANCE]
            return below[-1] if below else None
        above = [i for i, other in enumerate(self.rates) if other * TOLERANCE >= rate * FACTOR]
        return above[0] if above else None


@lru_cache(maxsize=64)
def halves(seeds: int) -> NDArray[np.bool_]:
    """(halves, seeds): True for the seeds that choose; the others judge. All subsets of ⌊seeds/2⌋, or
    `MOST_HALVES` random ones where there are more. Of an even number of seeds the random halves come with
    their complements, so that each seed judges in one half of the cases. Raises ValueError for fewer than two
    seeds."""
    if seeds < 2:
        raise ValueError(f"cross-fitting takes at least 2 seeds, not {seeds}: one chooses, one judges")
    size = seeds // 2
    subsets = [*combinations(range(seeds), size)] if math.comb(seeds, size) <= MOST_HALVES else []
    if not subsets:
        rng = np.random.default_rng(0)
        for _ in range(MOST_HALVES // 2):
            # Rotations of one order would be cheaper, but neighbors in it would always choose together.
            order = rng.permutation(seeds).tolist()
            subsets += [order[:size], order[seeds - size :]]
    masks = np.zeros((len(subsets), seeds), dtype=np.bool_)
    masks[np.arange(len(subsets))[:, None], np.array(subsets)] = True
    masks.flags.writeable = False  # the array is cached
    return masks


def choose(curve: RateCurve) -> Choices:
    """(halves,): index of the rate that each half of the seeds chooses by its highest mean; of equal means,
    the lowest rate."""
    masks = halves(len(curve.seeds))
    means = masks @ curve.scores.T / masks.sum(axis=1, keepdims=True)
    return first_largest(means)


def first_largest(means: Floats) -> Choices:
    """Index of the largest value on the last axis; the first of those that are equal but for rounding."""
    return np.asarray((means >= means.max(axis=-1, keepdims=True) - SLACK).argmax(axis=-1))


def cross_fit(curve: RateCurve) -> dict[int, float]:
    """Seed → mean score of the seed at the rates chosen by the halves that it is not in. Differences of two
    arms' scores are the cross-fitted differences of the arms, because both use the same halves.

    If one choice of the rate and the comparison use the same seeds, the arm whose rates were more, or
    noisier, gains by the choice ("winner's curse"). Here one half of the seeds chooses the rate and the other
    half gives the score, over all halves. All seeds share the choices, so that a test of the seeds' scores
    errs too often (docs/comparisons.md); `best_rates` has one that does not.

    Source of the design: Patterson et al. (JMLR 2024), never choose on the seeds that are reported."""
    return _judged(curve, choose(curve))


def sensitivity(curve: RateCurve, side: int) -> dict[int, float]:
    """Seed → how much the score falls from the best rate to half of it (`side` −1) or twice of it (1), or to
    the nearest rate tried beyond; positive where the other rate is worse. The best rate is chosen as in
    `cross_fit`. Empty where the best rate of all seeds has no such neighbor; halves whose choice has none
    are left out.

    As in Adkins, Bowling and White (arXiv:2412.07165): the loss of a setting against the best one."""
    if len(curve.seeds) < 2 or curve.neighbor(curve.best, side) is None:
        return {}
    neighbors = [curve.neighbor(index, side) for index in range(len(curve.rates))]
    chosen = choose(curve)
    usable = np.array([neighbors[index] is not None for index in chosen])
    moved = np.array([-1 if (other := neighbors[index]) is None else other for index in chosen])
    at_best = _judged(curve, chosen, usable)
    beyond = _judged(curve, moved, usable)
    return {seed: at_best[seed] - beyond[seed] for seed in at_best}


def best_octave(rates: Sequence[float], scores: Floats) -> float:
    """log2 of the learning rate at the top of the parabola, in the logarithm of the rate, through the best of
    `scores` (rates,) and its two neighbors; of the best rate itself if it is the lowest or the highest. Of
    equal scores the first is the best. `rates` ascend."""
    octaves = np.log2(np.array(rates))
    best = int(first_largest(scores))
    if best in (0, len(rates) - 1):
        return float(octaves[best])
    near = slice(best - 1, best + 2)
    curvature, slope, _ = np.polyfit(octaves[near] - octaves[best], scores[near], 2)
    return float(octaves[best] - slope / (2 * curvature))


def width_in_octaves(curve: RateCurve, margin: float) -> tuple[float, bool, bool]:
    """Over how many octaves (factors of two) of the rate the mean score stays within `margin` of the best
    mean, linear in log rate between rates, and whether it still does at the lowest and at the highest rate,
    where the width is a lower bound. Raises ValueError without seeds."""
    best = curve.best
    means = curve.scores.mean(axis=1)
    octaves = np.log2(np.array(curve.rates))
    level = means[best] - margin

    def reach(step: int) -> tuple[float, bool]:
        index = best
        while 0 <= index + step < len(means):
            following = index + step
            if means[following] < level - SLACK:
                share = (means[index] - level) / (means[index] - means[following])
                end = octaves[index] + share * (octaves[following] - octaves[index])
                return abs(end - octaves[best]), False
            index = following
        return abs(octaves[index] - octaves[best]), True

    (down, open_below), (up, open_above) = reach(-1), reach(1)
    return float(down + up), open_below, open_above


def _judged(curve: RateCurve, chosen: Choices, usable: NDArray[np.bool_] | None = None) -> dict[int, float]:
    """Seed → mean of its scores at `chosen`, over the halves (those that are `usable`) that it judges."""
    judges = ~halves(len(curve.seeds))
    if usable is not None:
        judges = judges & usable[:, None]
    read = np.where(judges, curve.scores[chosen], 0.0)
    counts = judges.sum(axis=0)
    return {
        seed: float(total / count)
        for seed, total, count in zip(curve.seeds, read.sum(axis=0), counts, strict=True)
        if count
    }


def shared_rates(rates_by_arm: Sequence[Sequence[float]]) -> list[float]:
    """The rates that at least two arms have, ascending; those of the first arm where they differ by rounding
    alone."""
    listed = sorted((rate, arm) for arm, rates in enumerate(rates_by_arm) for rate in rates)
    shared: list[float] = []
    group: list[tuple[float, int]] = []
    for rate, arm in [*listed, (math.inf, -1)]:
        if group and not rate <= group[0][0] * TOLERANCE:
            if len({member for _, member in group}) > 1:
                shared.append(min(group, key=lambda entry: entry[1])[0])
            group = []
        group.append((rate, arm))
    return shared
