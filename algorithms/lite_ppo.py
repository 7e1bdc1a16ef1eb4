"""Lite PPO: the two techniques of a long list that its authors keep."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.grpo import GRPO


@dataclass(frozen=True)
class LitePPO(GRPO):
    """Lite PPO (arXiv:2508.08221): PPO's clipped loss without a critic. Rewards are centered in their
    group and divided by the batch's standard deviation; terms are averaged over tokens. It is GRPO with
    these settings.

    Degenerate cases: groups of equal rewards and groups of one completion have advantage exactly 0.
    """

    name = "lite_ppo"
    label = "Lite PPO"
    paper = "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning, arXiv:2508.08221"
    summary = "group mean, batch standard deviation, mean over tokens; PPO's clip, no critic"
    claim = (
        "Two techniques, the batch's deviation under the group's mean and an average over tokens, are "
        "enough for PPO's loss without a critic to be better than GRPO and DAPO, with Qwen3 of 4B and 8B "
        "(the abstract gives no number)."
    )
    formula = (
        "A_i = (r_i − mean r of the group) / (std r of the batch + ε);  loss = token mean of "
        "−min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) A_i)"
    )
    departures = (
        "None in the objective. The standard deviation is that of the batch's raw rewards, with ddof = 1."
    )
    evidence = "verified: the paper's text; loss and gradient equal TRL 1.16's with the same options"

    averaging: parts.Averaging = "token_mean"
    scale: parts.Scale = "batch"
