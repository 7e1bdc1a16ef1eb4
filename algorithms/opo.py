"""OPO: the baseline of least variance, if a long completion's gradient is a large one."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import Reinforce


@dataclass(frozen=True)
class OPO(Reinforce):
    """On-Policy RL with Optimal reward baseline (arXiv:2505.23585). The baseline E[‖∇log π‖² r]/E[‖∇log
    π‖²] minimizes the variance of the policy gradient. If squared gradient norms grow like the length, it
    is the length-weighted mean reward.

    Degenerate cases: groups of equal rewards and groups of one completion have advantage exactly 0;
    completions of equal length, and groups of empty ones, are compared with the group's mean.
    """

    name = "opo"
    paper = "On-Policy RL with Optimal Reward Baseline, arXiv:2505.23585"
    summary = "exact on-policy policy gradient with the length-weighted mean reward of the group as baseline"
    claim = (
        "Exactly on policy and with the baseline of least variance, training is steadier, drifts less and "
        "keeps more entropy, and is better in math, without further models or penalties (abstract, which "
        "gives no number)."
    )
    formula = "b = Σ_j |o_j| r_j / Σ_j |o_j|;  A_i = r_i − b;  loss = −1/B Σ_i A_i Σ_t log π(o_t)"
    departures = (
        "The paper is strictly on-policy: set train.num_minibatches = 1 and train.epochs = 1. Lengths count "
        "only tokens that the policy wrote."
    )
    evidence = (
        "verified: the paper's text; the baseline in verl's code. The sum over tokens is that of the "
        "paper's gradient; verl's default is a mean over the batch's tokens"
    )
    minimum_group = 2

    averaging: parts.Averaging = "sequence_sum"

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        length = batch.completion_mask.sum(-1).to(batch.reward.dtype)
        weight = parts.group_mean(length, batch.group)
        weighed = parts.group_mean(length * batch.reward, batch.group) / weight.clamp(min=1e-9)
        mean = parts.group_mean(batch.reward, batch.group)
        return parts.centered(batch.reward, batch.group, weighed.where(weight > 0, mean))
