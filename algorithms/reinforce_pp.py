"""REINFORCE++: returns whitened over the whole batch instead of compared in groups."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import ClippedRatio


@dataclass(frozen=True)
class ReinforcePP(ClippedRatio):
    """REINFORCE++ (arXiv:2501.03262): the return of a token is the reward minus the KL penalty of that
    token and all later ones, undiscounted. Returns are whitened over the batch's tokens; the objective is
    PPO's clip.

    Degenerate cases: a batch of equal returns has advantage exactly 0. There is no baseline per problem,
    so groups of equal rewards give a signal, and groups of one completion work as well as others.
    """

    name = "reinforce_pp"
    label = "REINFORCE++"
    paper = (
        "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization, "
        "arXiv:2501.03262"
    )
    summary = "returns with a per-token KL penalty, whitened over the batch's tokens; no groups; PPO's clip"
    claim = (
        "Advantages normalized over the batch are nearly unbiased, those normalized in a group are not. "
        "Training with human preferences is more stable and better than with other methods without a "
        "critic (abstract, which gives no number)."
    )
    formula = (
        "R_t = r − β Σ_{s≥t} log π_old/π_ref(o_s);  A_t = (R_t − mean R)/std R over the batch's tokens;  "
        "loss = token mean of −min(ρ_t A_t, clip(ρ_t, 1−clip_low, 1+clip_high) A_t)"
    )
    departures = (
        "β is 0 by default, so all tokens of a completion have one return; the first author's library has "
        "0.01. It clamps k1 of a token to [−10, 10] and the variance to at least 1e-8; here k1 is unbounded "
        "and 1e-8 is added. The paper samples one completion per prompt: set train.group_size = 1 and more "
        "train.prompts_per_step."
    )
    evidence = (
        "verified: the paper's formula; returns, whitening by the population's variance, clip and token "
        "mean in the first author's library (OpenRLHF/OpenRLHF@3c3be62, "
        "openrlhf/trainer/ppo_utils/experience_maker.py, openrlhf/models/loss.py); verl's code uses the "
        "sample's variance"
    )

    averaging: parts.Averaging = "token_mean"
    kl_placement: Literal["loss", "reward", "advantage"] = "advantage"

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        return batch.reward

    def compute_signal(self, batch: Batch, models: Models) -> Advantage:
        signal = super().compute_signal(batch, models)
        return dataclasses.replace(signal, advantage=parts.whiten(signal.advantage, batch.completion_mask))
