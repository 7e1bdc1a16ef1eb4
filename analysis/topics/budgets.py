"""What runs spent, and how accurate they were when all had spent the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import product

import numpy as np
import pandas as pd

from grpobench.analysis.runfolder.experiment import RUN_KEYS, Experiment, Run, by_cell, finite_mean
from grpobench.analysis.tools.text import UNITS
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.figure_names import AXES

TOTALS = {"tokens": "cost/generated_tokens", "flops": "cost/flops"}
"""Axis -> the metric that logs it as a running total. Seconds are logged for each step."""
SPENDING = {
    "updates": None,
    "generated_tokens": "cost/generated_tokens",
    "trained_tokens": "cost/trained_tokens",
    "train_seconds": "time/step",
    "evaluate_seconds": "time/evaluate",
}
"""Column of `sum_costs` -> the logged metric. The number of updates is the last logged step."""
STUDY = "time/study"
"""Seconds of sampling before the first step, logged once at step 0."""
ROUNDING = 1 + 1e-9
"""A budget is compared with sums of floats, which may exceed it by this factor."""


def unit_of(largest: float) -> tuple[float, str]:
    """The unit in which an axis up to `largest` has short numbers: 1e6 and ` (M)`, or 1 and nothing."""
    return next(((unit, f" ({name})") for unit, name in UNITS if largest >= 2 * unit), (1.0, ""))


def with_axis(experiment: Experiment, frame: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Add column `x` to rows of (arm, task, seed, step): `updates`, `tokens` (generated so far), `flops` or
    `seconds` (training time so far, without evaluation). Rows whose axis was not logged are dropped."""
    if axis == "updates":
        return frame.assign(x=frame["step"].astype(float))
    if axis in TOTALS:
        positions = experiment.select(TOTALS[axis]).rename(columns={"value": "x"})
    else:
        positions, before = experiment.select("time/step"), experiment.select(STUDY)
        if len(before):  # what was sampled before the first step is spent by then, and stands at step 0
            positions = pd.concat([before, positions]).sort_values("step", kind="stable")
        positions = positions.rename(columns={"value": "x"})
        positions["x"] = positions.groupby(RUN_KEYS, sort=False)["x"].cumsum()
    joined = frame.merge(positions, on=[*RUN_KEYS, "step"], how="left")
    joined.loc[joined["step"] == 0, "x"] = 0.0  # the base model has spent nothing yet
    return joined.dropna(subset=["x"]).reset_index(drop=True)


# What runs spent


def sum_costs(experiment: Experiment) -> pd.DataFrame:
    """What each arm spent per run, as means over seeds: updates, tokens, seconds of training, with what was
    sampled for it before the first step, and of evaluation. Evaluation of the base model is not counted: all
    arms share it, and one run would bear it."""
    runs = experiment.metrics.groupby(RUN_KEYS, sort=False)["step"].max().rename("updates").reset_index()
    for column, metric in SPENDING.items():
        if metric is not None:
            runs = runs.merge(_sum_by_run(experiment, metric).rename(column), on=RUN_KEYS, how="left")
    studied = experiment.select(STUDY).set_index(RUN_KEYS)["value"]
    if len(studied):
        before = pd.Series(
            [studied.get(tuple(run_key), 0.0) for run_key in runs[RUN_KEYS].to_numpy()], runs.index
        )
        runs["train_seconds"] += before
    rows, cell = [], by_cell(runs)
    for task, arm in product(experiment.tasks, experiment.arms):
        seeds = cell(arm, task)
        if len(seeds):
            means = {column: finite_mean(seeds[column]) for column in SPENDING}
            rows.append({"task": task, "arm": arm, "runs": len(seeds), **means})
    return pd.DataFrame(rows, columns=["task", "arm", "runs", *SPENDING])


