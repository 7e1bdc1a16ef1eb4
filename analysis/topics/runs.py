"""How the runs were made: settings of every arm, provenance, and the table of all runs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import (
    Experiment,
    Run,
    attempts,
    describe,
    histories,
    import_record,
)
from grpobench.analysis.runfolder.files import flatten
from grpobench.analysis.tools.text import NONE, listed

MOST_COLUMNS = 12
"""Most arms that are columns of a table."""
IDENTITY = ("experiment", "arm", "seed", "task", "task.name", "observe", "beside")
"""Keys of run.toml that identify the run or its observers, and are not settings."""


@dataclass(frozen=True)
class RecipeKey:
    """One key of run.toml in all arms. `values[arm]` is text, or `–` where the arm has no such key."""

    key: str
    values: Mapping[str, str]
    differs: bool
    changed: frozenset[str] = frozenset()
    """Arms in which a run changed it during training; their text names the step."""

    def shared(self) -> list[tuple[str, str]]:
        """Each value with the arms that have it; the most frequent value comes first."""
        arms: dict[str, list[str]] = {}
        for arm, value in self.values.items():
            arms.setdefault(value, []).append(arm)
        return [
            (value, listed(with_value))
            for value, with_value in sorted(arms.items(), key=lambda value_arms: -len(value_arms[1]))
        ]


def all_settings(experiment: Experiment) -> list[RecipeKey]:
    """Every resolved setting per arm. Settings that a run changed during training come first, then settings
    that differ between arms. A value that depends on the task is written `task: value; …`, a value that
    depends on the seed as all its values, and a value that changed as ``0.0001 until step 17, then
    0.001``."""
    by_run = [(run, resolved_settings(run)) for run in experiment.runs]
    altered = {run.name: histories(run) for run in experiment.runs}
    for run, config in by_run:
        config |= {key: describe(stretches) for key, stretches in altered[run.name].items() if key in config}
    keys = dict.fromkeys(key for _, config in by_run for key in config if key not in IDENTITY)
    by_arm: dict[str, list[tuple[Run, dict[str, Any]]]] = {arm: [] for arm in experiment.arms}
    for pair in by_run:
        by_arm[pair[0].arm].append(pair)
    settings = []
    for key in keys:
        values = {arm: _setting(key, stretches, experiment.tasks) for arm, stretches in by_arm.items()}
        arms = frozenset(run.arm for run in experiment.runs if key in altered[run.name])
        settings.append(RecipeKey(key, values, len(set(values.values())) > 1, arms))
    return sorted(settings, key=lambda setting: (not setting.changed, not setting.differs))


def resolved_settings(run: Run) -> dict[str, Any]:
    """run.toml as dotted keys, as they are on the command line: `algorithm.settings.clip_high` is
    `algorithm.clip_high` there."""
    return {key.replace(".settings.", ".", 1): value for key, value in flatten(run.config).items()}


def run_settings(experiment: Experiment) -> list[dict[str, Any]]:
    """One row per run: its `name`, and the value of every setting that is not in `IDENTITY`."""
    return [
        {"name": run.name}
        | {key: value for key, value in resolved_settings(run).items() if key not in IDENTITY}
        for run in experiment.runs
    ]


def _setting(key: str, runs: Sequence[tuple[Run, Mapping[str, Any]]], tasks: Sequence[str]) -> str:
    by_task: dict[str, str] = {}
    for task in tasks:
        texts = dict.fromkeys(
            value_text(config[key]) for run, config in runs if run.task == task and key in config
        )
        if texts:
            by_task[task] = " | ".join(texts)
    if not by_task:
        return "–"
    if len(set(by_task.values())) == 1:
        return next(iter(by_task.values()))
    return "; ".join(f"{task}: {value}" for task, value in by_task.items())


def value_text(value: Any) -> str:
    """A setting as it is shown: booleans as in TOML, numbers short."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


# Provenance

ATTEMPT_ONLY = (
    "attempts",
    "attempt",
    "id",
    "started",
    "pid",
    "command",
    "diff",
    "changes",
    "resumed_at",
    "caveat",
    "imported",
)
"""Keys of provenance.json that say nothing about whether runs are comparable."""
UNPROVED = "none (an older version, or imported): changes of the logs would not be noticed"
LOGS = ("by", "format", "names", "writer")
"""What provenance.json says about the log from which a run was imported."""


def run_provenance(experiment: Experiment) -> dict[str, list[tuple[str, int]]]:
    """Where the runs come from, by their last attempt: key -> (value, number of runs), most frequent first.

    `code` combines the digests of the source files into one digest. It differs between runs only if a file
    differs on which both depend. Facts about a single attempt (process, start, command, uncommitted diff) are
    only in provenance.json.
    """
    counted: dict[str, Counter[str]] = {}
    everywhere = {file: next(iter(names)) for file, names in digests(experiment).items() if len(names) == 1}
    for run in experiment.runs:
        tried = attempts(run)
        record = {**run.provenance, **(tried[-1] if tried else {})}
        if code := source_files(run):
            record["code"] = hashlib.sha256(
                json.dumps({**everywhere, **code}, sort_keys=True).encode()
            ).hexdigest()[:12]
        shown_facts = {key: value for key, value in record.items() if key not in ATTEMPT_ONLY and value != {}}
        if tried:
            shown_facts["attempts"] = len(tried)
        if logs := import_record(run):
            shown_facts["imported"] = {name: logs[name] for name in LOGS if logs.get(name)}
        if run.provenance and run.rows:
            shown_facts["checksums"] = "right" if run.proved else UNPROVED
        for key, value in flatten(shown_facts).items():
            counted.setdefault(key, Counter())[value_text(value)] += 1
    return {key: values.most_common() for key, values in counted.items()}


def source_files(run: Run) -> Mapping[str, str]:
    """Source file -> digest, from the run's last attempt."""
    tried = attempts(run)
    code = tried[-1].get("code") if tried else run.provenance.get("code")
    return code if isinstance(code, Mapping) else {}


def digests(experiment: Experiment) -> dict[str, dict[str, list[str]]]:
    """Source file -> digest -> the runs that were made with it."""
    by_file: dict[str, dict[str, list[str]]] = {}
    for run in experiment.runs:
        for file, digest in source_files(run).items():
            by_file.setdefault(file, {}).setdefault(digest, []).append(run.name)
    return by_file


# Table of all runs


def runs_table(experiment: Experiment) -> PrintedTable:
    """One row per run, in any state."""
    frame = experiment.statuses
    rows = [
        [r["arm"], r["task"], str(r["seed"]), r["state"], str(r["step"]), str(r["attempt"]), r["why"] or NONE]
        for r in frame.to_dict("records")
    ]
    header = ["arm", "task", "seed", "state", "step", "attempt", "why"]
    return PrintedTable("runs", "Every run", header, rows, frame, text_columns=4, wide=1)
