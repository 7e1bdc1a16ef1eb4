"""Successive halving over seeds: which values of a setting go on to more seeds, and which one is chosen."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)
LEAST = 2
"""Values that reach the last rung at least, so that the choice compares values with all seeds."""
LEAST_SEEDS = 3
"""Fewer seeds cannot make a choice clear."""
DECIMALS = 9
"""Means that agree in so many decimals are equal: they are sums of floats."""


@dataclass(frozen=True)
class Halving:
    """The rule of a search. All values run with the first `rungs[0]` seeds; of those that reached a rung, the
    best `keep` (rounded up, and at least `LEAST`) go on to the next one, with more seeds.

    The budget of a value is its number of seeds (Karnin, Koren and Somekh, 2013, whose budget is pulls of an
    arm; Jamieson and Talwalkar, arXiv:1502.07943, whose budget is training steps). Every run has all its
    steps: after few steps a high learning rate leads more often than at the end, and a schedule depends on
    the number of steps. A larger outcome is better."""

    seeds: tuple[int, ...]
    """In the order in which they are used."""
    rungs: tuple[int, ...]
    """Seeds of a value by the end of each rung, rising; the last rung has all seeds."""
    keep: float = 0.5

    def counts(self, values: int) -> tuple[int, ...]:
        """How many of `values` values each rung has."""
        counts = [values]
        for _ in self.rungs[1:]:
            survivors = math.ceil(self.keep * counts[-1] - 1e-9)
            counts.append(min(counts[-1], max(LEAST, survivors)))
        return tuple(counts)

    def runs(self, values: int) -> int:
        """Runs of an arm on one task: the same for every arm, whatever the outcomes are."""
        before = (0, *self.rungs)
        return sum(
            count * (now - then)
            for count, now, then in zip(self.counts(values), self.rungs, before, strict=False)
        )


def doubling(seeds: int) -> tuple[int, ...]:
    """Rungs of 1, 2, 4, … seeds, up to all of them."""
    return (*(2**power for power in range(seeds.bit_length()) if 2**power < seeds), seeds)


def mean_of(outcomes: Mapping[int, float]) -> float:
    """The mean over seeds; −∞ where one of them is."""
    return fmean(outcomes.values())


def rank(outcomes: Mapping[Value, Mapping[int, float]]) -> list[Value]:
    """The values from the highest mean over their seeds to the lowest; where means are equal, in the given
    order. `outcomes` holds the outcome by seed of each value."""
    return sorted(outcomes, key=lambda value: -round(mean_of(outcomes[value]), DECIMALS))


@dataclass(frozen=True)
class Selection(Generic[Value]):
    """The chosen value, and how far it is from the second best."""

    best: Value
    second: Value | None = None
    """The second best of the values with as many seeds; None if there is no other."""
    difference: float = math.nan
    """Best minus second best inside a seed, mean over seeds; infinite if the second diverged in all."""
    low: float = math.nan
    """Ends of its 95 % t interval over seeds."""
    high: float = math.nan
    seeds: int = 0
    """Seeds of the difference."""

    @property
    def clear(self) -> bool:
        """Whether the interval is above 0, with `LEAST_SEEDS` seeds or more."""
        return self.second is None or (self.seeds >= LEAST_SEEDS and self.low > 0)


def select(outcomes: Mapping[Value, Mapping[int, float]]) -> Selection[Value]:
    """The first of `rank` among the values with the most seeds."""
    most = max(map(len, outcomes.values()))
    ranked = rank({value: by_seed for value, by_seed in outcomes.items() if len(by_seed) == most})
    if len(ranked) == 1:
        return Selection(ranked[0])
    best, second = ranked[:2]
    pairs = [(outcomes[best][seed], outcomes[second][seed]) for seed in sorted(outcomes[best])]
    return Selection(best, second, *_difference(pairs), len(pairs))


def _difference(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Mean of first minus second, with its interval. Where an outcome is infinite there is none, unless all
    seconds are −∞ and no first is."""
    from grpobench.analysis.statistics.intervals import seed_mean  # SciPy, which running does not need

    if all(math.isfinite(value) for pair in pairs for value in pair):
        mean = seed_mean([first - second for first, second in pairs])
        return mean.value, mean.low, mean.high
    lost = all(math.isfinite(first) and math.isinf(second) for first, second in pairs)
    end = math.inf if lost else math.nan
    return end, end, end
