"""Layers of settings: values from one place of a recipe or of the command line, for some runs or for all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings.config import SECTIONS
from grpobench.runs.settings.names import no_such
from grpobench.runs.tools import strict

SETTINGS = "settings"
"""The section of an arm that holds the fields of its algorithm."""
ELSEWHERE = {name: f"{section}.{name}" for section, cls in SECTIONS.items() for name in strict.hints(cls)}
"""Where a field belongs that stands in a wrong table."""
Place = tuple[str, str]
"""(section, field)."""


@dataclass(frozen=True)
class Scope:
    """Where values stand and what they hold for; None: every arm, every task."""

    prefix: str = ""
    """What stands before a section in the place of a value, such as ``arm.second.``."""
    arm: str | None = None
    task: str | None = None
    algorithm: type[Algorithm[Any]] | None = None
    """Whose fields the section `SETTINGS` holds; None: there is no such section."""
    label: str = SETTINGS
    """How that section is called in the place of a value."""


@dataclass(frozen=True)
class Layer:
    """Values from one place, and the arm and task that they hold for (None: every one)."""

    values: Mapping[Place, Any]
    places: Mapping[Place, str]
    arm: str | None = None
    task: str | None = None

    def holds(self, arm: str, task: str) -> bool:
        return self.arm in (None, arm) and self.task in (None, task)


def read_base(table: Mapping[str, Any], tasks: Collection[str], faults: list[str]) -> list[Layer]:
    """A recipe's own sections: those for every run, then those of each task."""
    layers = [read_layer(table, Scope(), faults)]
    for task, sections in read_on(table.get("on", {}), "", tasks, faults):
        layers.append(read_layer(sections, Scope(f"on.{task}.", task=task), faults))
    return layers


def read_on(
    table: Any, place: str, tasks: Collection[str], faults: list[str]
) -> list[tuple[str, Mapping[str, Any]]]:
    """The sections of `on.TASK`, task by task, of the arm at `place`; of the recipe where that is empty."""
    here = strict.join(place, "on")
    if not isinstance(table, Mapping):
        faults.append(f"{here}: must be a table of tasks, not {strict.describe(table)}")
        return []
    found = []
    for task, sections in table.items():
        if task not in tasks:
            faults.append(no_such("task", task, here, tasks))
        elif not isinstance(sections, Mapping):
            faults.append(f"{here}.{task}: must be a table of sections")
        else:
            known = {*SECTIONS, *((SETTINGS,) if place else ())}
            elsewhere = {key: f"{here}.{task}.{where}" for key, where in ELSEWHERE.items()}
            faults += [
                strict.unknown(f"{here}.{task}", key, known, elsewhere)
                for key in sections
                if key not in known
            ]
            found.append((task, sections))
    return found


def read_layer(tables: Mapping[str, Any], scope: Scope, faults: list[str]) -> Layer:
    """The sections in `tables` as a layer; other keys of it are passed over."""
    values: dict[Place, Any] = {}
    places: dict[Place, str] = {}
    classes: dict[str, type] = {**SECTIONS, **({SETTINGS: scope.algorithm} if scope.algorithm else {})}
    for section, cls in classes.items():
        if section not in tables:
            continue
        place = scope.prefix + (scope.label if section == SETTINGS else section)
        elsewhere = {key: scope.prefix + where for key, where in ELSEWHERE.items()}
        table = widen(section, tables[section])
        for key, value in strict.check(cls, table, place, faults, elsewhere).items():
            values[section, key] = value
            places[section, key] = f"{place}.{key}"
    return Layer(values, places, scope.arm, scope.task)


def widen(section: str, table: Any) -> Any:
    """A plain learning rate is the policy's."""
    if section == "train" and isinstance(table, Mapping):
        rate = table.get("learning_rate")
        if rate is not None and not isinstance(rate, Mapping):
            return {**table, "learning_rate": {"policy": rate}}
    return table


def nest(keys: Sequence[str], value: Any) -> Any:
    """{"a": {"b": value}} for keys a, b."""
    for key in reversed(keys):
        value = {key: value}
    return value


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`new` over `old`, tables merged key by key."""
    merged = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(before, value) if both and isinstance(before, Mapping) else value
    return merged
