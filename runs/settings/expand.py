"""From a draft to its runs: every arm with every sweep value, on every task, layers laid over each other,
checked.

Sweep values are settings over which every arm of a recipe is run, so that a map shows where each of them
breaks. A
recipe has them in its table `over`; ``--over KEY=VALUE,VALUE`` of the command line replaces a key of it. Each
arm becomes one for every combination of values, named after both.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from grpobench.analysis.tools.text import sweep_value
from grpobench.runs.settings import also, rules
from grpobench.runs.settings.config import SECTIONS, RunConfig, rates
from grpobench.runs.settings.draft import Draft, Head
from grpobench.runs.settings.entries import Arm, TaskLayer, settings_of
from grpobench.runs.settings.layers import SETTINGS, Field, Layer, merge
from grpobench.runs.settings.overrides import Overrides
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.strict import Bad, KeyPath, join
from grpobench.tasks.task import Task

Value = int | float | str | bool
Kind = TypeVar("Kind", Layer, TaskLayer)
LONGEST = 160
"""Bytes of the name of a folder. Systems take 255, and what is written aside has host and process in its."""
SUFFIX = "-map"
"""Behind the name of an experiment whose sweep values come from the command line."""
MOST = 200
"""More combinations than that are a slip of the keyboard."""


@dataclass(frozen=True)
class SweepPoint:
    """Where an arm of a map comes from."""

    arm: str
    """The recipe's."""
    values: Mapping[str, Value]
    """By key, such as ``train.learning_rate``."""


def read_over(table: Any, texts: Sequence[str], faults: list[str]) -> dict[str, list[Value]]:
    """The values of every key: those of the recipe's table, and of `--over` in their place."""
    over = read_over_table(table, faults)
    for text in texts:
        over |= read_over_text(text, faults)
    if math.prod(map(len, over.values())) > MOST:
        faults.append(f"over: more than {MOST} combinations of values; give fewer")
        return {}
    return over


def read_over_table(table: Any, faults: list[str]) -> dict[str, list[Value]]:
    """The table `over` of a recipe."""
    if not isinstance(table, Mapping):
        faults.append(f"over: must be a table of lists, not {strict.describe(table)}")
        return {}
    over: dict[str, list[Value]] = {}
    for key, values in table.items():
        if isinstance(values, Mapping):
            remedy = 'write the key in quotes, such as "train.learning_rate" = [1e-4, 1e-3]'
            faults.append(f"over.{key}: {remedy}")
        else:
            over |= checked(key, values, f"over.{key}", faults)
    return over


def read_over_text(text: str, faults: list[str]) -> dict[str, list[Value]]:
    """``--over KEY=VALUE,VALUE``. What is not TOML is words."""
    key, equals, values = text.partition("=")
    if not equals or not values.strip():
        faults.append(f"--over {text}: write --over KEY=VALUE,VALUE, such as train.learning_rate=1e-4,1e-3")
        return {}
    bare = values.strip().removeprefix("[").removesuffix("]")
    try:
        listed = toml.read(f"values = [{bare}]")["values"]
    except tomllib.TOMLDecodeError:
        listed = [part.strip() for part in bare.split(",")]
    return checked(key.strip(), listed, f"--over {key.strip()}", faults)


def checked(key: str, values: Any, key_path: KeyPath, faults: list[str]) -> dict[str, list[Value]]:
    """A key with its values; nothing, with a fault, where they are no list of different plain values."""
    if "." not in key:
        faults.append(f"{key_path}: is no setting of arms; write SECTION.FIELD, such as train.learning_rate")
    elif not isinstance(values, list) or not values or not all(isinstance(one, Value) for one in values):
        faults.append(f"{key_path}: must be a list of numbers or words, not {strict.describe(values)}")
    elif len(set(map(written, values))) < len(values):
        faults.append(f"{key_path}: two of the values are equal")
    else:
        return {key: values}
    return {}


