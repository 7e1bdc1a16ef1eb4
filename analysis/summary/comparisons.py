"""Arms against each other: every pair on every task, and all tasks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.statistics.aggregates import bootstrap_improvement, bootstrap_interquartile_mean
from grpobench.analysis.statistics.comparison import ALPHA, Comparison, compare
from grpobench.analysis.statistics.intervals import Estimate


def compare_arms(matrix: Matrix, runs: pd.DataFrame, alpha: float = ALPHA) -> list[Comparison]:
    """Every pair of arms on every task; Holm's correction is over the pairs of one task."""
    found: list[Comparison] = []
    for task in matrix.tasks:
        own = runs[runs["task"] == task]
        arms = [arm for arm in matrix.arms if arm in set(own["arm"])]
        values: dict[str, dict[int, float]] = {}
        waiting: dict[str, list[str]] = {}
        for arm in arms:
            rows = own[own["arm"] == arm]
            done = rows.dropna(subset=["counted"])
            values[arm] = dict(zip(done["seed"].astype(int), done["counted"].astype(float), strict=True))
            late = rows[rows["counted"].isna()].sort_values("seed")
            waiting[arm] = [f"{row.seed} ({row.standing})" for row in late.itertuples()]
        found += compare(task, values, waiting, alpha)
    return found


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
    pairs = [(a, b) for n, a in enumerate(matrix.arms) for b in matrix.arms[n + 1 :]]
    return Aggregate(
        {arm: bootstrap_interquartile_mean(kept[arm], seed) for arm in matrix.arms},
        [(a, b, bootstrap_improvement(kept[a], kept[b], seed)) for a, b in pairs],
    )
