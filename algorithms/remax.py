"""ReMax: REINFORCE against the greedy answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Metric, Models, Rowwise
from grpobench.algorithms.policy_gradient import Reinforce


@dataclass(frozen=True)
class ReMax(Reinforce):
    """ReMax (arXiv:2310.10505), algorithm 1: the reward of the policy's own greedy answer is the baseline.

    Degenerate cases: a completion as good as the greedy answer gets advantage exactly 0, whatever the rest of
    its group; rows whose greedy answer could not be graded are left out; groups of one sample are as good as
    any.
    """

    name = "remax"
    paper = (
        "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language "
        "Models, arXiv:2310.10505"
    )
    summary = "REINFORCE on whole completions with the reward of the greedy answer as baseline"
    formula = "A_i = r_i − r(greedy answer);  loss = −1/B Σ_i A_i Σ_t log π(o_t)"
    departures = (
        "No KL penalty by default. The paper samples one completion per prompt: set "
        "train.group_size = 1 and more "
        "train.prompts_per_step; and it makes one update per batch: set train.num_minibatches = 1. A penalty "
        "of the section `modify` is taken from the sampled rewards, not from that of the greedy answer."
    )
    evidence = "verified: the paper's text, the baseline in verl's code"
    cost = "one more completion per problem, decoded greedily and graded"
    metrics = (
        parts.ADVANTAGE_METRIC,
        *parts.KL_METRICS,
        Metric(
            "reward/greedy", "reward", "mean reward of the greedy answers to the rollouts' problems", "higher"
        ),
    )

    averaging: parts.Averaging = "sequence_sum"
    """How token terms are averaged; sequence_sum takes log-probabilities of whole completions."""
    kl_placement: Literal["loss", "reward", "advantage"] = "advantage"
    """Where a KL penalty goes: "advantage" takes from each token's advantage the k1 of that token and all
    later ones, "reward" that of the whole completion, "loss" adds a term to the loss."""

    @property
    def greedy_baseline(self) -> bool:
        return True

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        return (batch.reward - greedy(batch)).nan_to_num(0.0)

    def units(self, batch: Batch) -> torch.Tensor:
        return parts.rows(batch).masked_fill(greedy(batch).isnan(), -1)

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        known = greedy(batch)[~greedy(batch).isnan()]
        return {"reward/greedy": known.double().mean().item() if len(known) else math.nan}


def greedy(batch: Batch) -> torch.Tensor:
    """Reward of the greedy answer to each row's problem, (B,)."""
    if batch.greedy_reward is None:
        raise ValueError("remax needs the rewards of greedy answers, and this batch has none")
    return batch.greedy_reward
