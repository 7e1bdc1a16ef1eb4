"""The resolved settings of every arm, from run.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.logs.changes import describe, histories
from grpobench.analysis.logs.matrix import Matrix, Run
from grpobench.analysis.tools.text import listed

MOST_COLUMNS = 12
"""Arms that stand beside each other in a table."""
IDENTITY = ("matrix", "arm", "seed", "task", "task.name", "observe", "beside")
"""Keys of run.toml that say which run it is and who is told of it rather than how it was set."""


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; an empty table is kept as {}."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


@dataclass(frozen=True)
class Setting:
    """One key of run.toml over the arms; `values[arm]` is text, `–` where the arm has no such key."""

    key: str
    values: Mapping[str, str]
    differs: bool
    changed: frozenset[str] = frozenset()
    """The arms in which a run changed it midway; their text says from which step."""

    def shared(self) -> list[tuple[str, str]]:
        """Each value with the arms that have it, that of the most arms first."""
        arms: dict[str, list[str]] = {}
        for arm, value in self.values.items():
            arms.setdefault(value, []).append(arm)
        return [(value, listed(own)) for value, own in sorted(arms.items(), key=lambda one: -len(one[1]))]


def all_settings(matrix: Matrix) -> list[Setting]:
    """Every resolved setting per arm: those that a run changed midway first, then those that differ between
    arms. A value that depends on the task is written `task: value; …`; one that depends on the seed, as all
    its values; one that changed, as ``0.0001 until step 17, then 0.001``."""
    by_run = [(run, resolved_settings(run)) for run in matrix.runs]
    altered = {run.name: histories(run) for run in matrix.runs}
    for run, config in by_run:
        config |= {key: describe(own) for key, own in altered[run.name].items() if key in config}
    keys = dict.fromkeys(key for _, config in by_run for key in config if key not in IDENTITY)
    by_arm: dict[str, list[tuple[Run, dict[str, Any]]]] = {arm: [] for arm in matrix.arms}
    for pair in by_run:
        by_arm[pair[0].arm].append(pair)
    found = []
    for key in keys:
        values = {arm: _setting(key, own, matrix.tasks) for arm, own in by_arm.items()}
        arms = frozenset(run.arm for run in matrix.runs if key in altered[run.name])
        found.append(Setting(key, values, len(set(values.values())) > 1, arms))
    return sorted(found, key=lambda setting: (not setting.changed, not setting.differs))


def resolved_settings(run: Run) -> dict[str, Any]:
    """run.toml as dotted keys, as they are on the command line: `algorithm.settings.clip_high` is
    `algorithm.clip_high` there."""
    return {key.replace(".settings.", ".", 1): value for key, value in flatten(run.config).items()}


def run_settings(matrix: Matrix) -> list[dict[str, Any]]:
    """A row per run: its `name`, and the value of every setting that is none of `IDENTITY`."""
    return [
        {"name": run.name} | {key: own for key, own in resolved_settings(run).items() if key not in IDENTITY}
        for run in matrix.runs
    ]


def _setting(key: str, runs: Sequence[tuple[Run, Mapping[str, Any]]], tasks: Sequence[str]) -> str:
    by_task: dict[str, str] = {}
    for task in tasks:
        said = dict.fromkeys(
            value_text(config[key]) for run, config in runs if run.task == task and key in config
        )
        if said:
            by_task[task] = " | ".join(said)
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
