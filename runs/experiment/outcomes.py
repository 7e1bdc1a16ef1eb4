"""What searches and profiles read of the runs that they compare: the rows of their training steps, and the
roles whose learning rate is searched after the policy's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpobench.algorithms.algorithm import Role
from grpobench.runs.experiment.experiment import ExperimentResult
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.runfolder.logs import RESULTS
from grpobench.tasks.data import bounded

CRITICS: tuple[Role, ...] = ("critic", "value_head")
"""Roles whose rate is searched after the policy's."""
TIMES = ("time/step", "time/evaluate")


def results(outcome: ExperimentResult) -> Iterator[tuple[ExperimentRun, list[dict[str, Any]]]]:
    """Every run that has a result, with the rows of its training steps."""
    for run in outcome.runs:
        if run.state in RESULTS:
            rows = bounded.read_rows(run.path / "metrics.jsonl")
            yield run, [row for row in rows if row["step"] > 0]


def total_seconds(rows: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of training and evaluation, over all attempts at the run."""
    return math.fsum(float(row.get(name) or 0.0) for row in rows for name in TIMES)


def total_tokens(rows: Sequence[Mapping[str, Any]]) -> int:
    """Tokens that were sampled in training."""
    return int(rows[-1].get("cost/generated_tokens") or 0) if rows else 0