def apply_sweep_values(
    draft: Draft, over: Mapping[str, Sequence[Value]], in_recipe: bool, faults: list[str]
) -> tuple[Draft, dict[str, SweepPoint]]:
    """The draft with an arm for every combination of values, and where each comes from. A plain learning rate
    is the policy's; rates of other roles stay the arm's own. Where the sweep values are not those
    `in_recipe`, the
    experiment has a name of its own."""
    if not over:
        return draft, {}
    combinations = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
    assigned = [assign(draft, values, faults) for values in combinations]
    arms: list[Arm] = []
    layers: list[Layer] = []
    task_layers: list[TaskLayer] = []
    sweep_values: dict[str, SweepPoint] = {}
    names: dict[str, list[str]] = {arm.name: [] for arm in draft.arms}
    for arm, (values, given) in itertools.product(draft.arms, zip(combinations, assigned, strict=True)):
        name = "+".join([arm.name, *(f"{key.rpartition('.')[2]}-{written(v)}" for key, v in values.items())])
        sweep_values[name] = SweepPoint(arm.name, values)
        names[arm.name].append(name)
        arms.append(dataclasses.replace(arm, name=name, layers=tuple(narrow(arm.layers, arm.name, name))))
        layers += narrow(given.layers, arm.name, name)
        task_layers += narrow(given.task_layers, arm.name, name)
    head = draft.head
    if isinstance(head, Head) and not in_recipe and not head.name.endswith(SUFFIX):
        head = dataclasses.replace(head, name=head.name + SUFFIX)  # its runs are not those of the recipe
    layers = [*spread(draft.overrides, names), *layers]
    task_layers = [*spread(draft.task_overrides, names), *task_layers]
    swept = dataclasses.replace(draft, head=head, arms=arms, overrides=layers, task_overrides=task_layers)
    return swept, sweep_values


def assign(draft: Draft, values: Mapping[str, Value], faults: list[str]) -> Overrides:
    """The layers of a combination of values, as `--set` would make them."""
    overrides = Overrides(draft.arms, [arm.name for arm in draft.arms], draft.tasks, faults)
    for key, value in values.items():
        overrides.assign(key.split("."), value)
    return overrides


def narrow(layers: Sequence[Kind], arm: str, name: str) -> list[Kind]:
    """What holds for an arm of the recipe, for one alone of those that it has become."""
    return [dataclasses.replace(layer, arm=name) for layer in layers if layer.arm in (None, arm)]


def spread(layers: Sequence[Kind], names: Mapping[str, Sequence[str]]) -> list[Kind]:
    """What is assigned to one of the recipe's arms, for every arm that it has become."""
    return [
        dataclasses.replace(layer, arm=name)
        for layer in layers
        for name in ([None] if layer.arm is None else names.get(layer.arm, ()))
    ]


def written(value: Value) -> str:
    """A value as a part of an arm's name: 3e-4, 16, 0_28."""
    return re.sub(r"[^A-Za-z0-9_+-]", "_", sweep_value(value).replace("−", "-"))


# Arms on tasks


def expand(draft: Draft, faults: list[str]) -> tuple[list[RunConfig], list[str]]:
    """Every run that could be built, and the optional arms that were left out with the reason."""
    configs: list[RunConfig] = []
    left_out: list[str] = []
    for arm, task in pair(draft, faults):
        runs = build_runs(draft, arm, task, faults)
        if runs and arm.optional and (why := unserved(runs[0])):
            left_out.append(f"{arm.name} on {task.name}: {why}")
        elif runs:
            reasons = [*rules.incompatible(runs[0]), *overlong(runs)]
            faults += [f"arm {arm.name} on {task.name}: {why}" for why in reasons]
            configs += runs
    if isinstance(draft.head, Head) and len(draft.head.name) > LONGEST:
        faults.append(f"name: must have at most {LONGEST} letters, not {len(draft.head.name)}")
    if not faults:
        faults += without_control(draft, configs, left_out)
    if not configs and not faults:
        why = f" ({'; '.join(left_out)})" if left_out else ""
        faults.append(f"no runs: no chosen arm runs on a chosen task{why}")
    if not faults:  # Last, because a task may have to ask the hub.
        faults += missing(configs)
    return configs, left_out


def without_control(draft: Draft, configs: Sequence[RunConfig], left_out: Sequence[str]) -> list[str]:
    """The tasks that the control does not run on, where there would be nothing to compare."""
    control = draft.head.control if isinstance(draft.head, Head) else ""
    if control not in [arm.name for arm in draft.arms]:
        return []  # the arms of a map have other names, and are not compared in pairs
    arms: dict[str, set[str]] = {}
    for config in configs:
        arms.setdefault(config.task.name, set()).add(config.arm)
    return [
        f"control: {control} has no run on {task}{why}; take the task or the control out"
        for task, own in arms.items()
        if control not in own
        for why in [next((f" ({told})" for told in left_out if told.startswith(f"{control} on {task}:")), "")]
    ]


def pair(draft: Draft, faults: list[str]) -> Iterator[tuple[Arm, Task]]:
    """Every arm with each of its tasks, which has the arm's settings."""
    for arm in draft.arms:
        for name in draft.tasks:
            if arm.tasks is None or name in arm.tasks:
                task = build_task(draft, name, arm, faults)
                if not isinstance(task, Bad):
                    yield arm, task


