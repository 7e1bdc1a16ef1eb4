"""Metrics of episodes of several turns: turns, replies, calls of tools, and how credit spreads."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.turns import turns_of
from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.episodes import policy_turns, spans_of
from grpobench.runs.sample.rollouts import Group, Rollout
from grpobench.tasks.data.messages import offered_tools
from grpobench.tasks.data.tools import parse_turn
from grpobench.tasks.task import Problem, Task

ERROR: Final = re.compile(r'^"?error:', re.MULTILINE)
"""The beginning of an environment's reply that reports an error. Some chat templates quote replies, and some
tokenizers lose spaces."""
MOST_TURNS: Final = 16
"""Turns whose credit is logged, the first ones of an episode."""


def count_turns(loaded: Loaded, problem: Problem, rollout: Rollout) -> dict[str, float]:
    """What one episode of several turns consists of: `turns` of the policy, `replies` in tokens and, if the
    problem offers tools, `calls`, `malformed` calls and `errors`. Empty for a task of one turn."""
    if not rollout.completion_mask:
        return {}
    counts = {"turns": float(rollout.turns), "replies": float(len(rollout.completion) - rollout.length)}
    if not offered_tools(problem.prompt):
        return counts
    turns = [parse_turn(text) for text in policy_turns(loaded, problem, rollout)]
    replies = [loaded.decode(tokens) for by_policy, tokens in spans_of(rollout) if not by_policy]
    return counts | {
        "calls": float(sum(len(turn.calls) for turn in turns)),
        "malformed": float(sum(len(turn.faults) for turn in turns)),
        "errors": float(sum(len(ERROR.findall(reply)) for reply in replies)),
    }


def mean_by_name(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number over the rows that have it."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in columns.items()}


def turn_metrics(groups: Sequence[Group], loaded: Loaded) -> dict[str, float]:
    """Means of `count_turns` over all episodes of the groups, as `length/…` and `tools/…`."""
    means = mean_by_name(
        count_turns(loaded, group.problem, rollout) for group in groups for rollout in group.rollouts
    )
    return {
        f"{'length' if name in ('turns', 'replies') else 'tools'}/{name}": value
        for name, value in means.items()
    }


# Credit


def true_credit(task: Task, loaded: Loaded, groups: Sequence[Group]) -> list[list[float]]:
    """`Task.credits` of the turns of each row of `pack_groups`; empty rows if the task knows none. Raises
    ValueError if it is not one number for each turn."""
    rows: list[list[float]] = []
    if type(task).credits is Task.credits:
        return rows  # without decoding anything
    for group in groups:
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True):
            if verdict.outcome == "infra_error":
                continue
            turns = policy_turns(loaded, group.problem, rollout)
            credit = list(task.credits(group.problem, turns))
            if credit and len(credit) != len(turns):
                raise ValueError(
                    f"task {task.name}: credits returned {len(credit)} numbers for {len(turns)} turns; "
                    "return one for each turn, or none"
                )
            rows.append(credit if rollout.length else [])
    return rows


def credit_metrics(
    task: Task, loaded: Loaded, groups: Sequence[Group], batch: Batch, signal: Any
) -> dict[str, float]:
    """How a signal's advantages (B, T) spread over the turns of a batch, which `groups` were packed to, and
    how well they agree with the task's credits, if it has one."""
    advantage = by_turn(signal.advantage.double(), batch.completion_mask, task.turns)
    metrics = {f"credit/turn_{number}": share for number, share in enumerate(shares(advantage), 1)}
    true = true_credit(task, loaded, groups)
    if not any(true):
        return metrics
    credit = np.full_like(advantage, math.nan)
    for row, of_turns in enumerate(true):
        credit[row, : len(of_turns)] = of_turns
    metrics |= {f"credit/true_{number}": share for number, share in enumerate(shares(credit), 1)}
    both = ~np.isnan(advantage) & ~np.isnan(credit)
    return metrics | {"credit/correlation": correlation(advantage[both], credit[both])}


def by_turn(values: torch.Tensor, written: torch.Tensor, turns: int) -> np.ndarray:
    """The mean of tokenwise values (B, T) over each turn, (B, turns); NaN for a turn that is not there."""
    of_batch = turns_of(written)
    mean = of_batch.total(values) / of_batch.total(torch.ones_like(values))
    means = values.new_full((len(values), turns), math.nan)
    means[of_batch.row, of_batch.before] = mean
    return means.cpu().numpy()


def shares(credit: np.ndarray) -> list[float]:
    """The share of all |credit| that the first turns have, at most `MOST_TURNS`; NaN if all credit is 0."""
    size = np.nansum(np.abs(credit), axis=0)
    total = float(size.sum())
    return [float(value) / total if total else math.nan for value in size[:MOST_TURNS]]


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's correlation; NaN if either does not vary."""
    if len(first) < 2 or not first.std() or not second.std():
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])
