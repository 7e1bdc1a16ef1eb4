"""A recipe's run made small, and its parts: what several checks train."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from grpobench.runs.record.folder import RunFolder
from grpobench.runs.settings.config import (
    CheckpointConfig,
    ChecksConfig,
    EvaluateConfig,
    RewardConfig,
    RunConfig,
)
from grpobench.runs.train.execute import execute
from grpobench.runs.train.parts import build
from grpobench.runs.train.progress import Preempted
from grpobench.runs.train.trainer import Trainer

PROMPTS, GROUP = 4, 8
"""Most of a step, where a check is not about the size."""
LARGE_RATE = 1e-3
"""Learning rate at which one update changes what the policy says."""
MOST_WARM_UP = 1000


def first_update(config: RunConfig) -> int:
    """The first step at which the policy is updated; later than 1 where a critic is warmed up."""
    steps = range(1, MOST_WARM_UP)
    return next((step for step in steps if "policy" in config.algorithm.updates(step)), 1)


def small(config: RunConfig, rate: float | None = None, *, whole: bool = False) -> RunConfig:
    """The run with few short steps, no warm start, no observers, and a coin for its reward: there is a
    gradient whatever the policy can do. A `whole` one keeps its numbers of prompts and completions."""
    train = config.train
    group = max(min(train.group, GROUP), config.algorithm.minimum_group)
    sizes: dict[str, Any] = {"prompts": min(train.prompts, PROMPTS), "group": group, "epochs": 1}
    sizes["minibatches"] = min(train.minibatches, 2, sizes["prompts"])
    rates = train.learning_rate if rate is None else dict.fromkeys(train.learning_rate, rate)
    recorded = config.sampler.kind == "preferences"
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, warm_start=0),
        reward=config.reward if recorded else RewardConfig(kind="random"),
        train=dataclasses.replace(
            train,
            **({} if whole else sizes),
            steps=first_update(config) + 2,
            learning_rate=rates,
            warmup_steps=0,
            schedule="constant",
            schedule_settings={},
            floor=0.0,
        ),
        sampler=dataclasses.replace(config.sampler, problems=min(config.sampler.problems, 16)),
        evaluate=EvaluateConfig(every=0, problems=4, samples=1, test_problems=0, greedy=False),
        checkpoint=CheckpointConfig(every=0),
        checks=ChecksConfig("off", "off"),
        observe=(),
        stop_on=(),
    )


@contextlib.contextmanager
def trainer(config: RunConfig) -> Iterator[Trainer]:
    """A run's trainer, before its first step."""
    made = Trainer(config, build(config))
    with contextlib.closing(made.sampler):
        yield made


def up_to_update(made: Trainer) -> dict[str, float]:
    """Make the steps up to the first that updates the policy; the row of that one."""
    row: dict[str, float] = {}
    for step in range(1, first_update(made.config) + 1):
        row = made.step(step)
    return row


def run(config: RunConfig, path: Path, stop_after: int = 0) -> None:
    """The whole run in a folder; stopped once so many steps are logged, if any, with a checkpoint."""
    with (
        RunFolder.open(path, config, threads=torch.get_num_threads()) as folder,
        contextlib.suppress(Preempted),
    ):
        execute(config, folder, lambda progress: None, lambda: 0 < stop_after <= folder.step)
