"""Layers of settings: values from one place of a recipe or of the command line, for some runs or for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings.config import SECTIONS
from grpobench.runs.settings.registries import no_such
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import KeyPath

SETTINGS = "settings"
"""The section of an arm that holds the fields of its algorithm."""
ELSEWHERE = {name: f"{section}.{name}" for section, cls in SECTIONS.items() for name in strict.hints(cls)}
"""Where a field belongs that stands in a wrong table."""
RENAMED_KEYS: Mapping[str, KeyPath] = {
    "train.prompts": "train.prompts_per_step",
    "train.group": "train.group_size",
    "train.minibatches": "train.num_minibatches",
    "train.tokens_per_micro_batch": "train.micro_batch_tokens",
    "train.optimiser": "train.optimizer",
    "train.optimiser_settings": "train.optimizer_settings",
    "sampler.rows": "sampler.max_batch_size",
    "sampler.max_new_tokens": "sampler.max_completion_tokens",
    "sampler.largest_gap": "sampler.max_logprob_gap",
}
"""Keys of older versions to the key that each is now: SECTION.FIELD, settings.FIELD of an arm, or a key or
section at the top. A recipe or an assignment with an old key is refused, and the message has the new one."""
Field = tuple[str, str]
"""(section, field)."""


def renamed_keys(section: str, prefix: str = "") -> dict[str, KeyPath]:
    """The old keys of a section, or with "" of the top of a recipe, to their new paths. `prefix` is what
    stands before a section, such as ``arm.second.``."""
    parts = {old: old.rpartition(".") for old in RENAMED_KEYS}
    return {key: prefix + RENAMED_KEYS[old] for old, (inside, _, key) in parts.items() if inside == section}


@dataclass(frozen=True)
class Scope:
    """Where values stand and what they hold for; None: every arm, every task."""

    prefix: str = ""
    """What stands before a section in the path of a value, such as ``arm.second.``."""
    arm: str | None = None
    task: str | None = None
    algorithm: type[Algorithm[Any]] | None = None
    """Whose fields the section `SETTINGS` holds; None: there is no such section."""
    label: str = SETTINGS
    """How that section is called in the path of a value."""

    @property
    def sections(self) -> dict[str, type]:
        """The dataclass of every section that may stand here."""
        return {**SECTIONS, **({SETTINGS: self.algorithm} if self.algorithm else {})}

    def unknown_section(self, key: str, known: Collection[str]) -> str:
        """The message for a key that is no section."""
        if key == SETTINGS:
            remedy = f"write them in an [[arm]], as {SETTINGS}.FIELD"
            return f"{self.prefix}{key}: are those of an algorithm; {remedy}"
        elsewhere = {field: self.prefix + where for field, where in ELSEWHERE.items()}
        path = self.prefix.removesuffix(".")
        return strict.unknown(path, key, known, elsewhere, renamed_keys("", self.prefix))


@dataclass(frozen=True)
class Layer:
    """Values from one place, and the arm and task that they hold for (None: every one)."""

    values: Mapping[Field, Any]
    paths: Mapping[Field, KeyPath]
    """Where each value comes from."""
    arm: str | None = None
    task: str | None = None

    def holds(self, arm: str, task: str) -> bool:
        return self.arm in (None, arm) and self.task in (None, task)


def read_base(table: Mapping[str, Any], tasks: Collection[str], faults: list[str]) -> list[Layer]:
    """A recipe's own sections: those for every run, then those of each task."""
    return [read_layer(table, Scope(), faults), *read_on(table.get("on", {}), Scope(), tasks, faults)]


def read_on(table: Any, scope: Scope, tasks: Collection[str], faults: list[str]) -> list[Layer]:
    """The sections of `on.TASK`, task by task, of the recipe or of the arm that `scope` is."""
    path = f"{scope.prefix}on"
    if not isinstance(table, Mapping):
        faults.append(f"{path}: must be a table of tasks, not {strict.describe(table)}")
        return []
    layers = []
    for task, sections in table.items():
        within = Scope(f"{path}.{task}.", scope.arm, task, scope.algorithm)
        if task not in tasks:
            faults.append(no_such("task", task, path, tasks))
        elif not isinstance(sections, Mapping):
            faults.append(f"{path}.{task}: must be a table of sections")
        else:
            known = within.sections
            faults += [within.unknown_section(key, known) for key in sections if key not in known]
            layers.append(read_layer(sections, within, faults))
    return layers


def read_layer(tables: Mapping[str, Any], scope: Scope, faults: list[str]) -> Layer:
    """The sections in `tables` as a layer; other keys of it are passed over."""
    values: dict[Field, Any] = {}
    paths: dict[Field, KeyPath] = {}
    elsewhere = {key: scope.prefix + where for key, where in ELSEWHERE.items()}
    for section, cls in scope.sections.items():
        if section not in tables:
            continue
        path = scope.prefix + (scope.label if section == SETTINGS else section)
        table, renamed = widen(section, tables[section]), renamed_keys(section, scope.prefix)
        for key, value in strict.check(cls, table, path, faults, elsewhere, renamed).items():
            # A table within a field stays one, so that the next layer adds to it; `expand` converts it again.
            values[section, key] = table[key] if dataclasses.is_dataclass(value) else value
            paths[section, key] = f"{path}.{key}"
    return Layer(values, paths, scope.arm, scope.task)


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
