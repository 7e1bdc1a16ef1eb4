"""Kept tables: what the repository keeps of a finished experiment, without any path of the machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from grpobench.analysis import record
from grpobench.analysis.checks.differences import (
    find_changes_within_runs,
    find_data_differences,
    find_setting_differences,
)
from grpobench.analysis.checks.gaps import find_incomplete_runs, find_misplaced_folders
from grpobench.analysis.measure import reduced
from grpobench.analysis.record import Provenance
from grpobench.analysis.runfolder.experiment import MARGIN, Experiment, by_run
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.tools.text import json_number
from grpobench.analysis.topics.accuracy import finals, headline_of
from grpobench.analysis.topics.budgets import sum_costs
from grpobench.analysis.topics.compute import spent_by_run
from grpobench.analysis.topics.costs import update_costs
from grpobench.analysis.topics.events import run_findings
from grpobench.analysis.topics.rates import read_curves
from grpobench.analysis.topics.stability import compute_stability
from grpobench.analysis.topics.sweep import classify_runs
from grpobench.analysis.topics.training import critic_explained
from grpobench.tasks.data import bounded

KIND = "experiment"
"""Kind of the file, as `record.py` has it."""
TRAINING = (
    *("reward/", "score/", "groups/zero_signal", "groups/sampled"),
    *("policy/entropy", "length/mean", "critic/"),
    *("trained/share", "trained/zero_signal"),
)
"""Prefixes of training metrics whose first and last values are kept."""
MIXTURES = (find_changes_within_runs, find_misplaced_folders, find_setting_differences, find_data_differences)
"""Checks that must find nothing: otherwise the experiment does not compare what its settings say."""
MODES = ("sampled", "greedy", "likelihood")
DECIMALS = 6
OPTIONAL = ("sweep_values", "control", "plan", "rates")
"""Keys that the file of a table has only where an experiment has these."""


@dataclass(frozen=True)
class KeptTable:
    """The content of a kept table."""

    name: str
    provenance: Provenance
    settings: str
    """Digest of the resolved settings of all runs."""
    headline: Mapping[str, str]
    """Task -> mode in which the report compares arms."""
    arms: Sequence[str]
    tasks: Sequence[str]
    runs: Sequence[Mapping[str, Any]]
    """arm, task, seed, state, and outcome of a map; accuracy: mode -> [split, before, after, best and last
    validation]; measured: mode/metric -> [before, after]; training: metric -> [first update, mean of the
    last tenth]; validation: mode -> [[step, accuracy], …]; explained: by the critic over the last quarter, or
    null; spent: [[step, tokens, FLOPs, seconds], …] at the evaluations on validation; collapsed_at: the step,
    or null."""
    sweep_values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For a map: by arm, the recipe's `arm` and its `values`."""
    plan: Mapping[str, Any] | None = None
    """The plan by which seeds were added, as in interim.json."""
    margin: float = 100 * MARGIN
    """Smallest difference of accuracy that matters, in points."""
    control: str = ""
    """The arm that all others are compared with, if there is one."""
    rates: Sequence[Mapping[str, Any]] = ()
    """Where arms ran at several learning rates, a row per task, arm and rate: `factor` of the arm's own rate,
    `rate` of the policy, `scores` (seed -> counted accuracy in the task's mode) and the `failed` seeds. Their
    runs are not in `runs`, except for those at the arms' own rates."""
    cells: Sequence[Mapping[str, Any]] = ()
    """By task and arm, as the report has them: rows of `compute_stability`, `update_costs` and `sum_costs`,
    and flops of a run (mean over seeds). Empty in tables of earlier versions."""

    def of(self, arm: str, task: str) -> list[Mapping[str, Any]]:
        """Runs of an arm on a task, by seed."""
        runs = [run for run in self.runs if run["arm"] == arm and run["task"] == task]
        return sorted(runs, key=lambda run: int(run["seed"]))

    def scores(self, task: str) -> dict[str, dict[int, float]]:
        """Arm -> seed -> accuracy after training in the mode in which arms are compared. Runs that have none
        are left out."""
        mode = self.headline.get(task, "")
        return {
            arm: {
                int(run["seed"]): float(run["accuracy"][mode][2])
                for run in self.of(arm, task)
                if mode in run["accuracy"] and run["accuracy"][mode][2] is not None
            }
            for arm in self.arms
        }


