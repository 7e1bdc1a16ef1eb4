"""Sources of a step's groups: sampled from the policy, replayed from the base, or loaded from a file."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.models.loading import Loaded
from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.context import Room
from grpobench.runs.sample.episodes import episodes
from grpobench.runs.sample.locate import announces, locate
from grpobench.runs.sample.rollouts import Group, Rollout
from grpobench.runs.sample.sampler import GREEDY, Mixing, Sampler
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.progress import Clock
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.data.flaws import find_flaw
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Verdict


class Source(Protocol):
    """Gives the groups of a step."""

    @property
    def problems(self) -> Sequence[Problem]:
        """What the curriculum chooses from."""
        ...

    on_policy: bool
    """Whether the current policy wrote the rollouts."""
    generated: int
    """Tokens sampled so far for training."""

    def gather(self, step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        """Groups of the problems at `index`, in order."""
        ...


def demand_problems(prompts: int, count: int) -> None:
    """Raise DataError where a single step would have to ask one of the `count` problems twice."""
    if prompts > count:
        raise DataError(
            f"train.prompts_per_step is {prompts:,}, and there are {count:,} problems to train on: "
            f"a step would ask some of them twice; set train.prompts_per_step = {count} or less"
        )


class OnPolicy:
    """Samples from the policy as it is now."""

    on_policy = True

    def __init__(
        self,
        config: RunConfig,
        loaded: Loaded,
        sampler: Sampler,
        grader: Grader,
        clock: Clock,
        algorithm: Algorithm[Any],
        embeddings: torch.Tensor | None = None,
    ) -> None:
        self.config, self.loaded, self.sampler, self.grader = config, loaded, sampler, grader
        self.clock, self.algorithm, self.embeddings = clock, algorithm, embeddings
        self.announced = announces(loaded, config.task.answer_marker)
        self.limit = config.sampler.max_completion_tokens or config.task.max_completion_tokens
        room = Room(loaded, self.limit, config.model.long_prompts)
        self.problems = room.fitting(config.task.problems("train"), "train")
        self.generated = 0

    def gather(self, step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        return self.answer(f"{step}/{attempt}", [self.problems[i] for i in index])

    def answer(self, stream: str, problems: Sequence[Problem]) -> list[Group]:
        """Sample and grade `train.group_size` completions of each problem."""
        problem_streams = streams(stream, problems)
        extra = (GREEDY,) if self.algorithm.greedy_baseline else ()
        with self.clock("sample"):
            sampled = episodes(
                self.sampler,
                self.loaded,
                self.config.task,
                problems,
                [self.seeds(*pair) + extra for pair in zip(problem_streams, problems, strict=True)],
                self.limit,
                self.config.sampler.temperature,
                self.mixing(),
            )
        self.generated += sum(rollout.length for rollouts in sampled for rollout in rollouts)
        with self.clock("verify"):
            groups = self.grader.groups(problem_streams, problems, sampled)
        if extra:
            groups = [set_apart(group) for group in groups]
        if self.algorithm.locates_answers:
            marker = self.config.task.answer_marker
            groups = [
                dataclasses.replace(
                    group, answers=[locate(self.loaded, marker, rollout) for rollout in group.rollouts]
                )
                for group in groups
            ]
        return groups

    def mixing(self) -> Mixing | None:
        """How embeddings are mixed while decoding, with the current embedding table. The mixing ends when a
        completion begins to state its answer."""
        mixer = self.algorithm.mixer(self.embeddings)
        return None if mixer is None else Mixing(mixer, self.announced)

    def seeds(self, stream: str, problem: Problem) -> tuple[int, ...]:
        """One derived seed per completion."""
        group = range(self.config.train.group_size)
        return tuple(derive(self.config.seed, "sample", stream, problem.id, i) for i in group)


def streams(stream: str, problems: Sequence[Problem]) -> list[str]:
    """The random stream of each problem. A problem that a step draws twice (where two passes over the data
    meet) gets a second stream, so that its groups are not copies."""
    seen: Counter[str] = Counter()
    names = []
    for problem in problems:
        names.append(f"{stream}/{seen[problem.id]}" if seen[problem.id] else stream)
        seen[problem.id] += 1
    return names


def set_apart(group: Group) -> Group:
    """The group without its last rollout, the greedy one, whose reward becomes the group's `greedy`."""
    graded = group.verdicts[-1].outcome != "infra_error"
    return dataclasses.replace(
        group,
        rollouts=group.rollouts[:-1],
        verdicts=group.verdicts[:-1],
        reward=group.reward[:-1],
        components={name: column[:-1] for name, column in group.components.items()},
        greedy=group.reward[-1] if graded else math.nan,
    )


class Replay:
    """One round of answers by the base policy: sampled before training, and the only rollouts of the run."""

    on_policy = False

    def __init__(self, base: OnPolicy, problems: int) -> None:
        order = list(range(len(base.problems)))
        random.Random(derive(base.config.seed, "replay")).shuffle(order)
        self.problems = [base.problems[i] for i in order[:problems]]
        self.groups = base.answer("base", self.problems)
        self.generated = base.generated
        self.grader = base.grader

    def gather(self, step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        return [self.groups[i] for i in index]


class Preferences:
    """Pairs from a JSONL file of ``{"prompt": …, "chosen": …, "rejected": …}``; chosen is rewarded 1."""

    on_policy = False

    def __init__(self, path: Path, loaded: Loaded) -> None:
        self.groups = [preference(row, f"{path}:{line}", loaded) for line, row in _rows(path)]
        if not self.groups:
            raise DataError(
                f"{path} holds no preference pair; give a JSONL file with prompt, chosen and rejected"
            )
        self.problems = [group.problem for group in self.groups]
        self.generated = 0

    def gather(self, step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        return [self.groups[i] for i in index]


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                try:
                    row = json.loads(text)
                except (ValueError, RecursionError) as error:
                    why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                    raise DataError(f"{path}:{number}: not JSON ({why}); mend or remove the line") from None
                if flaw := find_flaw(row):
                    raise DataError(f"{path}:{number}: {flaw}; mend or remove the line")
                yield number, row


def preference(row: Any, location: str, loaded: Loaded) -> Group:
    """A preference pair, from FILE:LINE, as a group of two rollouts that another policy wrote."""
    keys = ("prompt", "chosen", "rejected")
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in keys):
        raise DataError(f"{location}: needs the texts {', '.join(keys)}; mend or remove the line")
    prompt = loaded.encode(row["prompt"])
    rollouts = []
    for key in ("chosen", "rejected"):
        completion = (*loaded.tokenizer.encode(row[key], add_special_tokens=False), loaded.end[0])
        if (length := len(prompt) + len(completion)) > loaded.context:
            raise DataError(
                f"{location}: prompt and {key} completion have {length} tokens, beyond the model's "
                f"{loaded.bound}; shorten or remove the line"
            )
        unknown = np.zeros(len(completion), dtype=np.float32)  # nobody recorded the log-probabilities
        rollouts.append(Rollout(prompt, completion, unknown, stopped=True))
    verdicts = [
        Verdict({"preferred": reward}, row[key]) for key, reward in (("chosen", 1.0), ("rejected", 0.0))
    ]
    return Group(Problem(str(row.get("id", location)), row["prompt"], None), rollouts, verdicts, [1.0, 0.0])
