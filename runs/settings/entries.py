"""The entries of a recipe, read and chosen: its tasks with their settings, and its arms, each an algorithm
with settings of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings import registries
from grpobench.runs.settings.layers import SETTINGS, TASK, Layer, Scope, checked
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
    layer: Layer
    """Its entry's settings."""


Tasks = dict[str, Chosen]
"""By the names that arms, sections and folders call them."""
DATA = "jsonl"
"""The key of an entry that makes a task of a file of problems."""
OTHER_FORMATS = ("csv", "parquet")
"""Keys for files that a task does not read, and that pandas converts."""
HUB = "hub"
"""The key of an entry that makes a task of a data set of the hub."""


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
    return None if cls is None else (cls.name, chosen(cls, entry.get(SETTINGS, {}), faults))


def chosen(cls: type[Task], settings: Any, faults: list[str], name: str = "", path: KeyPath = "") -> Chosen:
    """A task with settings that stand at `path`; without one they stand under the task's name."""
    name = name or cls.name
    label = path or f"{TASK}.{name}.{SETTINGS}"
    return Chosen(cls, Layer({TASK: checked(cls, settings, label, faults)}, task=name, labels={TASK: label}))


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
    return name, chosen(classes[verify], settings, faults, name, path)


def select_tasks(names: Any, listed: Tasks, folder: Path | None, faults: list[str]) -> Tasks:
    """The tasks to run. A task that the recipe does not list may be chosen with its defaults."""
    if names is None:
        if not listed and not faults:
            faults.append('tasks: the recipe has no tasks; write tasks = ["NAME", ...]')
        return dict(listed)
    selected: Tasks = {}
    for name in name_list(names, "--set tasks", faults):
        if name in listed:
            selected[name] = listed[name]
        elif name.startswith(registries.HUB):
            selected |= read_tasks({"tasks": [name]}, folder, faults)
        elif (cls := find_class("task", name, folder, "--set tasks", faults)) is not None:
            selected[cls.name] = listed.get(cls.name) or chosen(cls, {}, faults)
    return selected


# Arms


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+@.-]*")
"""What an arm may be called. Folders bear its name, so that it begins with a letter or digit."""
EVERY = "*"
"""In the place of an arm's algorithm: an optional arm of every one that has no entry of its own."""
KEYS = ("algorithm", "name", "tasks", TASK, "optional")
"""Keys of an arm that are no sections."""


@dataclass(frozen=True)
class Arm:
    name: str
    algorithm: type[Algorithm[Any]]
    tasks: tuple[str, ...] | None = None
    """Those it is restricted to."""
    layers: tuple[Layer, ...] = ()
    dialect: Dialect | None = None
    optional: bool = False
    """Whether it is left out, without an error, on a task that does not fit it."""
    origin: str = ""
    """The recipe's arm that it is at sweep values; empty: it is one of the recipe's."""

    def presets(self, faults: list[str]) -> list[Layer]:
        """What its dialect says, under everything else."""
        if self.dialect is None:
            return []
        scope = Scope(f"{self.dialect.name}.", self.name, None, self.algorithm)
        return scope.read(self.dialect.values, faults)


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
    layers = Scope(f"{path}.", name, None, cls, classes_of(tasks)).read(entry, faults, KEYS)
    optional = strict.convert(entry.get("optional", False), bool, f"{path}.optional", faults)
    only = strict.convert(entry.get("tasks", ()), tuple[str, ...], f"{path}.tasks", faults)
    only = only if "tasks" in entry and only is not BAD else None
    faults += [no_such("task", task, f"{path}.tasks", tasks) for task in only or () if task not in tasks]
    return Arm(name, cls, only, tuple(layers), dialect, optional is True)


def classes_of(tasks: Tasks) -> dict[str, type[Task]]:
    return {name: task.cls for name, task in tasks.items()}


def find_algorithm(
    name: Any, path: KeyPath, folder: Path | None, faults: list[str]
) -> tuple[type[Algorithm[Any]], Dialect | None] | None:
    """The algorithm of a name, and the dialect of one such as ``ALGORITHM@LIBRARY``."""
    if not isinstance(name, str) or "@" not in name:
        cls = find_class("algorithm", name, folder, path, faults)
        return None if cls is None else (cls, None)
    dialect = find_dialect(name, path, faults)
    return None if dialect is None else (registries.algorithms()[dialect.base], dialect)


def select_arms(names: Any, listed: Mapping[str, Arm], folder: Path | None, faults: list[str]) -> list[Arm]:
    """The arms to run. An algorithm that is no arm of the recipe may be chosen with its defaults."""
    path = "--set arms"
    if names is None:
        if not listed and not faults:
            faults.append("arm: the recipe has no arms; write [[arm]] with algorithm = ...")
        return list(listed.values())
    selected = []
    registry = registries.algorithms()
    for name in name_list(names, path, faults):
        if name in listed:
            selected.append(listed[name])
        elif name in registry or "@" in name or registries.is_plugin_name("algorithm", name):
            if kind := find_algorithm(name, path, folder, faults):
                cls, dialect = kind
                label = dialect.name if dialect else cls.name
                selected.append(listed.get(label) or Arm(label, cls, dialect=dialect))
        else:
            faults.append(no_such("arm", name, path, dict.fromkeys([*listed, *registry])))
    return selected