def demand_whole(experiment: Experiment) -> None:
    """Raise LogError if a run of an experiment at all rates has no result, if logs are incomplete, or if runs
    were not made the same way."""
    folder = experiment.folder
    lacking = [f"{run.name} ({run.state})" for run in experiment.runs if not run.settled]
    if lacking:
        without = f"{len(lacking)} without result: {', '.join(lacking[:5])}"
        raise LogError(f"{folder}: only whole experiments are kept and published; {without}")
    if faults := [*find_incomplete_runs(experiment, weights=False)]:
        raise LogError(f"{folder}: only whole logs are kept and published; {'; '.join(faults[:5])}")
    if faults := [line for find in MIXTURES for line in find(experiment)]:
        raise LogError(f"{folder}: only runs of one making are kept and published; {'; '.join(faults[:5])}")


def keep(experiment: Experiment) -> dict[str, Any]:
    """The content of the kept table of an experiment at own rates, as `load` returns it. Raises LogError as
    `demand_whole` does."""
    all_rates = experiment.at_all_rates
    demand_whole(all_rates)
    findings = run_findings(experiment)
    ended = finals(experiment, findings=findings)
    content = {
        "settings": _digest(all_rates),
        "headline": {task: headline_of(experiment, task).mode for task in experiment.tasks},
        "sweep_values": {arm: asdict(point) for arm, point in experiment.sweep_values.items()},
        "arms": list(experiment.arms),
        "tasks": list(experiment.tasks),
        "margin": round(100 * experiment.margin, DECIMALS),
        "control": experiment.control,
        "plan": bounded.parse_json(experiment.plan.text()) if experiment.plan else None,
        "rates": _rates(all_rates) if all_rates.rate_arms else (),
        "cells": _cells(experiment, compute_stability(experiment, findings, ended)),
        "runs": _rows(experiment, ended),
    }
    content = {name: value for name, value in content.items() if value or name not in OPTIONAL}
    return record.content_of(KIND, _name(experiment), record.provenance_of(all_rates), content)


def _rates(experiment: Experiment) -> list[dict[str, Any]]:
    """The rows of `KeptTable.rates`."""
    runs = finals(experiment)
    return [
        {
            "task": task,
            "arm": curve.arm,
            "factor": point.factor,
            "rate": point.rate,
            "scores": {str(seed): score for seed, score in point.scores.items()},
            "failed": list(point.failed),
        }
        for task in experiment.tasks
        for curve in read_curves(experiment, runs, task)
        for point in curve.points
    ]


