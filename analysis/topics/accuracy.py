"""Final accuracies: of every run, and of every arm on a task over its seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis.detectors.registry import Findings
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import (
    COLLAPSED,
    CRASHED,
    DIVERGED,
    FINISHED,
    RUN_KEYS,
    Experiment,
    Run,
    by_cell,
    by_run,
    finite_mean,
    import_record,
)
from grpobench.analysis.statistics.intervals import item_interval, seed_mean
from grpobench.analysis.tools.text import MOST_SEEDS, NONE, each_seed, interval, percent, points
from grpobench.analysis.topics.events import Collapse, collapses, graded, run_findings


@dataclass(frozen=True)
class Headline:
    """Which evaluation the report's accuracies of one task come from."""

    split: str
    mode: str

    @property
    def metric(self) -> str:
        """Under which name it is logged."""
        return f"eval/{self.split}/{self.mode}/correct"


def headline_of(experiment: Experiment, task: str, mode: str | None = None) -> Headline:
    """The first evaluation that any run of the task logged, in this order: test before validation, then
    greedy before sampled before likelihood."""
    logged = experiment.logged.get(task, frozenset())
    modes = (mode,) if mode else ("greedy", "sampled", "likelihood")
    for split in ("test", "validation"):
        for candidate in modes:
            if Headline(split, candidate).metric in logged:
                return Headline(split, candidate)
    return Headline("test", modes[0])


def describe_decoding(experiment: Experiment, mode: str) -> str:
    """A mode in words, with the temperature of all runs or of each arm where the mode has one. Runs without
    an evaluation temperature were evaluated at the temperature of the sampler."""
    if mode != "sampled":
        return f"{mode} decoding" if mode == "greedy" else mode
    arms_by_temperature: dict[str, list[str]] = {}
    for run in experiment.runs:
        settings = {**run.config.get("sampler", {}), **run.config.get("evaluate", {})}
        if isinstance(value := settings.get("temperature"), int | float):
            arms_by_temperature.setdefault(f"{value:g}", []).append(run.arm)
    if len(arms_by_temperature) < 2:
        return " ".join(["sampled decoding", *(f"at temperature {value}" for value in arms_by_temperature)])
    parts = "; ".join(
        f"{value}: {', '.join(dict.fromkeys(arms))}" for value, arms in arms_by_temperature.items()
    )
    return f"sampled decoding at different temperatures ({parts})"


# Numbers: one row per run, then one per arm and task

WITHOUT_DATA = "finished without data"
"""Status of a finished run whose logs lack the final accuracy."""


def finals(
    experiment: Experiment, mode: str | None = None, findings: Mapping[str, Findings] | None = None
) -> pd.DataFrame:
    """One row per run: arm, task, seed, state, run_status, collapsed_at, base, final, counted,
    validation_best, validation_last, items, item_low, item_high (interval of the final accuracy over
    problems, which may share clusters). `findings` are those of `run_findings`, if they are known already.

    `final` is the accuracy after the last update that a run made, also of a run that its recipe stopped for
    an event. `collapsed_at` is the first step of a collapse without recovery. `counted` is what means and
    comparisons use: the final accuracy; 0 for a run that diverged, because the algorithm failed; NaN for a
    run that crashed, because the algorithm did not fail, for an unfinished run, and for a run whose logs lack
    the final accuracy. `run_status` is the state of the run, with two exceptions: it is `WITHOUT_DATA` for a
    finished run without a final accuracy, and `collapsed` also for a run that collapsed and went on to its
    last update.
    """
    rows = []
    fallen = collapses(experiment, run_findings(experiment) if findings is None else findings)
    for task in experiment.tasks:
        chosen = headline_of(experiment, task, mode)
        accuracy = experiment.select(chosen.metric)
        validation = experiment.select(f"eval/validation/{chosen.mode}/correct")
        tested, validated = by_run(accuracy), by_run(validation)
        logged = bool((accuracy["task"] == task).any())
        for run in (run for run in experiment.runs if run.task == task):
            tested_rows = tested(run)
            base = at_start(tested_rows)
            final = at_end(tested_rows, run) if run.finished or run.collapsed else math.nan
            collapse = fallen.get(run.name)
            trained = validated(run)
            trained = trained[trained["step"] > 0]
            rows.append(
                {
                    "arm": run.arm,
                    "task": task,
                    "seed": run.seed,
                    "state": run.state,
                    "run_status": _run_status(run, collapse, is_accuracy_missing(run, logged, final)),
                    "collapsed_at": collapse.step if collapse else math.nan,
                    "split": chosen.split,
                    "mode": chosen.mode,
                    "base": base,
                    "final": final,
                    "counted": 0.0 if run.failed else final,
                    "validation_best": float(trained["value"].max()) if len(trained) else math.nan,
                    "validation_last": float(trained["value"].iloc[-1]) if len(trained) else math.nan,
                }
            )
    frame = pd.DataFrame(rows)
    return frame.merge(_item_intervals(experiment, mode), on=RUN_KEYS, how="left")


