"""Settings as a recipe and the command line write them: each with its source, for some runs or for all."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings.config import SECTIONS
from grpobench.runs.settings.registries import no_such
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.strict import KeyPath

NO_ARM = "no arm has this setting"
SETTINGS = "settings"
"""The section of an arm that holds the fields of its algorithm."""
TASK = "task"
"""The section of an arm that holds fields of its tasks."""
RENAMED_KEYS: Mapping[str, KeyPath] = {
    "prompts": "train.prompts_per_step",
    "group": "train.group_size",
    "minibatches": "train.num_minibatches",
    "tokens_per_micro_batch": "train.micro_batch_tokens",
    "optimiser": "train.optimizer",
    "optimiser_settings": "train.optimizer_settings",
    "rows": "sampler.max_batch_size",
    "max_new_tokens": "sampler.max_completion_tokens",
    "largest_gap": "sampler.max_logprob_gap",
}
"""Fields of older versions to what each is now."""
FIELDS = {name: f"{section}.{name}" for section, cls in SECTIONS.items() for name in strict.hints(cls)}
ELSEWHERE = {**RENAMED_KEYS, **FIELDS}
"""Where a field belongs that stands in a wrong table, or is called by an older name."""


@dataclass(frozen=True)
class Setting:
    """A value from one place, and the arm and task that it holds for (None: all)."""

    section: str
    key: str
    value: Any
    path: KeyPath
    arm: str | None = None
    task: str | None = None


@dataclass(frozen=True)
class Scope:
    """Where tables stand, what they hold for, and which may stand there."""

    prefix: str = ""
    """What stands before a section in the path of a value, such as ``arm.second.``."""
    arm: str | None = None
    task: str | None = None
    algorithm: type[Algorithm[Any]] | None = None
    """Whose fields the section `SETTINGS` holds; None: there is no such section."""
    tasks: Mapping[str, type] = field(default_factory=dict)
    """The classes of the tasks, whose fields the section `TASK` holds."""

    def read(
        self, table: Mapping[str, Any], faults: list[str], others: Collection[str] = ()
    ) -> list[Setting]:
        """The settings of a table: its sections, then those of `on`, task by task. `others` are keys that
        stand beside them and are read elsewhere."""
        sections = {**SECTIONS, **({SETTINGS: self.algorithm} if self.algorithm else {})}
        allowed = {*sections, *others, *(() if self.task else ("on",))}
        faults += [self.unknown(key, allowed) for key in table if key not in allowed]
        settings: list[Setting] = []
        for section, cls in sections.items():
            if section in table:
                settings += self.section(section, cls, table[section], faults)
        if TASK in others and TASK in table:
            settings += self.of_tasks(table[TASK], faults)
        return settings + self.read_on(table.get("on", {}), faults)

    def section(
        self, section: str, cls: type, table: Any, faults: list[str], label: str = ""
    ) -> list[Setting]:
        """The fields of a section, which is called `label` if not by its name, that its class can take."""
        path = self.prefix + (label or section)
        elsewhere = {key: self.prefix + where for key, where in ELSEWHERE.items() if section != TASK}
        fields = strict.check(cls, widen(section, table), path, faults, elsewhere)
        return [
            Setting(section, key, value, f"{path}.{key}", self.arm, self.task)
            for key, value in fields.items()
        ]

    def read_on(self, table: Any, faults: list[str]) -> list[Setting]:
        """The settings of `on.TASK`, task by task."""
        path = f"{self.prefix}on"
        if not isinstance(table, Mapping):
            faults.append(f"{path}: must be a table of tasks, not {strict.describe(table)}")
            return []
        settings: list[Setting] = []
        for task, sections in table.items():
            if task not in self.tasks:
                faults.append(no_such("task", task, path, self.tasks))
            elif not isinstance(sections, Mapping):
                faults.append(f"{path}.{task}: must be a table of sections, not {strict.describe(sections)}")
            else:
                settings += replace(self, prefix=f"{path}.{task}.", task=task).read(sections, faults)
        return settings

    def of_tasks(self, table: Any, faults: list[str]) -> list[Setting]:
        """The fields of a table that holds for several tasks, each of which at least one of them has."""
        path = self.prefix + TASK
        if not isinstance(table, Mapping):
            faults.append(f"{path}: must be a table, not {strict.describe(table)}")
            return []
        valid = {key for cls in self.tasks.values() for key in strict.hints(cls)}
        faults += [strict.unknown(path, key, valid) for key in table if key not in valid]
        for cls in self.tasks.values():
            self.section(TASK, cls, fields_of(cls, table), faults)
        return [Setting(TASK, key, table[key], f"{path}.{key}", self.arm, self.task) for key in table]

    def unknown(self, key: str, allowed: Collection[str]) -> str:
        """The message for a key that does not stand in such a table."""
        if key == SETTINGS:
            remedy = f"write them in an [[arm]], as {SETTINGS}.FIELD"
            return f"{self.prefix}{key}: are those of an algorithm; {remedy}"
        settings_paths = (
            {name: f"{SETTINGS}.{name}" for name in strict.hints(self.algorithm)} if self.algorithm else {}
        )
        elsewhere = {name: self.prefix + where for name, where in {**ELSEWHERE, **settings_paths}.items()}
        return strict.unknown(self.prefix.removesuffix("."), key, allowed, elsewhere)


def fields_of(cls: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """Those fields of a table that a class has."""
    return {key: value for key, value in table.items() if key in strict.hints(cls)}


def lay(
    settings: Iterable[Setting], below: Mapping[str, Mapping[str, Any]], task: type
) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], KeyPath]]:
    """Fields by section, of settings that are put over `below` in their order, and the path that each comes
    from. Tables merge key by key; everything else is replaced. Of settings of tasks, those that the class
    `task` has."""
    values: dict[str, dict[str, Any]] = {section: dict(table) for section, table in below.items()}
    paths: dict[tuple[str, str], KeyPath] = {}
    for setting in settings:
        section, key = setting.section, setting.key
        values[section] = merge(values.get(section, {}), {key: setting.value})
        paths[section, key] = setting.path
    values[TASK] = fields_of(task, values.get(TASK, {}))
    return values, paths


def merge(old: Mapping[str, Any], new: Mapping[str, Any], single: Collection[str] = ()) -> dict[str, Any]:
    """`new` over `old`, tables merged key by key, except those of the keys in `single`."""
    merged = dict(old)
    for key, value in new.items():
        before = None if key in single else merged.get(key)
        tables = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(before or {}, value, single) if tables else value
    return merged


def widen(section: str, table: Any) -> Any:
    """A plain learning rate is the policy's."""
    if section == "train" and isinstance(table, Mapping):
        rate = table.get("learning_rate")
        if rate is not None and not isinstance(rate, Mapping):
            return {**table, "learning_rate": {"policy": rate}}
    return table