def _rows(experiment: Experiment, ended: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of `KeptTable.runs`, from those of `finals`."""
    explained = by_run(critic_explained(experiment))
    accuracies = {mode: _accuracies(experiment, mode) for mode in MODES}
    ends = _both_ends(experiment)
    outcome, spent = _outcomes(experiment), spent_by_run(experiment)
    collapsed = ended.dropna(subset="collapsed_at")
    collapses = {_key(run): int(run.collapsed_at) for run in collapsed.itertuples()}
    rows = []
    for run in experiment.runs:
        key, shares = _key(run), explained(run)["explained"]
        rows.append(
            {
                "arm": run.arm,
                "task": run.task,
                "seed": run.seed,
                "state": run.state,
                **outcome.get(key, {}),
                "accuracy": {mode: by_key[key] for mode, by_key in accuracies.items() if key in by_key},
                **ends[key],
                "explained": _rounded(shares.iloc[0]) if len(shares) else None,
                "spent": [[int(step), *map(_rounded, costs)] for step, *costs in spent.get(key, ())],
                "collapsed_at": collapses.get(key),
            }
        )
    return rows


def read(path: Path) -> KeptTable:
    """Read a kept table. Raises LogError if the file is not one."""
    return record.read(path, KIND, lambda content: KeptTable(provenance=Provenance.pop(content), **content))


def partial(before: KeptTable, content: Mapping[str, Any]) -> list[str]:
    """Why new content is no substitute for a kept table: it was made by another command, with other settings
    on it, or runs are missing. More runs are no fault, nor are other settings in the recipe itself."""
    reasons = []
    if content["command"] != (command := before.provenance.command):
        reasons.append(f"it was made by `{content['command']}` and the kept one by `{command}`")
    there = {(run["arm"], run["task"], run["seed"]) for run in content["runs"]}
    lost = [
        run_key for run in before.runs if (run_key := (run["arm"], run["task"], run["seed"])) not in there
    ]
    if lost:
        arm, task, seed = lost[0]
        missing_runs = f"{len(lost)} of {len(before.runs)} kept runs are missing"
        reasons.append(f"{missing_runs}, such as {arm} on {task}, seed {seed}")
    scores, kept_scores = _scores_at_rates(content.get("rates", ())), _scores_at_rates(before.rates)
    if lost_scores := [score_key for score_key in kept_scores if score_key not in scores]:
        task, arm, factor, seed = lost_scores[0]
        missing_runs = f"{len(lost_scores)} of {len(kept_scores)} kept results at learning rates are missing"
        reasons.append(f"{missing_runs}, such as {arm} at {factor:g} times its rate on {task}, seed {seed}")
    return reasons


def _scores_at_rates(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, float, str]]:
    """Task, arm, factor and seed of the results in `KeptTable.rates`."""
    return [(row["task"], row["arm"], row["factor"], seed) for row in rows for seed in row["scores"]]


def _key(run: Any) -> tuple[str, str, int]:
    """(task, arm, seed) of a run, or of its row."""
    return run.task, run.arm, run.seed


def _accuracies(experiment: Experiment, mode: str) -> dict[tuple[str, str, int], list[Any]]:
    """(task, arm, seed) -> split, base, counted, best and last validation, where the mode was evaluated."""
    if not any(name.startswith("eval/") and f"/{mode}/correct" in name for name in experiment.names("eval/")):
        return {}
    columns = ("base", "counted", "validation_best", "validation_last")
    by_run_key = {}
    for row in finals(experiment, mode).to_dict("records"):
        values = [_rounded(row[column]) for column in columns]
        if any(value is not None for value in values):
            by_run_key[row["task"], row["arm"], int(row["seed"])] = [row["split"], *values]
    return by_run_key


def _outcomes(experiment: Experiment) -> dict[tuple[str, str, int], dict[str, str]]:
    """(task, arm, seed) -> outcome of a run of a map."""
    if not experiment.sweep_values:
        return {}
    rows = classify_runs(experiment, finals(experiment)).to_dict("records")
    return {(row["task"], row["arm"], int(row["seed"])): {"outcome": row["outcome"]} for row in rows}


def _both_ends(experiment: Experiment) -> dict[tuple[str, str, int], dict[str, Any]]:
    """(task, arm, seed) -> measured, training and validation, as `Kept.runs` describes them."""
    ends: dict[tuple[str, str, int], dict[str, Any]] = {
        _key(run): {"measured": {}, "training": {}, "validation": {}} for run in experiment.runs
    }
    keys = ["task", "arm", "seed"]
    for name in experiment.names("eval/"):
        _, split, mode, metric = name.split("/", 3)
        for key, rows in experiment.select(name).sort_values("step").groupby(keys, sort=False):
            if split == "validation" and metric == "correct":
                pairs = zip(rows["step"], rows["value"], strict=True)
                ends[key]["validation"][mode] = [[int(step), _rounded(value)] for step, value in pairs]
            elif "/" not in metric and metric != "correct" and split == headline_of(experiment, key[0]).split:
                ends[key]["measured"][f"{mode}/{metric}"] = _base_and_last(rows)
    for name in (name for stem in TRAINING for name in experiment.names(stem)):
        for key, rows in experiment.select(name).sort_values("step").groupby(keys, sort=False):
            values = rows["value"].to_numpy()
            ends[key]["training"][name] = [_rounded(reduced(values, end)) for end in ("first", "last")]
    return ends


def _cells(experiment: Experiment, stability: pd.DataFrame) -> list[dict[str, Any]]:
    """Stability and costs by task and arm, as `KeptTable.cells` describes them."""
    keys = ["task", "arm"]
    flops = experiment.select("cost/flops").groupby([*keys, "seed"], sort=False)["value"].max()
    mean = flops.groupby(level=keys, sort=False).mean().rename("flops").reset_index()
    frame = stability
    for further in (update_costs(experiment), sum_costs(experiment).drop(columns="runs"), mean):
        frame = frame.merge(further, on=keys, how="left")
    return [
        {name: json_number(value, DECIMALS) for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def _base_and_last(rows: pd.DataFrame) -> list[float | None]:
    before, after = rows.loc[rows["step"] == 0, "value"], rows.loc[rows["step"] > 0, "value"]
    return [
        _rounded(before.iloc[0]) if len(before) else None,
        _rounded(after.iloc[-1]) if len(after) else None,
    ]


def _rounded(value: float) -> Any:
    return json_number(float(value), DECIMALS)


def _name(experiment: Experiment) -> str:
    """The experiment's own; of a search its recipe's, with the role where that is not the policy's."""
    search = record.search_of(experiment)
    if not search:
        return experiment.name
    return str(search["recipe"]) + f"-{experiment.name}" * (experiment.name != "policy")


def _digest(experiment: Experiment) -> str:
    text = json.dumps(dict(experiment.configs), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
