"""The arms of a recipe: each an algorithm with settings of its own, read and chosen with `--set arms`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings import registries
from grpobench.runs.settings.config import SECTIONS
from grpobench.runs.settings.layers import ELSEWHERE, SETTINGS, Layer, Scope, read_layer, read_on
from grpobench.runs.settings.names import found, name_list, no_such, registered
from grpobench.runs.settings.task_settings import Tasks, settings_of_tasks
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import BAD

if TYPE_CHECKING:
    from grpobench.algorithms.dialects import Dialect

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+@-]*")
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
    """Whether it is left out, without an error, on a task that does not serve it."""


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
    named = [entry.get("algorithm") for entry in entries]
    for index, entry in enumerate(entries):
        if entry.get("algorithm") != EVERY:
            yield index, entry
        elif EVERY in named[:index]:
            faults.append(f"arm[{index}]: another entry is of every algorithm already; remove one")
        elif own := [key for key in ("name", "optional", SETTINGS) if key in entry]:
            faults.append(
                f"arm[{index}]: {own[0]} cannot be that of every algorithm; give one its own [[arm]]"
            )
        else:
            for name in registries.algorithms():
                if name not in named:
                    yield index, {**entry, "algorithm": name, "optional": True}


def read_arm(
    entry: Mapping[str, Any], place: str, tasks: Tasks, folder: Path | None, faults: list[str]
) -> Arm | None:
    """The arm of an entry; None, with a fault, without an algorithm or a name."""
    if "algorithm" not in entry:
        faults.append(f'{place}: missing algorithm; write algorithm = "NAME"')
        return None
    kind = find_algorithm(entry["algorithm"], f"{place}.algorithm", folder, faults)
    if kind is None:
        return None
    cls, dialect = kind
    name = entry.get("name", dialect.name if dialect else cls.name)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        faults.append(f"{place}.name: must be letters, digits, -, _ and @, not {strict.describe(name)}")
        return None
    place = f"arm.{name}"
    known = {"algorithm", "name", "tasks", "task", "optional", SETTINGS, "on", *SECTIONS}
    elsewhere = {key: f"{place}.{where}" for key, where in ELSEWHERE.items()}
    elsewhere |= {key: f"{place}.settings.{key}" for key in strict.hints(cls)}
    faults += [strict.unknown(place, key, known, elsewhere) for key in entry if key not in known]
    layers = [read_layer(entry, Scope(f"{place}.", name, None, cls), faults)]
    for task, sections in read_on(entry.get("on", {}), place, tasks, faults):
        layers.append(read_layer(sections, Scope(f"{place}.on.{task}.", name, task, cls), faults))
    own = settings_of_tasks(entry.get("task", {}), f"{place}.task", tasks, faults)
    optional = strict.convert(entry.get("optional", False), bool, f"{place}.optional", faults)
    presets = read_presets(dialect, cls, faults)
    only = restricted(entry, place, tasks, faults)
    return Arm(name, cls, only, tuple(layers), own, dialect, presets, optional is True)


def find_algorithm(
    name: Any, place: str, folder: Path | None, faults: list[str]
) -> tuple[type[Algorithm[Any]], Dialect | None] | None:
    """The algorithm of a name, and the dialect of one such as ``ALGORITHM@LIBRARY``."""
    if not isinstance(name, str) or "@" not in name:
        cls = found("algorithm", name, folder, place, faults)
        return None if cls is None else (cls, None)
    dialect = registered(registries.dialects(), name, place, "dialect", faults)
    return None if dialect is None else (registries.algorithms()[dialect.base], dialect)


def read_presets(dialect: Dialect | None, cls: type[Algorithm[Any]], faults: list[str]) -> tuple[Layer, ...]:
    """What a dialect says, as layers."""
    if dialect is None:
        return ()
    return (read_layer(dialect.values, Scope(f"{dialect.name}.", algorithm=cls), faults),)


def restricted(
    entry: Mapping[str, Any], place: str, tasks: Collection[str], faults: list[str]
) -> tuple[str, ...] | None:
    """The tasks that an entry restricts its arm to; None: it does not."""
    if "tasks" not in entry:
        return None
    names = strict.convert(entry["tasks"], tuple[str, ...], f"{place}.tasks", faults)
    if names is BAD:
        return None
    faults += [no_such("task", name, f"{place}.tasks", tasks) for name in names if name not in tasks]
    return tuple(names)


def select_arms(chosen: Any, listed: Mapping[str, Arm], folder: Path | None, faults: list[str]) -> list[Arm]:
    """The arms to run. An algorithm that is no arm of the recipe may be chosen with its defaults."""
    place = "--set arms"
    if chosen is None:
        if not listed and not faults:
            faults.append("arm: the recipe has no arms; write [[arm]] with algorithm = ...")
        return list(listed.values())
    selected = []
    registry = registries.algorithms()
    for name in name_list(chosen, place, faults):
        if name in listed:
            selected.append(listed[name])
        elif name in registry or "@" in name or registries.elsewhere("algorithm", name):
            if kind := find_algorithm(name, place, folder, faults):
                cls, dialect = kind
                own, presets = dialect.name if dialect else cls.name, read_presets(dialect, cls, faults)
                selected.append(listed.get(own) or Arm(own, cls, dialect=dialect, presets=presets))
        else:
            faults.append(no_such("arm", name, place, dict.fromkeys([*listed, *registry])))
    return selected
