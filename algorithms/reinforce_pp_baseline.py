"""REINFORCE++ with the group's mean as baseline."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Tokenwise
from grpobench.algorithms.policy_gradient import ClippedRatio


@dataclass(frozen=True)
class ReinforcePPBaseline(ClippedRatio):
    """REINFORCE++ w/ Baseline (arXiv:2501.03262): rewards are centered in their group, then whitened over
    the batch's tokens.

    Degenerate cases: if every group has equal rewards, the advantage is exactly 0. Beside other groups, a
    group of equal rewards is shifted by the batch's mean over tokens, which is 0 only if lengths and
    rewards are unrelated.
    """

    name = "reinforce_pp_baseline"
    label = "REINFORCE++ baseline"
    paper = (
        "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization, "
        "arXiv:2501.03262"
    )
    summary = "rewards centered in their group, then whitened over the batch's tokens; PPO's clip"
    claim = (
        "The group's mean as baseline and the batch's deviation as scale are sturdier in reasoning than "
        "normalization in a group, and better than PPO in long tasks of agents (abstract, which gives no "
        "number)."
    )
    formula = (
        "A'_i = r_i − mean r of the group;  A_t = (A'_i − mean A')/std A' over the batch's tokens;  "
        "loss = token mean of −min(ρ_t A_t, clip(ρ_t, 1−clip_low, 1+clip_high) A_t) + β·k2"
    )
    departures = (
        "No KL penalty by default; the paper adds k2 to the loss, with β = 1e-5 in the first author's "
        "script. That script also replaces groups of equal rewards: set modify.dynamic_sampling. Its "
        "variance is at least 1e-8; here 1e-8 is added."
    )
    evidence = (
        "verified: formula, whitening by the population's variance, k2, clip and token mean in the first "
        "author's library and script (OpenRLHF/OpenRLHF@3c3be62, "
        "openrlhf/trainer/ppo_utils/experience_maker.py, openrlhf/models/loss.py, "
        "examples/scripts/train_reinforce_baseline_hybrid_engine.sh); verl's code uses the sample's "
        "variance"
    )
    minimum_group = 2

    averaging: parts.Averaging = "token_mean"
    kl_estimator: parts.Estimator = "k2"

    def advantage(self, batch: Batch, models: Models) -> Tokenwise:
        centered = parts.centered(batch.reward, batch.group, parts.group_mean(batch.reward, batch.group))
        return parts.whiten(centered[:, None] * batch.completion_mask, batch.completion_mask)
