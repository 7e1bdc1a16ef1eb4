"""A recipe as its parts, before anybody knows whether they fit together: the plain keys at its top, tasks,
arms, each an algorithm with settings of its own, sections, and what the command line assigns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from annotated_types import Ge, Gt, Interval

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings import guard, registries, stored
from grpobench.runs.settings.layers import (
    ELSEWHERE,
    SETTINGS,
    TASK,
    Scope,
    Setting,
    read_assignment,
    read_sets,
)
from grpobench.runs.settings.observe import Entry
from grpobench.runs.settings.registries import find_class, name_list, no_such
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import BAD, Bad, ConfigError, KeyPath, Settings
from grpobench.tasks.task import Task

if TYPE_CHECKING:
    from grpobench.algorithms.libraries.dialect import Dialect

# Tasks


@dataclass(frozen=True)
class Chosen:
    """A task of a recipe."""

    cls: type[Task]
    settings: Sequence[Setting]
    """Of its entry."""


Tasks = dict[str, Chosen]
"""By the names that arms, sections and folders call them."""
DATA = "jsonl"
"""The key of an entry that makes a task of a file of problems."""
OTHER_FORMATS = ("csv", "parquet")
"""Keys for files that a task does not read, and that pandas converts."""
HUB = "hub"
"""The key of an entry that makes a task of a data set of the hub."""
MIXTURE = "mixture"
"""The key of an entry that mixes several tasks."""


def read_tasks(
    table: Mapping[str, Any], folder: Path | None, faults: list[str], path: KeyPath = "tasks"
) -> Tasks:
    """The tasks that a recipe in `folder` lists, or a mixture in it, at the `path` of its list."""
    entries = table.get("tasks", [])
    if not isinstance(entries, list):
        faults.append(f"{path}: must be a list, not {strict.describe(entries)}")
        return {}
    listed: Tasks = {}
    for index, entry in enumerate(entries):
        for name, task in read_task(entry, f"{path}[{index}]", folder, faults).items():
            if name in listed:
                faults.append(f"{path}[{index}]: the task {name} is listed twice; remove one")
            listed.setdefault(name, task)
    return listed


def read_task(entry: Any, path: KeyPath, folder: Path | None, faults: list[str]) -> Tasks:
    """The task of an entry, by its name; none, with a fault, where there is no such task. An entry that is a
    file of problems or a data set of the hub names its class by `verify`."""
    table = as_entry(entry) if isinstance(entry, str) else entry
    name = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(name, str):
        faults.append(f"{path}: must be a task's name or a table with name and settings")
    elif other := [key for key in OTHER_FORMATS if key in table]:
        convert = f"pandas.read_{other[0]}(FILE).to_json('FILE.jsonl', orient='records', lines=True)"
        faults.append(f"{path}.{other[0]}: tasks read JSONL; convert the file: {convert}")
    elif MIXTURE in table:
        return read_mixture(name, table, path, folder, faults)
    elif DATA in table or HUB in table:
        from grpobench.tasks.kinds import hub, jsonl  # which load the graders

        classes: Mapping[str, type[jsonl.JSONLTask]] = hub.FROM_HUB if HUB in table else jsonl.FROM_DATA
        verify = table.get("verify")
        if not isinstance(verify, str) or verify not in classes:
            ways = ", ".join(map(repr, classes))
            faults.append(f"{path}.verify: must be one of {ways}, not {strict.describe(verify)}")
        elif name in registries.tasks():
            faults.append(f"{path}.name: the suite has another task {name!r}; choose another name")
        else:
            fields = {key: value for key, value in table.items() if key != "verify"}
            scope = Scope(task=name)
            return {name: Chosen(classes[verify], scope.section(TASK, classes[verify], fields, faults, path))}
    else:
        faults += [
            strict.unknown(path, key, ("name", SETTINGS, DATA, HUB, MIXTURE), {key: f"{path}.settings.{key}"})
            for key in table
            if key not in ("name", SETTINGS)
        ]
        if registries.is_environment(name):
            return read_environment(name, table.get(SETTINGS, {}), path, folder, faults)
        if (cls := find_class("task", name, folder, path, faults)) is not None:
            label = f"{TASK}.{cls.name}.{SETTINGS}"
            fields = table.get(SETTINGS, {})
            return {cls.name: Chosen(cls, Scope(task=cls.name).section(TASK, cls, fields, faults, label))}
    return {}


def read_mixture(
    name: str, table: Mapping[str, Any], path: KeyPath, folder: Path | None, faults: list[str]
) -> Tasks:
    """The task of an entry that mixes tasks: those of its own `tasks`, others with their defaults. None, with
    a fault, where one is wrong."""
    from grpobench.runs.settings.task_mixture import TaskMixture  # which loads the graders

    before = len(faults)
    if name in registries.tasks():
        faults.append(f"{path}.name: the suite has another task {name!r}; choose another name")
    faults += [
        strict.unknown(path, key, ("name", MIXTURE, "tasks"))
        for key in table
        if key not in ("name", MIXTURE, "tasks")
    ]
    shares = strict.convert(table[MIXTURE], dict[str, float], f"{path}.{MIXTURE}", faults)
    if isinstance(shares, Bad):
        return {}
    listed = read_tasks(table, folder, faults, f"{path}.tasks")
    faults += [f"{path}.tasks: {task} has no share in {MIXTURE}" for task in listed if task not in shares]
    mixture, parts = {}, {}
    for key, share in shares.items():
        entry_path = f"{path}.{MIXTURE}.{key}"
        read = {key: listed[key]} if key in listed else read_task(key, entry_path, folder, faults)
        for task, chosen in read.items():
            mixture[task] = share
            settings = {setting.key: setting.value for setting in chosen.settings}
            parts[task] = stored.entry_of("task", task, chosen.cls, settings)
    if len(faults) > before:
        return {}
    fields = {"name": name, MIXTURE: mixture, "parts": parts}
    if any("class" in entry for entry in parts.values()):
        fields["folder"] = "."
    scope = Scope(task=name)
    return {name: Chosen(TaskMixture, scope.section(TASK, TaskMixture, fields, faults, path))}


def read_environment(
    name: str, settings: Any, path: KeyPath, folder: Path | None, faults: list[str]
) -> Tasks:
    """The task of an environment; none, with a fault, where there is no such class."""
    from grpobench.runs.settings import environments
    from grpobench.tasks.kinds.environment import EnvironmentTask

    if not isinstance(settings, Mapping):
        faults.append(f"{path}.{SETTINGS}: must be a table, not {strict.describe(settings)}")
        return {}
    try:
        fields = environments.read(name, settings, folder, path)
    except ConfigError as error:
        faults += error.faults
        return {}
    label, cls = str(fields["name"]), EnvironmentTask
    if label in registries.tasks():
        faults.append(f"{path}: the suite has another task {label!r}; set `name` in its {SETTINGS}")
        return {}
    scope = Scope(task=label)
    return {label: Chosen(cls, scope.section(TASK, cls, fields, faults, f"{TASK}.{label}.{SETTINGS}"))}


def as_entry(name: str) -> dict[str, Any]:
    """The entry of a task's name. A data set of the hub, ``hf:OWNER/NAME``, is the suite's task of it, or
    else a task of its own that is graded by value."""
    if not name.startswith(registries.HUB):
        return {"name": name}
    from grpobench.tasks.kinds.hub import name_of

    data_set = name.removeprefix(registries.HUB)
    for task, cls in registries.tasks().items():
        if cls.tables and all(table.hub and table.hub.dataset == data_set for table in cls.tables):
            return {"name": task}
    label = name_of(data_set)
    label = label if label not in registries.tasks() else name_of(data_set.replace("/", "-"))
    return {"name": label, HUB: data_set, "verify": "math"}


def select_tasks(names: Any, listed: Tasks, folder: Path | None, faults: list[str]) -> Tasks:
    """The tasks to run. A task that the recipe does not list may be chosen with its defaults."""
    if names is None:
        if not listed and not faults:
            faults.append('tasks: the recipe has no tasks; write tasks = ["NAME", ...]')
        return listed
    selected: Tasks = {}
    for name in name_list(names, "--set tasks", faults):
        read = {name: listed[name]} if name in listed else read_task(name, "--set tasks", folder, faults)
        selected |= {label: listed.get(label, task) for label, task in read.items()}
    return selected


# Arms


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+@.-]*")
"""What an arm may be called. Folders bear its name, so that it begins with a letter or digit."""
EVERY = "*"
"""In the place of an arm's algorithm: an optional arm of every one that has no entry of its own."""
KEYS = ("algorithm", "name", "tasks", TASK, "optional")
"""Keys of an arm that are no sections."""


