"""Comparisons of arms over seeds × problems, from the rows of the final evaluations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from grpobench.analysis.logs.matrix import DIVERGED, Matrix
from grpobench.analysis.statistics.comparison import BASE, Comparison
from grpobench.analysis.statistics.crossed import crossed_interval
from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.summary.accuracy import clusters_of, graded


def cross(matrix: Matrix, runs: pd.DataFrame, task: str, pairs: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of a task, each with its interval over seeds × problems; `runs` are rows of `finals`,
    whose split and mode are taken. As they were where no problem was logged for all runs of a pair."""
    own = runs[(runs["task"] == task) & runs["counted"].notna()]
    frame = graded(matrix)
    if own.empty or frame.empty:
        return list(pairs)
    split, mode = own["split"].iloc[0], own["mode"].iloc[0]
    frame = frame[(frame["task"] == task) & (frame["split"] == split) & (frame["mode"] == mode)]
    failed = {(r.arm, int(r.seed)) for r in own.itertuples() if r.state == DIVERGED}
    after, before = _by_problem(frame[frame["step"] > 0]), _by_problem(frame[frame["step"] == 0])
    found = []
    for pair in pairs:
        table, problems = _differences(pair, after, before, failed)
        clusters = clusters_of(frame, problems)
        shared = clusters if len(set(clusters)) < len(clusters) else None
        found.append(pair.beside(len(problems), crossed_interval(table, shared)) if table.size else pair)
    return found


def _by_problem(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (arm, seed) and a column per problem: the mean score over the samples of the last
    evaluation."""
    last = frame.groupby(["arm", "seed"])["step"].transform("max")
    keys = ["arm", "seed", "problem"]
    return frame[frame["step"] == last].groupby(keys)["score/correct"].mean().unstack("problem")


def _differences(
    pair: Comparison, after: pd.DataFrame, before: pd.DataFrame, failed: set[tuple[str, int]]
) -> tuple[Floats, pd.Index]:
    """(seeds, problems) differences and the problems; empty where a run has no rows. A run that diverged is 0
    on every problem."""
    sides = [(pair.first, after), (pair.second, after) if pair.second != BASE else (pair.first, before)]
    tables = []
    for arm, scores in sides:
        zero = {seed for seed in pair.seeds if (arm, seed) in failed and scores is after}
        wanted = [(arm, seed) for seed in pair.seeds]
        if not set(wanted) - {(arm, seed) for seed in zero} <= set(scores.index):
            return np.zeros((0, 0)), pd.Index([])
        table = scores.reindex(pd.MultiIndex.from_tuples(wanted, names=["arm", "seed"]))
        table[[seed in zero for seed in pair.seeds]] = 0.0
        tables.append(table.droplevel("arm"))
    first, second = tables[0].align(tables[1], join="inner", axis=1)
    difference = (first - second).dropna(axis=1)
    return difference.to_numpy(dtype=np.float64), difference.columns
