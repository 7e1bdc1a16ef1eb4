"""The smallest difference that an experiment can resolve with its seeds, known before it runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grpobench.analysis.runfolder.experiment import MARGIN
from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.comparison import BySeed, pairs_of
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA, spread_of
from grpobench.analysis.statistics.verdicts import points as margin_points

LEAST = 3
"""Fewest paired seeds that say something of the spread of a difference."""


@dataclass(frozen=True)
class Spread:
    """How far paired differences scatter over seeds."""

    value: float
    """Standard deviation as a share; NaN where it is not known."""
    source: str = ""
    """Where it was measured, in words."""


UNKNOWN = Spread(math.nan)


@dataclass(frozen=True)
class PlannedPairs:
    """The pairs of arms on one task, before their runs.

    The effect that the exact test finds in 80 % of repetitions is known in standard deviations of a paired
    difference (`statistics.power`), and in points if earlier runs give the standard deviation."""

    task: str
    seeds: int
    """Seeds that all of its arms will have."""
    pairs: int
    spread: Spread = UNKNOWN
    margin: float = MARGIN
    alpha: float = ALPHA
    """Level of the last analysis."""
    planned: bool = False
    """Whether seeds are added by a plan, whose pairs Holm corrects."""

    @property
    def needed(self) -> int:
        """Fewest seeds that can show any difference."""
        return seeds_needed(self.alpha, self.pairs if self.planned else 1)

    @property
    def detectable(self) -> float:
        """The difference found in 80 % of repetitions, in standard deviations of a paired difference."""
        return power.detectable(self.seeds, self.pairs, self.alpha, "holm" if self.planned else "max-t")

    def enough(self, effect: float) -> float:
        """Seeds that find a difference of so many standard deviations in 80 % of repetitions."""
        return power.seeds_for(effect, self.pairs, self.alpha, self.seeds + 1, "max-t")


def resolution_lines(questions: Sequence[PlannedPairs]) -> list[str]:
    """What the seeds can resolve on each task, tasks with the same answer in one line."""
    tasks: dict[str, list[str]] = {}
    for question in questions:
        if question.pairs:
            tasks.setdefault(answer(question), []).append(question.task)
    every = len(tasks) == 1
    return [text if every else f"{', '.join(names)}: {text}" for text, names in tasks.items()]


def answer(question: PlannedPairs) -> str:
    """What the seeds can resolve, and how many more would resolve more."""
    seeds, effect, spread = question.seeds, question.detectable, question.spread
    if seeds < question.needed:
        return (
            f"{seeds} seed{'s' * (seeds != 1)} can never show a difference at {ALPHA:.0%}, whatever the "
            f"accuracies are: that takes {question.needed} seeds, {question.needed - seeds} more"
        )
    has_spread = not math.isnan(spread.value)
    size = (
        f"{100 * effect * spread.value:.1f} points"
        if has_spread
        else f"{effect:.1f} SD of a paired difference"
    )
    sd = (
        f"SD {100 * spread.value:.1f} points {spread.source}" if has_spread else "no earlier runs tell the SD"
    )
    text = f"{seeds} seeds find a difference of {size} in {power.POWER:.0%} of repetitions"
    text += f" ({question.pairs} pair{'s' * (question.pairs > 1)} a task; {sd})"
    if question.planned or (has_spread and effect * spread.value <= question.margin):
        return text
    goal = question.margin / spread.value if has_spread else effect / 2
    goal_words = f"the margin of {margin_points(question.margin)} points" if has_spread else "half of it"
    enough = question.enough(goal)
    if math.isinf(enough):
        return f"{text}; {goal_words} takes more than {power.MOST_SEEDS:,} seeds"
    return f"{text}; {goal_words} takes about {enough:.0f} seeds, {enough - seeds:.0f} more"


# Spreads that are known already


def typical_spread(scores: Mapping[str, BySeed], pairs: Iterable[tuple[str, str]]) -> float:
    """The median over pairs of arms of the standard deviation of their paired differences; NaN where no pair
    has `LEAST` seeds. One arm that fails does not move it as it would a mean."""
    spreads = []
    for first, second in pairs:
        shared = sorted(set(scores.get(first, {})) & set(scores.get(second, {})))
        if len(shared) >= LEAST:
            spreads.append(spread_of([scores[first][seed] - scores[second][seed] for seed in shared]))
    finite_spreads = [value for value in spreads if not math.isnan(value)]
    return float(np.median(finite_spreads)) if finite_spreads else math.nan


def spread_of_runs(scores: Mapping[str, BySeed], control: str, source: str) -> Spread:
    """The spread of the pairs that will be compared, or else of all pairs that have runs."""
    for pairs in (pairs_of(list(scores), control), pairs_of(list(scores))):
        value = typical_spread(scores, pairs)
        if not math.isnan(value):
            return Spread(value, source)
    return UNKNOWN