def _run_status(run: Run, collapse: Collapse | None, lacking: bool) -> str:
    """The status of a run. A run that made its last update may still lack data or have collapsed before."""
    if run.finished and lacking:
        return WITHOUT_DATA
    return COLLAPSED if run.finished and collapse else run.state


def at_start(rows: pd.DataFrame) -> float:
    """The value before the first update; NaN where none is logged."""
    values = rows.loc[rows["step"] == 0, "value"]
    return float(values.iloc[0]) if len(values) else math.nan


def at_end(rows: pd.DataFrame, run: Run) -> float:
    """The value after the last update of the run; NaN where the log ends before it. For an imported run it is
    the last value in the log, because other libraries do not always evaluate at the end."""
    last = 0 if import_record(run) else run.config.get("train", {}).get("steps", run.step)
    last = run.step if run.collapsed else last
    trained = rows[(rows["step"] > 0) & (rows["step"] >= last)]
    return float(trained["value"].iloc[-1]) if len(trained) else math.nan


def is_accuracy_missing(run: Run, logged: bool, final: float) -> bool:
    """Whether a run that has ended should have a final accuracy and does not: its log is empty, or other runs
    of the task have one (`logged`)."""
    return math.isnan(final) and (logged or not run.rows)


def why_without_data(experiment: Experiment, run: Run) -> str:
    """Why a finished run has no final accuracy: which evaluations its log has in place of the task's."""
    chosen = headline_of(experiment, run.task)
    rows = by_run(experiment.metrics)(run)
    metrics = [metric.split("/") for metric in rows["metric"].unique() if metric.startswith("eval/")]
    modes = sorted({(parts[1], parts[2]) for parts in metrics if parts[3:] == ["correct"]})
    here = f"the accuracy of this task is {chosen.split}, {chosen.mode}"
    if (chosen.split, chosen.mode) in modes:
        return f"{here}, and its log has none after the last update"
    logged = " and ".join(f"{split}, {mode}" for split, mode in modes)
    return f"{here}, and its log has " + (f"only {logged}" if logged else "no accuracy of an evaluation")


def count_run_statuses(experiment: Experiment, runs: pd.DataFrame) -> dict[str, int]:
    """How many planned runs have each status, from the rows of `finals`. The numbers add up to the plan; runs
    that were not planned are not counted."""
    planned = {(run.arm, run.task, run.seed) for run in experiment.runs if run.planned}
    keys = runs[RUN_KEYS].itertuples(index=False, name=None)
    counted = Counter(s for key, s in zip(keys, runs["run_status"], strict=True) if key in planned)
    order = [FINISHED, COLLAPSED, WITHOUT_DATA, DIVERGED, CRASHED]
    return {name: counted[name] for name in dict.fromkeys([*order, *counted]) if counted[name]}


def _item_intervals(experiment: Experiment, mode: str | None) -> pd.DataFrame:
    """Interval over problems of each run's last evaluation on the headline split."""
    frame, rows = answers_at_ends(experiment, mode), []
    if len(frame):
        for key, last in frame[frame["step"] > 0].groupby(RUN_KEYS, sort=False):
            shares = last.groupby("problem")["score/correct"].mean()
            interval, _ = item_interval(shares, clusters_of(last, shares.index))
            rows.append((*key, len(shares), interval.low, interval.high))
    return pd.DataFrame(rows, columns=[*RUN_KEYS, "items", "item_low", "item_high"])


def clusters_of(rows: pd.DataFrame, problems: pd.Index) -> list[str]:
    """The cluster (template) of each problem; a problem without one is its own."""
    if "trait/cluster" not in rows:
        return [str(problem) for problem in problems]
    cluster_by_problem = rows.drop_duplicates("problem").set_index("problem")["trait/cluster"]
    return [
        str(problem) if pd.isna(cluster_by_problem[problem]) else str(cluster_by_problem[problem])
        for problem in problems
    ]


def answers_at_ends(experiment: Experiment, mode: str | None = None) -> pd.DataFrame:
    """Graded answers of the evaluation of each task's headline: those before training, and those of the last
    evaluation of each run."""
    frame = graded(experiment.evaluations)
    if frame.empty:
        return frame
    headlines = {task: headline_of(experiment, task, mode) for task in experiment.tasks}
    for name in ("split", "mode"):
        chosen = {task: getattr(headline, name) for task, headline in headlines.items()}
        frame = frame[frame[name] == frame["task"].map(chosen)]
    last = frame.groupby(RUN_KEYS)["step"].transform("max")
    return frame[(frame["step"] == 0) | (frame["step"] == last)]


