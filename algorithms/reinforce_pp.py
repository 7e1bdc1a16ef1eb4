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
    """REINFORCE++ (arXiv:2501.03262): the undiscounted return of each token, from which the KL penalty of
    that token and all later ones is taken, whitened over the batch's tokens; PPO's clip.

    Degenerate cases: a batch of equal returns gives advantage exactly 0. There is no baseline per problem,
    so a group of equal rewards gets what its reward is worth in the batch, and groups of one sample are as
    good as any.
    """

    name = "reinforce_pp"
    paper = (
        "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization, "
        "arXiv:2501.03262"
    )
    summary = "returns with a per-token KL penalty, whitened over the batch's tokens; no groups; PPO's clip"
    formula = (
        "R_t = r − β Σ_{s≥t} log π_old/π_ref(o_s);  A_t = (R_t − mean R)/std R over the batch's tokens;  "
        "loss = token mean of −min(ρ_t A_t, clip(ρ_t, 1−clip_low, 1+clip_high) A_t)"
    )
    departures = (
        "β is 0 by default, and then every token of a completion has one return; set beta for the paper's "
        "penalty, which is 0.01 by default in the first author's library. There k1 of a token is held in "
        "[−10, 10] and the variance is at least 1e-8; here nothing bounds k1, and 1e-8 is added. The paper "
        "samples one completion per prompt: set train.group_size = 1 and more train.prompts_per_step."
    )
    evidence = (
        "verified: the formula of the paper's text; returns, whitening by the population's variance, clip "
        "and mean over tokens in the first author's library (OpenRLHF/OpenRLHF@3c3be62, "
        "openrlhf/trainer/ppo_utils/experience_maker.py, openrlhf/models/loss.py); verl's code has the "
        "sample's variance"
    )
    metrics = (*parts.CLIP_METRICS, *parts.KL_METRICS)

    averaging: parts.Averaging = "token_mean"
    """How token terms are averaged."""
    kl_placement: Literal["loss", "reward", "advantage"] = "advantage"
    """Where the KL penalty goes: "advantage" takes from each token's return the k1 of that token and all
    later ones (the paper), "reward" that of the whole completion, "loss" adds a term to the loss."""

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        return batch.reward

    def compute_signal(self, batch: Batch, models: Models) -> Advantage:
        signal = super().compute_signal(batch, models)
        return dataclasses.replace(signal, advantage=parts.whiten(signal.advantage, batch.completion_mask))
