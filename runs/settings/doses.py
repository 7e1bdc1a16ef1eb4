"""Doses: settings over which every arm of a recipe is run, so that a map shows where each of them breaks.

A recipe has them in its table `over`; ``--over KEY=VALUE,VALUE`` of the command line replaces a key of it.
Each arm becomes one for every combination of values, named after both.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from grpobench.analysis.tools.text import dose
from grpobench.runs.settings.arms import Arm
from grpobench.runs.settings.draft import Draft
from grpobench.runs.settings.head import Head
from grpobench.runs.settings.layers import Layer
from grpobench.runs.settings.overrides import Overrides
from grpobench.runs.settings.task_settings import TaskLayer
from grpobench.runs.tools import strict, toml

Value = int | float | str | bool
Kind = TypeVar("Kind", Layer, TaskLayer)
SUFFIX = "-map"
"""Behind the name of a matrix whose doses come from the command line."""
MOST = 200
"""More combinations than that are a slip of the keyboard."""


@dataclass(frozen=True)
class Dose:
    """Where an arm of a map comes from."""

    arm: str
    """The recipe's."""
    values: Mapping[str, Value]
    """By key, such as ``train.learning_rate``."""


def read_over(table: Any, texts: Sequence[str], faults: list[str]) -> dict[str, list[Value]]:
    """The values of every key: those of the recipe's table, and of `--over` in their place."""
    found: dict[str, list[Value]] = {}
    if not isinstance(table, Mapping):
        faults.append(f"over: must be a table of lists, not {strict.describe(table)}")
        table = {}
    for key, values in table.items():
        if isinstance(values, Mapping):
            faults.append(
                f'over.{key}: write the key in quotes, such as "train.learning_rate" = [1e-4, 1e-3]'
            )
        else:
            found |= checked(key, values, f"over.{key}", faults)
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values.strip():
            faults.append(
                f"--over {text}: write --over KEY=VALUE,VALUE, such as train.learning_rate=1e-4,1e-3"
            )
            continue
        bare = values.strip().removeprefix("[").removesuffix("]")
        try:
            listed = toml.read(f"values = [{bare}]")["values"]
        except tomllib.TOMLDecodeError:
            listed = [part.strip() for part in bare.split(",")]
        found |= checked(key.strip(), listed, f"--over {key.strip()}", faults)
    if math.prod(map(len, found.values())) > MOST:
        faults.append(f"over: more than {MOST} combinations of values; give fewer")
        return {}
    return found


def checked(key: str, values: Any, place: str, faults: list[str]) -> dict[str, list[Value]]:
    """A key with its values; nothing, with a fault, where they are no list of different plain values."""
    if "." not in key:
        faults.append(f"{place}: is no setting of arms; write SECTION.FIELD, such as train.learning_rate")
    elif not isinstance(values, list) or not values or not all(isinstance(one, Value) for one in values):
        faults.append(f"{place}: must be a list of numbers or words, not {strict.describe(values)}")
    elif len(set(map(written, values))) < len(values):
        faults.append(f"{place}: two of the values are equal")
    else:
        return {key: values}
    return {}


def dosed(
    draft: Draft, over: Mapping[str, Sequence[Value]], in_recipe: bool, faults: list[str]
) -> tuple[Draft, dict[str, Dose]]:
    """The draft with an arm for every combination of values, and where each comes from. A plain learning rate
    is the policy's; rates of other roles stay the arm's own. Where the doses are not those `in_recipe`, the
    matrix has a name of its own."""
    if not over:
        return draft, {}
    arms: list[Arm] = []
    layers: list[Layer] = []
    doses: dict[str, Dose] = {}
    names: dict[str, list[str]] = {arm.name: [] for arm in draft.arms}
    for combination in itertools.product(*over.values()):
        values = dict(zip(over, combination, strict=True))
        given = Overrides(draft.arms, [arm.name for arm in draft.arms], draft.tasks, faults)
        for key, value in values.items():
            given.assign(key.split("."), value)
        for arm in draft.arms:
            name = "+".join(
                [arm.name, *(f"{key.rpartition('.')[2]}-{written(v)}" for key, v in values.items())]
            )
            own = tuple(dataclasses.replace(layer, arm=name) for layer in arm.layers)
            arms.append(dataclasses.replace(arm, name=name, layers=own))
            layers += [
                dataclasses.replace(layer, arm=name)
                for layer in given.layers
                if layer.arm in (None, arm.name)
            ]
            doses[name] = Dose(arm.name, values)
            names[arm.name].append(name)
    arms.sort(key=lambda arm: list(names).index(doses[arm.name].arm))
    shared, tasks = spread(draft.overrides, names), spread(draft.task_overrides, names)
    head = draft.head
    if isinstance(head, Head) and not in_recipe and not head.name.endswith(SUFFIX):
        head = dataclasses.replace(head, name=head.name + SUFFIX)  # its runs are not those of the recipe
    made = dataclasses.replace(
        draft, head=head, arms=arms, overrides=[*shared, *layers], task_overrides=tasks
    )
    return made, doses


def spread(layers: Sequence[Kind], names: Mapping[str, Sequence[str]]) -> list[Kind]:
    """What is assigned to one of the recipe's arms, for every arm that it has become."""
    return [
        dataclasses.replace(layer, arm=name)
        for layer in layers
        for name in ([None] if layer.arm is None else names.get(layer.arm, ()))
    ]


def written(value: Value) -> str:
    """A value as a part of an arm's name: 3e-4, 16, 0_28."""
    return re.sub(r"[^A-Za-z0-9_+-]", "_", dose(value).replace("−", "-"))
