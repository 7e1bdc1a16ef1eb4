"""The names that a recipe may use: algorithms, dialects, tasks and rewards, imported at the first use."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.settings import plugins
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import BAD, ConfigError, KeyPath
from grpobench.tasks.task import Task, family

if TYPE_CHECKING:
    from grpobench.algorithms.libraries.dialect import Dialect


def algorithms() -> Mapping[str, type[Algorithm[Any]]]:
    """The registry of algorithms, imported at the first use."""
    from grpobench.algorithms import ALGORITHMS

    return ALGORITHMS


def dialects() -> Mapping[str, Dialect]:
    """The presets of other libraries' defaults by name, such as ``ALGORITHM@LIBRARY``, imported at the first
    use."""
    from grpobench.algorithms.libraries.dialects import DIALECTS

    registry = algorithms()
    return {
        name: dialect
        for name, dialect in DIALECTS.items()
        if dialect.algorithm in registry and dialect.base in registry
    }


def tasks() -> Mapping[str, type[Task]]:
    """The registry of tasks, imported at the first use."""
    from grpobench.tasks import TASKS

    return TASKS


def miss(kind: str, name: str, valid: Mapping[str, Any]) -> str:
    did = strict.did_you_mean(name, valid, f"`grpobench list {kind}s` shows the known ones")
    return f"unknown {kind} {name!r}; {did}"


def chosen(registry: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in registry:
        raise ConfigError([miss(kind, name, registry)])
    return registry[name]


# Names of others

Kind = Literal["algorithm", "task", "reward", "curriculum", "sampler"]
BUILT_IN = "built in"
HUB = "hf:"
"""What begins the name of a data set of the hub."""
ENVIRONMENTS = ("env:", "verifiers:", "openenv:")
"""What begins the name of an environment."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")
"""What an algorithm or task from elsewhere may be called."""


@dataclass(frozen=True)
class Resolved:
    """What a name of a recipe stands for."""

    cls: Any
    """The class; a function, where rewards are asked for."""
    provenance: str
    """`BUILT_IN`, ``entry point PACKAGE VERSION``, ``package PACKAGE VERSION``, or the file."""


def built_in(kind: Kind) -> Mapping[str, Any]:
    """The suite's own of a kind."""
    return algorithms() if kind == "algorithm" else tasks() if kind == "task" else {}


def is_environment(name: str) -> bool:
    """Whether a name of a task is that of an environment."""
    return name.startswith(ENVIRONMENTS)


def entry_points(kind: Kind) -> dict[str, importlib.metadata.EntryPoint]:
    """What installed packages give names to, by name; the suite's own names come before them."""
    points = importlib.metadata.entry_points(group=f"grpobench.{kind}s")
    return {point.name: point for point in points if point.name not in built_in(kind)}


def is_plugin_name(kind: Kind, name: str) -> bool:
    """Whether a name is one of others' code: `module:Name`, or of an entry point."""
    registry = built_in(kind)
    if name in registry:
        return False
    # a task may be called FAMILY:MEMBER
    kin = {family(member) for member in registry if plugins.is_reference(member)}
    return (plugins.is_reference(name) and family(name) not in kin) or name in entry_points(kind)


def find(kind: Kind, name: str, folder: Path | None = None, key_path: str = "") -> Resolved:
    """What a name stands for. `folder` is the recipe's, `key_path` its key, for messages. Raises
    `ConfigError` for an unknown name, with the nearest one, and for others' code that does not follow the
    protocol.

    It is looked for among the suite's own, then as `module:Name` (`plugins`), then among the entry points of
    installed packages: ``grpobench.algorithms``, ``.tasks``, ``.rewards``, ``.curriculums``, ``.samplers``.
    """
    registry = built_in(kind)
    if name in registry:
        return Resolved(registry[name], BUILT_IN)
    if kind == "task" and name.startswith(HUB):
        raise plugins.fault(
            key_path, f"{name}: a data set of the hub is a task of a recipe: tasks = [{name!r}]"
        )
    if kind == "task" and is_environment(name):
        raise plugins.fault(key_path, f"{name}: an environment is a task of a recipe: tasks = [{name!r}]")
    if not is_plugin_name(kind, name):
        raise plugins.fault(key_path, miss(kind, name, {**registry, **entry_points(kind)}))
    point = None if plugins.is_reference(name) else entry_points(kind)[name]
    plugin: Any = plugins.load(point.value if point else name, folder, key_path)
    if faults := [fault for fault in DEMANDS[kind](plugin) if fault]:
        from grpobench.algorithms.returned import line_of  # which loads torch

        line = line_of(plugin) if callable(plugin) else ""
        raise plugins.fault(key_path, f"{name}: {'; '.join(faults)}{f' ({line})' if line else ''}")
    if point and kind in ("algorithm", "task") and plugin.name != name:
        raise plugins.fault(key_path, f"{name}: the class that this entry point gives is named {plugin.name}")
    whence = plugins.provenance(plugin)
    return Resolved(plugin, f"entry point {whence.removeprefix('package ')}" if point else whence)


