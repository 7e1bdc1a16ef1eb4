"""Adding up unreduced metrics over micro-batches.

What the harness measures about rollouts, whatever the algorithm.

`sampled_metrics` are over everything that was sampled in a step, also what the curriculum then rejected, so
that arms with the same policy and seeds have the same numbers; `trained_metrics` are over the rows that the
updates used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch, Metric
from grpobench.runs.sample.rollouts import Group
from grpobench.tasks.task import Outcome, Verdict


class MetricAccumulator:
    """Numbers of one step. Tokenwise values count where the policy wrote, rowwise ones per row; NaN marks a
    place where a metric is undefined."""

    def __init__(self, catalog: Mapping[str, Metric]) -> None:
        self.catalog = catalog
        self.parts: dict[str, list[torch.Tensor]] = {}

    def add(self, metrics: Mapping[str, torch.Tensor], written: torch.Tensor) -> None:
        """Metrics of shape (B, T) or (B,) with `written` (B, T)."""
        for name, values in metrics.items():
            values = values.detach()[written] if values.dim() == 2 else values.detach()
            self.parts.setdefault(name, []).append(values[~values.isnan()])

    def take(self, other: MetricAccumulator) -> None:
        """Add what another one has counted."""
        for name, parts in other.parts.items():
            self.parts.setdefault(name, []).extend(parts)

    def numbers(self) -> dict[str, float]:
        """Every metric reduced as its declaration says; NaN where nothing was counted."""
        return {name: self._reduce(name, torch.cat(parts)) for name, parts in self.parts.items()}

    def _reduce(self, name: str, values: torch.Tensor) -> float:
        if not len(values):
            return math.nan
        how = self.catalog[name].reduce if name in self.catalog else "mean"
        reductions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "mean": torch.mean,
            "min": torch.min,
            "max": torch.max,
            "sum": torch.sum,
        }
        return float(reductions[how](values))


def sampled_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What is told of all groups that a step sampled, or drew where rollouts are recorded. What could not be
    graded is in lengths and diversity, but for the answers, and in no reward or score."""
    return {"groups/sampled": float(len(groups)), **group_metrics(groups), **length_metrics(groups)}


def trained_metrics(batch: Batch, sampled: Sequence[Group]) -> dict[str, float]:
    """What is told of the rows that a step's updates use, which are the whole `batch`; their share is of the
    `sampled` rollouts."""
    rollouts = sum(len(group.rollouts) for group in sampled)
    row = {"trained/share": len(batch) / max(1, rollouts)}
    if not len(batch):
        return row
    rewards = [batch.reward[batch.group == number] for number in batch.group.unique()]
    return row | {
        "trained/groups": float(len(rewards)),
        "trained/zero_signal": _mean([bool((own == own[0]).all()) for own in rewards]),
        "trained/reward_mean": batch.reward.double().mean().item(),
        "trained/length_mean": batch.completion_mask.sum(-1).double().mean().item(),
    }


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, scores, signal, outcomes and diversity of groups."""
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
    written = [[rollout.written_tokens for rollout in group.rollouts] for group in groups]
    spread = [share for own in written if not math.isnan(share := distinct(own, 2))]
    return row | {
        "diversity/repetition": _mean([repetition(tokens) for own in written for tokens in own]),
        "diversity/distinct_2": _mean(spread),
    }


def component_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The parts of the reward over the graded rollouts that they apply to, and how often there was none."""
    columns: dict[str, list[float]] = {}
    failed = total = 0
    for group in groups:
        total += len(group.rollouts)
        failed += sum(
            map(all, zip(*(map(math.isnan, own) for own in group.components.values()), strict=True))
        )
        for name, values in group.components.items():
            pairs = zip(values, group.verdicts, strict=True)
            kept = [value for value, verdict in pairs if graded(verdict) and not math.isnan(value)]
            columns.setdefault(name, []).extend(kept)
    row = {f"reward/{name}": _mean(values) for name, values in columns.items()}
    return row | {"reward/failed": failed / max(1, total)}


def turn_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Turns and replies of the episodes; nothing for a task of one turn."""
    played = [rollout for group in groups for rollout in group.rollouts if rollout.completion_mask]
    if not played:
        return {}
    return {
        "length/turns": _mean([rollout.turns for rollout in played]),
        "length/replies": _mean([len(rollout.completion) - rollout.length for rollout in played]),
    }


def graded(verdict: Verdict) -> bool:
    """Whether the completion has scores; masked samples have none."""
    return verdict.outcome != "infra_error"


def length_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Lengths of the completions, in tokens that the policy wrote."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    length = [rollout.length for rollout in rollouts]
    return {
        "length/mean": _mean(length),
        "length/p95": float(np.quantile(length, 0.95)) if length else math.nan,
        "length/truncated": _mean([not rollout.stopped for rollout in rollouts]),
        "length/terminated_mean": _mean([rollout.length for rollout in rollouts if rollout.stopped]),
    }


def entropy(groups: Sequence[Group]) -> float | None:
    """Mean entropy in nats of the distributions that the policy's tokens were drawn from, as the sampler told
    it; None where it told none, NaN without a token."""
    told: list[np.ndarray] = []
    for group in groups:
        for rollout in group.rollouts:
            if rollout.entropy is None:
                return None
            told.append(
                rollout.entropy[list(rollout.completion_mask)] if rollout.completion_mask else rollout.entropy
            )
    return _mean(np.concatenate(told).astype(float)) if told else math.nan


def gap_metrics(readings: Sequence[tuple[torch.Tensor, Batch]]) -> dict[str, float]:
    """How far the trainer's log-probabilities (B, T) are from the sampler's, on the same weights."""
    difference = torch.cat([(now - b.sampler_logp)[b.completion_mask] for now, b in readings]).double()
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
    """Different n-grams over all n-grams of some completions (distinct-n); NaN when there is none."""
    grams = [gram for tokens in completions for gram in zip(*(tokens[i:] for i in range(n)), strict=False)]
    return len(set(grams)) / len(grams) if grams else math.nan


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan
