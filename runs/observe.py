"""What the harness measures about rollouts, whatever the algorithm."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch
from grpobench.runs.batch import Group
from grpobench.tasks.task import Outcome, Verdict


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, scores, signal, outcomes and diversity of the groups of a step."""
    kept = [
        [(v, r) for v, r in zip(group.verdicts, group.reward, strict=True) if graded(v)] for group in groups
    ]
    rewards = [[r for _, r in group] for group in kept]
    flat = [r for group in rewards for r in group]
    outcomes = Counter(verdict.outcome for group in groups for verdict in group.verdicts)
    total = max(1, sum(outcomes.values()))
    row = {f"outcome/{name}": outcomes[name] / total for name in get_args(Outcome)}
    row |= {"reward/mean": _mean(flat), "reward/std": float(np.std(flat)) if flat else math.nan}
    row |= component_metrics(groups) | turn_metrics(groups)
    row["groups/zero_signal"] = _mean([len(set(group)) <= 1 for group in rewards])
    names = sorted({name for group in kept for verdict, _ in group for name in verdict.scores})
    for name in names:
        row[f"score/{name}"] = _mean([v.scores[name] for group in kept for v, _ in group if name in v.scores])
    if "correct" in names:
        correct = [[v.scores.get("correct", 0.0) for v, _ in group] for group in kept if group]
        row["groups/solved_all"] = _mean([min(scores) >= 1 for scores in correct])
        row["groups/solved_none"] = _mean([max(scores) <= 0 for scores in correct])
        row["groups/solved_some"] = _mean([max(scores) > 0 and min(scores) < 1 for scores in correct])
    answers = [[v.answer for v, _ in group] for group in kept if group]
    row["diversity/unique_answers"] = _mean([len(set(group)) / len(group) for group in answers])
    completions = [rollout.own for group in groups for rollout in group.rollouts]
    return row | {
        "diversity/repetition": _mean([repetition(tokens) for tokens in completions]),
        "diversity/distinct_2": distinct(completions, 2),
    }


def component_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The parts of the reward over the rollouts trained on, and how often the reward could not be given."""
    columns: dict[str, list[float]] = {}
    failed = total = 0
    for group in groups:
        total += len(group.rollouts)
        failed += sum(
            map(any, zip(*(map(math.isnan, own) for own in group.components.values()), strict=True))
        )
        for name, values in group.components.items():
            kept = [v for v, verdict in zip(values, group.verdicts, strict=True) if graded(verdict)]
            columns.setdefault(name, []).extend(kept)
    row = {f"reward/{name}": _mean(values) for name, values in columns.items()}
    return row | {"reward/failed": failed / max(1, total)}


def turn_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Turns and replies of the episodes; nothing for a task of one turn."""
    played = [rollout for group in groups for rollout in group.rollouts if rollout.written]
    if not played:
        return {}
    return {
        "length/turns": _mean([rollout.turns for rollout in played]),
        "length/replies": _mean([len(rollout.completion) - rollout.length for rollout in played]),
    }


def graded(verdict: Verdict) -> bool:
    """Whether the completion has scores; masked samples have none."""
    return verdict.outcome != "infra_error"


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Lengths of the completions, in tokens that the policy wrote."""
    if not len(batch):
        return {}
    length = batch.written.sum(-1).float()
    ended = length[batch.stopped]
    return {
        "length/mean": length.mean().item(),
        "length/p95": length.quantile(0.95).item(),
        "length/truncated": 1 - batch.stopped.float().mean().item(),
        "length/terminated_mean": ended.mean().item() if len(ended) else math.nan,
    }


def gap_metrics(readings: Sequence[tuple[torch.Tensor, Batch]]) -> dict[str, float]:
    """How far the trainer's log-probabilities (B, T) are from the sampler's, on the same weights."""
    difference = torch.cat([(now - b.behaviour_logp)[b.written] for now, b in readings]).double()
    if not len(difference):
        return {}
    weight = difference.exp()
    return {
        "gap/mean": difference.abs().mean().item(),
        "gap/max": difference.abs().max().item(),
        "gap/k3": (weight - 1 - difference).mean().item(),
        "gap/ess": (weight.sum().square() / (len(weight) * weight.square().sum())).item(),
    }


def repetition(tokens: Sequence[int], n: int = 4) -> float:
    """Share of n-grams that have occurred before in the completion; 0 for one shorter than n."""
    grams = list(zip(*(tokens[i:] for i in range(n)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def distinct(completions: Sequence[Sequence[int]], n: int) -> float:
    """Different n-grams over all n-grams of a step's completions (distinct-n); NaN when there is none."""
    grams = [gram for tokens in completions for gram in zip(*(tokens[i:] for i in range(n)), strict=False)]
    return len(set(grams)) / len(grams) if grams else math.nan


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
