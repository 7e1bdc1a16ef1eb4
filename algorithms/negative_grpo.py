"""Negative-enhanced GRPO: a perfect completion that nobody wrote makes groups of failures count."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import ClippedRatio


@dataclass(frozen=True)
class NegativeGRPO(ClippedRatio):
    """Negative-enhanced Group Relative Policy Optimization (arXiv:2509.18851), which its authors call
    NGRPO; `ngrpo` is another method, N-GRPO. A group's mean and deviation include `virtual` further
    rewards of `max_reward`, so that a group of failures is discouraged instead of ignored. Negative
    updates are clipped sooner than positive ones.

    Degenerate cases: a group in which all have the greatest reward has advantage exactly 0; with virtual
    = 0 it is GRPO; a single completion is compared with the virtual ones alone.
    """

    name = "negative_grpo"
    label = "NGRPO (negative)"
    paper = "NGRPO: Negative-enhanced Group Relative Policy Optimization, arXiv:2509.18851"
    summary = "GRPO with a virtual completion of greatest reward in each group: groups of failures count"
    claim = (
        "Groups in which all fail become a signal, and Qwen2.5-Math-7B ends higher than with PPO, GRPO, "
        "DAPO and PSR-NSR on MATH500, AMC23 and AIME2025 (abstract, which gives no number)."
    )
    formula = (
        "A_i = (r_i − mean r⁺)/(std r⁺ + ε), r⁺ the group's rewards and `virtual` times max_reward;  "
        "loss = token mean of −min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) A_i)"
    )
    departures = (
        "The authors' code gives a group of one completion its plain reward as advantage. Their script "
        "leaves groups that are all solved out of the batch; here their advantages are 0 and they count in "
        "its average. It makes four updates per rollout batch (train.num_minibatches = 4) and keeps its "
        "library's entropy bonus of 0.001 (modify.entropy_bonus); neither is a default here. "
        "modify.zero_variance_filter and modify.dynamic_sampling remove the groups of failures that the "
        "method needs. Their token mean is that of each micro-batch. Only the paper's abstract was read. A "
        "reward above max_reward stops the run."
    )
    evidence = (
        "verified: advantage, ε, one virtual reward of 1, clip range and token mean in the authors' code "
        "and script (nangongrui-ngr/NGRPO@e7a3804, verl/trainer/ppo/core_algos.py: "
        "compute_ngrpo_outcome_advantage, compute_policy_loss; "
        "train_scripts/train_qwen2.5-math-7b_ngrpo.sh); advantages equal GRPO's on a batch that holds those "
        "completions"
    )
    reward_bounds = ("", "max_reward")

    averaging: parts.Averaging = "token_mean"
    max_reward: float = 1.0
    """Greatest reward that a completion can have."""
    virtual: int = 1
    """Virtual completions of that reward in each group."""
    clip_low: float = 0.16
    clip_high: float = 0.24
    epsilon: float = 1e-6
    """Added to the standard deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(virtual=self.virtual)
        parts.demand_scale(1, self.epsilon)
        parts.demand_unpenalized(self.beta, self.kl_placement)
        parts.demand_finite(max_reward=self.max_reward)

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        reward, group = batch.reward, batch.group
        parts.demand_range(reward, -math.inf, self.max_reward, "max_reward")
        size = parts.group_size(group).to(reward.dtype)
        total_size = size + self.virtual
        sampled_mean = parts.group_mean(reward, group)
        mean = (sampled_mean * size + self.max_reward * self.virtual) / total_size
        squares = parts.group_mean((reward - mean).square(), group) * size
        squares = squares + self.virtual * (self.max_reward - mean).square()
        spread = (squares / (total_size - 1).clamp(min=1)).sqrt()
        lowest, highest = parts.group_extremes(reward, group)
        # Rounding must not give a signal to rewards that are all one, the virtual ones among them.
        equal = (lowest == highest) & ((lowest == self.max_reward) | (self.virtual == 0))
        return ((reward - mean) / (spread + self.epsilon)).masked_fill(equal, 0.0)
