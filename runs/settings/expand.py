"""The runs of a draft: every arm with every sweep value, on every task, with its layers of settings
checked."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.analysis.tools.text import RATE_SUFFIX, sweep_value
from grpobench.runs.settings import rules
from grpobench.runs.settings.config import SECTIONS, RunConfig, rates
from grpobench.runs.settings.draft import Arm, Draft, Head, classes_of
from grpobench.runs.settings.layers import SETTINGS, TASK, lay, read_assignment
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.strict import Bad, KeyPath, join

Value = int | float | str | bool
LONGEST = 160
"""Bytes of the name of a folder. Systems take 255, and what is written aside has host and process in its."""
SUFFIX = "-map"
"""Behind the name of an experiment whose sweep values come from the command line."""
MOST = 200
"""More combinations than that are a slip of the keyboard."""


@dataclass(frozen=True)
class RateOrigin:
    """Where an arm at another learning rate than its own comes from."""

    arm: str
    """The recipe's."""
    factor: float
    """Multiple of the learning rate of the arm's policy."""


@dataclass(frozen=True)
class SweepOrigin:
    """Where an arm of a map comes from."""

    arm: str
    """The recipe's."""
    values: Mapping[str, Value]
    """By key, such as ``train.learning_rate``."""


def read_over_table(table: Any, faults: list[str], path: KeyPath = "over") -> dict[str, list[Value]]:
    """The table `over` of a recipe, or of its table `search`."""
    if not isinstance(table, Mapping):
        faults.append(f"{path}: must be a table of lists, not {strict.describe(table)}")
        return {}
    over: dict[str, list[Value]] = {}
    for key, values in table.items():
        if isinstance(values, Mapping):
            remedy = 'write the key in quotes, such as "train.learning_rate" = [1e-4, 1e-3]'
            faults.append(f"{path}.{key}: {remedy}")
        else:
            over |= checked(key, values, f"{path}.{key}", faults)
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
    elif not isinstance(values, list) or not values or not all(isinstance(value, Value) for value in values):
        faults.append(f"{key_path}: must be a list of numbers or words, not {strict.describe(values)}")
    elif len(set(map(written, values))) < len(values):
        faults.append(f"{key_path}: two of the values are equal")
    else:
        return {key: values}
    return {}


def sweep(
    draft: Draft, table: Any, texts: Sequence[str], faults: list[str]
) -> tuple[Draft, dict[str, SweepOrigin]]:
    """The draft with an arm for every combination of values, those of the recipe's `table` with those of
    `--over` in their place, and where each comes from. A plain learning rate is the policy's; rates of other
    roles stay the arm's own. With `--over` the experiment has a name of its own.

    Sweep values are settings over which every arm of a recipe is run, so that a map shows where each of them
    breaks. A recipe has them in its table `over`; ``--over KEY=VALUE,VALUE`` of the command line replaces a
    key of it. Each arm becomes one for every combination of values, named after both."""
    over = read_over_table(table, faults)
    for text in texts:
        over |= read_over_text(text, faults)
    if math.prod(map(len, over.values())) > MOST:
        faults.append(f"over: more than {MOST} combinations of values; give fewer")
        return draft, {}
    if not over:
        return draft, {}
    arms: list[Arm] = []
    settings = list(draft.settings)
    sweep_values: dict[str, SweepOrigin] = {}
    prefix = "--over " if texts else "over."
    algorithms, tasks = {arm.name: arm.algorithm for arm in draft.arms}, classes_of(draft.tasks)
    combinations = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
    for arm, values in itertools.product(draft.arms, combinations):
        name = "+".join([arm.name, *(f"{key.rpartition('.')[2]}-{written(v)}" for key, v in values.items())])
        sweep_values[name] = SweepOrigin(arm.name, values)
        arms.append(dataclasses.replace(arm, name=name, origin=arm.name))
        settings += [
            dataclasses.replace(setting, arm=name)
            for key, value in values.items()
            for setting in read_assignment((key.split("."), value), algorithms, (), tasks, faults, prefix)
            if setting.arm in (None, arm.name)
        ]
    head = draft.head
    if isinstance(head, Head) and texts and not head.name.endswith(SUFFIX):
        head = dataclasses.replace(head, name=head.name + SUFFIX)  # its runs are not those of the recipe
    return dataclasses.replace(draft, head=head, arms=arms, settings=settings), sweep_values


