"""The log-probability that a policy gives a task's reference answers."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.episodes import demonstrated
from grpobench.runs.sample.rollouts import Group, pack_groups
from grpobench.tasks.task import Problem, Task, Verdict

PROBLEMS = 256
"""Problems in one batch; its forward pass is made in micro-batches."""


def untempered(models: RoleModels) -> RoleModels:
    """The same networks and token budget, at temperature 1."""
    copied = copy.copy(models)
    copied.temperature = 1.0
    return copied


def measure_reference(models: RoleModels, loaded: Loaded, task: Task, problems: Sequence[Problem]) -> float:
    """Mean over problems of the mean log-probability per token (nats) of the reference episode, at
    temperature 1. Only the policy's turns count, each with its end token. Every problem weighs the same,
    however long its answer. Raises DataError for an episode that does not fit into the model's context."""
    models = untempered(models)
    means: list[float] = []
    for start in range(0, len(problems), PROBLEMS):
        part = problems[start : start + PROBLEMS]
        groups = [
            Group(problem, [demonstrated(loaded, task, problem)], [Verdict({}, None)], [0.0])
            for problem in part
        ]
        batch = pack_groups(groups, 0, 0, loaded.pad, str(models.device))
        logp = models.forward("policy", batch).logp.double()
        written = batch.completion_mask
        means += ((logp * written).sum(-1) / written.sum(-1)).tolist()
    return sum(means) / len(means)
