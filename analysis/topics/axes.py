"""Whether a verdict depends on what is held equal: updates, generated tokens or seconds of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.comparison import Comparison, compare
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.topics.budgets import runs_at_equal_budgets
from grpobench.analysis.topics.comparisons import find_missing_seeds
from grpobench.analysis.topics.figure_names import AXES


@dataclass(frozen=True)
class OnAxes:
    """One pair of arms on one task at equal budgets on each axis that was logged."""

    task: str
    first: str
    second: str
    comparisons: Mapping[str, Comparison]
    """By axis, in the order of `AXES`."""

    @property
    def depends(self) -> bool:
        """Whether the verdict differs between axes."""
        return len({pair.verdict for pair in self.comparisons.values()}) > 1

    @property
    def sentence(self) -> str:
        """`grpo compared with ppo on arithmetic is better at equal updates, unresolved at equal seconds`."""
        words = [f"{pair.words} at equal {AXES[axis]}" for axis, pair in self.comparisons.items()]
        return f"{self.first} compared with {self.second} on {self.task} is {', '.join(words)}"


def compare_on_axes(experiment: Experiment, runs: pd.DataFrame, alpha: float = ALPHA) -> Sequence[OnAxes]:
    """Every pair of arms on every task by validation accuracy at equal budgets. Corrections are over the
    pairs of a task on one axis, because the axes are three separate questions. An axis has no comparison of
    an arm with a run that was evaluated only before training by then."""
    values = runs_at_equal_budgets(experiment)
    by_pair: dict[tuple[str, str, str], dict[str, Comparison]] = {}
    for task in experiment.tasks:
        waiting = find_missing_seeds(experiment, runs, task)
        for axis in AXES:
            axis_rows = values[(values["task"] == task) & (values["axis"] == axis)]
            by_arm = {
                arm: dict(zip(rows["seed"].astype(int), rows["accuracy"].astype(float), strict=True))
                for arm in experiment.arms
                if len(rows := axis_rows[axis_rows["arm"] == arm]) and rows["accuracy"].notna().all()
            }
            margin, plan, control = experiment.margin, experiment.plan, experiment.control
            for pair in compare(task, by_arm, waiting, alpha, margin, plan, control):
                by_pair.setdefault((task, pair.first, pair.second), {})[axis] = pair
    return [OnAxes(*key, by_axis) for key, by_axis in by_pair.items()]
