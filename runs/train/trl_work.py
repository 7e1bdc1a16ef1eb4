"""What a trainer of TRL's is given, and what our metrics need to know of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from grpobench.algorithms import trl_arguments
from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.trl_arguments import Entry
from grpobench.runs.sample.rollouts import Group
from grpobench.runs.settings.trl import plain_arguments, splitting
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.trainer import Trainer


class Work(ABC):
    """What a trainer of TRL's is given, and what our metrics need to know of it."""

    ends: Sequence[int]
    """Updates that are done, counted from the start of the attempt, after each of the steps that are left."""

    def __init__(self, trainer: Trainer, entry: Entry) -> None:
        config = trainer.config
        self.ours, self.entry = trainer, entry
        self.arguments, _ = trl_arguments.translate(config.algorithm, config.modify, splitting(config))
        """Of TRL's configuration."""
        self.names = trl_arguments.metric_names(entry, self.arguments)
        """TRL's names of metrics, and ours."""
        self.entropy = math.nan
        """Of the policy before the updates of the step under way, as our own loop logs it."""

    @abstractmethod
    def trainer(self, place: Path) -> Any:
        """TRL's trainer; `place` is a folder for its files."""

    @abstractmethod
    def groups(self, step: int) -> list[Group]:
        """What the step sampled or drew."""

    @abstractmethod
    def begin(self, step: int) -> None:
        """A step is about to begin; nothing is sampled yet."""

    @abstractmethod
    def trained(self, step: int, batch: Batch) -> torch.Tensor:
        """Bool (B,): rows of the step's graded rollouts that its updates used."""

    @abstractmethod
    def row(self, step: int) -> dict[str, float]:
        """Metrics of the step that only this kind of work has; counts what was trained."""


def common_arguments(trainer: Trainer, place: Path) -> dict[str, Any]:
    train = trainer.config.train
    return {
        **plain_arguments(str(place)),
        "learning_rate": train.learning_rate["policy"],
        "max_grad_norm": train.max_grad_norm,
        "bf16": trainer.config.model.dtype == "bfloat16",
        "use_cpu": trainer.models.device.type == "cpu",
        "disable_dropout": True,
        "remove_unused_columns": False,
        "seed": derive(trainer.config.seed, "trl") % 2**32,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
    }


def classes(entry: Entry) -> tuple[Any, Any]:
    """TRL's trainer and its configuration."""
    import trl

    return getattr(trl, f"{entry.trainer}Trainer"), getattr(trl, f"{entry.trainer}Config")