def at_rates(
    draft: Draft, sweep_values: Mapping[str, SweepOrigin], faults: list[str]
) -> tuple[Draft, dict[str, RateOrigin]]:
    """The draft with more arms: each at every multiple of its learning rate (`rates` of the recipe), but for
    1, which is the arm itself and keeps its name, so that its runs are those of a recipe without `rates`."""
    if isinstance(draft.head, Bad):
        return draft, {}
    factors = [factor for factor in draft.head.rates if factor != 1]
    if not factors:
        return draft, {}
    if sweep_values:
        faults.append("rates: cannot be combined with sweep values (over); write --set rates=[]")
        return draft, {}
    arms: list[Arm] = []
    origins: dict[str, RateOrigin] = {}
    names = {arm.name for arm in draft.arms}
    rate_tasks = draft.head.rate_tasks or tuple(draft.tasks)
    for arm in draft.arms:
        arms.append(arm)
        tasks = tuple(task for task in rate_tasks if arm.tasks is None or task in arm.tasks)
        for factor in sorted(factors):
            name = f"{arm.name}{RATE_SUFFIX}{factor:g}"
            if name in names:
                faults.append(
                    f"arm.{name}: has the name of {arm.name} at {factor:g} times its rate; rename it"
                )
            origins[name] = RateOrigin(arm.name, factor)
            arms.append(dataclasses.replace(arm, name=name, origin=arm.name, rate_factor=factor, tasks=tasks))
    return dataclasses.replace(draft, arms=arms), origins


def written(value: Value) -> str:
    """A value as a part of an arm's name: 3e-4, 16, 0_28."""
    return re.sub(r"[^A-Za-z0-9_+-]", "_", sweep_value(value).replace("−", "-"))


# Arms on tasks


@dataclass(frozen=True)
class Expansion:
    """The runs of a draft."""

    head: Head | Bad
    configs: list[RunConfig]
    """Every run that could be built."""
    left_out: list[str]
    """The optional arms that were left out, with the reason."""
    sweep_values: Mapping[str, SweepOrigin]
    """By arm; empty without sweep values."""
    rate_arms: Mapping[str, RateOrigin]
    """By the name of each arm at another learning rate."""


def expand(draft: Draft, table: Any, texts: Sequence[str], faults: list[str]) -> Expansion:
    """The runs of every arm, with every sweep value (`table` and `texts` as in `sweep`) and at every learning
    rate, on every task."""
    draft, sweep_values = sweep(draft, table, texts, faults)
    draft, rate_arms = at_rates(draft, sweep_values, faults)
    configs, left_out = every_run(draft, faults)
    return Expansion(draft.head, configs, left_out, sweep_values, rate_arms)


