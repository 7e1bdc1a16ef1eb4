"""The problems of a hand-over as parquet: training rows in the order of our own schedule, and evaluations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpobench.runs.handover import grading
from grpobench.runs.handover.base import free
from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.context import Room
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.seeds import derive
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.messages import as_messages
from grpobench.tasks.task import Problem, Split

DATA = "data"
EVALUATED: tuple[Split, ...] = ("validation", "test")
MOST_PASSES = 4
"""Passes over the training problems that are written for a run that replaces groups."""


@dataclass
class Problems:
    """The problems of a part that are used."""

    config: RunConfig
    loaded: Loaded
    limit: int
    train: Sequence[Problem] = field(init=False)
    evaluated: Mapping[Split, Sequence[Problem]] = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        room = Room(self.loaded, self.limit, config.model.long_prompts)
        self.train = room.fitting(config.task.problems("train"), "train")
        if config.train.prompts_per_step > len(self.train):
            few = f"{config.task.name} has only {len(self.train)} training problems"
            raise ConfigError([f"train.prompts_per_step: {few}"])
        counts: dict[Split, int] = {
            "validation": config.evaluate.problems,
            "test": config.evaluate.test_problems,
        }
        self.evaluated = {
            split: room.first(counts[split], config.task.problems(split), split)
            for split in EVALUATED
            if counts[split] and split in config.task.splits
        }

    def demand_different_prompts(self) -> None:
        """Raises ConfigError if training problems share a prompt."""
        if len({problem.text for problem in self.train}) < len(self.train):
            why = f"{self.config.task.name}: problems share a prompt, by which TRL's episodes are told apart"
            raise ConfigError([f"{why}; make the prompts different"])

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        used = {problem.prompt for problems in (self.train, *self.evaluated.values()) for problem in problems}
        return max(len(self.loaded.encode(prompt)) for prompt in used)

    def schedule(self, seed: int) -> list[int]:
        """Indices of the training problems in the order in which our run of this seed draws them. A run that
        replaces groups gets more than its steps."""
        config = self.config
        prompts, steps = config.train.prompts_per_step, config.train.steps
        traits: Sequence[Any] = [problem.traits for problem in self.train]
        algorithm = config.modify.around(config.algorithm)
        curriculum = algorithm.curriculum(traits, prompts, derive(seed, "curriculum"), None)
        drawn_steps = steps * (1 + config.modify.dynamic_sampling)
        most = max(steps, MOST_PASSES * len(self.train) // prompts)
        return [index for step in range(1, min(drawn_steps, most) + 1) for index in curriculum.draw(step, 0)]


def source(config: RunConfig, split: Split) -> str:
    """The name of a split for a library that reports by data set."""
    return f"{config.task.name.replace(':', '-')}-{split}"


def row(problems: Problems, problem: Problem, split: Split, index: int) -> dict[str, Any]:
    """A row as verl's `RLHFDataset` takes it, and TRL's trainers take its column `prompt`. The text of a
    prompt is its only message if the model has no chat template."""
    config = problems.config
    columns = grading.as_columns(problem)
    return {
        "data_source": source(config, split),
        "prompt": as_messages(problem.prompt if problems.loaded.has_chat_template else problem.text),
        "ability": config.task.name,
        "reward_model": {"style": "rule", "ground_truth": columns["truth"]},
        "extra_info": {"index": index, "split": split, **columns},
    }


class ParquetFiles:
    """The parquet files of a hand-over, each written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, str] = {}
        """Paths without their ending by the hash of the rows."""

    def train(self, problems: Problems, seed: int) -> str:
        """The training rows of a run; the path below the hand-over."""
        config = problems.config
        rows = [
            row(problems, problems.train[index], "train", position)
            for position, index in enumerate(problems.schedule(seed))
        ]
        return self._write(f"{source(config, 'train')}-s{seed}", rows)

    def evaluated(self, problems: Problems) -> dict[Split, str]:
        """The rows of each evaluated split; the paths below the hand-over."""
        config = problems.config
        return {
            split: self._write(
                source(config, split),
                [row(problems, problem, split, position) for position, problem in enumerate(split_problems)],
            )
            for split, split_problems in problems.evaluated.items()
        }

    def _write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
        import pandas as pd

        content = hashlib.sha256(repr(rows).encode()).hexdigest()
        if content not in self._known:
            path = free(f"{DATA}/{name}", self._known.values())
            (self.folder / DATA).mkdir(exist_ok=True)
            pd.DataFrame(list(rows)).to_parquet(self.folder / f"{path}.parquet")
            self._known[content] = path
        return f"{self._known[content]}.parquet"
