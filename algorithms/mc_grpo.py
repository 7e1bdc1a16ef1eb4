"""MC-GRPO: the median as baseline, for groups of few samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import ClippedRatio


@dataclass(frozen=True)
class MCGRPO(ClippedRatio):
    """Median-Centered GRPO (arXiv:2601.22582): G + 1 completions per problem are compared with their
    median, which one lucky completion does not move. The median completion (the pivot) has advantage 0
    and is left out, so G are trained on. train.group_size is G + 1 and should be odd.

    Degenerate cases: a group of equal rewards has advantage exactly 0; nothing is left of a group of one
    completion. Of several completions with the median reward the longest is the pivot; the others have
    advantage 0. The median of an even group is the mean of the middle two; if they differ, there is no
    pivot. With rewards of 0 and 1 and an odd group, most completions equal the median, the deviation is
    0, and every other completion has advantage ±1/ε.
    """

    name = "mc_grpo"
    label = "MC-GRPO"
    paper = (
        "MC-GRPO: Median-Centered Group Relative Policy Optimization for Small-Rollout Reinforcement "
        "Learning, arXiv:2601.22582"
    )
    summary = "median of G + 1 samples as baseline, the median sample left out; for small groups"
    claim = (
        "With few rollouts a noisy mean gives advantages the wrong sign. With the median training is "
        "steadier and more accurate, and groups of 2 come within 1 % of groups of 8 (abstract)."
    )
    formula = (
        "A_i = (r_i − median r) / (median |r − median r| + ε), without the sample that is the median;  "
        "loss = −1/B Σ_i 1/|o_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) A_i)"
    )
    departures = (
        "Set train.group_size to one more than the completions to train on. No KL penalty by default; the "
        "authors have β = 0.04 and two epochs per batch (train.epochs). Their code also multiplies a "
        "group's advantages by its size over the number of nonzero ones, which is left out because the "
        "described method does not have it. Of several completions with the median reward they leave out "
        "the one that the sort puts first, and their median of an even group is the lower of the middle "
        "two."
    )
    evidence = (
        "verified: median, pivot, median absolute deviation, ε, clip and the mean over each completion in "
        "the authors' code (lotusroot-kim/MC-GRPO@da07745, src/open_r1/grpo_trainer_gsm.py, "
        "scripts/MCGRPO_gsm.sh, recipes/gsm8k/Qwen3-1.7B.yaml); of the paper, only the abstract was read"
    )
    minimum_group = 3

    scale: Literal["median", "group", "none"] = "median"
    """What divides the centered reward: the median absolute deviation (the authors), the group's standard
    deviation (ddof 1), or nothing."""
    epsilon: float = 1e-3
    """Added to the deviation; its inverse is the minority's advantage where rewards are 0 and 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_scale(0, self.epsilon)

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        median = parts.group_baseline(batch.reward, batch.group, "median")
        centered = parts.centered(batch.reward, batch.group, median)
        if self.scale == "median":
            return centered / (parts.group_baseline(centered.abs(), batch.group, "median") + self.epsilon)
        if self.scale == "group":
            return centered / (parts.group_std(batch.reward, batch.group, 1) + self.epsilon)
        return centered

    def row_groups(self, batch: Batch) -> torch.Tensor:
        return parts.rows(batch).masked_fill(find_pivots(batch), -1)


def find_pivots(batch: Batch) -> torch.Tensor:
    """Bool (B,): the longest completion of each group whose reward is the median; none in an even group whose
    middle two differ."""
    middle = batch.reward == parts.group_baseline(batch.reward, batch.group, "median")
    pivots = torch.zeros_like(middle)
    for number in batch.group.unique():
        rows = (middle & (batch.group == number)).nonzero().squeeze(-1).tolist()
        texts = [batch.completion[row, batch.completion_mask[row]].tolist() for row in rows]
        if rows:  # the tokens break ties, so that the choice does not depend on the order of rows
            pivots[max(zip(map(len, texts), texts, rows, strict=True))[-1]] = True
    return pivots