@dataclass(frozen=True)
class Arm:
    name: str
    algorithm: type[Algorithm[Any]]
    tasks: tuple[str, ...] | None = None
    """Those it is restricted to."""
    settings: Sequence[Setting] = ()
    dialect: Dialect | None = None
    presets: Sequence[Setting] = ()
    """What its dialect says, under everything else."""
    optional: bool = False
    """Whether it is left out, without an error, on a task that does not fit it."""
    origin: str = ""
    """The recipe's arm that it is at sweep values; empty: it is one of the recipe's."""
    rate_factor: float = 1.0
    """Of its policy's learning rate."""


def read_arms(
    table: Mapping[str, Any], tasks: Tasks, folder: Path | None, faults: list[str]
) -> dict[str, Arm]:
    """The arms of a recipe in `folder` by name; `tasks` are those that it lists."""
    entries = table.get("arm", [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        faults.append("arm: must be a list of tables; write [[arm]]")
        return {}
    read: dict[str, Arm] = {}
    for index, entry in each_entry(entries, faults):
        arm = read_arm(entry, f"arm[{index}]", tasks, folder, faults)
        if arm is not None and arm.name in read:
            remedy = 'give one of them its own `name = "..."`'
            faults.append(f"arm[{index}]: two arms are named {arm.name}; {remedy}")
        elif arm is not None:
            read[arm.name] = arm
    return read


def each_entry(
    entries: Sequence[Mapping[str, Any]], faults: list[str]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The entries in order; one of `EVERY` algorithm becomes an arm for each that has no other entry."""
    listed = [entry.get("algorithm") for entry in entries]
    for index, entry in enumerate(entries):
        if entry.get("algorithm") != EVERY:
            yield index, entry
        elif EVERY in listed[:index]:
            faults.append(f"arm[{index}]: another entry is of every algorithm already; remove one")
        elif alone := [key for key in ("name", "optional", SETTINGS) if key in entry]:
            faults.append(
                f"arm[{index}]: {alone[0]} cannot be that of every algorithm; give one its own [[arm]]"
            )
        else:
            for name in registries.algorithms():
                if name not in listed:
                    yield index, {**entry, "algorithm": name, "optional": True}


def read_arm(
    entry: Mapping[str, Any], path: KeyPath, tasks: Tasks, folder: Path | None, faults: list[str]
) -> Arm | None:
    """The arm of an entry; None, with a fault, without an algorithm or a name."""
    if "algorithm" not in entry:
        faults.append(f'{path}: missing algorithm; write algorithm = "NAME"')
        return None
    kind = find_algorithm(entry["algorithm"], f"{path}.algorithm", folder, faults)
    if kind is None:
        return None
    cls, dialect = kind
    name = entry.get("name", dialect.name if dialect else cls.name)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        faults.append(f"{path}.name: must be letters, digits, -, _, ., + and @, not {strict.describe(name)}")
        return None
    path = f"arm.{name}"
    settings = Scope(f"{path}.", name, None, cls, classes_of(tasks)).read(entry, faults, KEYS)
    optional = strict.convert(entry.get("optional", False), bool, f"{path}.optional", faults)
    only = strict.convert(entry.get("tasks", ()), tuple[str, ...], f"{path}.tasks", faults)
    only = only if "tasks" in entry and only is not BAD else None
    faults += [no_such("task", task, f"{path}.tasks", tasks) for task in only or () if task not in tasks]
    return Arm(name, cls, only, settings, dialect, presets(cls, dialect, name, faults), optional is True)


def presets(cls: type[Algorithm[Any]], dialect: Dialect | None, arm: str, faults: list[str]) -> list[Setting]:
    """What the dialect of an arm says."""
    return Scope(f"{dialect.name}.", arm, None, cls).read(dialect.values, faults) if dialect else []


def classes_of(tasks: Tasks) -> dict[str, type[Task]]:
    return {name: task.cls for name, task in tasks.items()}


def find_algorithm(
    name: Any, path: KeyPath, folder: Path | None, faults: list[str]
) -> tuple[type[Algorithm[Any]], Dialect | None] | None:
    """The algorithm of a name, and the dialect of one such as ``ALGORITHM@LIBRARY``."""
    if not isinstance(name, str) or "@" not in name:
        cls = find_class("algorithm", name, folder, path, faults)
        return None if cls is None else (cls, None)
    dialects = registries.dialects()
    if name not in dialects:
        faults.append(f"{path}: {registries.miss('dialect', name, dialects)}")
        return None
    return registries.algorithms()[dialects[name].base], dialects[name]


def select_arms(names: Any, listed: Mapping[str, Arm], folder: Path | None, faults: list[str]) -> list[Arm]:
    """The arms to run. An algorithm that is no arm of the recipe may be chosen with its defaults."""
    path = "--set arms"
    if names is None:
        if not listed and not faults:
            faults.append("arm: the recipe has no arms; write [[arm]] with algorithm = ...")
        return list(listed.values())
    selected = []
    registry = registries.algorithms()
    for name in name_list(names, path, faults):
        if name in listed:
            selected.append(listed[name])
        elif name in registry or "@" in name or registries.is_plugin_name("algorithm", name):
            if kind := find_algorithm(name, path, folder, faults):
                cls, dialect = kind
                label = dialect.name if dialect else cls.name
                below = presets(cls, dialect, label, faults)
                selected.append(listed.get(label) or Arm(label, cls, dialect=dialect, presets=below))
        else:
            faults.append(no_such("arm", name, path, dict.fromkeys([*listed, *registry])))
    return selected


# The whole recipe

ALONE: Mapping[str, tuple[type, ...]] = {
    "seeds": (int,),
    "rates": (int, float),
    "rate_tasks": (str,),
    "observe": (str, dict),
    "stop_on": (str,),
    "targets": (int, float),
}
"""Lists that `--set` may give a single entry of."""
TABLES = ("tasks", "arm", "over", "search", "searched")
"""Keys at the top of a recipe that are neither plain nor sections."""
FORMS = ("algorithm.FIELD", "arm.NAME.settings.FIELD")
"""What the other assignments look like, for a message."""
LEAST_RATIO = 1.1
"""Learning rates of an arm that are closer than this factor are the same to any comparison."""
MOST_RATES = 15
"""More multiples of a learning rate than that are a slip of the keyboard."""
MOST_SEEDS = 10_000
"""More seeds than that are a slip of the keyboard, and would take minutes only to be listed."""


@dataclass(frozen=True)
class Head(Settings):
    """The plain top-level keys of a recipe."""

    name: str
    """Letters, digits, - and _; the file's name without .toml unless given. Results go to OUT/name."""
    summary: str = ""
    """One line for `grpobench list recipes` and reports."""
    seeds: tuple[int, ...] = (0,)
    """Each arm runs on each task once per seed; arms share the random numbers of a seed."""
    workers: Annotated[int, Ge(0)] = 0
    """Runs side by side; 0 means one per GPU, and one per core without one."""
    fail_on_divergence: bool = False
    """Exit with 3 when a run diverges, or collapses by `stop_on`."""
    margin: Annotated[float, Interval(gt=0, lt=100)] = 2.0
    """Smallest difference of accuracy that matters, in points."""
    control: str = ""
    """The arm that reports compare all others with, and nothing else; empty compares every pair."""
    targets: tuple[Annotated[float, Interval(gt=0, le=1)], ...] = ()
    """Levels of validation accuracy, shares such as [0.6]; the report says what runs spent to reach each."""
    guard: Mapping[str, float] = field(default_factory=dict)
    """What training must not destroy, with the largest change since before training that is allowed:
    `also:TASK`, the accuracy on a task of `evaluate.also`, and `format`, the share of answers in the task's
    format, both in points and below 0; `loss:TASK` in nats per token, above 0 (docs/evaluation.md)."""
    stop_on: tuple[str, ...] = ()
    """Kinds of events (docs/stability.md) that end a run, as its result."""
    rates: tuple[Annotated[float, Gt(0)], ...] = ()
    """Every arm also runs at these multiples of its policy's learning rate, such as [0.5, 1, 2]."""
    rate_tasks: tuple[str, ...] = ()
    """The tasks on which arms run at `rates`; on all others they run at their own rate. Empty: all tasks."""
    observe: tuple[Entry, ...] = ()
    """Callbacks that receive the events of every run: names, or tables with name and settings."""

    def clashes(self) -> Iterator[str]:
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_+-]*", self.name):
            yield f"name: must be letters, digits, - and _, not {self.name!r}"
        yield from stop_faults(self.stop_on)
        yield from rate_faults(self.rates)
        yield from guard.faults(self.guard)
        if not self.seeds:
            yield "seeds: must not be empty"
        if len(set(self.seeds)) != len(self.seeds):
            yield "seeds: must differ from each other"
        for seed in self.seeds[:MOST_SEEDS]:
            if not 0 <= seed < 2**63:
                yield f"seeds: must be from 0 to 2^63 - 1, not {seed}"
        if len(self.seeds) > MOST_SEEDS:
            yield (
                f"seeds: {len(self.seeds):,} are more than an experiment can run; give at most {MOST_SEEDS:,}"
            )


def rate_faults(factors: Sequence[float]) -> Iterator[str]:
    """What is wrong with the multiples of learning rates."""
    if factors and 1 not in factors:
        with_own = ", ".join(f"{factor:g}" for factor in sorted({*factors, 1.0}))
        yield f"rates: must have 1, each arm's own learning rate; write [{with_own}]"
    if any(not low * LEAST_RATIO <= high for low, high in pairwise(sorted(factors))):
        yield f"rates: must be at least a factor of {LEAST_RATIO} apart; leave out one of two that are closer"
    if len(factors) > MOST_RATES:
        yield f"rates: are {len(factors)}, and an experiment runs at most {MOST_RATES} for each arm"


def stop_faults(kinds: Sequence[str]) -> Iterator[str]:
    """What is wrong with the events of `stop_on`."""
    if not kinds:
        return
    from grpobench.analysis.detectors.registry import DETECTORS  # NumPy, which few recipes need

    stopping_kinds = [kind for kind, detector in DETECTORS.items() if detector.stops]
    for kind in kinds:
        if kind in stopping_kinds:
            continue
        if kind in DETECTORS:
            yield f"stop_on: {kind} says nothing against the policy; stop on {', '.join(stopping_kinds)}"
            continue
        did = strict.did_you_mean(kind, stopping_kinds, f"known: {', '.join(stopping_kinds)}", "{!r}")
        yield f"stop_on: unknown event {kind!r}; {did}"
    if len(set(kinds)) < len(kinds):
        yield "stop_on: lists an event twice"


HEAD_KEYS: Final = tuple(strict.hints(Head))
"""The keys of a recipe that are values of its own, and no tables of arms, tasks or settings."""


def read_head(
    table: Mapping[str, Any], stem: str, assigned: Mapping[str, Any], faults: list[str]
) -> Head | Bad:
    """The head of a recipe in a file called `stem`, with what `--set` assigns to keys without a dot."""
    valid = {*HEAD_KEYS, "tasks", "arms"}
    elsewhere = {key: f"--set {where}" for key, where in ELSEWHERE.items()}
    faults += [
        strict.unknown("--set ", key, {*valid, *FORMS}, elsewhere) for key in assigned if key not in valid
    ]
    before = len(faults)
    listed = {
        key: [value] if isinstance(value, ALONE.get(key, ())) else value for key, value in assigned.items()
    }
    values = {"name": stem}
    for layer in (table, listed):
        plain = {key: layer[key] for key in layer if key in HEAD_KEYS}
        values |= strict.check(Head, plain, "", faults)
    return BAD if len(faults) > before else strict.build(Head, values, "", faults)


def read_seeds(text: str, key_path: KeyPath) -> list[int]:
    """The seeds of ``0,1,2`` or ``0-4`` or both. Raises `ConfigError`."""
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ConfigError([f"{key_path}: write numbers such as 0,1,2 or 0-4"])
        first, last = int(low), int(high if dash else low)
        if last - first >= MOST_SEEDS - len(seeds):
            raise ConfigError([f"{key_path}: an experiment has at most {MOST_SEEDS:,} seeds"])
        if last < first:
            raise ConfigError([f"{key_path}: {part.strip()} holds no number; write the smaller one first"])
        seeds += range(first, last + 1)
    return seeds


@dataclass(frozen=True)
class Draft:
    """What a recipe and its assignments say. The arms and tasks are those that run."""

    folder: Path | None
    """The recipe's."""
    head: Head | Bad
    arms: Sequence[Arm]
    tasks: Tasks
    settings: Sequence[Setting]
    """Those of the recipe's own sections, of arms, and of assignments, in their order; later ones win."""


def read_draft(
    table: Mapping[str, Any], stem: str, folder: Path | None, sets: Sequence[str], faults: list[str]
) -> Draft:
    """The parts of a recipe in a file called `stem`, with every fault that shows in one of them alone.
    `folder` is where others' code and data are looked for."""
    assignments = read_sets(sets, faults)
    tops = {keys[0]: value for keys, value in assignments if len(keys) == 1}
    if isinstance(text := tops.get("seeds"), str):
        try:
            tops["seeds"] = read_seeds(text, f"--set seeds={text}")
        except ConfigError as error:
            faults += error.faults
            del tops["seeds"]
    head = read_head(table, stem, tops, faults)
    listed_tasks = read_tasks(table, folder, faults)
    scope = Scope(tasks=classes_of(listed_tasks))
    settings = scope.read(table, faults, [*HEAD_KEYS, *TABLES])
    listed_arms = read_arms(table, listed_tasks, folder, faults)
    settings += [setting for arm in listed_arms.values() for setting in arm.settings]
    arms = select_arms(tops.get("arms"), listed_arms, folder, faults)
    names = [arm.name for arm in arms]
    if isinstance(head, Head) and arms and head.control not in ("", *names):
        faults.append(no_such("arm", head.control, "control", names))
    tasks = select_tasks(tops.get("tasks"), listed_tasks, folder, faults)
    if not isinstance(head, Bad):
        task_names = {**listed_tasks, **tasks}  # `--set tasks` may leave some out
        faults += [
            no_such("task", name, "rate_tasks", task_names)
            for name in head.rate_tasks
            if name not in task_names
        ]
    algorithms = {arm.name: arm.algorithm for arm in arms}
    for assignment in assignments:
        if len(assignment[0]) > 1:
            settings += read_assignment(assignment, algorithms, listed_arms, classes_of(tasks), faults)
    return Draft(folder, head, arms, tasks, settings)
