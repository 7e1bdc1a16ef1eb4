"""Assignments of the command line, `--set KEY=VALUE`, as layers over those of the recipe."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from grpobench.runs.settings.entries import Arm, TaskLayer, Tasks, fields_of, settings_of, task_table
from grpobench.runs.settings.layers import (
    ELSEWHERE,
    SETTINGS,
    Layer,
    Scope,
    nest,
    read_layer,
    read_on,
    renamed_keys,
)
from grpobench.runs.settings.registries import no_such
from grpobench.runs.tools import strict, toml

COMMAND_LINE = Scope("--set ")
SHOWN = 80
"""Characters of an assignment that a message repeats."""
Assignment = tuple[list[str], Any]
"""(the parts of a dotted key, the value)."""


PAIR = re.compile(r"[A-Za-z_][\w.@+-]*=[^=\"'\[{]*")
"""An assignment, as far as its text shows."""


def read_sets(texts: Iterable[str], faults: list[str]) -> list[Assignment]:
    """The assignments of `--set`; what is none becomes a fault."""
    assignments = []
    for text in texts:
        parsed = parse_set(text)
        if (pairs := text.split(","))[1:] and all(PAIR.fullmatch(pair.strip()) for pair in pairs):
            separate = " ".join(f"--set {pair.strip()}" for pair in pairs)
            faults.append(f"--set {text}: one --set takes one assignment; write {separate}")
        elif parsed is None:
            faults.append(f"--set {text}: write --set KEY=VALUE, such as --set train.steps=100")
        else:
            assignments.append(parsed)
    return assignments


def parse_set(text: str) -> Assignment | None:
    """Dotted key and value of KEY=VALUE; a value that is not TOML is a string. None: no assignment. Raises
    ConfigError for a value that nothing holds."""
    key, equals, value = text.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not equals or not all(keys):
        return None
    try:
        return keys, toml.read(f"value = {value}")["value"]
    except toml.Unholdable as error:
        raise strict.ConfigError(
            [f"{text if len(text) <= SHOWN else text[:SHOWN] + ' …'}: {error}"]
        ) from None
    except (tomllib.TOMLDecodeError, KeyError):
        return keys, value.strip()


def split_arm(keys: Sequence[str], arms: Collection[str]) -> tuple[str, list[str]]:
    """(the arm that a dotted key begins with, the other parts). An arm's name may have dots: of several arms
    that the key could begin with, the one with the longest name. Without any, the first part."""
    counts = [count for count in range(1, len(keys) + 1) if ".".join(keys[:count]) in arms]
    count = max(counts, default=1)
    return ".".join(keys[:count]), list(keys[count:])


class Overrides:
    """What assignments with a dot say, in the order given: `layers` of sections, `task_layers` of settings.

    `arms` and `tasks` are those that run, `listed` the arms of the recipe: one that does not run may be
    assigned to, without an effect.
    """

    def __init__(self, arms: Sequence[Arm], listed: Collection[str], tasks: Tasks, faults: list[str]) -> None:
        self.layers: list[Layer] = []
        self.task_layers: list[TaskLayer] = []
        self._arms = {arm.name: arm for arm in arms}
        self._listed = listed
        self._tasks = tasks
        self._faults = faults

    def assign(self, keys: list[str], value: Any) -> None:
        """Add one assignment; `keys` are two at least."""
        first, *rest = keys
        if first == "arm":
            self._arm(rest, value)
        elif first == "on":
            self._on(rest, value, COMMAND_LINE)
        elif first == "task":
            self._task(rest, value)
        elif first == "algorithm":
            self._algorithm(rest, value)
        elif first == SETTINGS:
            field = ".".join(rest)
            self._faults.append(
                f"--set {SETTINGS}.{field}: write --set algorithm.{field}=VALUE for every arm that has it, "
                f"or --set arm.NAME.settings.{field}=VALUE"
            )
        else:
            self._section(keys, value, COMMAND_LINE)

    def _arm(self, keys: list[str], value: Any) -> None:
        """`arm.NAME.SECTION.FIELD`, `arm.NAME.on.TASK.SECTION.FIELD` and `arm.NAME.task.FIELD`."""
        name, rest = split_arm(keys, [*self._arms, *self._listed])
        if name not in self._arms:
            if name not in self._listed:
                self._faults.append(no_such("arm", name, f"--set arm.{'.'.join(keys)}", self._arms))
            return
        scope = Scope(f"--set arm.{name}.", name, algorithm=self._arms[name].algorithm)
        if len(rest) < 2:
            self._faults.append(f"--set arm.{'.'.join(keys)}: write --set arm.NAME.settings.FIELD=VALUE")
        elif rest[0] == "task":
            self._task_of_arm(rest[1:], value, scope)
        elif rest[0] == "on":
            self._on(rest[1:], value, scope)
        else:
            self._section(rest, value, scope)

    def _on(self, keys: list[str], value: Any, scope: Scope) -> None:
        """`on.TASK.SECTION.FIELD`, of every arm or of the one that `scope` is."""
        if len(keys) < 3:
            path = f"{scope.prefix}on"
            self._faults.append(f"{path}.{'.'.join(keys)}: write {path}.TASK.SECTION.FIELD=VALUE")
        else:
            self.layers += read_on(nest(keys, value), scope, self._tasks, self._faults)

    def _section(self, keys: list[str], value: Any, scope: Scope) -> None:
        """`SECTION.FIELD` within a scope."""
        if keys[0] in scope.sections:
            self.layers.append(read_layer(nest(keys, value), scope, self._faults))
        else:
            # A field at the place of a section is no near miss here, since more keys follow it.
            valid = [*scope.sections, *(("algorithm", "arm", "task", "on") if scope is COMMAND_LINE else ())]
            path, renamed = scope.prefix.removesuffix("."), renamed_keys("", scope.prefix)
            self._faults.append(strict.unknown(path, keys[0], valid, renamed=renamed))

    def _algorithm(self, keys: list[str], value: Any) -> None:
        """`algorithm.FIELD`: every arm whose algorithm has the field."""
        arms, field = self._arms.values(), keys[0]
        having = [arm for arm in arms if field in strict.hints(arm.algorithm)]
        if not having:
            valid = {name for arm in arms for name in strict.hints(arm.algorithm)}
            renamed = {
                old: new.replace(SETTINGS, "--set algorithm", 1)
                for old, new in renamed_keys(SETTINGS).items()
            }
            message = strict.unknown("algorithm", field, valid, ELSEWHERE, renamed)
            self._faults.append(f"--set {message.replace('unknown key', 'no arm has this setting')}")
        for arm in having:
            scope = Scope("--set ", arm.name, None, arm.algorithm, "algorithm")
            self._section([SETTINGS, *keys], value, scope)

    def _task(self, keys: list[str], value: Any) -> None:
        """`task.FIELD` for every task that has the field, or `task.NAME.settings.FIELD` for one."""
        if len(keys) >= 3 and keys[1] == SETTINGS:
            self._task_by_name(keys[0], keys[2:], value)
            return
        having = [name for name, task in self._tasks.items() if keys[0] in strict.hints(task.cls)]
        if not having:
            message = strict.unknown("task", keys[0], fields_of(self._tasks))
            self._faults.append(f"--set {message.replace('unknown key', 'no task has this setting')}")
        for name in having:
            self._settings_of_task(name, keys, value, "--set task")

    def _task_by_name(self, name: str, keys: list[str], value: Any) -> None:
        """`task.NAME.settings.FIELD`."""
        path = f"--set task.{name}.settings"
        if name in self._tasks:
            self._settings_of_task(name, keys, value, path)
        else:
            self._faults.append(no_such("task", name, f"{path}.{'.'.join(keys)}", self._tasks))

    def _settings_of_task(self, name: str, keys: list[str], value: Any, path: str) -> None:
        values = strict.check(self._tasks[name].cls, nest(keys, value), path, self._faults)
        self.task_layers.append(TaskLayer(name, values))

    def _task_of_arm(self, keys: list[str], value: Any, scope: Scope) -> None:
        """`arm.NAME.task.FIELD`: every task that has the field, in one arm."""
        path = f"{scope.prefix}task"
        table = task_table(nest(keys, value), path, self._tasks, self._faults)
        self.task_layers += [
            TaskLayer(name, settings_of(table, task.cls, path, self._faults), scope.arm)
            for name, task in self._tasks.items()
        ]
