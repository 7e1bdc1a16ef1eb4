"""Supervised warm start on a task's reference answers, cached: small base models answer at chance."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from grpobench.algorithms import parts
from grpobench.runs import strict
from grpobench.runs.batch import Group, pack_groups
from grpobench.runs.config import ModelConfig
from grpobench.runs.episodes import demonstrated
from grpobench.runs.library import Loaded, cache_folder
from grpobench.runs.models import Models
from grpobench.runs.packing import micro_batches
from grpobench.runs.seeds import derive
from grpobench.tasks.task import Problem, Task, Verdict

RECIPE = 1
"""Version of this procedure; a change of it makes cached weights stale."""
SEED = 0
"""The warm start is part of the base model: the same for every seed and arm of a matrix."""


def warm_start(
    loaded: Loaded, task: Task, config: ModelConfig, tell: Callable[[int, int, float], None]
) -> Path:
    """Train `loaded.model` in place on demonstrations of the task's lessons, or load the cached result.

    AdamW with a linear warm-up over a tenth of the updates and linear decay; the loss is the mean over
    the policy's tokens. `tell(update, updates, loss)` is called after every update. Returns the cached file.
    """
    from safetensors.torch import load_file, save_file

    lessons = demonstrations(loaded, task, config)
    path = cache_folder() / "warm" / f"{key(loaded, task, config, lessons)}.safetensors"
    parameters = dict(loaded.model.named_parameters())
    if not path.exists():
        train(loaded, config, lessons, tell)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        save_file({name: p.detach().cpu().contiguous() for name, p in parameters.items()}, aside)
        aside.rename(path)
    weights = load_file(path)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    return path


def demonstrations(loaded: Loaded, task: Task, config: ModelConfig) -> list[Group]:
    """The reference episodes that the updates read, in order."""
    problems = task.lessons()
    order = list(range(len(problems)))
    random.Random(derive(SEED, "warm start")).shuffle(order)
    order = order[: config.warm_start_examples or len(order)]
    wanted = config.warm_start * config.warm_start_batch
    groups = [demonstration(loaded, task, problems[index]) for index in order[:wanted]]
    return [groups[i % len(groups)] for i in range(wanted)]


def key(loaded: Loaded, task: Task, config: ModelConfig, lessons: Sequence[Group]) -> str:
    """A name that changes with anything that changes the result, and with nothing else: settings of a task
    that leave its lessons as they are share one warm start."""
    read = hashlib.sha256()
    for group in lessons:
        rollout = group.rollouts[0]
        read.update(json.dumps([rollout.prompt, rollout.completion, rollout.written]).encode())
    facts: dict[str, Any] = {
        "recipe": RECIPE,
        "model": loaded.origin,
        "lessons": read.hexdigest(),
        "config": strict.plain(config),
        "torch": str(torch.__version__),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return f"{Path(config.name).name}-{task.name}-{digest[:16]}"


def train(
    loaded: Loaded,
    config: ModelConfig,
    lessons: Sequence[Group],
    tell: Callable[[int, int, float], None],
) -> None:
    """The supervised updates."""
    models = Models(loaded.model, ("policy",), dtype=config.dtype)
    models.optimise({"policy": config.warm_start_learning_rate}, (0.9, 0.95), 0.0, 1.0)
    updates, rows = config.warm_start, config.warm_start_batch
    for update in range(1, updates + 1):
        batch = pack_groups(lessons[(update - 1) * rows : update * rows], 0, 1, loaded.pad)
        weights = parts.average(batch, "token_mean")
        total = 0.0
        for part in micro_batches(batch, parts.rows(batch), models.budget):
            micro = batch[part]
            loss = (-models.read_now(("policy",), micro)["policy"].logp * weights[part]).sum()
            loss.backward()
            total += loss.item()
        rise, fall = update / max(1, updates // 10), (updates - update + 1) / updates
        models.step(("policy",), min(rise, fall, 1.0))
        tell(update, updates, total)


def demonstration(loaded: Loaded, task: Task, problem: Problem) -> Group:
    """The reference episode as a rollout; replies of an environment have no part in the loss."""
    rollout = demonstrated(loaded, task, problem)
    return Group(problem, [rollout], [Verdict({}, None)], [0.0])