def accuracies(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per task and arm from the rows of `finals`: means over seeds, the t interval, failures."""
    rows, cell = [], by_cell(runs)
    for task in experiment.tasks:
        for arm in experiment.arms:
            seeds = cell(arm, task)
            if seeds.empty:
                continue
            counted = seeds.dropna(subset=["counted"])
            mean = seed_mean(counted["counted"])
            base = finite_mean((counted if len(counted) else seeds)["base"])  # of the same seeds
            rows.append(
                {
                    "task": task,
                    "arm": arm,
                    "split": seeds["split"].iloc[0],
                    "mode": seeds["mode"].iloc[0],
                    "base": base,
                    "final": mean.value,
                    "low": float(np.maximum(mean.low, 0.0)),  # an accuracy is from 0 to 1; NaN stays NaN
                    "high": float(np.minimum(mean.high, 1.0)),
                    "final_of_finished": finite_mean(seeds.loc[seeds["run_status"] == FINISHED, "counted"]),
                    "gain": mean.value - base,
                    "seeds": len(counted),
                    "failed": int((seeds["state"] == DIVERGED).sum()),
                    "collapsed": int((seeds["run_status"] == COLLAPSED).sum()),
                    "waiting": int(seeds["counted"].isna().sum()),
                    "validation_best": finite_mean(seeds["validation_best"]),
                    "validation_last": finite_mean(seeds["validation_last"]),
                }
            )
    return pd.DataFrame(rows)


# Tables


def accuracy_table(
    experiment: Experiment,
    runs: pd.DataFrame,
    name: str = "accuracy",
    title: str = "Final accuracy",
    note: str = "",
) -> PrintedTable:
    """Accuracy before and after training, one row per task and arm. `note` replaces the usual note."""
    frame = accuracies(experiment, runs)
    rows, cell = [], by_cell(runs)
    for row in frame.to_dict("records"):
        seeds = cell(row["arm"], row["task"]).sort_values("seed")
        rows.append(
            [
                row["task"],
                row["arm"],
                percent(row["base"]),
                percent(row["final"]),
                points(row["gain"]),
                interval(row["low"], row["high"]),
                _seeds_text(seeds),
                percent(row["validation_best"]),
                percent(row["validation_last"]),
            ]
        )
    header = ["task", "arm", "before", "after", "gain", "95% interval", "each seed", "val. best", "val. last"]
    where = " and ".join(
        dict.fromkeys(
            (f"{r['split']} split, {describe_decoding(experiment, r['mode'])}")
            for r in frame.to_dict("records")
        )
    )
    if not note:
        note = (
            f"Accuracy in percent ({where}), mean over seeds. Interval: t over seeds, none for one seed. A "
            "run that diverged counts as 0, and a run that collapsed counts with its last accuracy. Runs "
            "that crashed (which says nothing about the algorithm), unfinished runs and runs without data "
            "are left out, and their comparisons stay unresolved. Val. best is the best evaluation during "
            "training. It is optimistic, because it is the largest of several."
        )
    seed_columns = runs.drop(columns=["split", "mode"])
    return PrintedTable(
        name, title, header, rows, frame.merge(_wide_seeds(seed_columns), on=["task", "arm"]), note=note
    )


def _wide_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """One column per seed with its counted accuracy."""
    table = runs.pivot(index=["task", "arm"], columns="seed", values="counted")
    table.columns = [f"seed_{seed}" for seed in table.columns]
    return table.reset_index()


def _seeds_text(seeds: pd.DataFrame) -> str:
    """The final accuracy of every seed; for many seeds their range and how many have each status."""
    if len(seeds) <= MOST_SEEDS:
        return "  ".join(_seed_text(run) for run in seeds.to_dict("records"))
    run_status = seeds["run_status"].value_counts()
    return f"{each_seed(list(seeds['counted']))} ({', '.join(f'{n} {how}' for how, n in run_status.items())})"


def _seed_text(run: Mapping[str, Any]) -> str:
    if run["run_status"] == FINISHED:
        return percent(run["final"])
    if run["run_status"] == COLLAPSED:
        return f"{percent(run['final'])} (collapsed at {run['collapsed_at']:g})"
    value = NONE if math.isnan(run["counted"]) else percent(run["counted"])
    return f"{value} ({run['run_status']})"


def other_mode_table(
    experiment: Experiment, runs: pd.DataFrame, mode: str, findings: Mapping[str, Findings] | None = None
) -> PrintedTable | None:
    """The table of final accuracies for the decoding `mode`; None where the headline uses it, or no run was
    evaluated in it."""
    other = "sampled" if (runs["mode"] == "greedy").any() else "greedy"
    logged = any(experiment.has(f"eval/{split}/{mode}/correct") for split in ("test", "validation"))
    if mode != other or not logged:
        return None
    title = f"Final accuracy, {describe_decoding(experiment, mode)}"
    note = "Like the table above. Comparisons use only the table above."
    return accuracy_table(experiment, finals(experiment, mode, findings), f"accuracy_{mode}", title, note)
