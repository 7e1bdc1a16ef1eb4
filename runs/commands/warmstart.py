"""`grpobench warmstart`."""

from __future__ import annotations

import argparse

from grpobench.runs.commands.options import assignments
from grpobench.runs.commands.output import DONE, as_json, say
from grpobench.runs.prepare.measured import Measure, as_lines, warm_start_command
from grpobench.runs.settings import registries
from grpobench.runs.settings.config import ModelConfig
from grpobench.runs.settings.registries import tasks
from grpobench.runs.tools import strict
from grpobench.runs.tools.ticker import Ticker
from grpobench.tasks.task import Task


def warmstart_command(options: argparse.Namespace) -> int:
    """Make a warm start, or find it in the cache, and measure the model before and after."""
    settings = {
        "warm_start": options.steps,
        "warm_start_batch": options.batch,
        "warm_start_examples": options.examples,
        "warm_start_learning_rate": options.learning_rate,
        "dtype": options.dtype,
    }
    faults: list[str] = []
    given = {name: value for name, value in settings.items() if value is not None}
    config = strict.build(ModelConfig, {"name": options.model, **given}, "model", faults)
    if isinstance(config, strict.Bad):
        raise strict.ConfigError(faults)
    task = chosen_task(options)
    measure = Measure(options.problems, options.samples, options.max_new_tokens or 0)
    with Ticker() as ticker:
        about = warm_start_command(options.model, task, config, measure, options.out, ticker.tell)
    say(as_json(about) if options.json else "\n".join(as_lines(about)))
    return DONE


def chosen_task(options: argparse.Namespace) -> Task:
    """The task that `--task` names with what `--set` says of it. Raises `ConfigError`."""
    faults: list[str] = []
    cls = registries.chosen(tasks(), options.task, "task")
    task: Task | strict.Bad = strict.build(cls, assignments(options.sets), f"task.{options.task}", faults)
    if isinstance(task, strict.Bad):
        raise strict.ConfigError(faults)
    if lack := task.missing():
        raise strict.ConfigError([f"task {options.task}: {lack}"])
    return task
