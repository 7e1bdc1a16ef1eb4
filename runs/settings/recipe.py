"""Read a recipe: a TOML file that spans a matrix of arms, tasks and seeds.

A value is looked for in layers, the last one wins: the dataclass's default, the preset of another library's
defaults where an arm names one (``algorithm = "ALGORITHM@LIBRARY"``), the recipe's section,
``[on.TASK.section]``, the arm's ``[arm.section]``, ``[arm.on.TASK.section]``, ``--set`` in the order given.
Tables merge key by key; everything else is replaced. Settings of a task likewise: its entry in ``tasks``, the
arm's ``[arm.task]``, ``--set task.FIELD`` and ``--set arm.NAME.task.FIELD``.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings import config as runs_config
from grpobench.runs.settings import registries, rules
from grpobench.runs.settings.config import SECTIONS, RunConfig
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import BAD, ConfigError
from grpobench.tasks.data.errors import DataError
from grpobench.tasks.task import Task

if TYPE_CHECKING:
    from grpobench.algorithms.dialects import Dialect

RECIPES = Path(__file__).parents[1] / "recipes"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")
ARM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+@-]*")
MOST_SEEDS = 10_000
"""More seeds than that are a slip of the keyboard, and would take minutes only to be listed."""
SETTINGS = "settings"
"""The section of an arm that holds the fields of its algorithm."""
EVERY = "*"
"""In the place of an arm's algorithm: an optional arm of every one that has no entry of its own."""
Place = tuple[str, str]
"""(section, field)."""
Elsewhere = {name: f"{section}.{name}" for section, cls in SECTIONS.items() for name in strict.hints(cls)}


@dataclass(frozen=True)
class Head:
    """The plain top-level keys of a recipe."""

    name: str
    summary: str = ""
    seeds: tuple[int, ...] = (0,)
    workers: int = 0
    """Runs side by side; 0 means one per GPU, and one per core without one."""
    fail_on_divergence: bool = False
    """Exit with 3 when a run diverges."""

    def __post_init__(self) -> None:
        runs_config.demand(
            (bool(NAME.fullmatch(self.name)), f"name: must be letters, digits, - and _, not {self.name!r}"),
            (bool(self.seeds), "seeds: must not be empty"),
            (len(set(self.seeds)) == len(self.seeds), "seeds: must differ from each other"),
            *(
                (0 <= seed < 2**63, f"seeds: must be from 0 to 2^63 - 1, not {seed}")
                for seed in self.seeds[:MOST_SEEDS]
            ),
            (
                len(self.seeds) <= MOST_SEEDS,
                f"seeds: {len(self.seeds):,} are more than a matrix can run; give at most {MOST_SEEDS:,}",
            ),
            (self.workers >= 0, f"workers: must be at least 0, not {self.workers}"),
        )


@dataclass(frozen=True)
class Recipe:
    """A matrix of runs, resolved and checked."""

    head: Head
    summary: str
    text: str
    """The recipe file."""
    sets: tuple[str, ...]
    configs: tuple[RunConfig, ...]
    left_out: tuple[str, ...] = ()
    """Optional arms on tasks that do not serve them, with the reason."""

    @property
    def name(self) -> str:
        return self.head.name

    def runs(self) -> list[RunConfig]:
        """Every run, arms outermost, seeds innermost."""
        return list(self.configs)


@dataclass(frozen=True)
class Layer:
    """Values from one place, and the arm and task that they hold for (None: every one)."""

    values: Mapping[Place, Any]
    places: Mapping[Place, str]
    arm: str | None = None
    task: str | None = None

    def holds(self, arm: str, task: str) -> bool:
        return self.arm in (None, arm) and self.task in (None, task)


@dataclass(frozen=True)
class Arm:
    name: str
    algorithm: type[Algorithm[Any]]
    tasks: tuple[str, ...] | None
    layers: tuple[Layer, ...]
    task: Mapping[str, Any]
    """Settings of those of its tasks that have them."""
    dialect: Dialect | None = None
    presets: tuple[Layer, ...] = ()
    """What its dialect says, under everything else."""
    optional: bool = False
    """Whether it is left out, without an error, on a task that does not serve it."""


