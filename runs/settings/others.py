"""Others' code that a run names, and the tasks of `evaluate.also`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpobench.algorithms.returned import ReturnError
from grpobench.runs.settings import optimizers, plugins, registries
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.registries import Kind, Resolved
from grpobench.runs.settings.task_mixture import with_parts
from grpobench.runs.tools import strict
from grpobench.runs.tools.frames import Frame, describe_error, innermost
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.task import Task

ALSO = "evaluate.also"


def tasks_beside(config: RunConfig) -> tuple[Task, ...]:
    """The tasks of `evaluate.also` with their settings, in the recipe's order, but the run's own, which is
    evaluated anyway: a recipe of several tasks may list them all. Raises ConfigError with every fault."""
    wrong: list[str] = []
    tasks: list[Task] = []
    for name, settings in config.evaluate.also.items():
        cls = registries.find_class("task", name, folder(config), f"{ALSO}.{name}", wrong)
        if cls is not None:
            task = strict.build(cls, settings, f"{ALSO}.{name}", wrong, folder=Path(config.beside))
            tasks += [task] if isinstance(task, Task) and task != config.task else []
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    wrong += [f"{ALSO}: the task {name} is listed twice; remove one" for name in twice]
    if wrong:
        raise ConfigError(wrong)
    return tuple(tasks)


def names_to_resolve(config: RunConfig) -> dict[str, tuple[Kind, str]]:
    """(kind, name) by the place in the recipe, of what is looked up when a run begins."""
    names_by_key: dict[str, tuple[Kind, str]] = {
        f"reward.weights.{name}": ("reward", name) for name in config.reward.functions(config.task)
    }
    if config.train.curriculum:
        names_by_key["train.curriculum"] = ("curriculum", config.train.curriculum)
    if config.sampler.foreign:
        names_by_key["sampler.kind"] = ("sampler", config.sampler.kind)
    return names_by_key | {f"{ALSO}.{name}": ("task", name) for name in config.evaluate.also}


def faults(config: RunConfig) -> list[str]:
    """Why something that a run names cannot be had, each with its place."""
    lacking: list[str] = []
    try:
        tasks_beside(config)
    except ConfigError as error:
        lacking += error.faults
    for key_path, (kind, name) in names_to_resolve(config).items():
        if kind != "task":  # those are made with their settings, above
            registries.find_class(kind, name, folder(config), key_path, lacking)
    return lacking


def others(config: RunConfig) -> dict[str, Resolved]:
    """Everything in a run that is others' code, by its name: `module:Name`, or what an entry point calls it.
    Raises ConfigError where something is no longer there."""
    tasks = with_parts(config.task)
    classes = [type(part) for part in (config.algorithm, *tasks)]
    definitions: dict[str, Any] = {plugins.reference(cls): cls for cls in classes if strict.foreign(cls)}
    for reference in filter(None, (getattr(task, "environment", "") for task in tasks)):
        definition: Any = plugins.load(reference, folder(config), "task.environment")
        if strict.foreign(definition):
            definitions[reference] = definition
    for key, name in optimizers.foreign(config.train).items():
        definitions[name] = plugins.load(name, folder(config), f"train.{key}")
    resolved_by_name = {
        name: Resolved(definition, plugins.provenance(definition)) for name, definition in definitions.items()
    }
    for key_path, (kind, name) in names_to_resolve(config).items():
        resolved = registries.find(kind, name, folder(config), key_path)
        if resolved.provenance != registries.BUILT_IN:
            resolved_by_name[name] = resolved
    return resolved_by_name


def parts(config: RunConfig) -> tuple[Any, ...]:
    """What a run's numbers come from: its algorithm, its task and others' code."""
    return (config.algorithm, config.task, *(resolved.cls for resolved in others(config).values()))


def files(config: RunConfig) -> frozenset[Path]:
    """The files of others' code in a run, without its callbacks', which run in processes of their own."""
    bases = [base for resolved in others(config).values() for base in plugins.foreign_bases(resolved.cls)]
    return frozenset(path for base in bases for path in plugins.files(base))


def blamed(config: RunConfig, error: BaseException) -> Frame | None:
    """The last line of others' code that an error, or the one behind it, went through; None where it was the
    suite's own."""
    return innermost(error, files(config))


def why(config: RunConfig, error: BaseException) -> str:
    """An error in words that begin with the file and line of others' code, if it is to blame."""
    if isinstance(error, ReturnError):
        return str(error)
    if (frame := blamed(config, error)) is None:
        return describe_error(error)
    return frame.message if frame.error is error else f"{frame}: {describe_error(error)}"


def folder(config: RunConfig) -> Path | None:
    """Where others' files are looked for: the recipe's folder."""
    return Path(config.beside) if config.beside else None


def stands_beside(config: RunConfig) -> bool:
    """Whether a run needs its recipe's folder: for code, or for a file that a setting of its task names."""
    settings = [value for task in (config.task, *tasks_beside(config)) for value in vars(task).values()]
    return any(plugins.stands_in_file(other.cls) for other in others(config).values()) or any(
        isinstance(value, Path) and value.is_relative_to(config.beside) for value in settings
    )
