"""An experiment as it was read: the types from which the rest of `analysis` computes everything."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis.runfolder.files import LogError, problem_digests
from grpobench.analysis.runfolder.interim import InterimPlan
from grpobench.analysis.runfolder.search import SearchRecord
from grpobench.tasks.data import bounded

MARGIN = 0.02
"""Differences of accuracies below this do not matter, unless a recipe or a reader sets another margin."""

FINISHED = "finished"
DIVERGED = "diverged"
"""The algorithm failed: the run's accuracy counts as 0."""
COLLAPSED = "collapsed"
"""An event of the recipe's `stop_on` ended the run. Its result is the accuracy at that time."""
CRASHED = "crashed"
"""The machine or the program failed, which says nothing about the algorithm, so the run has no result. All
states except `finished`, `diverged` and `collapsed` mean that there is no result yet."""


RESULTS = (FINISHED, DIVERGED, COLLAPSED)
DAMAGED = "damaged"
"""A file of the run cannot be read. The run has no rows in the frames and no result."""


def run_name(arm: str, task: str, seed: int) -> str:
    """The name of a run, which is that of its folder."""
    return f"{arm}-{task.replace(':', '-')}-s{seed}"


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
    provenance: Mapping[str, Any]
    """provenance.json."""
    cut_lines: int
    """Half-written last lines in the run's logs, which were left out."""
    rewritten_rows: int
    """Rows that a later attempt wrote again after resuming a checkpoint; the last row counts."""
    rows: int = 0
    """Rows of metrics.jsonl."""
    planned: bool = True
    """Whether experiment.json lists it."""
    proved: bool = False
    """Whether its logs have checksums, which were correct; older versions wrote none."""
    lost: tuple[str, ...] = ()
    """Files other than logs that are missing or cut off, such as final weights. No number of a report needs
    them."""

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
        """Whether it ended before its last update, for any reason."""
        return self.state in (DIVERGED, COLLAPSED, CRASHED)


@dataclass(frozen=True)
class SweepPoint:
    """An arm of a map: the arm of the recipe, and its values of the swept keys."""

    arm: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class RateArm:
    """An arm at another learning rate than its own: the arm of the recipe, and the multiple of its policy's
    rate."""

    arm: str
    factor: float


@dataclass(frozen=True)
class Experiment:
    """All runs of one experiment; with several learning rates an arm, those at the arms' own rates."""

    name: str
    folder: Path
    summary: str
    recipe: str
    """Text of the recipe; empty if the launcher did not store it."""
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
    """Differences of accuracies (shares) below this do not matter."""
    plan: InterimPlan | None = None
    """The plan by which seeds are added, if there is one."""
    control: str = ""
    """The arm that all others are compared with, and nothing else is; empty: every pair is compared."""
    targets: tuple[float, ...] = ()
    """Levels of validation accuracy (shares) to which the report measures the way."""
    guard: Mapping[str, float] = field(default_factory=dict)
    """What training must not destroy -> the largest change that is allowed, in points or, of a loss, nats."""
    search: SearchRecord | None = None
    """The search that chose settings of the arms, if one did."""
    borrowed_rates: Mapping[str, str] = field(default_factory=dict)
    """Arm -> the arm of another recipe whose learning rate it has because none was chosen for it."""
    described: bool = True
    """Whether experiment.json, which lists the planned runs, can be read."""
    strangers: Mapping[str, str] = field(default_factory=dict)
    """Folder -> run, for folders whose run.toml belongs to another run. They have no rows in the frames."""
    sweep_values: Mapping[str, SweepPoint] = field(default_factory=dict)
    """Sweep point by arm; empty where the experiment is not a map."""
    rate_arms: Mapping[str, RateArm] = field(default_factory=dict)
    """By name, the arms at other learning rates than their own; none of them in `at_own_rates`."""
    over_rates: Experiment | None = None
    """The experiment at all its learning rates, of which this one has the arms' own; None where it has no
    others."""
    damage: tuple[str, ...] = ()
    """Files that could not be read: file, line if known, fault and remedy."""
    imported: bool = False
    """Whether logs of other libraries were imported into the folder; planned runs that are not imported are
    then copies from other experiments (``import --beside``)."""
    unimported: tuple[str, ...] = ()
    """Logs of other libraries that could not be imported as runs."""
    apart: str = ""
    """For a combination of several experiments, whose runs are not paired: the sentence for captions; else
    empty."""

    @property
    def at_all_rates(self) -> Experiment:
        """The experiment with the runs at all learning rates."""
        return self.over_rates or self

    def at_own_rates(self) -> Experiment:
        """The runs of the arms at their own learning rates; all others are in `over_rates`."""
        if not self.rate_arms:
            return self
        runs = tuple(run for run in self.runs if run.arm not in self.rate_arms)

        def rows(frame: pd.DataFrame) -> pd.DataFrame:
            return (
                frame if frame.empty else frame[~frame["arm"].isin([*self.rate_arms])].reset_index(drop=True)
            )

        return replace(
            self,
            arms=tuple(arm for arm in self.arms if arm not in self.rate_arms),
            runs=runs,
            metrics=rows(self.metrics),
            evaluations=rows(self.evaluations),
            statuses=rows(self.statuses),
            configs={run.name: run.config for run in runs},
            rate_arms={},
            over_rates=self,
        )

    @cached_property
    def logged(self) -> Mapping[str, frozenset[str]]:
        """Names of the logged metrics by task."""
        pairs = self.metrics[["task", "metric"]].drop_duplicates()
        return {
            str(task): frozenset(map(str, metrics))
            for task, metrics in pairs.groupby("task", sort=False)["metric"]
        }

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


