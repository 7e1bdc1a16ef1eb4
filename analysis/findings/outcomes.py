"""What a test measures of a run: one number from its logs.

Outcomes that end with the run, such as the updates before a collapse: what they can be at most.

A run that reaches its last update without a collapse is censored: it might have lasted longer. A t interval
takes the numbers as normal and knows no end, so it is cut to what is possible, and censored runs are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd

from grpobench.analysis.detectors.registry import DETECTORS
from grpobench.analysis.runfolder.experiment import Experiment, Run
from grpobench.analysis.statistics.intervals import Estimate
from grpobench.analysis.statistics.reached import when_reached
from grpobench.analysis.statistics.samples import pass_at_k, solved
from grpobench.analysis.statistics.sigmoid import PARAMETERS, fit
from grpobench.analysis.topics.accuracy import finals, graded, headline_of
from grpobench.analysis.topics.budgets import AXES, LAST_TENTH, runs_at_equal_budgets, with_axis
from grpobench.analysis.topics.events import collapse_of

Key: TypeAlias = tuple[str, str, int]
"""Arm, task, seed."""
Values: TypeAlias = Mapping[str, Mapping[Key, float]]
"""Test, check or control -> run -> measured value."""
KINDS: Mapping[str, str] = {
    "accuracy": "final accuracy as reports count it; accuracy:greedy or accuracy:sampled in one mode",
    "gain": "the same less the accuracy before training",
    "base": "the accuracy before training; base:greedy or base:sampled in one mode",
    "evaluated": "evaluated:MODE/METRIC, after the last update, on the split that the report takes",
    "shift": "shift:MODE/METRIC, the same less its value before training",
    "also": "also:TASK/MODE/METRIC of a task of `evaluate.also`, after the last update, on test or else "
    "validation",
    "also_shift": "also_shift:TASK/MODE/METRIC, the same less its value before training",
    "training": "training:METRIC:REDUCTION over the steps: first, last (tenth), mean, max, min, sum; metrics "
    "joined by + are added step by step",
    "when": "when:METRIC:OTHER:LEVEL, a training metric averaged over the first three steps in a row over "
    "which the other averages LEVEL or more",
    "equal": "equal:AXIS, validation accuracy when all arms have spent the same: updates, tokens, seconds, "
    "flops",
    "ceiling": "ceiling:AXIS, the accuracy that the run's own curve of validation accuracy against what it "
    "spent nears (docs/compute-curves.md); NaN with fewer than four evaluations",
    "midpoint": "midpoint:AXIS, what the run had spent when half of that curve's gain was reached; NaN for a "
    "curve that rises by less than two points",
    "wrong_length": "mean length in tokens of the final sampled answers that are wrong",
    "lasting": "updates before an unrecovered collapse or a divergence, at most all of the run's; "
    "lasting:KIND for events of one kind",
    "pass": "pass:K, unbiased pass@K of the final sampled answers",
    "pass_gain": "pass_gain:K, the same less that of the base",
    "pass_base": "pass_base:K, that of the base",
}
BUDGETS = (*AXES, "flops")
MODES = ("greedy", "sampled", "likelihood")
FEWEST_POINTS = PARAMETERS + 1
"""Evaluations after the first update from which on a run has a curve."""
LEAST_RISE = 0.02
"""Gain of a curve, as a share, below which it has no midpoint."""
REDUCTIONS = ("first", "last", "mean", "max", "min", "sum")


@dataclass(frozen=True)
class Outcome:
    """An outcome as a test names it."""

    kind: str
    what: str = ""
    reduction: str = ""

    @classmethod
    def read(cls, text: str) -> Outcome:
        """Raises ValueError where it is none."""
        kind, _, what = text.partition(":")
        reduction = ""
        if kind not in KINDS:
            raise ValueError(f"outcome: unknown kind {kind!r}; known: {', '.join(KINDS)}")
        if kind == "training":
            what, _, reduction = what.rpartition(":")
            if reduction not in REDUCTIONS:
                raise ValueError(f"outcome: {text}: end it with one of {', '.join(REDUCTIONS)}")
        if kind == "training" and not what:
            raise ValueError(f"outcome: {text}: write {KINDS[kind]}")
        if kind == "when":
            _demand_level(text, what)
        if kind in ("equal", "ceiling", "midpoint") and what not in BUDGETS:
            raise ValueError(f"outcome: {text}: write {kind}: and one of {', '.join(BUDGETS)}")
        if kind in ("accuracy", "gain", "base") and what and what not in MODES:
            raise ValueError(f"outcome: {text}: write {kind}, or {kind}: and one of {', '.join(MODES)}")
        mode, _, metric = what.partition("/")
        if kind in ("evaluated", "shift") and not (mode in MODES and metric):
            raise ValueError(f"outcome: {text}: write {kind}:MODE/METRIC with one of {', '.join(MODES)}")
        mode, _, metric = what.partition("/")[2].partition("/")
        if kind in ("also", "also_shift") and not (mode in MODES and metric):
            raise ValueError(f"outcome: {text}: write {kind}:TASK/MODE/METRIC with one of {', '.join(MODES)}")
        if kind == "lasting" and what and what not in DETECTORS:
            raise ValueError(f"outcome: {text}: no such kind of event; known: {', '.join(DETECTORS)}")
        if kind == "wrong_length" and what:
            raise ValueError(f"outcome: {text}: write {kind} alone")
        if kind in ("pass", "pass_gain", "pass_base") and not (what.isdigit() and int(what)):
            raise ValueError(f"outcome: {text}: write {kind}:K with a positive number")
        return cls(kind, what, reduction)


def _demand_level(text: str, what: str) -> None:
    parts = what.split(":")
    try:
        float(parts[-1])
        complete = len(parts) == 3 and all(parts)
    except ValueError:
        complete = False
    if not complete:
        raise ValueError(f"outcome: {text}: write when:METRIC:OTHER:LEVEL with a number as LEVEL")


def values_of(experiment: Experiment, outcome: str, where: Mapping[str, str]) -> dict[Key, float]:
    """The outcome of every run that has a result; NaN where its logs lack it."""
    asked = Outcome.read(outcome)
    measured = {
        "accuracy": _accuracy,
        "gain": _accuracy,
        "base": _accuracy,
        "evaluated": _evaluated,
        "shift": _evaluated,
        "also": _evaluated,
        "also_shift": _evaluated,
        "training": _training,
        "when": _when,
        "lasting": _lasting,
        "pass": _passed,
        "pass_gain": _passed,
        "pass_base": _passed,
        "equal": _equal,
        "ceiling": _curve,
        "midpoint": _curve,
        "wrong_length": _wrong_length,
    }[asked.kind](experiment, asked, where)
    return {key(run): measured.get(key(run), math.nan) for run in experiment.runs if run.settled}


def horizons_of(experiment: Experiment, outcome: str) -> dict[Key, float]:
    """The planned updates of every run that has a result, where the outcome ends with the run; else empty."""
    if Outcome.read(outcome).kind != "lasting":
        return {}
    return {key(run): _planned(run) for run in experiment.runs if run.settled}


def _planned(run: Run) -> float:
    return float(run.config.get("train", {}).get("steps", run.step))


def key(run: Run) -> Key:
    return run.arm, run.task, run.seed


def _accuracy(experiment: Experiment, asked: Outcome, where: Mapping[str, str]) -> dict[Key, float]:
    if where:
        return _accuracy_where(experiment, asked, where)
    rows = finals(experiment, asked.what or None).to_dict("records")
    return {
        (row["arm"], row["task"], int(row["seed"])): _of_ends(asked.kind, row["base"], row["counted"])
        for row in rows
    }


def _of_ends(kind: str, base: float, last: float) -> float:
    """The outcome from the values before and after training: one of them, or the gain."""
    ending = kind.rpartition("_")[2]
    return base if ending == "base" else last - (ending == "gain") * base


def _accuracy_where(experiment: Experiment, asked: Outcome, where: Mapping[str, str]) -> dict[Key, float]:
    """Over the problems with the traits alone; 0 for a run that diverged."""
    frame = graded(experiment)
    for trait, value in where.items():
        column = f"trait/{trait}"
        if column not in frame:
            return {}
        frame = frame[frame[column].astype(str) == value]
    means = _ends(experiment, frame, asked.what, lambda rows: float(rows["score/correct"].mean()))
    failed = {key(run) for run in experiment.runs if run.failed}
    return {
        run: _of_ends(asked.kind, base, 0.0 if run in failed else last) for run, (base, last) in means.items()
    }


def _ends(
    experiment: Experiment, frame: pd.DataFrame, mode: str, measure: Callable[[pd.DataFrame], float]
) -> dict[Key, tuple[float, float]]:
    """`measure` of the rows before training and after the last update, on the split and in the mode that the
    report takes, or in `mode`."""
    ends: dict[Key, tuple[float, float]] = {}
    for task in experiment.tasks:
        chosen = headline_of(experiment, task, mode or None)
        task_rows = frame[
            (frame["task"] == task) & (frame["split"] == chosen.split) & (frame["mode"] == chosen.mode)
        ]
        for (arm, seed), rows in task_rows.groupby(["arm", "seed"], sort=False):
            steps = rows["step"]
            base = measure(rows[steps == 0]) if (steps == 0).any() else math.nan
            last = measure(rows[steps == steps.max()]) if steps.max() else math.nan
            ends[str(arm), task, int(seed)] = base, last
    return ends


def _evaluated(experiment: Experiment, asked: Outcome, where: Mapping[str, str]) -> dict[Key, float]:
    evaluated: dict[Key, float] = {}
    for task in experiment.tasks:
        rows = experiment.select(_metric_of(experiment, asked, task))
        for (arm, seed), run_rows in rows[rows["task"] == task].groupby(["arm", "seed"], sort=False):
            run_rows = run_rows.sort_values("step")
            base, after = (
                run_rows.loc[run_rows["step"] == 0, "value"],
                run_rows.loc[run_rows["step"] > 0, "value"],
            )
            changed = asked.kind in ("shift", "also_shift")
            before = (base.iloc[0] if len(base) else math.nan) if changed else 0.0
            evaluated[str(arm), task, int(seed)] = float(after.iloc[-1] - before) if len(after) else math.nan
    return evaluated


def _metric_of(experiment: Experiment, asked: Outcome, task: str) -> str:
    """The logged name of an evaluated outcome in the runs of a task."""
    if asked.kind in ("evaluated", "shift"):
        return f"eval/{headline_of(experiment, task).split}/{asked.what}"
    other, _, rest = asked.what.partition("/")
    names = [f"also/{other}/{split}/{rest}" for split in ("test", "validation")]
    logged = experiment.logged.get(task, frozenset())
    return next((name for name in names if name in logged), names[0])


def _training(experiment: Experiment, asked: Outcome, where: Mapping[str, str]) -> dict[Key, float]:
    keys = ["arm", "task", "seed"]
    names = asked.what.split("+")
    rows = experiment.metrics[experiment.metrics["metric"].isin(names) & (experiment.metrics["step"] > 0)]
    whole = rows[np.isfinite(rows["value"])].groupby([*keys, "step"], sort=True)["value"].agg(["sum", "size"])
    whole = whole[whole["size"] == len(names)].reset_index()
    return {
        (str(arm), str(task), int(seed)): reduced(run_rows["sum"].to_numpy(float), asked.reduction)
        for (arm, task, seed), run_rows in whole.groupby(keys, sort=False)
    }


def _when(experiment: Experiment, asked: Outcome, where: Mapping[str, str]) -> dict[Key, float]:
    name, other, level = asked.what.split(":")
    rows = experiment.metrics[
        experiment.metrics["metric"].isin([name, other]) & (experiment.metrics["step"] > 0)
    ]
    values: dict[Key, float] = {}
    for (arm, task, seed), run_rows in rows.groupby(["arm", "task", "seed"], sort=False):
        steps = run_rows.pivot(index="step", columns="metric", values="value").sort_index()
        if {name, other} <= {*steps}:
            reached = when_reached(steps[name].tolist(), steps[other].tolist(), float(level))
            values[str(arm), str(task), int(seed)] = reached
    return values


def reduced(values: np.ndarray, reduction: str) -> float:
    """`values` in the order of their steps as one number."""
    last = max(1, round(LAST_TENTH * len(values)))
    chosen = {"first": values[:1], "last": values[-last:]}.get(reduction, values)
    if reduction in ("max", "min", "sum"):
        return float(getattr(chosen, reduction)())
    return float(chosen.mean())


def _lasting(experiment: Experiment, asked: Outcome, where: Mapping[str, str]) -> dict[Key, float]:
    # It brings matplotlib, half a second that lists of algorithms and recipes do without.
    from grpobench.analysis.topics.numbers import Numbers

    findings = Numbers(experiment).findings
    steps: dict[Key, float] = {}
    for run in experiment.runs:
        planned = _planned(run)
        findings_of_run = findings.get(run.name)
        if asked.what and not run.failed:
            onsets = (
                [e.onset for e in findings_of_run.events if e.kind == asked.what] if findings_of_run else []
            )
            steps[key(run)] = float(min(onsets, default=planned))
        else:
            end = collapse_of(run, findings_of_run)
            steps[key(run)] = float(end.step) if end else planned
    return steps


def _passed(experiment: Experiment, asked: Outcome, where: Mapping[str, str]) -> dict[Key, float]:
    k = int(asked.what)

    def passes(rows: pd.DataFrame) -> float:
        counts = [
            (len(scores), solved(list(scores))) for _, scores in rows.groupby("problem")["score/correct"]
        ]
        if not counts or min(n for n, _ in counts) < k:
            return math.nan
        samples, right = zip(*counts, strict=True)
        return float(pass_at_k(samples, right, k).mean())

    ends = _ends(experiment, graded(experiment), "sampled", passes)
    return {run: _of_ends(asked.kind, base, last) for run, (base, last) in ends.items()}


def _equal(experiment: Experiment, asked: Outcome, where: Mapping[str, str]) -> dict[Key, float]:
    rows = runs_at_equal_budgets(experiment, axes=[asked.what]).dropna(subset=["accuracy"])
    return {
        (row["arm"], row["task"], int(row["seed"])): float(row["accuracy"]) for row in rows.to_dict("records")
    }


def _curve(experiment: Experiment, asked: Outcome, where: Mapping[str, str]) -> dict[Key, float]:
    """Of each run's own curve, a failed run's too: what it never learned again is part of its ceiling."""
    found: dict[Key, float] = {}
    for task in experiment.tasks:
        rows = experiment.select(f"eval/validation/{headline_of(experiment, task).mode}/correct")
        rows = with_axis(experiment, rows[rows["task"] == task], asked.what).sort_values("x")
        for (arm, seed), curve in rows.groupby(["arm", "seed"], sort=False):
            start, later = curve.loc[curve["x"] == 0, "value"], curve[curve["x"] > 0]
            if not len(start) or len(later) < FEWEST_POINTS:
                continue
            fitted = fit(later["x"].to_numpy(float), later["value"].to_numpy(float), float(start.iloc[0]))
            if asked.kind == "ceiling" or fitted.ceiling - fitted.start >= LEAST_RISE:
                found[str(arm), task, int(seed)] = getattr(fitted, asked.kind)
    return found


def _wrong_length(experiment: Experiment, asked: Outcome, where: Mapping[str, str]) -> dict[Key, float]:
    def wrong(rows: pd.DataFrame) -> float:
        return float(rows.loc[rows["score/correct"] < 1, "length"].mean())  # NaN where all are right

    ends = _ends(experiment, graded(experiment), "sampled", wrong)
    return {run: last for run, (_, last) in ends.items()}


Horizons: TypeAlias = Mapping[str, Mapping[Key, float]]
"""By test whose outcome ends with the run: the planned updates of each run."""


def clip(mean: Estimate, low: float, high: float) -> Estimate:
    """The estimate within what is possible; NaN stays NaN."""
    return Estimate(*(one if math.isnan(one) else min(max(one, low), high) for one in _clipped_ends(mean)))


def count_reached(values: Mapping[Key, float], horizons: Mapping[Key, float]) -> int:
    """Runs that made all of their updates without what ends the outcome."""
    return sum(value >= horizons.get(run, math.inf) for run, value in values.items())


def horizons_of_finished(values: Mapping[Key, float], states: Mapping[Key, str]) -> dict[Key, float]:
    """Of a table that was kept without the planned updates: the longest of its finished runs, which made all
    of theirs. Empty where no run finished."""
    ends = [value for run, value in values.items() if states.get(run) == "finished"]
    return dict.fromkeys(values, max(ends)) if ends else {}


def _clipped_ends(mean: Estimate) -> tuple[float, float, float]:
    return mean.value, mean.low, mean.high