def build_runs(draft: Draft, arm: Arm, task: Task, faults: list[str]) -> list[RunConfig]:
    """The runs of one arm on one task, one per seed; none, with faults, where a section is wrong."""
    values, paths = lay(draft, arm, task)
    before, head = len(faults), draft.head
    built = build_sections(arm, values, paths, faults)
    if len(faults) > before or isinstance(head, Bad):
        return []
    algorithm, train = built.pop(SETTINGS), built["train"]
    built["train"] = dataclasses.replace(
        train, learning_rate=rates(train.learning_rate, algorithm.trained_roles)
    )
    built["dialect"] = f"{arm.dialect.name}, {arm.dialect.version}" if arm.dialect else ""
    built["beside"] = str(draft.folder.resolve()) if draft.folder else ""
    built["stop_on"] = head.stop_on
    return [RunConfig(head.name, arm.name, seed, algorithm, task, **built) for seed in head.seeds]


def unserved(config: RunConfig) -> str:
    """Why an optional arm is left out: its task does not fit it, it would never update its policy in so few
    steps, or it distills a teacher and there is none. Empty where none is so."""
    return next(iter(rules.unserved(config)), "") or rules.untrained(config) or rules.untaught(config)


def overlong(runs: Sequence[RunConfig]) -> list[str]:
    """What is wrong with the names of the folders of an arm's runs."""
    longest = max(len(config.folder.encode()) for config in runs)
    if longest <= LONGEST:
        return []
    limit = f"names of {longest} bytes, and arm, task and seed may have {LONGEST}"
    return [f"its runs' folders would have {limit}; give the arm a shorter `name`"]


def missing(configs: Sequence[RunConfig]) -> list[str]:
    """What this machine lacks for runs."""
    tasks = {str(task): task for one in configs for task in (one.task, *also.tasks_beside(one))}
    lacking = [why for why in map(rules.missing_data, tasks.values()) if why]
    return lacking + list(dict.fromkeys(why for config in configs for why in rules.missing(config)))


# Values of a run


def build_task(draft: Draft, name: str, arm: Arm, faults: list[str]) -> Task | Bad:
    """A task with its settings in an arm."""
    cls, settings = draft.tasks[name].cls, draft.tasks[name].settings
    layers = [layer.values for layer in draft.task_overrides if layer.holds(arm.name, name)]
    for values in (settings_of(arm.task, cls, f"arm.{arm.name}.task", faults), *layers):
        settings = merge(settings, values)
    folder = (draft.folder or Path()).absolute()
    # A path is relative to the recipe's folder.
    whole = {
        key: folder / one.expanduser() if isinstance(one, Path) else one for key, one in settings.items()
    }
    return strict.construct(cls, whole, faults, lambda key: inside(f"task.{name}.settings", key))


def lay(draft: Draft, arm: Arm, task: Task) -> tuple[dict[str, dict[str, Any]], dict[Field, KeyPath]]:
    """The values of every section, the last layer's on top, and the path that each comes from."""
    values: dict[str, dict[str, Any]] = {section: {} for section in (*SECTIONS, SETTINGS)}
    values["modify"] = dict(arm.algorithm.modifiers)
    paths: dict[Field, KeyPath] = {}
    for layer in (*arm.presets, *draft.base, *arm.layers, *draft.overrides):
        if layer.holds(arm.name, task.name):
            paths |= layer.paths
            for (section, key), value in layer.values.items():
                values[section] = merge(values[section], {key: value})
    rate = values["train"].get("learning_rate")
    if rate is not None and "policy" not in rate:  # a recipe may set the critic's alone
        values["train"]["learning_rate"] = {"policy": 1e-5} | rate
    return values, paths


def build_sections(
    arm: Arm, values: Mapping[str, Mapping[str, Any]], paths: Mapping[Field, KeyPath], faults: list[str]
) -> dict[str, Any]:
    """Every section as its dataclass, that of the algorithm under `SETTINGS`; `BAD` for a faulty one."""

    def build(section: str, cls: type) -> Any:
        path = f"arm.{arm.name}.settings" if section == SETTINGS else section

        def path_of(key: str) -> KeyPath:
            return paths.get((section, key), inside(path, key))

        whole = dict(values[section])
        for key, value in whole.items():
            if isinstance(value, Mapping) and strict.is_table(hint := strict.hints(cls)[key]):
                whole[key] = strict.convert(value, hint, path_of(key), faults)
        broken = any(value is strict.BAD for value in whole.values())
        return strict.BAD if broken else strict.construct(cls, whole, faults, path_of)

    return {section: build(section, cls) for section, cls in {**SECTIONS, SETTINGS: arm.algorithm}.items()}


def inside(path: KeyPath, key: str) -> KeyPath:
    """The path of a field, or of the table itself for an empty key."""
    return join(path, key) if key else path