# Assignments of the command line

SHOWN = 80
"""Characters of an assignment that a message repeats."""
Assignment = tuple[list[str], Any]
"""(the parts of a dotted key, the value)."""
PAIR = re.compile(r"[A-Za-z_][\w.@+-]*=[^=\"'\[{]*")
"""An assignment, as far as its text shows."""
SELECTIONS = ("arms", "tasks", "control")
"""Keys of names, which are text even where one reads like another value, as of an arm `true`."""
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
    """Dotted key and value of KEY=VALUE; a value that is not TOML is a string, and so is a selection that is
    no list. None: no assignment. Raises ConfigError for a value that nothing holds."""
    key, equals, value = text.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not equals or not all(keys):
        return None
    if key.strip() in SELECTIONS and not value.lstrip().startswith(("[", "{", '"', "'")):
        return keys, value.strip()
    try:
        return keys, toml.read(f"value = {value}")["value"]
    except toml.Unholdable as error:
        shown = text if len(text) <= SHOWN else text[:SHOWN] + " …"
        raise strict.ConfigError([f"{shown}: {error}"]) from None
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
    arms: Mapping[str, type[Algorithm[Any]]],
    listed: Collection[str],
    tasks: Mapping[str, type],
    faults: list[str],
    prefix: str = "--set ",
) -> list[Setting]:
    """The settings of an assignment with a dot; `prefix` is what stands before it.

    `arms`, with their algorithms, and `tasks` are those that run, `listed` the arms of the recipe: one that
    does not run may be assigned to, without an effect.
    """
    (first, *inner_keys), value = assignment
    name, inner = split_arm(inner_keys, [*arms, *listed])
    path = prefix + ".".join([first, *inner_keys])
    if first in FORMS and len(inner) < 2:
        faults.append(f"{path}: write --set {FORMS[first]}=VALUE")
    elif first == "arm":
        if name in arms:
            scope = Scope(f"{prefix}arm.{name}.", name, None, arms[name], tasks)
            return scope.read(nest(inner, value), faults, [TASK])
        if name not in listed:
            faults.append(no_such("arm", name, path, arms))
    elif first == "algorithm":
        return of_algorithms(nest(inner_keys, value), arms, prefix, faults)
    elif first == SETTINGS:
        key = ".".join(inner_keys)
        faults.append(
            f"{path}: write --set algorithm.{key}=VALUE for every arm that has it, "
            f"or --set arm.NAME.settings.{key}=VALUE"
        )
    elif first == TASK and inner_keys[1:2] == [SETTINGS] and inner_keys[2:]:
        name, _, *inner = inner_keys
        label = f"{TASK}.{name}.{SETTINGS}"
        if name in tasks:
            return Scope(prefix, task=name).section(TASK, tasks[name], nest(inner, value), faults, label)
        faults.append(no_such("task", name, path, tasks))
    else:
        keys = ["algorithm", "arm", TASK]
        return Scope(prefix, tasks=tasks).read(nest([first, *inner_keys], value), faults, keys)
    return []


def of_algorithms(
    table: Mapping[str, Any], arms: Mapping[str, type[Algorithm[Any]]], prefix: str, faults: list[str]
) -> list[Setting]:
    """`algorithm.FIELD`: a setting for every arm whose algorithm has the field."""
    (name,) = table
    path = f"{prefix}algorithm"
    valid = {key for cls in arms.values() for key in strict.hints(cls)}
    if name not in valid:
        elsewhere = {key: f"{prefix}{where}" for key, where in ELSEWHERE.items()}
        faults.append(strict.unknown(path, name, valid, elsewhere).replace("unknown key", NO_ARM))
    return [
        setting
        for arm, cls in arms.items()
        if name in strict.hints(cls)
        for setting in Scope(prefix, arm).section(SETTINGS, cls, table, faults, "algorithm")
    ]


def nest(keys: Sequence[str], value: Any) -> Any:
    """{"a": {"b": value}} for keys a, b."""
    for key in reversed(keys):
        value = {key: value}
    return value