# Imported logs


def import_record(run: Run) -> Mapping[str, Any]:
    """How a run was imported: format, names, files, rows, faults; empty for a run that was not imported."""
    record = run.provenance.get("imported")
    return record if isinstance(record, Mapping) else {}


# Changes between attempts


@dataclass(frozen=True)
class Stretch:
    """A value and the step from which it was used."""

    after: int | None
    """The last update before it took effect; None where provenance.json does not say."""
    value: str


def histories(run: Run) -> dict[str, tuple[Stretch, ...]]:
    """Settings, versions and other facts that changed during a run, by name, from the attempts in
    provenance.json. The changes of an attempt take effect at the checkpoint that it resumed, and the steps of
    earlier attempts after that checkpoint were discarded. A run that started again has only one value."""
    past: dict[str, list[Stretch]] = {}
    current: dict[str, str] = {}
    for attempt in attempts(run):
        for change in attempt.get("changes", ()):
            name, _, values = str(change).partition(": ")
            before, _, after = values.partition(" -> ")
            past.setdefault(name, [Stretch(0, before)])
            current[name] = after
        if (start := attempt.get("resumed_at")) is not None:
            for name, value in current.items():
                past[name] = _resumed(past[name], int(start), value)
    for name, value in current.items():
        if past[name][-1].value != value and not any("resumed_at" in attempt for attempt in attempts(run)):
            past[name].append(Stretch(None, value))
    return {_key(name): tuple(stretches) for name, stretches in past.items() if len(stretches) > 1}


def attempts(run: Run) -> Sequence[Mapping[str, Any]]:
    """The attempts at a run that provenance.json records."""
    recorded = run.provenance.get("attempts")
    return (
        [attempt for attempt in recorded if isinstance(attempt, Mapping)]
        if isinstance(recorded, list)
        else []
    )


def _resumed(past: Sequence[Stretch], start: int, value: str) -> list[Stretch]:
    surviving = [stretch for stretch in past if stretch.after is not None and stretch.after < start]
    return surviving if surviving and surviving[-1].value == value else [*surviving, Stretch(start, value)]


def _key(name: str) -> str:
    """`algorithm.settings.clip_high` is `algorithm.clip_high` on the command line."""
    return name.replace(".settings.", ".", 1)


def describe(stretches: Sequence[Stretch]) -> str:
    """``0.0001 until step 17, then 0.001``."""
    text = plain_value(stretches[0].value)
    for stretch in stretches[1:]:
        when = "until a step that is not recorded" if stretch.after is None else f"until step {stretch.after}"
        text += f" {when}, then {plain_value(stretch.value)}"
    return text


