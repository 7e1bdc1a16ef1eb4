"""What the detectors find in every run of an experiment, and which runs collapsed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis.detectors.history import About, Answers, History, Series
from grpobench.analysis.detectors.registry import Findings, detect, is_read_by_detectors
from grpobench.analysis.runfolder.experiment import RUN_KEYS, Experiment, Run

SPLIT = "validation"


@dataclass(frozen=True)
class Collapse:
    """The collapse of a run."""

    step: int
    kind: str
    """A kind of event, or `divergence`."""


def run_findings(experiment: Experiment) -> dict[str, Findings]:
    """Findings of the detectors by run; runs without logs are left out."""
    return {name: detect(history) for name, history in histories(experiment).items()}


def histories(experiment: Experiment) -> dict[str, History]:
    """What detectors read, by run; runs without logs are left out."""
    metrics = experiment.metrics
    names = [name for name in metrics["metric"].unique() if is_read_by_detectors(str(name))]
    detector_metrics = metrics[metrics["metric"].isin(names)]
    logged = dict(iter(detector_metrics.groupby(RUN_KEYS, sort=False)))
    last = metrics.groupby(RUN_KEYS, sort=False)["step"].max()
    answers = EvaluationRows(experiment.evaluations)
    by_name = {}
    for run in experiment.runs:
        key = (run.arm, run.task, run.seed)
        if run.rows and key in last.index:
            rows = logged.get(key, detector_metrics.iloc[:0])
            by_name[run.name] = history_of(run, rows, int(last[key]), answers.of(run))
    return by_name


def history_of(run: Run, rows: pd.DataFrame, last: int, answers: Callable[[str, str], Answers]) -> History:
    """A run's rows (step, metric, value) as detectors read them."""
    series, holes = {}, {}
    for name, logged in rows.groupby("metric", sort=False, observed=True):
        steps, values = logged["step"].to_numpy(np.int64), logged["value"].to_numpy(np.float64)
        finite = np.isfinite(values)
        if finite.any():
            series[str(name)] = Series(str(name), steps[finite], values[finite])
        if not finite.all():
            holes[str(name)] = steps[~finite].tolist()
    return History(series, holes, last, about(run.config), answers)


def about(config: Mapping[str, Any]) -> About:
    """The settings that detectors need, from run.toml; 0 where it has no such number."""

    def setting(section: str, name: str) -> int:
        value = config.get(section, {}).get(name, 0)
        return value if isinstance(value, int) else 0

    return About(
        planned=setting("train", "steps"),
        warmup=setting("train", "warmup_steps"),
        problems=setting("evaluate", "problems"),
        group=setting("train", "group_size"),
    )


def graded(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Evaluated answers with a score `correct`, without answers that an infrastructure error left
    ungraded."""
    if "score/correct" not in evaluations:
        return evaluations.iloc[:0]
    if "outcome" not in evaluations:
        return evaluations
    return evaluations[evaluations["outcome"] != "infra_error"]


@dataclass(frozen=True)
class EvaluationRows:
    """The rows of eval.jsonl of all runs, looked up by run on request."""

    evaluations: pd.DataFrame

    @cached_property
    def graded(self) -> pd.DataFrame:
        """Validation answers with a score."""
        frame = graded(self.evaluations)
        return frame[(frame["split"] == SPLIT) & frame["score/correct"].notna()] if len(frame) else frame

    @cached_property
    def row_indices(self) -> Mapping[Any, Any]:
        """Positions of rows by (arm, task, seed, mode)."""
        indices: Mapping[Any, Any] = self.graded.groupby([*RUN_KEYS, "mode"], sort=False).indices
        return indices

    def of(self, run: Run) -> Callable[[str, str], Answers]:
        """The answers of a run."""

        def answers(split: str, mode: str) -> Answers:
            indices = self.row_indices.get((run.arm, run.task, run.seed, mode), ()) if split == SPLIT else ()
            scores: dict[int, dict[str, list[float]]] = {}
            if not len(indices):  # no answers, as for most imported runs, which then lack the columns as well
                return scores
            rows = self.graded.iloc[indices]
            columns = (rows["step"], rows["problem"], rows["score/correct"])
            for step, problem, score in zip(*columns, strict=True):
                scores.setdefault(int(step), {}).setdefault(str(problem), []).append(float(score))
            return scores

        return answers


def collapse_of(run: Run, findings: Findings | None) -> Collapse | None:
    """The collapse that a run did not recover from, or None. It is an event of the family `collapse`, the
    event for which the recipe stopped the run, or a divergence."""
    if run.failed:
        return Collapse(run.step, "divergence")
    if findings is None:
        return None
    event = findings.collapse()
    if run.collapsed:
        stops = run.config.get("stop_on", ())
        stopping = [
            stop_event
            for stop_event in findings.events
            if stop_event.kind in stops and stop_event.recovered is None
        ]
        event = stopping[0] if stopping else event
        if event is None:
            return Collapse(run.step, "stopped")
    return Collapse(event.onset, event.kind) if event else None


def collapses(experiment: Experiment, findings: Mapping[str, Findings]) -> dict[str, Collapse]:
    """Collapse by run, for runs that collapsed."""
    ends = {run.name: collapse_of(run, findings.get(run.name)) for run in experiment.runs}
    return {name: end for name, end in ends.items() if end is not None}
