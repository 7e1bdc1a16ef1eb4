"""What runs spent, and how good they were when they had spent the same."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from grpobench.analysis.runfolder.experiment import Experiment, by_cell, finite_mean
from grpobench.analysis.topics.accuracy import headline_of


def with_axis(experiment: Experiment, frame: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Add column `x` to rows of (arm, task, seed, step): `updates`, `tokens` (generated so far) or `seconds`
    (training time so far, evaluation left out). Rows whose axis was not logged are left out."""
    if axis == "updates":
        return frame.assign(x=frame["step"].astype(float))
    if axis == "tokens":
        along = experiment.select("cost/generated_tokens").rename(columns={"value": "x"})
    else:
        along = experiment.select("time/step").rename(columns={"value": "x"})
        along["x"] = along.groupby(["arm", "task", "seed"], sort=False)["x"].cumsum()
    joined = frame.merge(along, on=["arm", "task", "seed", "step"], how="left")
    joined.loc[joined["step"] == 0, "x"] = 0.0  # the base model: nothing spent yet
    return joined.dropna(subset=["x"]).reset_index(drop=True)


def spent(experiment: Experiment) -> pd.DataFrame:
    """What each arm spent per run, mean over seeds: updates, tokens, seconds of training and evaluation. The
    evaluation of the base is left out: the arms share it, and the run that made it would bear its time."""
    sources = {
        "updates": None,
        "generated_tokens": "cost/generated_tokens",
        "trained_tokens": "cost/trained_tokens",
        "train_seconds": "time/step",
        "evaluate_seconds": "time/evaluate",
    }
    keys = ["arm", "task", "seed"]
    steps = experiment.metrics.groupby(keys, sort=False)["step"].max().rename("updates").reset_index()
    for name, metric in sources.items():
        if metric:
            logged = experiment.select(metric)
            grouped = logged[logged["step"] > 0].groupby(keys, sort=False)["value"]
            spent = grouped.max() if metric.startswith("cost/") else grouped.sum()  # tokens are cumulative
            steps = steps.merge(spent.rename(name).reset_index(), on=keys, how="left")
    rows, cell = [], by_cell(steps)
    for task in experiment.tasks:
        for arm in experiment.arms:
            own = cell(arm, task)
            if len(own):
                means = {name: finite_mean(own[name]) for name in sources}
                rows.append({"task": task, "arm": arm, "runs": len(own), **means})
    return pd.DataFrame(rows, columns=["task", "arm", "runs", *sources])


AXES = {"updates": "updates", "tokens": "generated tokens", "seconds": "seconds of training"}


def runs_at_equal_budgets(experiment: Experiment, mode: str | None = None) -> pd.DataFrame:
    """Validation accuracy of every run at the largest budget that every finished run of the task reached, on
    three axes: the last evaluation at or before it. One row per task, axis, arm and seed: budget, accuracy.

    Runs that diverged or collapsed do not set the budget. One that diverged before it counts as 0 there, one
    that collapsed keeps its last evaluation. Runs without a result are left out.
    """
    rows = []
    finished = {(run.arm, run.task, run.seed) for run in experiment.runs if run.finished}
    for task in experiment.tasks:
        metric = f"eval/validation/{headline_of(experiment, task, mode).mode}/correct"
        frame = experiment.select(metric)
        frame = frame[frame["task"] == task]
        for axis in AXES:
            placed = with_axis(experiment, frame, axis)
            curves = {key: own.sort_values("step") for key, own in placed.groupby(["arm", "task", "seed"])}
            ends = [float(own["x"].iloc[-1]) for key, own in curves.items() if key in finished]
            if not ends or not any(ends):
                continue
            budget = min(ends)
            for run in (run for run in experiment.runs if run.task == task and run.settled):
                own = curves.get((run.arm, task, run.seed), placed.iloc[:0])
                within = np.flatnonzero(own["x"].to_numpy() <= budget * (1 + 1e-9))
                if len(within):
                    fell = run.failed and len(within) == len(own)
                    accuracy = 0.0 if fell else float(own["value"].iloc[within[-1]])
                    rows.append((task, axis, budget, run.arm, run.seed, accuracy))
    return pd.DataFrame(rows, columns=["task", "axis", "budget", "arm", "seed", "accuracy"])


def at_equal_budgets(experiment: Experiment, mode: str | None = None) -> pd.DataFrame:
    """`runs_at_equal_budgets` as means over seeds: one row per task, axis and arm with budget, accuracy and
    seeds."""
    runs = runs_at_equal_budgets(experiment, mode)
    cells = dict(iter(runs.groupby(["task", "axis", "arm"], sort=False)))
    rows = [
        (*key[:2], own["budget"].iloc[0], key[2], float(own["accuracy"].mean()), len(own))
        for key in product(experiment.tasks, AXES, experiment.arms)
        if (own := cells.get(key)) is not None
    ]
    return pd.DataFrame(rows, columns=["task", "axis", "budget", "arm", "accuracy", "seeds"])
