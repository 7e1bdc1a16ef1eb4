"""Lite PPO: the two techniques of a long list that its authors keep."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.grpo import GRPO


@dataclass(frozen=True)
class LitePPO(GRPO):
    """Lite PPO (arXiv:2508.08221): PPO's clipped loss without a critic, rewards centered in their group and
    divided by the standard deviation of the batch, terms averaged over tokens. GRPO with these settings.

    Degenerate cases: a group of equal rewards and a group of one sample give advantage exactly 0.
    """

    name = "lite_ppo"
    paper = "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning, arXiv:2508.08221"
    summary = "group mean, batch standard deviation, mean over tokens; PPO's clip, no critic"
    formula = (
        "A_i = (r_i − mean r of the group) / (std r of the batch + ε);  loss = token mean of "
        "−min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) A_i)"
    )
    departures = (
        "None in the objective. The standard deviation is that of the batch's raw rewards, with ddof = 1."
    )
    evidence = "verified: the paper's text; loss and gradient equal TRL 1.16's with the same options"

    averaging: parts.Averaging = "token_mean"
    """How token terms are averaged."""
    scale: parts.Scale = "batch"
    """Which standard deviation divides the centered reward: that of the group, of its other rows (a row whose
    others are all equal is not divided), of the batch, or none."""
