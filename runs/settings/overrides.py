"""Assignments of the command line, `--set KEY=VALUE`, as layers over those of the recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from grpobench.runs.settings.arms import Arm
from grpobench.runs.settings.config import SECTIONS
from grpobench.runs.settings.layers import ELSEWHERE, SETTINGS, Layer, Scope, nest, read_layer
from grpobench.runs.settings.names import no_such
from grpobench.runs.settings.task_settings import TaskLayer, Tasks, owned, settings_of_tasks
from grpobench.runs.tools import strict, toml

SHOWN = 80
"""Characters of an assignment that a message repeats."""
Assignment = tuple[list[str], Any]
"""(the parts of a dotted key, the value)."""


def read_sets(texts: Iterable[str], faults: list[str]) -> list[Assignment]:
    """The assignments of `--set`; what is none becomes a fault."""
    found = []
    for text in texts:
        parsed = parse_set(text)
        if parsed is None:
            faults.append(f"--set {text}: write --set KEY=VALUE, such as --set train.steps=100")
        else:
            found.append(parsed)
    return found


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


class Overrides:
    """What assignments with a dot say: `layers` of sections and `tasks` of settings, in the order given.

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
        kinds = {"algorithm": self._algorithm, "task": self._task, "arm": self._arm, "on": self._on}
        if keys[0] in kinds:
            kinds[keys[0]](keys[1:], value)
        else:
            self._section(keys, value, Scope("--set "))

    def _section(self, keys: list[str], value: Any, scope: Scope) -> None:
        """`SECTION.FIELD` within a scope."""
        known = {*SECTIONS, *((SETTINGS,) if scope.algorithm else ())}
        place = f"{scope.prefix}{'.'.join(keys)}"
        if keys[0] == SETTINGS and scope.algorithm is None and len(keys) > 1:
            field = ".".join(keys[1:])
            self._faults.append(
                f"{place}: write --set algorithm.{field}=VALUE for every arm that has it, "
                f"or --set arm.NAME.settings.{field}=VALUE"
            )
        elif keys[0] not in known:
            valid = known if scope.prefix != "--set " else known | {"algorithm", "arm", "task", "on"}
            guess = strict.nearest(keys[0], valid)
            did = (
                f"did you mean {'.'.join([guess, *keys[1:]])}?"
                if guess
                else f"valid: {', '.join(sorted(valid))}"
            )
            self._faults.append(f"{place}: no section {keys[0]!r}; {did}")
        else:
            table = {keys[0]: nest(keys[1:], value)}
            self.layers.append(read_layer(table, scope, self._faults))

    def _on(self, keys: list[str], value: Any) -> None:
        """`on.TASK.SECTION.FIELD`."""
        task, place = keys[0], f"--set on.{'.'.join(keys)}"
        if task not in self._tasks:
            self._faults.append(no_such("task", task, place, self._tasks))
        elif len(keys) < 3:
            self._faults.append(f"{place}: write --set on.TASK.SECTION.FIELD=VALUE")
        else:
            self._section(keys[1:], value, Scope(f"--set on.{task}.", task=task))

    def _algorithm(self, keys: list[str], value: Any) -> None:
        """`algorithm.FIELD`: every arm whose algorithm has the field."""
        arms = self._arms.values()
        having = [arm for arm in arms if keys[0] in strict.hints(arm.algorithm)]
        if not having:
            valid = {field for arm in arms for field in strict.hints(arm.algorithm)}
            message = strict.unknown("algorithm", keys[0], valid, ELSEWHERE)
            self._faults.append(f"--set {message.replace('unknown key', 'no arm has this setting')}")
        for arm in having:
            scope = Scope("--set ", arm.name, None, arm.algorithm, "algorithm")
            self._section([SETTINGS, *keys], value, scope)

    def _arm(self, keys: list[str], value: Any) -> None:
        """`arm.NAME.SECTION.FIELD`, `arm.NAME.on.TASK.SECTION.FIELD` and `arm.NAME.task.FIELD`."""
        name, inner, place = keys[0], keys[1:], f"--set arm.{'.'.join(keys)}"
        if name not in self._arms:
            if name not in self._listed:
                self._faults.append(no_such("arm", name, place, self._arms))
            return
        prefix, task = f"--set arm.{name}.", None
        if inner[:1] == ["task"] and len(inner) > 1:
            self._task_of_arm(name, inner[1:], value, f"{prefix}task")
            return
        if inner[:1] == ["on"] and len(inner) > 1:
            task, inner, prefix = inner[1], inner[2:], f"{prefix}on.{inner[1]}."
            if task not in self._tasks:
                self._faults.append(no_such("task", task, place, self._tasks))
                return
        if len(inner) < 2:
            self._faults.append(f"{place}: write --set arm.NAME.settings.FIELD=VALUE")
            return
        self._section(inner, value, Scope(prefix, name, task, self._arms[name].algorithm))

    def _task_of_arm(self, arm: str, keys: list[str], value: Any, place: str) -> None:
        """`arm.NAME.task.FIELD`: every task that has the field, in one arm."""
        own = settings_of_tasks(nest(keys, value), place, self._tasks, self._faults)
        self.task_layers += [
            TaskLayer(name, owned(own, task.cls, place, self._faults), arm)
            for name, task in self._tasks.items()
        ]

    def _task(self, keys: list[str], value: Any) -> None:
        """`task.FIELD` for every task that has the field, or `task.NAME.settings.FIELD` for one."""
        if len(keys) >= 3 and keys[1] == SETTINGS:
            if keys[0] not in self._tasks:
                place = f"--set task.{'.'.join(keys)}"
                self._faults.append(no_such("task", keys[0], place, self._tasks))
                return
            having, field, prefix = [keys[0]], keys[2:], f"--set task.{keys[0]}.settings"
        else:
            having = [name for name, task in self._tasks.items() if keys[0] in strict.hints(task.cls)]
            field, prefix = keys, "--set task"
            if not having:
                valid = {name for task in self._tasks.values() for name in strict.hints(task.cls)}
                message = strict.unknown("task", keys[0], valid)
                self._faults.append(f"--set {message.replace('unknown key', 'no task has this setting')}")
        for name in having:
            found = strict.check(self._tasks[name].cls, nest(field, value), prefix, self._faults)
            self.task_layers.append(TaskLayer(name, found))
