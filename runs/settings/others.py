"""Others' code in a run: what its configuration names that is no part of the suite, checked and found."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpobench.runs.settings import also, optimizers, plugins, registries
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.registries import Kind, Resolved
from grpobench.runs.tools.strict import ConfigError


def names_to_resolve(config: RunConfig) -> dict[str, tuple[Kind, str]]:
    """(kind, name) by the place in the recipe, of what is looked up when a run begins."""
    found: dict[str, tuple[Kind, str]] = {
        f"reward.weights.{name}": ("reward", name) for name in config.reward.functions(config.task)
    }
    if config.train.curriculum:
        found["train.curriculum"] = ("curriculum", config.train.curriculum)
    if config.sampler.foreign:
        found["sampler.kind"] = ("sampler", config.sampler.kind)
    return found | {f"evaluate.also.{name}": ("task", name) for name in config.evaluate.also}


def faults(config: RunConfig) -> list[str]:
    """Why something that a run names cannot be had, each with its place."""
    lacking = also.faults(config)
    for place, (kind, name) in names_to_resolve(config).items():
        if kind == "task":
            continue  # with its settings, above
        try:
            registries.find(kind, name, folder(config), place)
        except ConfigError as error:
            lacking += error.faults
    return lacking


def others(config: RunConfig) -> dict[str, Resolved]:
    """Everything in a run that is others' code, by its name: `module:Name`, or what an entry point calls it.
    Raises ConfigError where something is no longer there."""
    found: dict[str, Resolved] = {}
    for part in (config.algorithm, config.task):
        if not registries.of_the_suite(type(part)):
            found[plugins.reference(type(part))] = Resolved(type(part), plugins.provenance(type(part)))
    for key, name in optimizers.foreign(config.train).items():
        thing = plugins.load(name, folder(config), f"train.{key}")
        found[name] = Resolved(thing, plugins.provenance(thing))
    for place, (kind, name) in names_to_resolve(config).items():
        one = registries.find(kind, name, folder(config), place)
        if one.provenance != registries.BUILT_IN:
            found[name] = one
    return found


def blamed(config: RunConfig, error: BaseException) -> str:
    """Whose code raised an error, or the one behind it: ``mine:Name (FILE, line N)``; empty where it was the
    suite's own."""
    owners: dict[Path, list[str]] = {}
    for name, one in others(config).items():
        for path in plugins.files(one.cls):
            owners.setdefault(path, []).append(name)
    behind: BaseException | None = error
    while behind is not None:
        for frame, line in reversed(list(traceback.walk_tb(behind.__traceback__))):
            path = Path(frame.f_code.co_filename).resolve()
            if names := owners.get(path):
                top = frame.f_code.co_qualname.partition(".")[0]
                name = next((name for name in names if name.partition(":")[2] == top), names[0])
                return f"{name} ({path}, line {line})"
        behind = behind.__cause__ or behind.__context__
    return ""


def folder(config: RunConfig) -> Path | None:
    """Where others' files are looked for: the recipe's folder."""
    return Path(config.beside) if config.beside else None


def stands_beside(config: RunConfig) -> bool:
    """Whether a run needs its recipe's folder: for code, or for a file that a setting of its task names."""
    tasks = (config.task, *also.tasks_beside(config))
    return any(plugins.stands_in_file(one.cls) for one in others(config).values()) or any(
        path.is_relative_to(config.beside) for task in tasks for path in paths(task).values()
    )


def paths(settings: Any) -> Mapping[str, Path]:
    """The settings of a task that are paths."""
    return {name: value for name, value in vars(settings).items() if isinstance(value, Path)}