def _sum_by_run(experiment: Experiment, metric: str) -> pd.Series:
    """The total of a metric by (arm, task, seed), without step 0."""
    logged = experiment.select(metric)
    values = logged[logged["step"] > 0].groupby(RUN_KEYS, sort=False)["value"]
    # Token counts are logged as running totals, seconds as the time of one step.
    return values.max() if metric.startswith("cost/") else values.sum()


# Accuracy at equal budgets


def runs_at_equal_budgets(
    experiment: Experiment, mode: str | None = None, axes: Iterable[str] = tuple(AXES)
) -> pd.DataFrame:
    """Validation accuracy of every run at a common budget, linear between the evaluations around it.

    One row per task, axis, arm and seed, with budget and accuracy. The budget is the largest that every
    finished run of the task reached. Runs that diverged or collapsed do not set it. A run that diverged
    before the budget counts as 0, and one that collapsed before it keeps its last evaluation. A run without a
    result has no row; the accuracy is NaN for one that was not evaluated between its first update and the
    budget.
    """
    rows = []
    for task, axis in product(experiment.tasks, axes):
        curves = validation_curves(experiment, task, axis, mode)
        budget = common_budget(experiment, task, curves)
        if budget is None:
            continue
        for run in experiment.runs:
            curve = curves.get((run.arm, run.seed)) if run.task == task and run.settled else None
            if curve is not None:
                rows.append((task, axis, budget, run.arm, run.seed, _accuracy_at(budget, curve, run)))
    return pd.DataFrame(rows, columns=["task", "axis", "budget", "arm", "seed", "accuracy"])


def validation_curves(
    experiment: Experiment, task: str, axis: str, mode: str | None
) -> dict[tuple[str, int], pd.DataFrame]:
    """(arm, seed) -> validation accuracies of a run on the task with their position `x` on the axis."""
    metric = f"eval/validation/{headline_of(experiment, task, mode).mode}/correct"
    frame = experiment.select(metric)
    placed = with_axis(experiment, frame[frame["task"] == task], axis)
    return {key: rows.sort_values("step") for key, rows in placed.groupby(["arm", "seed"])}


def common_budget(
    experiment: Experiment, task: str, curves: Mapping[tuple[str, int], pd.DataFrame]
) -> float | None:
    """The largest budget that every finished run of the task reached; None where no run spent anything."""
    ends = [
        float(curves[run.arm, run.seed]["x"].iloc[-1])
        for run in experiment.runs
        if run.task == task and run.finished and (run.arm, run.seed) in curves
    ]
    return min(ends) if any(ends) else None


def _accuracy_at(budget: float, curve: pd.DataFrame, run: Run) -> float:
    """The accuracy at the budget, linear between the evaluations on both sides of it. NaN where the last
    evaluation within the budget is the untrained policy's, and where there is none."""
    x, accuracy = curve["x"].to_numpy(float), curve["value"].to_numpy(float)
    within = int(np.count_nonzero(x <= budget * ROUNDING))
    if run.failed and within == len(x):  # it diverged before the budget
        return 0.0
    if not within or curve["step"].iloc[within - 1] == 0:
        return math.nan
    return float(np.interp(budget, x, accuracy))  # a collapsed run keeps its last accuracy


def mean_at_equal_budgets(experiment: Experiment, mode: str | None = None) -> pd.DataFrame:
    """`runs_at_equal_budgets` as means over seeds: one row per task, axis and arm with budget, accuracy and
    seeds. The accuracy is NaN where a run of the arm has none at the budget."""
    runs = runs_at_equal_budgets(experiment, mode)
    cells = dict(iter(runs.groupby(["task", "axis", "arm"], sort=False)))
    rows = [
        (task, axis, seeds["budget"].iloc[0], arm, float(seeds["accuracy"].mean(skipna=False)), len(seeds))
        for task, axis, arm in product(experiment.tasks, AXES, experiment.arms)
        if (seeds := cells.get((task, axis, arm))) is not None
    ]
    return pd.DataFrame(rows, columns=["task", "axis", "budget", "arm", "accuracy", "seeds"])
