"""Assignments of the command line, `--set KEY=VALUE`, as layers over those of the recipe."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from grpobench.runs.settings.entries import Arm
from grpobench.runs.settings.layers import (
    ELSEWHERE,
    SETTINGS,
    TASK,
    Layer,
    Scope,
    checked,
    nest,
    renamed_keys,
)
from grpobench.runs.settings.registries import no_such
from grpobench.runs.tools import strict, toml

SHOWN = 80
"""Characters of an assignment that a message repeats."""
Assignment = tuple[list[str], Any]
"""(the parts of a dotted key, the value)."""
PAIR = re.compile(r"[A-Za-z_][\w.@+-]*=[^=\"'\[{]*")
"""An assignment, as far as its text shows."""
FORMS = {"arm": "arm.NAME.settings.FIELD", "on": "on.TASK.SECTION.FIELD"}
"""What assignments to one arm or task look like."""


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


def read_assignment(
    assignment: Assignment,
    arms: Sequence[Arm],
    listed: Collection[str],
    tasks: Mapping[str, type],
    faults: list[str],
    prefix: str = "--set ",
) -> list[Layer]:
    """The layers of an assignment with a dot; `prefix` is what stands before it.

    `arms` and `tasks` are those that run, `listed` the arms of the recipe: one that does not run may be
    assigned to, without an effect.
    """
    (first, *rest), value = assignment
    scope = Scope(prefix, tasks=tasks)
    algorithms = {arm.name: arm.algorithm for arm in arms}
    name, inner = split_arm(rest, [*algorithms, *listed])
    if first in FORMS and len(inner) < 2:
        faults.append(f"{prefix}{'.'.join([first, *rest])}: write --set {FORMS[first]}=VALUE")
    elif first == "arm":
        if name in algorithms:
            scope = Scope(f"{prefix}arm.{name}.", name, None, algorithms[name], tasks)
            return scope.read(nest(inner, value), faults, [TASK])
        if name not in listed:
            faults.append(no_such("arm", name, f"{prefix}arm.{'.'.join(rest)}", algorithms))
    elif first == "algorithm":
        return of_algorithms(nest(rest, value), arms, prefix, faults)
    elif first == SETTINGS:
        key = ".".join(rest)
        faults.append(
            f"{prefix}{SETTINGS}.{key}: write --set algorithm.{key}=VALUE for every arm that has it, "
            f"or --set arm.NAME.settings.{key}=VALUE"
        )
    elif first == TASK and rest[1:2] == [SETTINGS] and rest[2:]:
        name, _, *inner = rest
        layer = Layer({}, prefix, None, name, {TASK: f"{TASK}.{name}.{SETTINGS}"})
        if name in tasks:
            table = checked(tasks[name], nest(inner, value), layer.path(TASK), faults)
            return [Layer({TASK: table}, prefix, None, name, layer.labels)]
        faults.append(no_such("task", name, layer.path(TASK, ".".join(inner)), tasks))
    else:
        return scope.read(nest([first, *rest], value), faults, ["algorithm", "arm", TASK])
    return []


def of_algorithms(
    table: Mapping[str, Any], arms: Sequence[Arm], prefix: str, faults: list[str]
) -> list[Layer]:
    """`algorithm.FIELD`: a layer for every arm whose algorithm has the field."""
    (name,) = table
    having = [arm for arm in arms if name in strict.hints(arm.algorithm)]
    path = f"{prefix}algorithm"
    if not having:
        valid = {key for arm in arms for key in strict.hints(arm.algorithm)}
        renamed = {old: new.replace(SETTINGS, path, 1) for old, new in renamed_keys(SETTINGS).items()}
        elsewhere = {key: f"{prefix}{where}" for key, where in ELSEWHERE.items()}
        message = strict.unknown(path, name, valid, elsewhere, renamed)
        faults.append(message.replace("unknown key", "no arm has this setting"))
    return [
        Layer(
            {SETTINGS: checked(arm.algorithm, table, path, faults)},
            prefix,
            arm.name,
            None,
            {SETTINGS: "algorithm"},
        )
        for arm in having
    ]
