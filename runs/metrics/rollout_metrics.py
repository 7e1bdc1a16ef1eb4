"""Metrics of rollouts, for any algorithm, and the sums of unreduced metrics over micro-batches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch, Metric
from grpobench.analysis.tools.metrics import GAP
from grpobench.runs.metrics.ratios import departures, tail_index
from grpobench.runs.metrics.turns import mean_by_name
from grpobench.runs.reward.judge import judge_metrics
from grpobench.runs.sample.rollouts import Group
from grpobench.runs.tools.device import to_cpu
from grpobench.tasks.task import Outcome, Problem, Verdict


class MetricAccumulator:
    """The metrics of one step. Tokenwise values count where the policy wrote, rowwise ones per row. NaN means
    that a metric is undefined there."""

    def __init__(self, catalog: Mapping[str, Metric]) -> None:
        self.catalog = catalog
        self.parts: dict[str, list[torch.Tensor]] = {}

    def add(self, metrics: Mapping[str, torch.Tensor], completion_mask: torch.Tensor) -> None:
        """Add metrics of shape (B, T) or (B,), with the mask (B, T). Waits for no device."""
        for name, values in metrics.items():
            # Detached: a metric must not keep the graph of its micro-batch alive until the step ends.
            values = values.detach()
            # NaN instead of a selection, whose size the device would have to tell.
            values = values.masked_fill(~completion_mask, math.nan) if values.dim() == 2 else values
            self.parts.setdefault(name, []).append(values.flatten())

    def take(self, other: MetricAccumulator) -> None:
        """Add all values of another accumulator."""
        for name, parts in other.parts.items():
            self.parts.setdefault(name, []).extend(parts)

    def numbers(self) -> dict[str, float]:
        """Every metric reduced as it is declared; NaN without a value. Waits for the device once."""
        # Reduced here and not per micro-batch, since a mean of means would depend on how a batch was split.
        columns = to_cpu([torch.cat(parts) for parts in self.parts.values()])
        return {
            name: self._reduce(name, values[~values.isnan()])
            for name, values in zip(self.parts, columns, strict=True)
        }

    def _reduce(self, name: str, values: torch.Tensor) -> float:
        if not len(values):
            return math.nan
        how = self.catalog[name].reduce if name in self.catalog else "mean"
        reductions: dict[str, Callable[[torch.Tensor], torch.Tensor | float]] = {
            "mean": torch.mean,
            "min": torch.min,
            "max": torch.max,
            "sum": torch.sum,
            "tail": tail_index,
        }
        return float(reductions[how](values))


MOST_CATEGORIES = 16
"""Categories of a task above which none has a metric of its own."""


def sampled_metrics(groups: Sequence[Group], categories: Sequence[str] = ()) -> dict[str, float]:
    """Metrics of all groups that a step sampled, or drew if rollouts are recorded. Rollouts that could not be
    graded count in lengths and in the diversity of tokens, but in no reward, score or answer.

    They include groups that the curriculum then rejected, so that arms with the same policy and seeds have
    the same numbers."""
    return {
        "groups/sampled": float(len(groups)),
        **group_metrics(groups),
        **length_metrics(groups),
        **correctness_metrics(groups, categories),
        **category_metrics(groups, categories),
    }


def categories_of(problems: Sequence[Problem]) -> tuple[str, ...]:
    """The values of the trait `category` in order; empty if there is one or more than `MOST_CATEGORIES`."""
    categories = {str(problem.traits["category"]) for problem in problems if "category" in problem.traits}
    return tuple(sorted(categories)) if 1 < len(categories) <= MOST_CATEGORIES else ()


def correctness_metrics(groups: Sequence[Group], categories: Sequence[str] = ()) -> dict[str, float]:
    """Lengths of right and wrong completions, and accuracy by category, over the graded rollouts; NaN without
    one. Nothing for a task without the score `correct`."""
    rows = [
        (str(group.problem.traits.get("category", "")), verdict.scores["correct"], rollout.length)
        for group in groups
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True)
        if graded(verdict) and "correct" in verdict.scores
    ]
    if not rows:
        return {}
    return {
        "length/right": _mean([length for _, correct, length in rows if correct >= 1]),
        "length/wrong": _mean([length for _, correct, length in rows if correct < 1]),
    } | {
        f"score/correct/{name}": _mean([correct for category, correct, _ in rows if category == name])
        for name in categories
    }


def category_metrics(groups: Sequence[Group], categories: Sequence[str]) -> dict[str, float]:
    """Groups, groups without a signal and tokens of completions, by the category of the problem."""
    row: dict[str, float] = {}
    for name in categories:
        chosen = [group for group in groups if str(group.problem.traits.get("category")) == name]
        rewards = [group.graded_rewards() for group in chosen]
        lengths = [rollout.length for group in chosen for rollout in group.rollouts]
        row[f"groups/sampled/{name}"] = float(len(chosen))
        row[f"groups/zero_signal/{name}"] = _mean([len(set(of_group)) <= 1 for of_group in rewards])
        row[f"length/mean/{name}"] = _mean(lengths)
    return row


def trained_metrics(batch: Batch, sampled: Sequence[Group]) -> dict[str, float]:
    """Metrics of the rows that a step's updates use, which are the whole `batch`, and their share of the
    `sampled` rollouts."""
    rollouts = sum(len(group.rollouts) for group in sampled)
    row = {"trained/share": len(batch) / max(1, rollouts)}
    if not len(batch):
        return row
    rewards = [batch.reward[batch.group == number] for number in batch.group.unique()]
    return row | {
        "trained/groups": float(len(rewards)),
        "trained/zero_signal": _mean([bool((of_group == of_group[0]).all()) for of_group in rewards]),
        "trained/reward_mean": batch.reward.double().mean().item(),
        "trained/length_mean": batch.completion_mask.sum(-1).double().mean().item(),
    }


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, scores, signal, outcomes and diversity of groups."""
    # A rollout that could not be graded has no reward: it must not count as one with reward 0.
    verdicts = [[verdict for verdict in group.verdicts if graded(verdict)] for group in groups]
    rewards = [group.graded_rewards() for group in groups]
    return {
        **outcome_metrics(groups),
        **reward_metrics(rewards),
        **component_metrics(groups),
        **model_metrics(groups),
        **judgment_metrics(groups),
        **dose_metrics(groups),
        "groups/zero_signal": _mean([len(set(of_group)) <= 1 for of_group in rewards]),
        "groups/baseline_variance": baseline_variance(rewards),
        **score_metrics(verdicts),
        **solved_metrics(verdicts),
        **diversity_metrics(groups, verdicts),
    }