def every_run(draft: Draft, faults: list[str]) -> tuple[list[RunConfig], list[str]]:
    """Every run that could be built, and the optional arms that were left out with the reason."""
    configs: list[RunConfig] = []
    left_out: list[str] = []
    for arm, task in itertools.product(draft.arms, draft.tasks):
        runs = build_runs(draft, arm, task, faults) if arm.tasks is None or task in arm.tasks else []
        if runs and arm.optional and (why := rules.left_out(runs[0])):
            left_out += [f"{arm.name} on {task}: {why}"] * (arm.rate_factor == 1)
        elif runs:
            name = arm.name if arm.rate_factor == 1 else arm.origin
            reasons = [f"arm {name} on {task}: {why}" for why in rules.incompatible(runs[0])]
            reasons += [f"arm {arm.name} on {task}: {why}" for why in overlong(runs)]
            faults += [reason for reason in reasons if reason not in faults]  # once, not at every rate
            configs += runs
    if isinstance(draft.head, Head) and len(draft.head.name) > LONGEST:
        faults.append(f"name: must have at most {LONGEST} letters, not {len(draft.head.name)}")
    if not faults:
        faults += without_control(draft, configs, left_out)
    if not configs and not faults:
        why = f" ({'; '.join(left_out)})" if left_out else ""
        faults.append(f"no runs: no chosen arm runs on a chosen task{why}")
    if not faults:  # Last, because a task may have to ask the hub.
        faults += rules.lacking(configs)
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
        for task, arm_names in arms.items()
        if control not in arm_names
        for why in [
            next(
                (f" ({omission})" for omission in left_out if omission.startswith(f"{control} on {task}:")),
                "",
            )
        ]
    ]


def build_runs(draft: Draft, arm: Arm, task: str, faults: list[str]) -> list[RunConfig]:
    """The runs of one arm on one task, one per seed; none, with faults, where a section is wrong."""
    cls, head, before = draft.tasks[task].cls, draft.head, len(faults)
    every = [*draft.tasks[task].settings, *arm.presets, *draft.settings]
    arms = (None, arm.name, arm.origin)
    values, paths = lay(
        [setting for setting in every if setting.arm in arms and setting.task in (None, task)],
        below={"modify": arm.algorithm.modifiers},
        task=cls,
    )
    rates_of_roles = values.get("train", {}).get("learning_rate", {"policy": 1e-5})
    if "policy" not in rates_of_roles:  # a recipe may set the critic's alone
        values["train"]["learning_rate"] = {"policy": 1e-5} | rates_of_roles
    folder = (draft.folder or Path()).absolute()
    labels = {TASK: f"task.{task}.settings", SETTINGS: f"arm.{arm.name}.settings"}

    def path_in(section: str) -> Callable[[str], KeyPath]:
        label = labels.get(section, section)
        return lambda key: paths.get((section, key), join(label, key) if key else label)

    built: dict[str, Any] = {
        section: strict.convert(values.get(section, {}), kind, path_in(section), faults, folder=folder)
        for section, kind in {TASK: cls, **SECTIONS, SETTINGS: arm.algorithm}.items()
    }
    if len(faults) > before or isinstance(head, Bad):
        return []
    algorithm, train = built.pop(SETTINGS), built["train"]
    learning_rate = rates(train.learning_rate, algorithm.trained_roles)
    if arm.rate_factor != 1:
        rate = float(f"{arm.rate_factor * learning_rate['policy']:.12g}")  # 3e-4, not 3.0…4e-4
        if rate >= 1:
            faults.append(
                f"rates: {arm.origin} on {task} would have the learning rate {rate:g} at {arm.rate_factor:g} "
                f"times its own, and rates must be below 1; leave out {arm.rate_factor:g}"
            )
            return []
        learning_rate["policy"] = rate
    built["train"] = dataclasses.replace(train, learning_rate=learning_rate)
    built["algorithm"] = algorithm
    built["dialect"] = f"{arm.dialect.name}, {arm.dialect.version}" if arm.dialect else ""
    built["beside"] = str(draft.folder.resolve()) if draft.folder else ""
    built["stop_on"] = head.stop_on
    return [RunConfig(experiment=head.name, arm=arm.name, seed=seed, **built) for seed in head.seeds]


def overlong(runs: Sequence[RunConfig]) -> list[str]:
    """What is wrong with the names of the folders of an arm's runs."""
    longest = max(len(config.folder.encode()) for config in runs)
    if longest <= LONGEST:
        return []
    limit = f"names of {longest} bytes, and arm, task and seed may have {LONGEST}"
    return [f"its runs' folders would have {limit}; give the arm a shorter `name`"]
