"""The entries of a recipe, read and chosen: its tasks with their settings, and its arms, each an algorithm
with settings of its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings import registries
from grpobench.runs.settings.config import SECTIONS
from grpobench.runs.settings.layers import (
    ELSEWHERE,
    SETTINGS,
    Layer,
    Scope,
    read_layer,
    read_on,
    renamed_keys,
)
from grpobench.runs.settings.registries import find_class, find_dialect, name_list, no_such
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import BAD, KeyPath
from grpobench.tasks.kinds.hub import FROM_HUB, name_of
from grpobench.tasks.kinds.jsonl import FROM_DATA, Rows
from grpobench.tasks.task import Task

if TYPE_CHECKING:
    from grpobench.algorithms.libraries.dialect import Dialect

# Tasks


@dataclass(frozen=True)
class Chosen:
    """A task of a recipe."""

    cls: type[Task]
    settings: Mapping[str, Any]


Tasks = dict[str, Chosen]
"""By the names that arms, sections and folders call them."""
DATA = "jsonl"
"""The key of an entry that makes a task of a file of problems."""
OTHER_FORMATS = ("csv", "parquet")
"""Keys for files that a task does not read, and that pandas converts."""
HUB = "hub"
"""The key of an entry that makes a task of a data set of the hub."""


@dataclass(frozen=True)
class TaskLayer:
    """Settings of one task, in one arm or (None) in all."""

    task: str
    values: Mapping[str, Any]
    arm: str | None = None

    def holds(self, arm: str, task: str) -> bool:
        return self.task == task and self.arm in (None, arm)


def read_tasks(table: Mapping[str, Any], folder: Path | None, faults: list[str]) -> Tasks:
    """The tasks that a recipe in `folder` lists."""
    entries = table.get("tasks", [])
    if not isinstance(entries, list):
        faults.append(f"tasks: must be a list, not {strict.describe(entries)}")
        return {}
    listed: Tasks = {}
    for index, entry in enumerate(entries):
        path = f"tasks[{index}]"
        whole = as_entry(entry) if isinstance(entry, str) else entry
        if not isinstance(whole, Mapping) or not isinstance(whole.get("name"), str):
            faults.append(f"{path}: must be a task's name or a table with name and settings")
            continue
        if other := [key for key in OTHER_FORMATS if key in whole]:
            convert = f"pandas.read_{other[0]}(FILE).to_json('FILE.jsonl', orient='records', lines=True)"
            faults.append(f"{path}.{other[0]}: tasks read JSONL; convert the file: {convert}")
            continue
        read = read_data if DATA in whole or HUB in whole else read_registered
        pair = read(whole, path, folder, faults)
        if pair is None:
            continue
        name, task = pair
        if name in listed:
            faults.append(f"{path}: the task {name} is listed twice; remove one")
        else:
            listed[name] = task
    return listed


def as_entry(name: str) -> dict[str, Any]:
    """The entry of a task's name. A data set of the hub, ``hf:OWNER/NAME``, is the suite's task of it, or
    else a task of its own that is graded by value."""
    if not name.startswith(registries.HUB):
        return {"name": name}
    hub = name.removeprefix(registries.HUB)
    for known, cls in registries.tasks().items():
        if cls.tables and all(table.hub and table.hub.dataset == hub for table in cls.tables):
            return {"name": known}
    label = name_of(hub)
    label = label if label not in registries.tasks() else name_of(hub.replace("/", "-"))
    return {"name": label, HUB: hub, "verify": "math"}


def read_registered(
    entry: Mapping[str, Any], path: KeyPath, folder: Path | None, faults: list[str]
) -> tuple[str, Chosen] | None:
    """(name, task) of an entry whose class has a name; None, with a fault, for an unknown one."""
    faults += [
        strict.unknown(path, key, ("name", SETTINGS, DATA, HUB), {key: f"{path}.settings.{key}"})
        for key in entry
        if key not in ("name", SETTINGS)
    ]
    cls = find_class("task", entry["name"], folder, path, faults)
    if cls is None:
        return None
    settings = strict.check(cls, entry.get(SETTINGS, {}), f"task.{cls.name}.settings", faults)
    return cls.name, Chosen(cls, settings)


def read_data(
    entry: Mapping[str, Any], path: KeyPath, folder: Path | None, faults: list[str]
) -> tuple[str, Chosen] | None:
    """(name, task) of an entry that is a file of problems or a data set of the hub, `verify` naming its
    class."""
    name, verify = entry["name"], entry.get("verify")
    classes: Mapping[str, type[Rows]] = FROM_HUB if HUB in entry else FROM_DATA
    if not isinstance(verify, str) or verify not in classes:
        ways = ", ".join(map(repr, classes))
        faults.append(f"{path}.verify: must be one of {ways}, not {strict.describe(verify)}")
        return None
    if name in registries.tasks():
        faults.append(f"{path}.name: the suite has another task {name!r}; choose another name")
        return None
    settings = {key: value for key, value in entry.items() if key != "verify"}
    cls = classes[verify]
    return name, Chosen(cls, strict.check(cls, settings, path, faults))


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
        elif name.startswith(registries.HUB):
            selected |= read_tasks({"tasks": [name]}, folder, faults)
        elif (cls := find_class("task", name, folder, "--set tasks", faults)) is not None:
            selected[cls.name] = listed.get(cls.name, Chosen(cls, {}))
    return selected


def fields_of(tasks: Tasks) -> set[str]:
    """The settings that at least one of the tasks has."""
    return {field for task in tasks.values() for field in strict.hints(task.cls)}


def task_table(table: Any, path: KeyPath, tasks: Tasks, faults: list[str]) -> Mapping[str, Any]:
    """A table of settings, each of which one of the tasks has."""
    if not isinstance(table, Mapping):
        faults.append(f"{path}: must be a table, not {strict.describe(table)}")
        return {}
    valid = fields_of(tasks)
    faults += [strict.unknown(path, key, valid) for key in table if key not in valid]
    return {key: value for key, value in table.items() if key in valid}


def settings_of(
    table: Mapping[str, Any], cls: type[Task], path: KeyPath, faults: list[str]
) -> dict[str, Any]:
    """Those settings of a table that a task has, converted."""
    known = strict.hints(cls)
    return strict.check(cls, {key: value for key, value in table.items() if key in known}, path, faults)


# Arms


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+@.-]*")
"""What an arm may be called. Folders bear its name, so that it begins with a letter or digit."""
EVERY = "*"
"""In the place of an arm's algorithm: an optional arm of every one that has no entry of its own."""


