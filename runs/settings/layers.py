"""Layers of settings: the tables of one place of a recipe or of the command line, for some runs or for all.

A layer is checked where it is read and keeps its values as they are written. `lay` puts layers over each
other, and remembers the place that each value comes from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings.config import SECTIONS
from grpobench.runs.settings.registries import no_such
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import KeyPath

SETTINGS = "settings"
"""The section of an arm that holds the fields of its algorithm."""
TASK = "task"
"""The section of an arm that holds fields of its tasks."""
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
Tables = Mapping[str, Mapping[str, Any]]
"""Fields by section."""


def renamed_keys(section: str, prefix: str = "") -> dict[str, KeyPath]:
    """The old keys of a section, or with "" of the top of a recipe, to their new paths. `prefix` is what
    stands before a section, such as ``arm.second.``."""
    parts = {old: old.rpartition(".") for old in RENAMED_KEYS}
    return {key: prefix + RENAMED_KEYS[old] for old, (inside, _, key) in parts.items() if inside == section}


@dataclass(frozen=True)
class Layer:
    """Fields from one place, as they are written, and the arm and task that they hold for (None: all)."""

    tables: Tables
    prefix: str = ""
    """What stands before a section in the path of a value, such as ``arm.second.``."""
    arm: str | None = None
    task: str | None = None
    labels: Mapping[str, KeyPath] = field(default_factory=dict)
    """How a section is called in the path of a value, where it is not called by its name."""

    def path(self, section: str, key: str = "") -> KeyPath:
        """Where a section or one of its fields stands."""
        path = self.prefix + self.labels.get(section, section)
        return strict.join(path, key) if key else path


@dataclass(frozen=True)
class Scope:
    """Where tables stand, what they hold for, and which may stand there."""

    prefix: str = ""
    arm: str | None = None
    task: str | None = None
    algorithm: type[Algorithm[Any]] | None = None
    """Whose fields the section `SETTINGS` holds; None: there is no such section."""
    tasks: Mapping[str, type] = field(default_factory=dict)
    """The classes of the tasks, whose fields the section `TASK` holds."""

    def read(self, table: Mapping[str, Any], faults: list[str], others: Collection[str] = ()) -> list[Layer]:
        """The layers of a table: its sections, then those of `on`, task by task. `others` are keys that stand
        beside them and are read elsewhere."""
        sections = {**SECTIONS, **({SETTINGS: self.algorithm} if self.algorithm else {})}
        allowed = {*sections, *others, *(() if self.task else ("on",))}
        faults += [self.unknown(key, allowed) for key in table if key not in allowed]
        layer = Layer({}, self.prefix, self.arm, self.task)
        tables: dict[str, Mapping[str, Any]] = {
            section: checked(cls, widen(section, table[section]), layer.path(section), faults, self.prefix)
            for section, cls in sections.items()
            if section in table
        }
        if TASK in others and TASK in table:
            tables[TASK] = self.of_tasks(table[TASK], layer.path(TASK), faults)
        return [replace(layer, tables=tables), *self.read_on(table.get("on", {}), faults)]

    def read_on(self, table: Any, faults: list[str]) -> list[Layer]:
        """The layers of `on.TASK`, task by task."""
        path = f"{self.prefix}on"
        if not isinstance(table, Mapping):
            faults.append(f"{path}: must be a table of tasks, not {strict.describe(table)}")
            return []
        layers = []
        for task, sections in table.items():
            if task not in self.tasks:
                faults.append(no_such("task", task, path, self.tasks))
            elif not isinstance(sections, Mapping):
                faults.append(f"{path}.{task}: must be a table of sections, not {strict.describe(sections)}")
            else:
                layers += replace(self, prefix=f"{path}.{task}.", task=task).read(sections, faults)
        return layers

    def of_tasks(self, table: Any, path: KeyPath, faults: list[str]) -> Mapping[str, Any]:
        """The fields of a table that holds for several tasks, each of which at least one of them has."""
        if not isinstance(table, Mapping):
            faults.append(f"{path}: must be a table, not {strict.describe(table)}")
            return {}
        valid = {key for cls in self.tasks.values() for key in strict.hints(cls)}
        faults += [strict.unknown(path, key, valid) for key in table if key not in valid]
        for cls in self.tasks.values():
            checked(cls, fields_of(cls, table), path, faults)
        return table

    def unknown(self, key: str, allowed: Collection[str]) -> str:
        """The message for a key that does not stand in such a table."""
        if key == SETTINGS:
            remedy = f"write them in an [[arm]], as {SETTINGS}.FIELD"
            return f"{self.prefix}{key}: are those of an algorithm; {remedy}"
        own = {name: f"{SETTINGS}.{name}" for name in strict.hints(self.algorithm)} if self.algorithm else {}
        elsewhere = {name: self.prefix + where for name, where in {**ELSEWHERE, **own}.items()}
        path = self.prefix.removesuffix(".")
        return strict.unknown(path, key, allowed, elsewhere, renamed_keys("", self.prefix))


def checked(
    cls: type, table: Any, path: KeyPath, faults: list[str], prefix: str | None = None
) -> dict[str, Any]:
    """The fields of a table that its class has and can take, as they are written. For a section, `prefix` is
    what stands before it."""
    elsewhere, renamed = {}, {}
    if prefix is not None:
        elsewhere = {key: prefix + where for key, where in ELSEWHERE.items()}
        renamed = renamed_keys(path.removeprefix(prefix), prefix)
    return {key: table[key] for key in strict.check(cls, table, path, faults, elsewhere, renamed)}


def fields_of(cls: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """Those fields of a table that a class has."""
    return {key: value for key, value in table.items() if key in strict.hints(cls)}


def lay(layers: Iterable[Layer], below: Tables) -> tuple[dict[str, dict[str, Any]], dict[Field, KeyPath]]:
    """Fields by section, of layers that are put over `below` in their order, and the path that each comes
    from. Tables merge key by key; everything else is replaced."""
    values: dict[str, dict[str, Any]] = {section: dict(table) for section, table in below.items()}
    paths: dict[Field, KeyPath] = {}
    for layer in layers:
        for section, table in layer.tables.items():
            values[section] = merge(values.get(section, {}), table)
            paths |= {(section, key): layer.path(section, key) for key in table}
    return values, paths


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
