"""The tasks of a recipe and their settings: read, chosen with `--set tasks`, and those of an arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.runs.settings import registries
from grpobench.runs.settings.layers import SETTINGS
from grpobench.runs.settings.names import found, name_list
from grpobench.runs.tools import strict
from grpobench.tasks.kinds.jsonl import FROM_DATA
from grpobench.tasks.task import Task


@dataclass(frozen=True)
class Chosen:
    """A task of a recipe."""

    cls: type[Task]
    settings: Mapping[str, Any]


Tasks = dict[str, Chosen]
"""By the names that arms, sections and folders call them."""
DATA = "jsonl"
"""The key of an entry that makes a task of a file of problems."""


@dataclass(frozen=True)
class TaskLayer:
    """Settings of one task, in one arm or (None) in all."""

    task: str
    values: Mapping[str, Any]
    arm: str | None = None


def read_tasks(table: Mapping[str, Any], folder: Path | None, faults: list[str]) -> Tasks:
    """The tasks that a recipe in `folder` lists."""
    entries = table.get("tasks", [])
    if not isinstance(entries, list):
        faults.append(f"tasks: must be a list, not {strict.describe(entries)}")
        return {}
    listed: Tasks = {}
    for index, entry in enumerate(entries):
        place = f"tasks[{index}]"
        told = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(told, Mapping) or not isinstance(told.get("name"), str):
            faults.append(f"{place}: must be a task's name or a table with name and settings")
            continue
        read = read_data if DATA in told else read_named
        pair = read(told, place, folder, faults)
        if pair is None:
            continue
        name, one = pair
        if name in listed:
            faults.append(f"{place}: the task {name} is listed twice; remove one")
        else:
            listed[name] = one
    return listed


def read_named(
    entry: Mapping[str, Any], place: str, folder: Path | None, faults: list[str]
) -> tuple[str, Chosen] | None:
    """(name, task) of an entry whose class has a name; None, with a fault, for an unknown one."""
    faults += [
        strict.unknown(place, key, ("name", SETTINGS, DATA), {key: f"{place}.settings.{key}"})
        for key in entry
        if key not in ("name", SETTINGS)
    ]
    cls = found("task", entry["name"], folder, place, faults)
    if cls is None:
        return None
    settings = strict.check(cls, entry.get(SETTINGS, {}), f"task.{cls.name}.settings", faults)
    return cls.name, Chosen(cls, settings)


def read_data(
    entry: Mapping[str, Any], place: str, folder: Path | None, faults: list[str]
) -> tuple[str, Chosen] | None:
    """(name, task) of an entry that is a file of problems, `verify` naming its class."""
    name, verify = entry["name"], entry.get("verify")
    if not isinstance(verify, str) or verify not in FROM_DATA:
        ways = ", ".join(map(repr, FROM_DATA))
        faults.append(f"{place}.verify: must be one of {ways}, not {strict.describe(verify)}")
        return None
    if name in registries.tasks():
        faults.append(f"{place}.name: the suite has another task {name!r}; choose another name")
        return None
    own = {key: value for key, value in entry.items() if key != "verify"}
    cls = FROM_DATA[verify]
    return name, Chosen(cls, strict.check(cls, own, place, faults))


def located(settings: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Settings with their paths, which are relative to the recipe's folder, made absolute."""
    return {
        key: (folder or Path()).absolute() / value.expanduser() if isinstance(value, Path) else value
        for key, value in settings.items()
    }


def select_tasks(chosen: Any, listed: Tasks, folder: Path | None, faults: list[str]) -> Tasks:
    """The tasks to run. A task that the recipe does not list may be chosen with its defaults."""
    if chosen is None:
        if not listed and not faults:
            faults.append('tasks: the recipe has no tasks; write tasks = ["NAME", ...]')
        return dict(listed)
    selected: Tasks = {}
    for name in name_list(chosen, "--set tasks", faults):
        if name in listed:
            selected[name] = listed[name]
        elif (cls := found("task", name, folder, "--set tasks", faults)) is not None:
            selected[cls.name] = listed.get(cls.name, Chosen(cls, {}))
    return selected


def settings_of_tasks(table: Any, place: str, tasks: Tasks, faults: list[str]) -> Mapping[str, Any]:
    """A table of settings, each of which one of the tasks has."""
    if not isinstance(table, Mapping):
        faults.append(f"{place}: must be a table, not {strict.describe(table)}")
        return {}
    valid = {field for task in tasks.values() for field in strict.hints(task.cls)}
    faults += [strict.unknown(place, key, valid) for key in table if key not in valid]
    return {key: value for key, value in table.items() if key in valid}


def owned(table: Mapping[str, Any], cls: type[Task], place: str, faults: list[str]) -> dict[str, Any]:
    """Those settings of a table that a task has, converted."""
    known = strict.hints(cls)
    return strict.check(cls, {key: value for key, value in table.items() if key in known}, place, faults)