def recipes() -> dict[str, Path]:
    """The recipes that come with the suite, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}


def read_recipe(source: str, sets: Sequence[str] = ()) -> Recipe:
    """The recipe of a name or path, with `--set` assignments applied. Reads the recipe and nothing else.

    Raises `ConfigError` with every error of the recipe and the assignments at once.
    """
    path = locate(source)
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigError([f"cannot read the recipe: {error.strerror}"], str(path)) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError([f"not TOML: {error}"], str(path)) from None
    draft = Draft(table, path.stem, tuple(sets))
    configs = draft.configs()
    if draft.faults or isinstance(draft.head, strict.Bad):
        raise ConfigError(draft.faults, str(path))
    left_out = tuple(draft.left_out)
    return Recipe(draft.head, draft.head.summary, text, tuple(sets), tuple(configs), left_out)


def locate(source: str) -> Path:
    """A recipe by path (anything with a slash or ending in .toml) or by name."""
    if source.endswith(".toml") or "/" in source:
        return Path(source).expanduser()
    known = recipes()
    if source not in known:
        guess = strict.nearest(source, known)
        did = (
            f"did you mean {guess}?"
            if guess
            else f"known: {', '.join(known)}; or give the path of a TOML file"
        )
        raise ConfigError([f"unknown recipe {source!r}; {did}"])
    return known[source]


class Draft:
    """A recipe while it is read: gathers faults and goes on."""

    def __init__(self, table: dict[str, Any], stem: str, sets: tuple[str, ...]) -> None:
        self.faults: list[str] = []
        self.left_out: list[str] = []
        self.table = table
        assignments = [self.assignment(text) for text in sets]
        self.sets = [found for found in assignments if found is not None]
        tops = {keys[0]: value for keys, value in self.sets if len(keys) == 1}
        self.head = self.read_head(stem, tops)
        self.all_tasks = self.read_tasks()
        self.all_arms = self.read_arms()
        self.base = self.read_base()
        self.arms = self.select_arms(tops.get("arms"))
        self.tasks = self.select_tasks(tops.get("tasks"))
        self.set_tasks: list[tuple[str | None, str, dict[str, Any]]] = []
        """(arm or None for every one, task, settings) of `--set`."""
        self.set_layers: list[Layer] = []
        for keys, value in self.sets:
            if len(keys) > 1:
                self.apply(keys, value)

    # The recipe's own parts

    def read_head(self, stem: str, tops: Mapping[str, Any]) -> Head | strict.Bad:
        plain = set(strict.hints(Head))
        known = plain | set(SECTIONS) | {"tasks", "arm", "on"}
        for key in self.table:
            if key not in known:
                self.faults.append(strict.unknown("", key, known, Elsewhere))
        for key in tops:
            if key not in plain | {"tasks", "arms"}:
                valid = plain | {"tasks", "arms", "algorithm.FIELD", "arm.NAME.settings.FIELD"}
                self.faults.append(
                    strict.unknown("--set ", key, valid, Elsewhere).replace("--set .", "--set ")
                )
        before = len(self.faults)
        values = {"name": stem} | strict.check(
            Head, {k: v for k, v in self.table.items() if k in plain}, "", self.faults
        )
        chosen = {k: [v] if k == "seeds" and isinstance(v, int) else v for k, v in tops.items() if k in plain}
        values |= strict.check(Head, chosen, "", self.faults)
        return BAD if len(self.faults) > before else strict.construct(Head, values, self.faults, str)

    def read_tasks(self) -> dict[str, dict[str, Any]]:
        """Settings by task name."""
        entries = self.table.get("tasks", [])
        if not isinstance(entries, list):
            self.faults.append(f"tasks: must be a list, not {strict.describe(entries)}")
            return {}
        found: dict[str, dict[str, Any]] = {}
        for index, entry in enumerate(entries):
            place = f"tasks[{index}]"
            table = {"name": entry} if isinstance(entry, str) else entry
            if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
                self.faults.append(f"{place}: must be a task's name or a table with name and settings")
                continue
            name = table["name"]
            self.faults += [
                strict.unknown(place, key, ("name", SETTINGS), {key: f"{place}.settings.{key}"})
                for key in table
                if key not in ("name", SETTINGS)
            ]
            cls = self.registered(registries.tasks(), name, place, "task")
            if cls is None:
                continue
            if name in found:
                self.faults.append(f"{place}: the task {name} is listed twice; remove one")
                continue
            found[name] = strict.check(cls, table.get(SETTINGS, {}), f"task.{name}.settings", self.faults)
        return found

    def registered(self, registry: Mapping[str, Any], name: Any, place: str, kind: str) -> Any:
        if isinstance(name, str) and name in registry:
            return registry[name]
        guess = strict.nearest(str(name), registry)
        did = f"did you mean {guess!r}?" if guess else f"`grpobench list {kind}s` shows the known ones"
        self.faults.append(f"{place}: unknown {kind} {name!r}; {did}")
        return None

    def read_arms(self) -> dict[str, Arm]:
        entries = self.table.get("arm", [])
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            self.faults.append("arm: must be a list of tables; write [[arm]]")
            return {}
        found: dict[str, Arm] = {}
        for index, entry in self.each_arm(entries):
            arm = self.read_arm(entry, f"arm[{index}]")
            if arm is not None and arm.name in found:
                self.faults.append(
                    f'arm[{index}]: two arms are named {arm.name}; give one of them its own `name = "..."`'
                )
            elif arm is not None:
                found[arm.name] = arm
        return found

    def each_arm(self, entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The entries in order; one of `EVERY` algorithm becomes an arm for each that has no other entry."""
        named = [entry.get("algorithm") for entry in entries]
        for index, entry in enumerate(entries):
            if entry.get("algorithm") != EVERY:
                yield index, entry
            elif EVERY in named[:index]:
                self.faults.append(f"arm[{index}]: another entry is of every algorithm already; remove one")
            elif own := [key for key in ("name", "optional", SETTINGS) if key in entry]:
                self.faults.append(
                    f"arm[{index}]: {own[0]} cannot be that of every algorithm; give one its own [[arm]]"
                )
            else:
                for name in registries.algorithms():
                    if name not in named:
                        yield index, {**entry, "algorithm": name, "optional": True}

    def read_arm(self, entry: Mapping[str, Any], place: str) -> Arm | None:
        if "algorithm" not in entry:
            self.faults.append(f'{place}: missing algorithm; write algorithm = "NAME"')
            return None
        found = self.chosen(entry["algorithm"], f"{place}.algorithm")
        if found is None:
            return None
        cls, dialect = found
        name = entry.get("name", entry["algorithm"])
        if not isinstance(name, str) or not ARM.fullmatch(name):
            self.faults.append(
                f"{place}.name: must be letters, digits, -, _ and @, not {strict.describe(name)}"
            )
            return None
        place = f"arm.{name}"
        known = {"algorithm", "name", "tasks", "task", "optional", SETTINGS, "on", *SECTIONS}
        elsewhere = {key: f"{place}.{where}" for key, where in Elsewhere.items()}
        elsewhere |= {key: f"{place}.settings.{key}" for key in strict.hints(cls)}
        self.faults += [strict.unknown(place, key, known, elsewhere) for key in entry if key not in known]
        layers = [self.layer(entry, f"{place}.", name, None, cls)]
        for task, sections in self.read_on(entry.get("on", {}), place):
            layers.append(self.layer(sections, f"{place}.on.{task}.", name, task, cls))
        own = self.settings_of_tasks(entry.get("task", {}), f"{place}.task", self.all_tasks)
        optional = strict.convert(entry.get("optional", False), bool, f"{place}.optional", self.faults)
        presets = self.presets(dialect, cls)
        tasks = self.arm_tasks(entry, place)
        return Arm(name, cls, tasks, tuple(layers), own, dialect, presets, optional is True)

    def chosen(self, name: Any, place: str) -> tuple[type[Algorithm[Any]], Dialect | None] | None:
        """The algorithm of a name, and the dialect of one such as ``ALGORITHM@LIBRARY``."""
        registry = registries.algorithms()
        if not isinstance(name, str) or "@" not in name:
            cls = self.registered(registry, name, place, "algorithm")
            return None if cls is None else (cls, None)
        dialect = self.registered(registries.dialects(), name, place, "dialect")
        return None if dialect is None else (registry[dialect.base], dialect)

    def presets(self, dialect: Dialect | None, cls: type[Algorithm[Any]]) -> tuple[Layer, ...]:
        """What a dialect says, as layers."""
        if dialect is None:
            return ()
        return (self.layer(dialect.values, f"{dialect.name}.", None, None, cls),)

    def settings_of_tasks(self, table: Any, place: str, names: Iterable[str]) -> Mapping[str, Any]:
        """A table of settings, each of which one of the named tasks has."""
        if not isinstance(table, Mapping):
            self.faults.append(f"{place}: must be a table, not {strict.describe(table)}")
            return {}
        valid = {field for name in names for field in strict.hints(registries.tasks()[name])}
        self.faults += [strict.unknown(place, key, valid) for key in table if key not in valid]
        return {key: value for key, value in table.items() if key in valid}

    def arm_tasks(self, entry: Mapping[str, Any], place: str) -> tuple[str, ...] | None:
        if "tasks" not in entry:
            return None
        names = strict.convert(entry["tasks"], tuple[str, ...], f"{place}.tasks", self.faults)
        if names is BAD:
            return None
        for name in names:
            if name not in self.all_tasks:
                self.faults.append(self.no_such("task", name, f"{place}.tasks", self.all_tasks))
        return tuple(names)

    def read_on(self, table: Any, place: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The sections of `on.TASK`, task by task."""
        here = strict.join(place, "on")
        if not isinstance(table, Mapping):
            self.faults.append(f"{here}: must be a table of tasks, not {strict.describe(table)}")
            return []
        found = []
        for task, sections in table.items():
            if task not in self.all_tasks:
                self.faults.append(self.no_such("task", task, here, self.all_tasks))
            elif not isinstance(sections, Mapping):
                self.faults.append(f"{here}.{task}: must be a table of sections")
            else:
                known = {*SECTIONS, *((SETTINGS,) if place else ())}
                elsewhere = {key: f"{here}.{task}.{where}" for key, where in Elsewhere.items()}
                self.faults += [
                    strict.unknown(f"{here}.{task}", key, known, elsewhere)
                    for key in sections
                    if key not in known
                ]
                found.append((task, sections))
        return found

    def no_such(self, kind: str, name: str, place: str, valid: Iterable[str]) -> str:
        guess = strict.nearest(name, valid)
        did = f"did you mean {guess!r}?" if guess else f"this recipe has {', '.join(valid) or 'none'}"
        return f"{place}: no {kind} {name!r} in this recipe; {did}"

    def read_base(self) -> list[Layer]:
        layers = [self.layer(self.table, "", None, None, None)]
        for task, sections in self.read_on(self.table.get("on", {}), ""):
            layers.append(self.layer(sections, f"on.{task}.", None, task, None))
        return layers

    def layer(
        self,
        tables: Mapping[str, Any],
        prefix: str,
        arm: str | None,
        task: str | None,
        algorithm: type[Algorithm[Any]] | None,
        label: str = SETTINGS,
    ) -> Layer:
        """The sections in `tables` as a layer; `label` is how the place of an algorithm's field is called."""
        values: dict[Place, Any] = {}
        places: dict[Place, str] = {}
        classes: dict[str, type] = {**SECTIONS, **({SETTINGS: algorithm} if algorithm else {})}
        for section, cls in classes.items():
            if section not in tables:
                continue
            place = prefix + (label if section == SETTINGS else section)
            elsewhere = {key: prefix + where for key, where in Elsewhere.items()}
            table = widen(section, tables[section])
            for key, value in strict.check(cls, table, place, self.faults, elsewhere).items():
                values[section, key] = value
                places[section, key] = f"{place}.{key}"
        return Layer(values, places, arm, task)

    # Assignments of the command line

    def assignment(self, text: str) -> tuple[list[str], Any] | None:
        parsed = parse_set(text)
        if parsed is None:
            self.faults.append(f"--set {text}: write --set KEY=VALUE, such as --set train.steps=100")
        return parsed

    def select_arms(self, chosen: Any) -> list[Arm]:
        """The arms to run. An algorithm that is no arm of the recipe may be chosen with its defaults."""
        if chosen is None:
            if not self.all_arms and not self.faults:
                self.faults.append("arm: the recipe has no arms; write [[arm]] with algorithm = ...")
            return list(self.all_arms.values())
        found = []
        for name in self.names(chosen, "--set arms"):
            registry = registries.algorithms()
            if name in self.all_arms:
                found.append(self.all_arms[name])
            elif name in registry or "@" in name:
                if kind := self.chosen(name, "--set arms"):
                    cls, dialect = kind
                    found.append(Arm(name, cls, None, (), {}, dialect, self.presets(dialect, cls)))
            else:
                self.faults.append(
                    self.no_such("arm", name, "--set arms", dict.fromkeys([*self.all_arms, *registry]))
                )
        return found

    def select_tasks(self, chosen: Any) -> dict[str, dict[str, Any]]:
        """The tasks to run. A task that the recipe does not list may be chosen with its defaults."""
        if chosen is None:
            if not self.all_tasks and not self.faults:
                self.faults.append('tasks: the recipe has no tasks; write tasks = ["NAME", ...]')
            return {name: dict(settings) for name, settings in self.all_tasks.items()}
        found = {}
        for name in self.names(chosen, "--set tasks"):
            if name in self.all_tasks:
                found[name] = dict(self.all_tasks[name])
            elif self.registered(registries.tasks(), name, "--set tasks", "task"):
                found[name] = {}
        return found

    def names(self, value: Any, place: str) -> list[str]:
        """A list of names; a plain string is split at its commas."""
        items = value.split(",") if isinstance(value, str) else value
        names = strict.convert(items, tuple[str, ...], place, self.faults)
        return [] if names is BAD else list(dict.fromkeys(name.strip() for name in names))

    def apply(self, keys: list[str], value: Any) -> None:
        """Turn one dotted assignment into layers."""
        head, rest = keys[0], keys[1:]
        if head == "algorithm":
            self.apply_algorithm(rest, value)
        elif head == "task":
            self.apply_task(rest, value)
        elif head == "arm":
            self.apply_arm(keys, rest, value)
        elif head == "on":
            if len(rest) < 3 or rest[0] not in self.tasks:
                place = f"--set {'.'.join(keys)}"
                self.faults.append(
                    self.no_such("task", rest[0], place, self.tasks)
                    if rest[0] not in self.tasks
                    else f"{place}: write --set on.TASK.SECTION.FIELD=VALUE"
                )
            else:
                self.set_section(rest[1:], value, f"--set on.{rest[0]}.", None, rest[0], None)
        else:
            self.set_section(keys, value, "--set ", None, None, None)

    def set_section(
        self,
        keys: list[str],
        value: Any,
        prefix: str,
        arm: str | None,
        task: str | None,
        algorithm: type[Algorithm[Any]] | None,
        label: str = SETTINGS,
    ) -> None:
        known = {*SECTIONS, *((SETTINGS,) if algorithm else ())}
        if keys[0] == SETTINGS and algorithm is None and len(keys) > 1:
            field = ".".join(keys[1:])
            self.faults.append(
                f"{prefix}{'.'.join(keys)}: write --set algorithm.{field}=VALUE for every arm that has it, "
                f"or --set arm.NAME.settings.{field}=VALUE"
            )
            return
        if keys[0] not in known:
            valid = known if prefix != "--set " else known | {"algorithm", "arm", "task", "on"}
            guess = strict.nearest(keys[0], valid)
            did = (
                f"did you mean {'.'.join([guess, *keys[1:]])}?"
                if guess
                else f"valid: {', '.join(sorted(valid))}"
            )
            self.faults.append(f"{prefix}{'.'.join(keys)}: no section {keys[0]!r}; {did}")
            return
        table = {keys[0]: nest(keys[1:], value)}
        self.set_layers.append(self.layer(table, prefix, arm, task, algorithm, label))

    def apply_algorithm(self, rest: list[str], value: Any) -> None:
        """`algorithm.FIELD`: every arm whose algorithm has the field."""
        having = [arm for arm in self.arms if rest[0] in strict.hints(arm.algorithm)]
        if not having:
            valid = {field for arm in self.arms for field in strict.hints(arm.algorithm)}
            message = strict.unknown("algorithm", rest[0], valid, Elsewhere)
            self.faults.append(f"--set {message.replace('unknown key', 'no arm has this setting')}")
        for arm in having:
            keys = [SETTINGS, *rest]
            self.set_section(keys, value, "--set ", arm.name, None, arm.algorithm, "algorithm")

    def apply_arm(self, keys: list[str], rest: list[str], value: Any) -> None:
        """`arm.NAME.SECTION.FIELD` and `arm.NAME.on.TASK.SECTION.FIELD`."""
        place = f"--set {'.'.join(keys)}"
        arms = {arm.name: arm for arm in self.arms}
        if rest[0] not in arms and rest[0] in self.all_arms:
            return  # An arm of the recipe that is not selected.
        if rest[0] not in arms:
            self.faults.append(self.no_such("arm", rest[0], place, arms))
            return
        arm, inner, task = arms[rest[0]], rest[1:], None
        prefix = f"--set arm.{arm.name}."
        if inner[:1] == ["task"] and len(inner) > 1:
            own = self.settings_of_tasks(nest(inner[1:], value), f"{prefix}task", self.tasks)
            self.set_tasks += [
                (arm.name, name, self.owned(own, name, f"{prefix}task")) for name in self.tasks
            ]
            return
        if inner[:1] == ["on"] and len(inner) > 1:
            task, inner, prefix = inner[1], inner[2:], f"{prefix}on.{inner[1]}."
            if task not in self.tasks:
                self.faults.append(self.no_such("task", task, place, self.tasks))
                return
        if len(inner) < 2:
            self.faults.append(f"{place}: write --set arm.NAME.settings.FIELD=VALUE")
            return
        self.set_section(inner, value, prefix, arm.name, task, arm.algorithm)

    def apply_task(self, rest: list[str], value: Any) -> None:
        """`task.FIELD` for every task that has the field, or `task.NAME.settings.FIELD` for one."""
        registry = registries.tasks()
        if len(rest) >= 3 and rest[1] == SETTINGS:
            if rest[0] not in self.tasks:
                place = f"--set task.{'.'.join(rest)}"
                self.faults.append(self.no_such("task", rest[0], place, self.tasks))
                return
            having, field, prefix = [rest[0]], rest[2:], f"--set task.{rest[0]}.settings"
        else:
            having = [name for name in self.tasks if rest[0] in strict.hints(registry[name])]
            field, prefix = rest, "--set task"
            if not having:
                valid = {name for task in self.tasks for name in strict.hints(registry[task])}
                message = strict.unknown("task", rest[0], valid)
                self.faults.append(f"--set {message.replace('unknown key', 'no task has this setting')}")
        for name in having:
            found = strict.check(registry[name], nest(field, value), prefix, self.faults)
            self.set_tasks.append((None, name, found))

    # Runs

    def configs(self) -> list[RunConfig]:
        """Every run that could be built. Call it once: it appends to `faults`."""
        shared = {name: self.instance(name, None) for name in self.tasks}
        found = []
        for arm in self.arms:
            for name, task in shared.items():
                if (arm.tasks is None or name in arm.tasks) and not isinstance(task, strict.Bad):
                    own = self.instance(name, arm) if self.differs(name, arm) else task
                    found += [] if isinstance(own, strict.Bad) else self.pair(arm, own)
        if not found and not self.faults:
            why = f" ({'; '.join(self.left_out)})" if self.left_out else ""
            self.faults.append(f"no runs: no chosen arm runs on a chosen task{why}")
        if not self.faults:  # Last, because a task may have to ask the hub.
            served = {str(config.task): config.task for config in found}
            self.faults += [fault for fault in map(unserved, served.values()) if fault]
            self.faults += dict.fromkeys(lack for config in found for lack in rules.missing(config))
        return found

    def instance(self, name: str, arm: Arm | None) -> Task | strict.Bad:
        """A task with its settings in an arm; None: with those that all arms share."""
        settings = self.tasks[name]
        if arm is not None:
            settings = merge(settings, self.owned(arm.task, name, f"arm.{arm.name}.task"))
        for holder, task, values in self.set_tasks:
            if task == name and (holder is None or (arm is not None and holder == arm.name)):
                settings = merge(settings, values)
        place = functools.partial(inside, f"task.{name}.settings")
        return strict.construct(registries.tasks()[name], settings, self.faults, place)

    def differs(self, name: str, arm: Arm) -> bool:
        """Whether the arm has settings of its own for the task."""
        known = strict.hints(registries.tasks()[name])
        return any(key in known for key in arm.task) or any(
            holder == arm.name and task == name and values for holder, task, values in self.set_tasks
        )

    def owned(self, table: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
        """Those settings of a table that the named task has, converted."""
        cls = registries.tasks()[name]
        known = strict.hints(cls)
        return strict.check(
            cls, {key: value for key, value in table.items() if key in known}, place, self.faults
        )

    def pair(self, arm: Arm, task: Task) -> list[RunConfig]:
        """The runs of one arm on one task, one per seed."""
        values: dict[str, dict[str, Any]] = {section: {} for section in (*SECTIONS, SETTINGS)}
        values["modify"] = dict(arm.algorithm.modifiers)
        places: dict[Place, str] = {}
        for layer in (*arm.presets, *self.base, *arm.layers, *self.set_layers):
            if layer.holds(arm.name, task.name):
                places |= layer.places
                for (section, key), value in layer.values.items():
                    values[section] = merge(values[section], {key: value})
        classes: dict[str, type] = {**SECTIONS, SETTINGS: arm.algorithm}
        before = len(self.faults)
        if "policy" not in values["train"].get("learning_rate", {"policy": 0}):
            values["train"]["learning_rate"] = {"policy": 1e-5} | values["train"]["learning_rate"]
        built: dict[str, Any] = {}
        for section, cls in classes.items():
            at = f"arm.{arm.name}.settings" if section == SETTINGS else section

            def place(key: str, section: str = section, at: str = at) -> str:
                return places.get((section, key), inside(at, key))

            built[section] = strict.construct(cls, values[section], self.faults, place)
        if len(self.faults) > before or isinstance(self.head, strict.Bad):
            return []
        algorithm = built.pop(SETTINGS)
        train = built["train"]
        rates = runs_config.rates(train.learning_rate, algorithm.trains)
        built["train"] = dataclasses.replace(train, learning_rate=rates)
        head = self.head
        dialect = f"{arm.dialect.name}, {arm.dialect.version}" if arm.dialect else ""
        runs = [
            RunConfig(head.name, arm.name, seed, algorithm, task, dialect=dialect, **built)
            for seed in head.seeds
        ]
        if arm.optional and (why := rules.unserved(runs[0])):
            self.left_out.append(f"{arm.name} on {task.name}: {why[0]}")
            return []
        faults = rules.incompatible(runs[0])
        self.faults += [f"arm {arm.name} on {task.name}: {why}" for why in faults]
        return runs


def parse_set(text: str) -> tuple[list[str], Any] | None:
    """Dotted key and value of KEY=VALUE; a value that is not TOML is a string. None: no assignment."""
    key, equals, value = text.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not equals or not all(keys):
        return None
    try:
        return keys, tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return keys, value.strip()


def inside(place: str, key: str) -> str:
    """The place of a field, or of the table itself for an empty key."""
    return strict.join(place, key) if key else place


def unserved(task: Task) -> str:
    """Why a task's data cannot be had on this machine; empty when they can."""
    try:
        lack = task.missing()
    except DataError as error:
        lack = str(error)
    return f"task {task.name}: {lack}" if lack else ""


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