@dataclass(frozen=True)
class Arm:
    name: str
    algorithm: type[Algorithm[Any]]
    tasks: tuple[str, ...] | None = None
    """Those it is restricted to."""
    layers: tuple[Layer, ...] = ()
    task: Mapping[str, Any] = field(default_factory=dict)
    """Settings of those of its tasks that have them."""
    dialect: Dialect | None = None
    presets: tuple[Layer, ...] = ()
    """What its dialect says, under everything else."""
    optional: bool = False
    """Whether it is left out, without an error, on a task that does not fit it."""


def read_arms(
    table: Mapping[str, Any], tasks: Tasks, folder: Path | None, faults: list[str]
) -> dict[str, Arm]:
    """The arms of a recipe in `folder` by name; `tasks` are those that it lists."""
    entries = table.get("arm", [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        faults.append("arm: must be a list of tables; write [[arm]]")
        return {}
    read: dict[str, Arm] = {}
    for index, entry in each_entry(entries, faults):
        arm = read_arm(entry, f"arm[{index}]", tasks, folder, faults)
        if arm is not None and arm.name in read:
            faults.append(
                f'arm[{index}]: two arms are named {arm.name}; give one of them its own `name = "..."`'
            )
        elif arm is not None:
            read[arm.name] = arm
    return read


def each_entry(
    entries: Sequence[Mapping[str, Any]], faults: list[str]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The entries in order; one of `EVERY` algorithm becomes an arm for each that has no other entry."""
    listed = [entry.get("algorithm") for entry in entries]
    for index, entry in enumerate(entries):
        if entry.get("algorithm") != EVERY:
            yield index, entry
        elif EVERY in listed[:index]:
            faults.append(f"arm[{index}]: another entry is of every algorithm already; remove one")
        elif alone := [key for key in ("name", "optional", SETTINGS) if key in entry]:
            faults.append(
                f"arm[{index}]: {alone[0]} cannot be that of every algorithm; give one its own [[arm]]"
            )
        else:
            for name in registries.algorithms():
                if name not in listed:
                    yield index, {**entry, "algorithm": name, "optional": True}


def read_arm(
    entry: Mapping[str, Any], path: KeyPath, tasks: Tasks, folder: Path | None, faults: list[str]
) -> Arm | None:
    """The arm of an entry; None, with a fault, without an algorithm or a name."""
    if "algorithm" not in entry:
        faults.append(f'{path}: missing algorithm; write algorithm = "NAME"')
        return None
    kind = find_algorithm(entry["algorithm"], f"{path}.algorithm", folder, faults)
    if kind is None:
        return None
    cls, dialect = kind
    name = entry.get("name", dialect.name if dialect else cls.name)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        faults.append(f"{path}.name: must be letters, digits, -, _, ., + and @, not {strict.describe(name)}")
        return None
    path = f"arm.{name}"
    known = {"algorithm", "name", "tasks", "task", "optional", SETTINGS, "on", *SECTIONS}
    elsewhere = {key: f"{path}.{where}" for key, where in ELSEWHERE.items()}
    elsewhere |= {key: f"{path}.settings.{key}" for key in strict.hints(cls)}
    renamed = renamed_keys("", f"{path}.")
    faults += [strict.unknown(path, key, known, elsewhere, renamed) for key in entry if key not in known]
    scope = Scope(f"{path}.", name, None, cls)
    layers = [read_layer(entry, scope, faults), *read_on(entry.get("on", {}), scope, tasks, faults)]
    task = task_table(entry.get("task", {}), f"{path}.task", tasks, faults)
    optional = strict.convert(entry.get("optional", False), bool, f"{path}.optional", faults)
    presets = read_presets(dialect, cls, faults)
    only = read_restriction(entry, path, tasks, faults)
    return Arm(name, cls, only, tuple(layers), task, dialect, presets, optional is True)


def find_algorithm(
    name: Any, path: KeyPath, folder: Path | None, faults: list[str]
) -> tuple[type[Algorithm[Any]], Dialect | None] | None:
    """The algorithm of a name, and the dialect of one such as ``ALGORITHM@LIBRARY``."""
    if not isinstance(name, str) or "@" not in name:
        cls = find_class("algorithm", name, folder, path, faults)
        return None if cls is None else (cls, None)
    dialect = find_dialect(name, path, faults)
    return None if dialect is None else (registries.algorithms()[dialect.base], dialect)


def read_presets(dialect: Dialect | None, cls: type[Algorithm[Any]], faults: list[str]) -> tuple[Layer, ...]:
    """What a dialect says, as layers."""
    if dialect is None:
        return ()
    return (read_layer(dialect.values, Scope(f"{dialect.name}.", algorithm=cls), faults),)


def read_restriction(
    entry: Mapping[str, Any], path: KeyPath, tasks: Collection[str], faults: list[str]
) -> tuple[str, ...] | None:
    """The tasks that an entry restricts its arm to; None: it does not."""
    if "tasks" not in entry:
        return None
    names = strict.convert(entry["tasks"], tuple[str, ...], f"{path}.tasks", faults)
    if names is BAD:
        return None
    faults += [no_such("task", name, f"{path}.tasks", tasks) for name in names if name not in tasks]
    return tuple(names)


def select_arms(chosen: Any, listed: Mapping[str, Arm], folder: Path | None, faults: list[str]) -> list[Arm]:
    """The arms to run. An algorithm that is no arm of the recipe may be chosen with its defaults."""
    path = "--set arms"
    if chosen is None:
        if not listed and not faults:
            faults.append("arm: the recipe has no arms; write [[arm]] with algorithm = ...")
        return list(listed.values())
    selected = []
    registry = registries.algorithms()
    for name in name_list(chosen, path, faults):
        if name in listed:
            selected.append(listed[name])
        elif name in registry or "@" in name or registries.is_plugin_name("algorithm", name):
            if kind := find_algorithm(name, path, folder, faults):
                cls, dialect = kind
                label, presets = dialect.name if dialect else cls.name, read_presets(dialect, cls, faults)
                selected.append(listed.get(label) or Arm(label, cls, dialect=dialect, presets=presets))
        else:
            faults.append(no_such("arm", name, path, dict.fromkeys([*listed, *registry])))
    return selected
