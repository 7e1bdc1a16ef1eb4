"""A matrix of runs as it was read: the types that all else in `analysis` is computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis.logs.looks import Plan

MARGIN = 0.02
"""Differences of accuracies below this are none that matters, unless a recipe or a reader says otherwise."""

FINISHED = "finished"
DIVERGED = "diverged"
"""The algorithm failed: the run's accuracy counts as 0."""
COLLAPSED = "collapsed"
"""An event of the recipe's `stop_on` ended the run: its result, with the accuracy that it had then."""
CRASHED = "crashed"
"""The machine or the program failed, which says nothing about the algorithm: the run has no result. Every
other state but `finished`, `diverged` and `collapsed` means: no result yet."""


RESULTS = (FINISHED, DIVERGED, COLLAPSED)
DAMAGED = "damaged"
"""A file of the run cannot be read: nothing of it is in the frames, and it has no result."""


@dataclass(frozen=True)
class Run:
    """One run folder."""

    name: str
    arm: str
    task: str
    seed: int
    state: str
    """`finished`, `running`, `diverged`, `collapsed`, `crashed`, `preempted`; `missing`: no folder,
    `unknown`: no file."""
    why: str
    step: int
    attempt: int
    config: Mapping[str, Any]
    """run.toml, every resolved value."""
    origin: Mapping[str, Any]
    """origin.json."""
    cut_lines: int
    """Half-written last lines that were left out, over the run's logs."""
    rewritten_rows: int
    """Rows that a later attempt wrote again after going back to a checkpoint; the last one counts."""
    rows: int = 0
    """Rows of metrics.jsonl."""
    planned: bool = True
    """Whether matrix.json lists it."""
    proved: bool = False
    """Whether there are sums over its logs, which were right; older versions left none."""
    lost: tuple[str, ...] = ()
    """What it kept beside its logs and is gone or cut, such as final weights: no number of a report needs
    it."""

    @property
    def finished(self) -> bool:
        """Whether it made its last update."""
        return self.state == FINISHED

    @property
    def failed(self) -> bool:
        """Whether the algorithm failed."""
        return self.state == DIVERGED

    @property
    def collapsed(self) -> bool:
        """Whether its recipe stopped it for an event."""
        return self.state == COLLAPSED

    @property
    def settled(self) -> bool:
        """Whether it has a result."""
        return self.state in RESULTS

    @property
    def stopped(self) -> bool:
        """Whether it ended before its last update, for whatever reason."""
        return self.state in (DIVERGED, COLLAPSED, CRASHED)


@dataclass(frozen=True)
class Dose:
    """Where an arm of a map comes from: the recipe's arm, and the values that it is run with, by key."""

    arm: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Matrix:
    """All runs of one matrix."""

    name: str
    folder: Path
    summary: str
    recipe: str
    """Text of the recipe; empty if the launcher did not keep it."""
    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[Run, ...]
    metrics: pd.DataFrame
    """Long: arm, task, seed, step, metric, value (NaN where the log says null)."""
    evaluations: pd.DataFrame
    """One row per evaluated problem and sample: arm, task, seed, step, split, mode, problem, sample, answer,
    outcome, length, stopped, and a column score/<name> and trait/<name> for each score and trait."""
    statuses: pd.DataFrame
    """One row per run: name, arm, task, seed, state, why, step, attempt, cut_lines, rewritten_rows."""
    configs: Mapping[str, Mapping[str, Any]]
    """run.toml by run name."""
    margin: float = MARGIN
    """Differences of accuracies (shares) below this are none that matters."""
    plan: Plan | None = None
    """By which seeds are added, where they are."""
    described: bool = True
    """Whether there is a matrix.json that can be read, which says what was planned."""
    strangers: Mapping[str, str] = field(default_factory=dict)
    """Folders whose run.toml is that of another run, and which; nothing of them is in the frames."""
    doses: Mapping[str, Dose] = field(default_factory=dict)
    """By arm, where the matrix is a map."""
    damage: tuple[str, ...] = ()
    """What could not be read: file, line where there is one, fault and remedy."""
    unimported: tuple[str, ...] = ()
    """Logs of others that no run could be made of when they were imported."""
    apart: str = ""
    """Where it is put together from several matrices, whose runs nothing pairs: what captions say of it."""

    @cached_property
    def logged(self) -> Mapping[str, frozenset[str]]:
        """The names of the metrics that runs of each task logged."""
        pairs = self.metrics[["task", "metric"]].drop_duplicates()
        return {
            str(task): frozenset(map(str, own)) for task, own in pairs.groupby("task", sort=False)["metric"]
        }

    def only(self, arms: Sequence[str]) -> Matrix:
        """The matrix of some of its arms, in their order here."""

        def theirs(frame: pd.DataFrame) -> pd.DataFrame:
            return frame[frame["arm"].isin(arms)]

        runs = tuple(run for run in self.runs if run.arm in set(arms))
        return replace(
            self,
            arms=tuple(arm for arm in self.arms if arm in set(arms)),
            runs=runs,
            metrics=theirs(self.metrics),
            evaluations=theirs(self.evaluations),
            statuses=theirs(self.statuses),
            configs={run.name: run.config for run in runs},
        )

    def select(self, metric: str) -> pd.DataFrame:
        """arm, task, seed, step, value of one metric; rows without a finite value are left out."""
        chosen = self.metrics[self.metrics["metric"] == metric].drop(columns="metric")
        return chosen[np.isfinite(chosen["value"])].reset_index(drop=True)

    def has(self, metric: str) -> bool:
        """Whether any run logged a finite value of the metric."""
        return not self.select(metric).empty

    def names(self, prefix: str = "") -> list[str]:
        """Names of the logged metrics that start with `prefix`, sorted."""
        return sorted(str(name) for name in self.metrics["metric"].unique() if str(name).startswith(prefix))
