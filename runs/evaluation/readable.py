"""`grpobench tasks readable`: whether models' answers to tasks can be read, before training or a warm
start."""

# Each cell is an ordinary evaluation with its record, so the same command resumes where it was interrupted.

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.readable import ReadableRow, count, count_likeliest
from grpobench.runs.evaluation.question import EvalRequest, chosen_task
from grpobench.runs.evaluation.records import EvaluationRecord, assess
from grpobench.runs.models.loading import load
from grpobench.runs.runfolder import provenance
from grpobench.runs.settings import registries
from grpobench.runs.settings.config import ModelConfig
from grpobench.runs.tools.progress import Ticker
from grpobench.runs.tools.strict import ConfigError, plain
from grpobench.runs.train.prepare.measured_start import model_config
from grpobench.runs.train.prepare.warmstart import warm_start
from grpobench.tasks.task import Task

VERSIONS = ("python", "torch", "transformers")


@dataclass(frozen=True)
class ReadableRequest:
    """What is measured: models × tasks, each as it is and after the warm start of `model`, if it has one."""

    models: Sequence[str]
    tasks: Sequence[str]
    wish: EvalRequest
    """Everything about an evaluation but its task."""
    model: ModelConfig
    """Everything about a model but its name."""


def real_tasks() -> list[str]:
    """The tasks with published problems, if these are on this machine."""
    return [name for name, cls in registries.tasks().items() if cls.tables and not cls().missing()]


def ask(
    models: Sequence[str], tasks: Sequence[str], wish: EvalRequest, warm_start: Mapping[str, Any]
) -> ReadableRequest:
    """What is measured of these models: on these tasks, else on all with published problems, and again after
    a warm start by these settings of a model. Raises ConfigError."""
    names = tasks or real_tasks()
    for name in names:
        registries.chosen(registries.tasks(), name, "task")
    if not names:
        raise ConfigError(["no published problems are on this machine; grpobench data fetch all"])
    settings = {"chat_template": wish.template, "dtype": wish.dtype, **warm_start}
    return ReadableRequest(models, names, wish, model_config(settings))


def measure(request: ReadableRequest, say: Callable[[str], None]) -> Iterator[ReadableRow]:
    """One row per task and model, and another after the warm start. Raises ConfigError and DataError. `say`
    gets what is left out."""
    for name in request.tasks:
        wish = dataclasses.replace(request.wish, task=name)
        task = chosen_task({"name": name, "settings": dict(wish.sets)}, "")
        for model in request.models:
            yield row_of(model, task, wish, evaluate_model(model, wish), "")
            if not request.model.warm_start:
                continue
            if "train" not in task.splits:
                say(f"{name}: no warm start, because it has no training split")
                continue
            config = dataclasses.replace(request.model, name=model)
            where = warmed(config, task)
            updates = f"{config.warm_start} × {config.warm_start_batch}"
            yield row_of(model, task, wish, evaluate_model(where, wish), updates)


def evaluate_model(target: str, wish: EvalRequest) -> EvaluationRecord:
    """The record of a model. Raises ConfigError for a run, whose base is measured as a model."""
    records = list(assess(target, wish))
    if len(records) != 1 or records[0].subject.run:
        raise ConfigError([f"{target}: holds runs; name the model that they begin with"])
    return records[0]


def warmed(config: ModelConfig, task: Task) -> str:
    """The cached folder of a model after a warm start on the task."""
    loaded = load(config.name, chat_template=config.template)
    with Ticker() as ticker:
        return str(
            warm_start(
                loaded,
                task,
                config,
                lambda update, of, loss: ticker.tell(
                    f"{config.name}, {task.name}: update {update} of {of}, loss {loss:.3f}"
                ),
            )
        )


def row_of(model: str, task: Task, wish: EvalRequest, record: EvaluationRecord, warm: str) -> ReadableRow:
    """The row of a record."""
    settings, chosen = record.content["settings"], plain(task)
    defaults = plain(type(task)())
    num_questions, likeliest, chance = count_likeliest(record.rows)
    return ReadableRow(
        model=model,
        chat=record.content["policies"]["model"]["chat_template"],
        task=task.name,
        settings={name: value for name, value in chosen.items() if value != defaults[name]},
        warm_start=warm,
        split=settings["split"],
        temperature=settings["temperature"],
        max_completion_tokens=settings["max_completion_tokens"],
        dtype=settings["dtype"],
        written=count(record.rows),
        asked=num_questions,
        likeliest=likeliest,
        chance=chance,
        made=made_of(record.content),
    )


def made_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a record was made with."""
    versions = {name: content["versions"][name] for name in VERSIONS if name in content["versions"]}
    commit = provenance.commit()
    changed = " and changes" if commit.get("dirty") else ""
    name = f"{str(commit.get('commit', '(none)'))[:12]}{changed}"
    return {"commit": name, "versions": versions, "machine": machine()}


def machine() -> str:
    """The accelerator by its name, a processor by its architecture."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"CPU {platform.machine()}"