def outcome_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The share of each outcome, of all rollouts."""
    outcomes = Counter(verdict.outcome for group in groups for verdict in group.verdicts)
    total = max(1, sum(outcomes.values()))
    return {f"outcome/{name}": outcomes[name] / total for name in get_args(Outcome)}


def reward_metrics(rewards: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean and spread of the rewards by group, over all of them."""
    flat = [reward for of_group in rewards for reward in of_group]
    return {"reward/mean": _mean(flat), "reward/std": float(np.std(flat)) if flat else math.nan}


def baseline_variance(rewards: Sequence[Sequence[float]]) -> float:
    """Mean over groups of the estimated variance of their mean reward; NaN without a group of two or more."""
    return _mean(
        [float(np.var(of_group, ddof=1)) / len(of_group) for of_group in rewards if len(of_group) > 1]
    )


def score_metrics(verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """The mean of each score of the task, over the verdicts that have it."""
    means = mean_by_name(verdict.scores for of_group in verdicts for verdict in of_group)
    return {f"score/{name}": means[name] for name in sorted(means)}


def solved_metrics(verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """Groups by how many of their completions are correct; nothing for a task without that score."""
    if not any("correct" in verdict.scores for of_group in verdicts for verdict in of_group):
        return {}
    correct = [[v.scores.get("correct", 0.0) for v in of_group] for of_group in verdicts if of_group]
    return {
        "groups/solved_all": _mean([min(scores) >= 1 for scores in correct]),
        "groups/solved_none": _mean([max(scores) <= 0 for scores in correct]),
        "groups/solved_some": _mean([max(scores) > 0 and min(scores) < 1 for scores in correct]),
    }


def diversity_metrics(groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """How different the answers of a group are, and the tokens that the policy wrote. Only the answers need
    a grade."""
    answers = [[verdict.answer for verdict in of_group] for of_group in verdicts if of_group]
    written = [[rollout.written_tokens for rollout in group.rollouts] for group in groups]
    shares = [distinct(of_group, 2) for of_group in written]
    return {
        "diversity/unique_answers": _mean([len(set(of_group)) / len(of_group) for of_group in answers]),
        "diversity/repetition": _mean([repetition(tokens) for of_group in written for tokens in of_group]),
        "diversity/distinct_2": _mean([share for share in shares if not math.isnan(share)]),
    }


def component_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The mean of each component of the reward over the graded rollouts that it applies to, and the share of
    rollouts to which none applies."""
    columns: dict[str, list[float]] = {}
    failed = total = 0
    for group in groups:
        total += len(group.rollouts)
        undefined = [[math.isnan(value) for value in column] for column in group.components.values()]
        failed += sum(map(all, zip(*undefined, strict=True)))
        for name, values in group.components.items():
            pairs = zip(values, group.verdicts, strict=True)
            defined = [value for value, verdict in pairs if graded(verdict) and not math.isnan(value)]
            columns.setdefault(name, []).extend(defined)
    row = {f"reward/{name}": _mean(values) for name, values in columns.items()}
    return row | {"reward/failed": failed / max(1, total)}


def model_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """How well the learned reward model ranks completions by each score of the task: the chance that one with
    the score is rated above one without, ties as half (AUC); NaN where all or none have it. Nothing without a
    reward model."""
    rows = [
        (value, verdict.scores)
        for group in groups
        for value, verdict in zip(group.components.get("model", ()), group.verdicts, strict=False)
        if graded(verdict) and not math.isnan(value)
    ]
    names = sorted({name for _, scores in rows for name in scores})
    return {
        f"reward/model_auc/{name}": auc(
            [(value, score_by_name.get(name, 0.0)) for value, score_by_name in rows]
        )
        for name in names
    }


def judgment_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What the judge's verdicts on the rollouts say of it, and what they took; nothing without a judge."""
    judgments = [judgment for group in groups for judgment in group.judgments if judgment is not None]
    return {f"judge/{name}": value for name, value in judge_metrics(judgments).items()}


def auc(rows: Sequence[tuple[float, float]]) -> float:
    """The area under the ROC curve of values for telling positive labels from others: the share of pairs in
    which the positive one has the higher value; NaN without both kinds. `rows` are (value, label)."""
    labeled = [value for value, label in rows if label > 0]
    others = [value for value, label in rows if label <= 0]
    difference = np.subtract.outer(labeled, others)
    return float(((np.sign(difference) + 1) / 2).mean()) if difference.size else math.nan


def dose_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The share of the graded rollouts whose reward each drawn dose changed, of those that it could change;
    nothing without a dose."""
    drawn: dict[str, list[bool]] = {}
    for group in groups:
        for name, column in group.doses.items():
            pairs = zip(column, group.verdicts, strict=True)
            hits = drawn.setdefault(name, [])
            hits += [hit for hit, verdict in pairs if hit is not None and graded(verdict)]
    return {f"reward/{name}": _mean(hits) for name, hits in drawn.items()}


def graded(verdict: Verdict) -> bool:
    """Whether the completion could be graded: `infra_error` is a failure of the machine."""
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
    """Mean entropy in nats of the distributions that the policy's tokens were drawn from, as the sampler
    reports it; None if it does not, NaN without a token."""
    reported: list[np.ndarray] = []
    for group in groups:
        for rollout in group.rollouts:
            if rollout.entropy is None:
                return None
            # Replies of the environment have entropies of 0, which are not the policy's.
            mask = list(rollout.completion_mask) or slice(None)
            reported.append(rollout.entropy[mask])
    return _mean(np.concatenate(reported).astype(float)) if reported else math.nan


def gap_metrics(outputs: Sequence[tuple[torch.Tensor, Batch]]) -> dict[str, float]:
    """The distance of the trainer's log-probabilities (B, T) from the sampler's, with the same weights."""
    # Only where the policy wrote: elsewhere both are 0, which would make the gap look smaller.
    parts = [(logp - batch.sampler_logp)[batch.completion_mask] for logp, batch in outputs]
    difference = torch.cat(parts).double()
    if not len(difference):
        return {}
    weight = difference.exp()
    tally = MetricAccumulator({metric.name: metric for metric in GAP})
    for logp, batch in outputs:
        apart = logp.double() - batch.sampler_logp.double()
        tally.add(departures("gap/", apart, batch.completion_mask), batch.completion_mask)
    return tally.numbers() | {
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
