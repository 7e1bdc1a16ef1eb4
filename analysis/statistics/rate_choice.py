"""Which learning rates a search tries, which of them it compares on all seeds, and which it chooses."""

# Pure functions of outcomes; a larger outcome is better.

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Generic, TypeAlias, TypeVar

Value = TypeVar("Value", bound=Hashable)
Curve = TypeVar("Curve", bound=Hashable)
Outcomes: TypeAlias = Mapping[float, Mapping[int, float]]
"""Outcome by rate and seed."""
FACTOR = 3.0
"""Between neighboring rates of the grid. Half of it, on a log scale, lies between a finalist and the next."""
START = 5
"""Rates of the grid before it grows."""
BEYOND = 2
"""Rates of the grid that lie beyond the best one on either side, so that its neighbors are no edges."""
EXTENSIONS = 3
"""Rates that the grid can gain on each side."""
PRUNING = 2
"""Seeds of a rate that is no finalist."""
SEEDS = 8
"""Seeds of a finalist."""
FINALISTS = 3
ONE_IN = 8
"""Of so many runs of a finalist, one may fail."""
LEAST_SEEDS = 3
"""Fewer seeds cannot make a choice clear."""
DECIMALS = 9
"""Means that agree in so many decimals are equal: they are sums of floats."""


@dataclass(frozen=True)
class Round(Generic[Curve]):
    """Rates that are to run next."""

    title: str
    rates: Mapping[Curve, Sequence[float]]
    """By curve."""
    seeds: int
    """How many seeds the rates have at its end."""


def rounds(
    outcomes: Mapping[Curve, Outcomes], start: Sequence[float], seeds: int, extensions: int = EXTENSIONS
) -> Iterator[Round[Curve]]:
    """The rounds of a search, one by one. After each of them, the caller adds what came of it to the outcomes
    of the curves: one for each arm and combination of further settings. `start` has the rates that the grid
    begins with; a single one is neither extended nor refined.

    All curves share the grid. It grows by a factor of three on each side on which the best rate of a curve
    has fewer than two rates beyond it. Every curve then gets the two rates halfway, on a log scale, between
    its best rate and that one's neighbors. The best rate and its neighbors are the finalists. Since the best
    rate of the grid has two rates on either side, every finalist has a rate below and above it: a choice at
    an edge is possible only after the last extension. All curves get as many rates and runs."""
    grid, pruning = sorted(start), min(PRUNING, seeds)
    yield Round("grid", dict.fromkeys(outcomes, grid), pruning)
    while len(grid) > 1:
        wider = extend(grid, start, [*map(best_rate, outcomes.values())], extensions)
        if wider == grid:
            break
        added = [rate for rate in wider if rate not in grid]
        grid = wider
        yield Round("extension", dict.fromkeys(outcomes, added), pruning)
    if len(grid) > 1:
        between = {curve: refine(grid, best_rate(tried)) for curve, tried in outcomes.items()}
        yield Round("refinement", between, pruning)
    if seeds > pruning:
        yield Round("finals", {curve: finalists(tried) for curve, tried in outcomes.items()}, seeds)


def runs_of_rounds(rates: int, seeds: int) -> int:
    """Runs of a curve on one task whose grid has `rates` rates in the end."""
    pruning = min(PRUNING, seeds)
    tried = rates + 2 * (rates > 1)
    return tried * pruning + min(FINALISTS, tried) * (seeds - pruning)


def rounded(rate: float) -> float:
    """A rate with two digits."""
    return float(f"{rate:.2g}")


def around(rate: float) -> list[float]:
    """The grid around a rate before it grows."""
    half = START // 2
    return [rounded(rate * FACTOR**power) for power in range(-half, half + 1)]


def extend(
    grid: Sequence[float], start: Sequence[float], best: Sequence[float], most: int = EXTENSIONS
) -> list[float]:
    """A rising grid with one rate more on each side on which a rate of `best` has fewer than `BEYOND` rates
    beyond it, unless that side has `most` rates more than `start`; rates stay below 1."""
    wider = list(grid)
    below, above = grid.index(min(best)), len(grid) - 1 - grid.index(max(best))
    if below < BEYOND and sum(rate < min(start) for rate in grid) < most:
        wider.insert(0, rounded(grid[0] / FACTOR))
    top = rounded(grid[-1] * FACTOR)
    if above < BEYOND and top < 1 and sum(rate > max(start) for rate in grid) < most:
        wider.append(top)
    return wider