def protocol(base: type, kind: Kind) -> Callable[[object], list[str]]:
    """What is wrong with a class that is to follow a protocol, one fault each."""

    def faults(plugin: object) -> list[str]:
        if not (isinstance(plugin, type) and issubclass(plugin, base)):
            return [f"is {described(plugin)}, no subclass of {base.__module__}.{base.__name__}"]
        name = vars(plugin).get("name")
        messages = []
        if not isinstance(name, str) or not NAME.fullmatch(name):
            messages.append(
                f'write name = "..." in {plugin.__name__}, a name of its own of letters, digits, - and _'
            )
        elif built_in(kind).get(name, plugin) is not plugin:
            messages.append(f"the suite has another {kind} {name!r}; give {plugin.__name__} another name")
        if missing := sorted(getattr(plugin, "__abstractmethods__", ())):
            messages.append(f"{plugin.__name__} lacks {', '.join(missing)}")
        return messages

    return faults


def a_function(plugin: object) -> list[str]:
    if not callable(plugin) or isinstance(plugin, type):
        return [f"is {described(plugin)}, no function of prompts, completions and columns"]
    remedy = f"write `def {getattr(plugin, '__name__', 'reward')}(prompts, completions, **columns)`"
    return [f"{why}; {remedy}" for why in mismatch(plugin, (), REWARD_ARGUMENTS)]


def maker(*arguments: str) -> Callable[[object], list[str]]:
    """What is wrong with a class or function that is called with these arguments to make something."""

    def faults(plugin: object) -> list[str]:
        if not callable(plugin):
            return [f"is {described(plugin)}, no class or function that makes one"]
        return [f"{why}; let it take ({', '.join(arguments)})" for why in mismatch(plugin, arguments, ())]

    return faults


def mismatch(function: Callable[..., Any], positional: Sequence[str], keywords: Iterable[str]) -> list[str]:
    """Why a function cannot be called with these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # something in C that does not tell
        return []
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        call_arguments = ", ".join((*positional, *(f"{name}=..." for name in keywords)))
        return [f"takes {signature} and is called with ({call_arguments}): {error}"]
    return []


REWARD_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""What every reward function is called with, beside a column of each name that the problems have."""


def described(plugin: object) -> str:
    return f"the class {plugin.__name__}" if inspect.isclass(plugin) else f"of type {type(plugin).__name__}"


DEMANDS: Mapping[Kind, Callable[[object], list[str]]] = {
    "algorithm": protocol(Algorithm, "algorithm"),
    "task": protocol(Task, "task"),
    "reward": a_function,
    "curriculum": maker("problems", "prompts", "seed"),
    "sampler": maker("config", "models", "loaded"),
}


# Names as a recipe gives them: what is wrong becomes a fault beside all others


def find_class(kind: Kind, name: Any, folder: Path | None, key_path: KeyPath, faults: list[str]) -> Any:
    """The class that a name of a recipe in `folder` stands for; None, with a fault, where there is none."""
    if not isinstance(name, str):
        faults.append(f"{key_path}: must be the name of one, not {strict.describe(name)}")
        return None
    try:
        return find(kind, name, folder, key_path).cls
    except ConfigError as error:
        faults += error.faults
        return None


def no_such(kind: str, name: str, key_path: KeyPath, valid: Iterable[str]) -> str:
    """The message for an arm or task that the recipe lacks."""
    did = strict.did_you_mean(name, valid, f"this recipe has {', '.join(valid) or 'none'}", "{!r}")
    return f"{key_path}: no {kind} {name!r} in this recipe; {did}"


def name_list(value: Any, key_path: KeyPath, faults: list[str]) -> list[str]:
    """A list of names; a plain string is split at its commas."""
    items = value.split(",") if isinstance(value, str) else value
    names = strict.convert(items, tuple[str, ...], key_path, faults)
    return [] if names is BAD else list(dict.fromkeys(name.strip() for name in names))
