"""CORA: a reward for reasoning that agrees with its answer, normalized apart from the task's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Metric, Models, Rowwise
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized


@dataclass(frozen=True)
class CORA(GroupNormalized, ClippedRatio):
    """Consistency-Oriented Reasoning Alignment (arXiv:2606.14691): hybrid reward advantage splitting.

    The reward and the consistency score are normalized separately in their groups and then added. Thus
    neither's spread drowns the other's, and a group that all solve still separates consistent completions
    from the rest.

    Degenerate cases: with consistency_weight = 0 (and task_weight = 1) it is GRPO, bit for bit; a group
    in which all or no completions are consistent adds nothing; where rewards and consistency are all
    equal the advantage is 0.
    """

    name = "cora"
    paper = (
        "CORA: Analyzing and bridging thinking-answer gap in Multimodal RLVR via Consistency-Oriented "
        "Reasoning Alignment, arXiv:2606.14691"
    )
    summary = "GRPO with a second advantage for completions whose reasoning supports their answer"
    claim = (
        "A consistency reward with an advantage of its own makes reasoning and answer of vision-language "
        "models agree and is no cost in accuracy: inconsistent answers fall from 15.8 to 8.3 % and from "
        "12.5 to 2.5 % (numbers second-hand; the abstract has none)."
    )
    formula = (
        "A_i = α·A_task,i + w(step)·A_cons,i, each (x_i − mean x)/(std x + ε) in its group, x the reward and "
        "`consistency_score`;  w(step) = consistency_weight · min(1, step/warmup) · "
        "2^(−max(0, step − warmup)/half_life), the paper's β;  loss as GRPO's"
    )
    departures = (
        "The paper trains vision-language models with a learned consistency model; here the score is the "
        "task's rule check of a text (the last value of the chain is the answer). With consistency_score = "
        "'model' it is a small reward model that learned to prefer what the rule accepts. Weights and "
        "the form of its schedule could not be read: α = 1, w up to 0.5, linear warm-up over 10 steps and "
        "halving every 100 steps are ours, as is GRPO's objective without KL (beta is the KL's weight, as "
        "everywhere). Judge it by a checker that is not rewarded: the score `supported`."
    )
    evidence = (
        "reconstruction: only the paper's abstract was read; that two separately normalized advantages are "
        "weighted, the second with warm-up and decay, is second-hand"
    )
    metrics = (
        *parts.CLIP_METRICS,
        *parts.KL_METRICS,
        Metric("advantage/consistency_weight", "weight", "w(step), the weight of the consistency advantage"),
        Metric(
            "advantage/consistency_signal",
            "share of groups",
            "groups whose completions differ in the score `consistency_score`",
        ),
        Metric(
            "policy/consistent_if_correct",
            "share of correct rows",
            "completions with consistent = 1 among those with correct = 1",
            "higher",
        ),
        Metric(
            "policy/consistent_if_wrong",
            "share of wrong rows",
            "completions with consistent = 1 among those with correct below 1",
        ),
    )

    task_weight: float = 1.0
    """α, the weight of the reward's advantage."""
    consistency_weight: float = 0.5
    """Greatest weight of the consistency score's advantage; 0 is GRPO."""
    warmup: int = 10
    """Steps over which that weight rises linearly; 0 starts at its greatest."""
    half_life: float = 100.0
    """Steps in which it halves after the warm-up; 0 keeps it."""
    consistency_score: str = "consistent"
    """The score that says how well the reasoning supports the answer: one of the task's, or a component of
    the reward such as ``model``, which a weight of 0 measures without rewarding it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(
            task_weight=self.task_weight,
            consistency_weight=self.consistency_weight,
            warmup=self.warmup,
            half_life=self.half_life,
        )

    @property
    def scores(self) -> frozenset[str]:
        return frozenset({"correct", "consistent", self.consistency_score})

    def weight(self, step: int) -> float:
        """Weight of the consistency advantage at a step, from 1."""
        risen = min(1.0, step / self.warmup) if self.warmup else 1.0
        fallen = 0.5 ** (max(0, step - self.warmup) / self.half_life) if self.half_life else 1.0
        return self.consistency_weight * risen * fallen

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        task = self.task_weight * super().advantage(batch, models)
        if not self.consistency_weight:
            return task
        consistency = parts.group_advantage(
            batch.scores[self.consistency_score],
            batch.group,
            self.baseline,
            self.scale,
            self.ddof,
            self.epsilon,
        )
        return task + self.weight(batch.step) * consistency

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        consistent = batch.scores["consistent"].double()
        right = batch.scores["correct"] == 1
        equal = parts.group_equal(batch.scores[self.consistency_score].double(), batch.group)
        split = sum(not bool(equal[batch.group == number].all()) for number in batch.group.unique())

        def share(rows: Rowwise) -> float:
            return consistent[rows].mean().item() if rows.any() else math.nan

        return {
            "advantage/consistency_weight": self.weight(batch.step),
            "advantage/consistency_signal": split / max(1, len(batch.group.unique())),
            "policy/consistent_if_correct": share(right),
            "policy/consistent_if_wrong": share(~right),
        }
