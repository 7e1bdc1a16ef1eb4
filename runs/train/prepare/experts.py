"""Expert completions that steps learn from as well as rollouts: the task's reference answers, or a file's."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.curriculum import Shuffled
from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.runs.settings.config import REFERENCES
from grpobench.runs.train.prepare.demonstrations import demonstration, read_answers
from grpobench.tasks.data.messages import Prompt, as_line, as_text
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Task, Verdict

SETTING = "train.experts"
COLUMNS = ("completion", "chosen")
"""Where a line of a file has the answer: as files of warm starts, or as preference files have it."""


@dataclass(frozen=True)
class Experts:
    """Which expert completions each step has: a function of the seed and the step, so that a resumed run has
    the same ones."""

    problems: Sequence[Sequence[Group]]
    """The completions of each problem, each as a group of its own."""
    weights: Sequence[Sequence[float]]
    """How often each of them is drawn when its problem is."""
    count: int
    """Completions of a step."""
    seed: int

    @property
    def distinct_problems(self) -> Sequence[Problem]:
        """The problems."""
        return [groups[0].problem for groups in self.problems]

    def draw(self, step: int) -> list[Group]:
        """The completions of a step (from 1). Problems are drawn without replacement until all had a turn."""
        order = Shuffled(len(self.problems), self.count, self.seed).draw(step, 0)
        chance = random.Random(f"{self.seed}/answers/{step}")
        return [chance.choices(self.problems[i], self.weights[i])[0] for i in order]

    def batch(self, step: int, limit: int, pad: int, device: str = "cpu") -> Batch:
        """The completions of a step. Rewards and log-probabilities are NaN: nobody has recorded any."""
        batch = pack_groups(self.draw(step), limit, step, pad, device)
        unknown = torch.full_like(batch.sampler_logp, math.nan)
        nothing = torch.full_like(batch.reward, math.nan)
        return dataclasses.replace(batch, sampler_logp=unknown, old_logp=unknown, reward=nothing)


def experts(task: Task, loaded: Loaded, source: str, count: int, seed: int) -> Experts:
    """`count` expert completions a step from `train.experts`: the task's reference answers, as warm starts
    read them, or those of a file. Raises DataError if there are none, or one is too long."""
    if source == REFERENCES:
        try:
            groups = [[demonstration(loaded, task, problem)] for problem in task.lessons()]
        except NotImplementedError:
            raise DataError(
                f"{task.name} has no reference answers, which the algorithm learns from; set {SETTING} to a "
                "JSONL file of prompts and completions"
            ) from None
        return Experts(groups, [[1.0]] * len(groups), count, seed)
    path = Path(source).expanduser()
    answers = read_answers(path, SETTING, COLUMNS)
    if not answers:
        raise DataError(
            f"{path} holds no answer; give {SETTING} a JSONL file of {{prompt, completion}} or "
            "{prompt, chosen}"
        )
    groups_by_prompt = [
        [written(loaded, path, prompt, text) for text, _ in of_prompt]
        for prompt, of_prompt in answers.items()
    ]
    weights = [[weight for _, weight in of_prompt] for of_prompt in answers.values()]
    return Experts(groups_by_prompt, weights, count, seed)


def written(loaded: Loaded, path: Path, prompt: Prompt, text: str) -> Group:
    """A completion of a file, which ends with the end token."""
    prompt_tokens = loaded.encode(prompt)
    completion = (*loaded.tokenizer.encode(text, add_special_tokens=False), loaded.end[0])
    if (length := len(prompt_tokens) + len(completion)) > loaded.context:
        raise DataError(
            f"{path}: the prompt {as_text(prompt)[:40]!r} and an answer have {length} tokens, beyond the "
            f"model's {loaded.context_description}; shorten or remove the line"
        )
    unknown = np.full(len(completion), np.nan, dtype=np.float32)
    rollout = Rollout(prompt_tokens, completion, unknown, stopped=True)
    return Group(Problem(as_line(prompt), prompt, None), [rollout], [Verdict({}, None)], [math.nan])
