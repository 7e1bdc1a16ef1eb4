"""GDPO: every reward normalized for itself before they are added up."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import ClippedRatio


@dataclass(frozen=True)
class GDPO(ClippedRatio):
    """Group reward-Decoupled Normalization Policy Optimization (arXiv:2601.05242): each score of the
    reward is normalized in its group. The weighted sum is divided by its standard deviation over the
    batch; its mean is 0, since every group's is.

    Degenerate cases: a group in which every score is equal, and a group of one completion, have advantage
    exactly 0; a score that is equal in a group adds nothing there, whatever its weight. A single score is
    normalized in its group like GRPO's reward, then over the batch.
    """

    name = "gdpo"
    paper = (
        "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization, "
        "arXiv:2601.05242"
    )
    summary = (
        "each score of the reward normalized in its group, then weighed, added up and scaled by the batch"
    )
    claim = (
        "Of several rewards that are added before they are normalized, as in GRPO, different combinations "
        "get equal advantages. Normalized apart they converge better, in tool calls, math and code."
    )
    formula = (
        "S_i = Σ_k w_k (r_ki − mean r_k)/(std r_k + ε), means and deviations of the group;  A_i = S_i/(std "
        "S of the batch + ε);  loss = −1/B Σ_i 1/|o_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) "
        "A_i)"
    )
    departures = (
        "The weights are the reward's. Other parts of the reward (a KL penalty, a penalty for overlong "
        "completions) have no weight: they are centered in their group and added unscaled, so that their "
        "factor keeps its meaning. The authors' code divides by the deviation over tokens; their paper, "
        "like this, divides by that over completions."
    )
    evidence = "verified: the paper's text; advantages equal TRL 1.16's with the same rewards and weights"
    minimum_group = 2
    reads_components = True
    credits_turns = False  # its advantages are of components, not of the reward

    ddof: int = 1
    """Degrees of freedom subtracted in the standard deviation: 0 or 1."""
    epsilon: float = 1e-4
    """Added to the standard deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_scale(self.ddof, self.epsilon)

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        remainder, total = batch.reward, torch.zeros_like(batch.reward)
        for name, weight in batch.weights.items():
            score = batch.scores[name]
            has = (~score.isnan()).nonzero().squeeze(-1)  # elsewhere it does not apply
            score_advantage = parts.group_advantage(
                score[has], batch.group[has], "mean", "group", self.ddof, self.epsilon
            )
            total = total + weight * torch.zeros_like(total).index_copy(0, has, score_advantage)
            remainder = remainder - weight * score.nan_to_num()
        total = total + parts.centered(remainder, batch.group, parts.group_mean(remainder, batch.group))
        freedom = max(1, len(batch) - self.ddof)
        return total / ((total.square().sum() / freedom).sqrt() + self.epsilon)
