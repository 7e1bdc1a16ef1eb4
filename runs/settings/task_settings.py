"""The tasks of a recipe and their settings: read, chosen with `--set tasks`, and those of an arm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpobench.runs.settings import registries
from grpobench.runs.settings.layers import SETTINGS
from grpobench.runs.settings.names import name_list, registered
from grpobench.runs.tools import strict

Settings = dict[str, dict[str, Any]]
"""Settings by task name."""


@dataclass(frozen=True)
class TaskLayer:
    """Settings of one task, in one arm or (None) in all."""

    task: str
    values: Mapping[str, Any]
    arm: str | None = None


def read_tasks(table: Mapping[str, Any], faults: list[str]) -> Settings:
    """The tasks that a recipe lists."""
    entries = table.get("tasks", [])
    if not isinstance(entries, list):
        faults.append(f"tasks: must be a list, not {strict.describe(entries)}")
        return {}
    found: Settings = {}
    for index, entry in enumerate(entries):
        place = f"tasks[{index}]"
        listed = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(listed, Mapping) or not isinstance(listed.get("name"), str):
            faults.append(f"{place}: must be a task's name or a table with name and settings")
            continue
        name = listed["name"]
        faults += [
            strict.unknown(place, key, ("name", SETTINGS), {key: f"{place}.settings.{key}"})
            for key in listed
            if key not in ("name", SETTINGS)
        ]
        cls = registered(registries.tasks(), name, place, "task", faults)
        if cls is None:
            continue
        if name in found:
            faults.append(f"{place}: the task {name} is listed twice; remove one")
            continue
        found[name] = strict.check(cls, listed.get(SETTINGS, {}), f"task.{name}.settings", faults)
    return found


def select_tasks(chosen: Any, listed: Settings, faults: list[str]) -> Settings:
    """The tasks to run. A task that the recipe does not list may be chosen with its defaults."""
    if chosen is None:
        if not listed and not faults:
            faults.append('tasks: the recipe has no tasks; write tasks = ["NAME", ...]')
        return {name: dict(settings) for name, settings in listed.items()}
    found: Settings = {}
    for name in name_list(chosen, "--set tasks", faults):
        if name in listed:
            found[name] = dict(listed[name])
        elif registered(registries.tasks(), name, "--set tasks", "task", faults):
            found[name] = {}
    return found


def settings_of_tasks(table: Any, place: str, names: Iterable[str], faults: list[str]) -> Mapping[str, Any]:
    """A table of settings, each of which one of the named tasks has."""
    if not isinstance(table, Mapping):
        faults.append(f"{place}: must be a table, not {strict.describe(table)}")
        return {}
    valid = {field for name in names for field in strict.hints(registries.tasks()[name])}
    faults += [strict.unknown(place, key, valid) for key in table if key not in valid]
    return {key: value for key, value in table.items() if key in valid}


def owned(table: Mapping[str, Any], name: str, place: str, faults: list[str]) -> dict[str, Any]:
    """Those settings of a table that the named task has, converted."""
    cls = registries.tasks()[name]
    known = strict.hints(cls)
    return strict.check(cls, {key: value for key, value in table.items() if key in known}, place, faults)
