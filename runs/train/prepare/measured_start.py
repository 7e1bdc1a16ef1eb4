"""`grpobench warmstart`: a warm start, with the accuracy of the model before and after it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.runs.metrics.evaluator import Evaluator
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.settings import registries
from grpobench.runs.settings.config import EvaluateConfig, ModelConfig
from grpobench.runs.tools import files, strict
from grpobench.runs.train.prepare.warmstart import RECORD, warm_folder, warm_start
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Task

ACCURACY = "accuracy.json"
"""A file beside the record, because accuracy may be measured in several ways, and later."""


@dataclass(frozen=True)
class AccuracyMeasure:
    """How accuracy is measured, before and after."""

    problems: int
    """Number of problems from the start of the validation split."""
    samples: int
    """Sampled answers per problem; 0 omits them."""
    max_completion_tokens: int = 0
    """0 uses the task's own budget."""


def measured_start(
    settings: Mapping[str, Any],
    task_name: str,
    task_settings: Mapping[str, Any],
    measure: AccuracyMeasure,
    out: Path | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Warm-start the model of a recipe's settings `model` for a task, measure it before and after, and return
    the record. Cached weights and measurements are reused. `out` is a folder for a copy. Raises ConfigError
    for wrong settings."""
    from transformers.utils import logging

    config, task = model_config(settings), chosen_task(task_name, task_settings)

    logging.disable_progress_bar()  # `tell` has the line
    if out is not None and out.exists():
        raise DataError(f"--out {out} already exists; give another folder or remove it")
    if out is not None:
        files.writable(out.parent, "--out")
    loaded = load(config.name, chat_template=config.template)
    folder = warm_folder(loaded, task, config)
    cached = folder.exists()
    accuracy_by_question = bounded.read_object_if_any(folder / ACCURACY)
    how = json.dumps(dataclasses.asdict(measure), sort_keys=True)
    before = {} if how in accuracy_by_question else shares(loaded, task, measure, "before", tell)
    warm_start(loaded, task, config, lambda update, of, loss: tell(f"update {update}/{of}, loss {loss:.3f}"))
    if how not in accuracy_by_question:
        after = shares(loaded, task, measure, "after", tell)
        accuracy_by_question[how] = {mode: compared(before[mode], after[mode]) for mode in before}
        files.write_atomic(folder / ACCURACY, (json.dumps(accuracy_by_question, indent=1) + "\n").encode())
    if out is not None:
        with files.becoming(out) as aside:
            shutil.copytree(folder, aside, dirs_exist_ok=True)
    about = bounded.read_object(folder / RECORD)
    return {
        **about,
        "folder": str(out or folder),
        "cached": cached,
        "validation_problems": measure.problems,
        "accuracy": accuracy_by_question[how],
    }


def model_config(settings: Mapping[str, Any]) -> ModelConfig:
    """A recipe's section `model`; None leaves a setting out. Raises ConfigError."""
    faults: list[str] = []
    fields = {name: value for name, value in settings.items() if value is not None}
    config = strict.build(ModelConfig, fields, "model", faults)
    if isinstance(config, strict.Bad):
        raise strict.ConfigError(faults)
    return config


def chosen_task(name: str, settings: Mapping[str, Any]) -> Task:
    """A task by name, whose data are here. Raises ConfigError."""
    faults: list[str] = []
    cls = registries.chosen(registries.tasks(), name, "task")
    task: Task | strict.Bad = strict.build(cls, settings, f"task.{name}", faults)
    if isinstance(task, strict.Bad):
        raise strict.ConfigError(faults)
    if lack := task.missing():
        raise strict.ConfigError([f"task {name}: {lack}"])
    return task


def shares(
    loaded: Loaded, task: Task, measure: AccuracyMeasure, when: str, tell: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    """Share of right answers to each validation problem, by mode and problem."""
    settings = EvaluateConfig(problems=measure.problems, samples=measure.samples)
    models = RoleModels(loaded.model)
    evaluator = Evaluator(
        task,
        loaded,
        HFSampler(models, loaded.end, loaded.pad, 256, loaded.context),
        settings,
        0,  # the same answers are sampled before and after, whatever the seed of the warm start
        measure.max_completion_tokens or task.max_completion_tokens,
        at_once=256,
        tell=lambda done, of: tell(f"accuracy {when}: {done}/{of} problems"),
        models=models,
    )
    scores_by_mode: dict[str, dict[str, list[float]]] = {}
    for row in evaluator.evaluate(0, "validation")[0]:
        if row["outcome"] != "infra_error":
            problem_scores = scores_by_mode.setdefault(row["mode"], {}).setdefault(row["problem"], [])
            problem_scores.append(row["scores"].get("correct", 0.0))
    return {
        mode: {problem: sum(scores) / len(scores) for problem, scores in problems.items()}
        for mode, problems in scores_by_mode.items()
    }


def compared(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """Accuracies with Wilson intervals over problems, and the gain with a t interval over the differences."""
    from grpobench.analysis.statistics.intervals import seed_mean, wilson

    both = [problem for problem in before if problem in after]
    gain = seed_mean([after[problem] - before[problem] for problem in both])
    return {
        "problems": len(both),
        "before": dataclasses.asdict(wilson(sum(before.values()), len(before))),
        "after": dataclasses.asdict(wilson(sum(after.values()), len(after))),
        "gain": {"value": gain.value, "low": max(-1.0, gain.low), "high": min(1.0, gain.high)},
    }


def as_lines(about: Mapping[str, Any]) -> list[str]:
    """The record as text."""
    source = "from the cache" if about["cached"] else f"made in {about['seconds']:.0f} s"
    first, last = about["loss"][0], about["loss"][-1]
    amount = f"{about['updates']} updates × {about['batch']} demonstrations"
    lines = [
        f"{about['model']['name']} on {about['task']['name']}: {amount}, {source}",
        f"{about['different_demonstrations']} different ones, loss {first:.3f} -> {last:.3f} nats/token",
    ]
    for mode, accuracy in about["accuracy"].items():
        parts = [
            f"{when} {100 * accuracy[when]['value']:.1f} % [{100 * accuracy[when]['low']:.1f}, "
            f"{100 * accuracy[when]['high']:.1f}]"
            for when in ("before", "after", "gain")
        ]
        lines.append(f"validation, {accuracy['problems']} problems, {mode}: {', '.join(parts)}")
    return [*lines, f"use it with --set model.name={about['folder']}"]