def plain_value(value: str) -> str:
    """A value as the settings table shows it, without quotes and with short numbers."""
    try:
        read = bounded.parse_json(value)
    except ValueError:
        return value
    return f"{read:g}" if isinstance(read, float) else value.strip('"')


# Rows of tidy frames

RUN_KEYS = ["arm", "task", "seed"]
"""Columns that identify a run."""


def by_run(frame: pd.DataFrame) -> Callable[[Run], pd.DataFrame]:
    """A function that returns the rows of a run in their order. The frame is split once, not for each run."""
    rows = _split_rows(frame, RUN_KEYS)
    return lambda run: rows(run.arm, run.task, run.seed)


def by_cell(frame: pd.DataFrame) -> Callable[[str, str], pd.DataFrame]:
    """A function that returns the rows of an arm on a task, over all seeds, in their order."""
    return _split_rows(frame, ["arm", "task"])


def _split_rows(frame: pd.DataFrame, keys: Sequence[str]) -> Callable[..., pd.DataFrame]:
    row_indices = frame.groupby([*keys], sort=False).indices if len(frame) else {}
    return lambda *key: frame.iloc[row_indices.get(key, [])]


def finite_mean(values: pd.Series) -> float:
    """The mean of all values that are not NaN; NaN where there are none."""
    finite = values.dropna()
    return float(finite.mean()) if len(finite) else math.nan


# Completions and problems that a run stored

NAME = re.compile(r"step-(\d+)\.jsonl\.zst")
EVALUATED = re.compile(r"(\w+)-step-(\d+)\.jsonl\.zst")


def rollout_steps(run: Path) -> dict[int, Path]:
    """The steps with stored rollouts, in order, and their files."""
    matches = [(NAME.fullmatch(path.name), path) for path in (run / "rollouts").glob("step-*.jsonl.zst")]
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def completion_files(run: Path) -> dict[tuple[str, int], Path]:
    """The files of evaluations' completions, by split and step, in order of the steps."""
    matches = [(EVALUATED.fullmatch(path.name), path) for path in (run / "completions").glob("*.jsonl.zst")]
    split_steps = [((match[1], int(match[2])), path) for match, path in matches if match]
    return dict(sorted(split_steps, key=lambda pair: (pair[0][1], pair[0][0])))


def read_completions(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of `completion_files`: `problem`, `mode`, `sample` and `completion`. Raises LogError
    for a damaged file."""
    return read_packed(path, None, "completion", str)


def read_rollouts(path: Path, most: int | None = None) -> list[dict[str, Any]]:
    """The first `most` rows of a file (None: all), a row per problem: `problem`, `prompt`, and `completions`
    with text, tokens, scores and reward. Raises LogError for a damaged file."""
    return read_packed(path, most, "completions", list)


def read_packed(path: Path, most: int | None, key: str, kind: type) -> list[dict[str, Any]]:
    """The first `most` rows of a compressed file, each with a value of type `kind` under `key`. Raises
    LogError."""
    rows: list[dict[str, Any]] = []
    try:
        for line in islice(bounded.lines(path), most):
            row = bounded.parse_json(line)
            if not (isinstance(row, dict) and isinstance(row.get(key), kind)):
                raise ValueError(f"no {key}")
            rows.append(row)
    except bounded.FileError as error:
        raise LogError(f"{error}".replace("restore the file", "restore or delete the file")) from error
    except (ValueError, OSError) as error:
        raise LogError(
            f"{path}, line {len(rows) + 1}: damaged ({error}); restore or delete the file"
        ) from error
    return rows


def read_digests(experiment: Experiment) -> tuple[dict[str, dict[str, dict[str, str]]], list[str]]:
    """`problem_digests` by run, and the faults of damaged files, whose runs are left out."""
    digests, faults = {}, []
    for run in experiment.runs:
        if run.state != "missing":
            try:
                digests[run.name] = problem_digests(experiment.folder / run.name)
            except LogError as error:
                faults.append(str(error))
    return digests, faults
