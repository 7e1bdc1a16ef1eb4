"""BNPO: rewards normalized by a Beta density that follows the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Metric, Models, Rowwise
from grpobench.algorithms.policy_gradient import ClippedRatio

LARGEST = 1e6
"""Bound of 1/density, which is 0 at success rates of 0 and 1 and small far from those of the batch."""


@dataclass(frozen=True)
class BNPO(ClippedRatio):
    """Beta Normalization Policy Optimization (arXiv:2506.02864): the centered reward is divided by the
    density of Beta(α, β) at the group's success rate p. α = β = 1 only centers; α = β = 3/2 is
    proportional to GRPO's standard deviation. The paper sets α = 1 + a/3 and β = 1 + b/3, where Beta(a,
    b) has the mean and the variance (over groups, ddof 1) of the batch's success rates.

    Degenerate cases: groups of equal rewards (p is 0 or 1, where the density may be 0) and groups of one
    completion have advantage exactly 0. With one group or equal success rates nothing can be fitted and α
    = β = 1; neither falls below 1. 1/density is at most 10⁶. A reward outside [lowest, highest] is an
    error.
    """

    name = "bnpo"
    paper = "BNPO: Beta Normalization Policy Optimization, arXiv:2506.02864"
    summary = (
        "centered rewards over a Beta density of the group's success rate, fitted to each batch; PPO's clip"
    )
    claim = (
        "A normalization that follows the success rates of the policy has gradients of less variance than "
        "the fixed ones of REINFORCE and GRPO, trains more stably, and is the best of the policy-gradient "
        "methods in reasoning (abstract, which gives no number)."
    )
    formula = (
        "A_i = (r_i − p)/Beta(p; α, β), p the mean reward of the group, α = 1 + a/3, β = 1 + b/3, Beta(a, b) "
        "fitted to the p of the batch by moments;  loss = −1/B Σ_i Σ_t "
        "min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) A_i)"
    )
    departures = (
        "None for one reward of 0 or 1. Other rewards are mapped from [lowest, highest] to [0, 1], as in "
        "the authors' code. Their decomposition of several rewards is left out. If nothing can be fitted, "
        "their code divides by 0 or takes α = β = 1; here it is always the latter. They compare a group of "
        "one completion with 0. Other libraries' losses of this name may be only a mean over tokens."
    )
    evidence = (
        "verified: advantage, fit, bounds, both clips and the sum over tokens in the authors' code and "
        "script (changyi7231/BNPO@a9c51b9, recipe/bnpo/src/bnpo_ray_trainer.py, recipe/bnpo/run.sh); the "
        "two special cases by closed forms"
    )
    minimum_group = 2
    reward_bounds = ("lowest", "highest")
    metrics = (
        *parts.CLIP_METRICS,
        *parts.KL_METRICS,
        Metric("bnpo/alpha", "shape", "α of the Beta density that divides centered rewards"),
        Metric("bnpo/beta", "shape", "β of the Beta density that divides centered rewards"),
    )

    density: Literal["fitted", "flat", "deviation"] = "fitted"
    """fitted to each batch (the paper); flat (α = β = 1, only centers); or deviation (α = β = 3/2,
    proportional to the group's standard deviation)."""
    lowest: float = 0.0
    """Least reward possible."""
    highest: float = 1.0
    """Largest reward possible."""
    averaging: parts.Averaging = "sequence_sum"
    clip_high: float = 0.28
    dual_clip: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_unpenalized(self.beta, self.kl_placement)
        if not self.highest > self.lowest:
            raise ValueError("highest: must be above lowest")

    def shapes(self, batch: Batch) -> tuple[float, float]:
        """(α, β) of the density."""
        if self.density == "fitted":
            return fit_beta(group_rates(self.success(batch), batch.group))
        return (1.0, 1.0) if self.density == "flat" else (1.5, 1.5)

    def success(self, batch: Batch) -> Rowwise:
        """Rewards mapped to [0, 1]."""
        parts.demand_range(batch.reward, self.lowest, self.highest, "lowest and highest")
        success: Rowwise = (batch.reward - self.lowest) / (self.highest - self.lowest)
        return success.clamp(0, 1)

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        success = self.success(batch)
        rate = parts.group_mean(success, batch.group)
        alpha, beta = (rate.new_tensor(shape) for shape in self.shapes(batch))
        density: torch.Tensor = torch.distributions.Beta(alpha, beta).log_prob(rate).exp()
        return parts.centered(success, batch.group, rate) * (1 / density).clamp(max=LARGEST)

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        return dict(zip(("bnpo/alpha", "bnpo/beta"), self.shapes(batch), strict=True))


def group_rates(success: Rowwise, group: torch.Tensor) -> torch.Tensor:
    """Mean of each group, float64, one entry per group."""
    return torch.stack([success[group == number].double().mean() for number in group.unique()])


def fit_beta(rate: torch.Tensor) -> tuple[float, float]:
    """(α, β) = (1 + a/3, 1 + b/3) with Beta(a, b) fitted to success rates by moments; (1, 1) where they do
    not vary, and neither below 1."""
    if len(rate) < 2 or rate.max() == rate.min():
        return 1.0, 1.0
    mean, variance = rate.mean().item(), rate.var(correction=1).item()
    size = mean * (1 - mean) / variance - 1
    return max(1.0, 1 + size * mean / 3), max(1.0, 1 + size * (1 - mean) / 3)
