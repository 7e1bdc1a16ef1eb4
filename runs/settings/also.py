"""The tasks of `evaluate.also`: those that a run answers beside the one that it trains on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpobench.runs.settings import registries
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.task import Task

KEY = "evaluate.also"


def tasks_beside(config: RunConfig) -> tuple[Task, ...]:
    """The tasks with their settings, in the recipe's order, but the run's own, which is evaluated anyway: a
    recipe of several tasks may list them all. Raises ConfigError with every fault."""
    wrong: list[str] = []
    found = tuple(task for task in _built(config, wrong) if task != config.task)
    names = [task.name for task in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    wrong += [f"{KEY}: the task {name} is listed twice; remove one" for name in twice]
    if wrong:
        raise ConfigError(wrong)
    return found


def faults(config: RunConfig) -> list[str]:
    """Why the tasks cannot be evaluated, each with its place."""
    try:
        tasks_beside(config)
    except ConfigError as error:
        return error.faults
    return []


def _built(config: RunConfig, wrong: list[str]) -> Iterator[Task]:
    folder = Path(config.beside) if config.beside else None
    for name, settings in config.evaluate.also.items():
        place = f"{KEY}.{name}"
        cls = registries.find_class("task", name, folder, place, wrong)
        if cls is not None:
            task: Any = strict.build(cls, settings, place, wrong, folder=Path(config.beside))
            if task is not strict.BAD:
                yield task
