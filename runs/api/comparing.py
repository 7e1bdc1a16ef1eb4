"""Compare two arms, with the report's statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from grpobench.analysis.statistics.comparison import BASE, Comparison
from grpobench.analysis.topics.accuracy import finals
from grpobench.analysis.topics.comparisons import compare_arms, compare_arms_with_base, comparisons_table
from grpobench.runs.api.results import Results, unknown

Mode = Literal["greedy", "sampled", "likelihood"]


@dataclass(frozen=True, repr=False)
class Compared:
    """Comparisons of two arms, one per task, in the order of the tasks."""

    pairs: tuple[Comparison, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """A row per task with every number, as in the report's comparisons.csv: effects are shares."""
        return comparisons_table(self.pairs).frame

    @property
    def printed(self) -> pd.DataFrame:
        """A row per task as the report prints it: effects are points of accuracy."""
        table = comparisons_table(self.pairs)
        return pd.DataFrame(list(table.rows), columns=list(table.header))

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, task: str) -> Comparison:
        """The comparison on a task. Raises KeyError for a task on which the arms were not compared."""
        return {pair.task: pair for pair in self.pairs}[task]

    def __repr__(self) -> str:
        return str(self.printed.to_string(index=False))

    def _repr_html_(self) -> str:
        return str(self.printed.to_html(index=False))


def compare(
    results: Results,
    first: str,
    second: str,
    *,
    task: str | None = None,
    mode: Mode | None = None,
) -> Compared:
    """Compare two arms as the report does, on one task or on each that both ran.

    The effect is the first arm's final accuracy minus the second's, with interval, p, p adjusted for all
    pairs of the task, and a verdict on the first arm: better, worse, equivalent (within ``load(margin=)``) or
    unresolved. `second` may be ``"base"``, the first arm before training. Iterating gives one `Comparison`
    per task; ``compare(...)["arithmetic"].effect`` is one of its numbers. `mode` is the decoding mode of the
    accuracies; by default the report's (greedy if that was evaluated). Where the recipe has a control, only
    pairs with it are compared. Raises ValueError for another pair, for an arm or a task that the results do
    not have, and for a mode that was not evaluated.
    """
    for kind, name, valid_names in (("arm", first, results.arms), ("arm", second, (*results.arms, BASE))):
        if name not in valid_names:
            raise ValueError(unknown(kind, name, dict.fromkeys(valid_names)))
    if task is not None and task not in results.tasks:
        raise ValueError(unknown("task", task, dict.fromkeys(results.tasks)))
    if first == second:
        raise ValueError(f"{first} cannot be compared with itself")
    control = results.experiment.control
    if control and second != BASE and control not in (first, second):
        raise ValueError(
            f"{first} and {second}: this experiment has the control {control!r}, and only pairs with it are "
            "judged and corrected; compare each with it, or run a recipe without `control`"
        )
    comparisons = []
    for pair in in_mode(results, mode, second == BASE):
        if task in (None, pair.task) and {pair.first, pair.second} == {first, second}:
            comparisons.append(pair if pair.first == first else pair.turned())
    if not comparisons:
        raise ValueError(f"{first} and {second} have no task in common, so they cannot be compared")
    return Compared(tuple(comparisons))


def in_mode(results: Results, mode: Mode | None, with_base: bool = False) -> tuple[Comparison, ...]:
    """Every pair of arms on every task, or every arm and its base, from the accuracies of a mode."""
    numbers = results.facts.numbers
    if mode is None:
        return tuple(numbers.against_base if with_base else numbers.compared)
    evaluated_modes = {
        name.split("/")[2] for name in results.experiment.names("eval/") if name.endswith("/correct")
    }
    if mode not in evaluated_modes:
        raise ValueError(unknown("mode", mode, dict.fromkeys(sorted(evaluated_modes))))
    judged = compare_arms_with_base if with_base else compare_arms
    return tuple(judged(results.experiment, finals(results.experiment, mode)))
