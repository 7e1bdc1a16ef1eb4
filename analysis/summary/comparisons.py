"""Arms against each other: every pair on every task, and all tasks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.statistics.aggregates import bootstrap_improvement, bootstrap_interquartile_mean
from grpobench.analysis.statistics.comparison import Comparison, compare, compare_with_base, pairs_of
from grpobench.analysis.statistics.intervals import Estimate
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.summary.crossed import cross


def compare_arms(matrix: Matrix, runs: pd.DataFrame, alpha: float = ALPHA) -> list[Comparison]:
    """The pairs of arms on every task; Holm's correction is over the pairs of one task."""
    found: list[Comparison] = []
    for task in matrix.tasks:
        values = by_seed(matrix, runs, task, "counted")
        pairs = compare(task, values, waiting_of(matrix, runs, task), alpha, matrix.margin, matrix.plan)
        found += cross(matrix, runs, task, pairs)
    return found


def compare_arms_with_base(matrix: Matrix, runs: pd.DataFrame, alpha: float = ALPHA) -> list[Comparison]:
    """Every arm on every task against what its runs scored before training; Holm's correction is over the
    arms of one task."""
    found: list[Comparison] = []
    for task in matrix.tasks:
        values, bases = (by_seed(matrix, runs, task, column) for column in ("counted", "base"))
        late = waiting_of(matrix, runs, task)
        pairs = compare_with_base(task, values, bases, late, alpha, matrix.margin, matrix.plan)
        found += cross(matrix, runs, task, pairs)
    return found


def by_seed(matrix: Matrix, runs: pd.DataFrame, task: str, column: str) -> dict[str, dict[int, float]]:
    """Arm -> seed -> a number of the rows of `finals`, where there is one."""
    found: dict[str, dict[int, float]] = {}
    for arm in matrix.arms:
        own = runs[(runs["task"] == task) & (runs["arm"] == arm)]
        if len(own):
            own = own.dropna(subset=[column])
            found[arm] = dict(zip(own["seed"].astype(int), own[column].astype(float), strict=True))
    return found


def waiting_of(matrix: Matrix, runs: pd.DataFrame, task: str) -> dict[str, dict[int, str]]:
    """Arm -> its seeds without a result -> the seed with how the run stands."""
    late = runs[(runs["task"] == task) & runs["counted"].isna()].sort_values("seed")
    return {
        arm: {int(row.seed): f"{row.seed} ({row.standing})" for row in late[late["arm"] == arm].itertuples()}
        for arm in matrix.arms
    }


def most_shared(matrix: Matrix) -> int:
    """The most seeds that a pair of arms shares on a task, whatever became of their runs."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for run in matrix.runs:
        seeds.setdefault((run.task, run.arm), set()).add(run.seed)
    return max(
        len(seeds.get((task, first), set()) & seeds.get((task, second), set()))
        for task in matrix.tasks
        for first, second in pairs_of(matrix.arms)
    )


@dataclass(frozen=True)
class Aggregate:
    """All tasks together, from counted accuracies."""

    interquartile: Mapping[str, Estimate]
    """Per arm: interquartile mean over runs × tasks with a bootstrap interval."""
    improvement: Sequence[tuple[str, str, Estimate]]
    """Per pair of arms: probability of improvement with a bootstrap interval."""


def aggregate_tasks(matrix: Matrix, runs: pd.DataFrame, seed: int = 0) -> Aggregate:
    """Over the tasks that every arm has counted runs on; intervals from a bootstrap with its own seed."""
    values = {
        arm: [
            runs.loc[(runs["arm"] == arm) & (runs["task"] == task), "counted"].dropna().to_numpy(dtype=float)
            for task in matrix.tasks
        ]
        for arm in matrix.arms
    }
    shared = [i for i in range(len(matrix.tasks)) if all(len(values[arm][i]) for arm in matrix.arms)]
    kept = {arm: [values[arm][i] for i in shared] for arm in matrix.arms}
    pairs = pairs_of(matrix.arms)
    return Aggregate(
        {arm: bootstrap_interquartile_mean(kept[arm], seed) for arm in matrix.arms},
        [(a, b, bootstrap_improvement(kept[a], kept[b], seed)) for a, b in pairs],
    )
