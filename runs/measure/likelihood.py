"""Evaluation by likelihood: how probable the policy finds each candidate of a problem.

Candidates are read like the rollouts of a group, behind one copy of their prompt. Log-probabilities are those
of the untempered softmax, summed over a candidate's tokens; an end token is no part of a candidate.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.roles import Models
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.tasks.data.errors import DataError
from grpobench.tasks.task import Problem, Task, Verdict

PROBLEMS = 256
"""Problems that are laid out in one batch; the batch is read in micro-batches."""


@dataclass(frozen=True)
class Scored:
    """What the policy says about a problem's candidates, in order."""

    logp: tuple[float, ...]
    """Total log-probability of each, nats."""
    tokens: tuple[int, ...]
    """Length of each."""


def judge(
    models: Models, loaded: Loaded, task: Task, problems: Sequence[Problem]
) -> list[tuple[Verdict, Scored]]:
    """The task's verdict on the candidates of each problem, and what it rests on. Raises DataError for a
    candidate that is empty or does not fit into the model's context."""
    asked = [
        (
            prompt(loaded, problem, task.premise(problem)),
            [continuation(loaded, problem, text) for text in task.candidates(problem)],
        )
        for problem in problems
    ]
    found = score(models, loaded, asked)
    return [
        (task.choose(problem, scored.logp, scored.tokens), scored)
        for problem, scored in zip(problems, found, strict=True)
    ]


def prompt(loaded: Loaded, problem: Problem, premise: str | None) -> tuple[int, ...]:
    """Token ids that the candidates of a problem continue. Where these are none, the first token of a
    candidate is predicted from the start token, or from the end token of a model that has no other."""
    if premise is None:
        return loaded.encode(problem.prompt)
    start = loaded.tokenizer.bos_token_id
    return tuple(loaded.tokenizer.encode(premise)) or (loaded.end[0] if start is None else int(start),)


def continuation(loaded: Loaded, problem: Problem, text: str) -> tuple[int, ...]:
    """Token ids of a candidate, encoded by itself like a demonstration."""
    ids = tuple(loaded.tokenizer.encode(text, add_special_tokens=False))
    if not ids:
        raise DataError(f"problem {problem.id}: the candidate {text!r} has no token; mend the task's data")
    return ids


def score(
    models: Models, loaded: Loaded, asked: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]]
) -> list[Scored]:
    """Log-probabilities of the continuations of each (prompt, continuations)."""
    untempered = copy.copy(models)
    untempered.temperature = 1.0
    found: list[Scored] = []
    for start in range(0, len(asked), PROBLEMS):
        part = asked[start : start + PROBLEMS]
        groups = [_group(loaded, prompt, texts) for prompt, texts in part]
        batch = pack_groups(groups, 0, 0, loaded.pad, str(models.device))
        totals = iter(untempered.read("policy", batch).logp.double().sum(-1).tolist())
        for _, texts in part:
            lengths = tuple(len(text) for text in texts)
            found.append(Scored(tuple(next(totals) for _ in texts), lengths))
    return found


def _group(loaded: Loaded, prompt: tuple[int, ...], texts: Sequence[tuple[int, ...]]) -> Group:
    """Continuations laid out as the rollouts of a group; nothing but their tokens is of use."""
    longest = len(prompt) + max(len(text) for text in texts)
    if longest > loaded.context:
        raise DataError(
            f"a prompt with its candidate has {longest} tokens, beyond the model's "
            f"{loaded.bound}; take another model"
        )
    rollouts = [Rollout(prompt, text, np.zeros(len(text), np.float32), True) for text in texts]
    return Group(Problem("", "", None), rollouts, [Verdict({}, None)] * len(texts), [0.0] * len(texts))