def refine(grid: Sequence[float], best: float) -> tuple[float, float]:
    """The rates halfway, on a log scale, between the best rate of a rising grid and its neighbors. At an end
    of the grid, the rate that an extension would have given stands for the missing neighbor."""
    index = grid.index(best)
    below = grid[index - 1] if index else best / FACTOR
    above = grid[index + 1] if index + 1 < len(grid) else min(best * FACTOR, 1.0)
    return rounded(math.sqrt(below * best)), rounded(math.sqrt(best * above))


def best_rate(outcomes: Outcomes) -> float:
    """The rate with the highest mean, the lower one where means are equal."""
    return rank({rate: outcomes[rate] for rate in sorted(outcomes)})[0]


def finalists(outcomes: Outcomes) -> list[float]:
    """The rate with the highest mean and the rates next to it: three neighbors, or all if there are fewer."""
    rates = sorted(outcomes)
    first = max(0, min(rates.index(best_rate(outcomes)) - 1, len(rates) - FINALISTS))
    return rates[first : first + FINALISTS]


# The choice


def rank(outcomes: Mapping[Value, Mapping[int, float]]) -> list[Value]:
    """The values from the highest mean over their seeds to the lowest; where means are equal, in the given
    order. `outcomes` holds the outcome by seed of each value."""
    return sorted(outcomes, key=lambda value: -round(mean_of(outcomes[value]), DECIMALS))


def mean_of(outcomes: Mapping[int, float]) -> float:
    """The mean over seeds; −∞ where one of them is."""
    return fmean(outcomes.values())


def deviation_of(outcomes: Mapping[int, float]) -> float:
    """The standard deviation over seeds; NaN of one seed, and where an outcome is infinite."""
    finite = len(outcomes) > 1 and all(map(math.isfinite, outcomes.values()))
    return stdev(outcomes.values()) if finite else math.nan


def with_all_seeds(outcomes: Mapping[Value, Mapping[int, float]]) -> dict[Value, Mapping[int, float]]:
    """The values with the most seeds."""
    most = max(map(len, outcomes.values()))
    return {value: by_seed for value, by_seed in outcomes.items() if len(by_seed) == most}


def qualifies(failures: int, runs: int) -> bool:
    """Whether at most one in `ONE_IN` runs failed."""
    return failures * ONE_IN <= runs


def choose(
    outcomes: Mapping[Value, Mapping[int, float]], failures: Mapping[Value, int], runs: Mapping[Value, int]
) -> Value:
    """Of the values with the most seeds that qualify, the one with the highest mean minus standard deviation;
    the first where these are equal. If none qualifies, the one with the fewest failures."""
    finals = with_all_seeds(outcomes)
    least = min(failures[value] for value in finals)
    pool = [value for value in finals if qualifies(failures[value], runs[value])]
    pool = pool or [value for value in finals if failures[value] == least]
    scores = {}
    for value in pool:
        deviation = deviation_of(finals[value])
        scores[value] = mean_of(finals[value]) - (0.0 if math.isnan(deviation) else deviation)
    return min(pool, key=lambda value: -round(scores[value], DECIMALS))


@dataclass(frozen=True)
class Clarity(Generic[Value]):
    """How far the chosen value is from the best of the others with as many seeds."""

    second: Value | None = None
    """The other one; None if there is none."""
    difference: float = math.nan
    """Chosen minus second inside a seed, mean over seeds; infinite if the second diverged in all."""
    low: float = math.nan
    """Ends of its 95 % t interval over seeds."""
    high: float = math.nan
    seeds: int = 0
    """Seeds of the difference."""

    @property
    def clear(self) -> bool:
        """Whether the interval is above 0, with `LEAST_SEEDS` seeds or more."""
        return self.second is None or (self.seeds >= LEAST_SEEDS and self.low > 0)


def clarity_of(outcomes: Mapping[Value, Mapping[int, float]], chosen: Value) -> Clarity[Value]:
    """The chosen value against the one with the highest mean among the others with the most seeds."""
    others = [value for value in rank(with_all_seeds(outcomes)) if value != chosen]
    if not others:
        return Clarity()
    second = others[0]
    pairs = [(outcomes[chosen][seed], outcomes[second][seed]) for seed in sorted(outcomes[chosen])]
    return Clarity(second, *_difference(pairs), len(pairs))


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
