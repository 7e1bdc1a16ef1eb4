"""FIPO: a token's advantage grows with how much the rest of its completion was reinforced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, Metric, ModelOutput
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized

SAFE_LOW, SAFE_HIGH = 0.8, 1.0
"""The range of the weight of a token whose ratio is too high for its negative advantage."""


@dataclass(frozen=True)
class FIPO(GroupNormalized, ClippedRatio):
    """Future-KL Influenced Policy Optimization (arXiv:2603.19835): DAPO whose advantage is multiplied,
    token by token, by the exponential of the discounted sum of log π − log π_old from that token to the end.

    Degenerate cases: on policy every weight is 1 and the gradient is DAPO's; so it is with influence_low =
    influence_high = 0 and drop_outliers = false; the weight carries no gradient; groups of equal rewards and
    of one completion have advantage exactly 0; an empty completion has no loss term.
    """

    name = "fipo"
    paper = "FIPO: Eliciting Deep Reasoning with Future-KL Influenced Policy Optimization, arXiv:2603.19835"
    summary = "DAPO whose token advantages grow where the rest of the completion became likelier"
    claim = (
        "Credit by what follows a token lets chains grow from 4,000 to over 10,000 tokens with "
        "Qwen2.5-32B, and takes AIME 2024 from the 50.0 % of DAPO to 58.0 % at its peak."
    )
    formula = (
        "F_t = Σ_{k≥t} γ^{k−t} [ρ_k ≤ dual_clip] log ρ_k, γ = 2^(−1/half_life);  "
        "f_t = clip(e^{F_t}, 1−influence_low, 1+influence_high), without gradient;  loss = −1/Σ|o_i| Σ_i Σ_t "
        "min(ρ_t f_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) f_t A_i), at least dual_clip f_t A_i if A_i < 0"
    )
    departures = (
        "Defaults are those of the paper's 32B model, whose weights lie between 1 and 1.2; for small "
        "models the authors' code recommends influence_low = 0.2, and the paper's 7B model has "
        "safety_ratio = 3. Where a negative advantage meets a ratio above safety_ratio the paper sets f to "
        "1 and the code clips it to [0.8, 1], as here, which is the same while influence_low is 0. The "
        "code leaves a completion with more than one token beyond the dual clip out of the average, too; "
        "here its terms are 0. It clamps log ρ to [−20, 20]; here it is not clamped. γ counts the policy's "
        "tokens alone, theirs tool output as well. ε is 1e-4; theirs is 1e-6. A step draws at most 9 more "
        "times for groups of equal rewards and then trains on what it has; theirs stops the run. Soft "
        "overlong punishment is off: modify.overlong_buffer = L/5 is their share of the limit L. They make "
        "8 updates per rollout batch: set train.num_minibatches, since with one update every weight is 1."
    )
    evidence = (
        "verified: the paper's text (equations 3 to 8, tables 2 and 3) and the authors' code and script in "
        "a copy that keeps their first commit (vukrosic/FIPO@1493daf, verl/trainer/ppo/core_algos.py: "
        "compute_policy_loss_future_kl, recipe/fipo/run_fipo_qwen2.5_32b.sh); loss and gradient equal "
        "those of that code and, without drop_outliers, of ms-swift (modelscope/ms-swift@3602360, "
        "swift/rlhf_trainers/grpo_trainer.py)"
    )
    cost = "further rollouts in place of groups of equal rewards"
    modifiers: ClassVar[Mapping[str, Any]] = {"dynamic_sampling": 9}
    metrics = (
        *parts.CLIP_METRICS,
        Metric("policy/influence_weight", "factor", "mean of f over written tokens, 1 on policy"),
        *parts.KL_METRICS,
    )

    averaging: parts.Averaging = "token_mean"
    clip_high: float = 0.28
    dual_clip: float = 10.0
    """Largest ratio that counts if the advantage is negative; tokens of a larger ratio are also left out of
    the sums over the rest of their completion. 0 sets no bound."""
    half_life: float = 32.0
    """Tokens after which the weight of a later token's log ratio has halved."""
    influence_low: float = 0.0
    """How far below 1 the weight f may fall."""
    influence_high: float = 0.2
    """How far above 1 the weight f may rise."""
    safety_ratio: float = 10.0
    """Ratio above which a token of negative advantage has a weight from 0.8 to 1; 0 turns this off."""
    drop_outliers: bool = True
    """Whether a completion of negative advantage is left out if more than one of its tokens has a ratio above
    `dual_clip`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_positive(half_life=self.half_life)
        parts.demand_unit(influence_low=self.influence_low)
        parts.demand_not_negative(influence_high=self.influence_high, safety_ratio=self.safety_ratio)

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        ratio = parts.importance_ratio(now.logp, batch.old_logp)
        negative = signal.advantage < 0
        beyond = (ratio > self.dual_clip) & bool(self.dual_clip)
        # Detached: the weight says how much a token counts, and is not itself to be made larger.
        shift = (now.logp.detach() - batch.old_logp).masked_fill(beyond, 0.0)
        future = parts.discounted_to_go(shift, batch.completion_mask, 2 ** (-1 / self.half_life))
        influence = future.exp().clamp(1 - self.influence_low, 1 + self.influence_high)
        if self.safety_ratio:
            risky = negative & (ratio > self.safety_ratio)
            influence = torch.where(risky, influence.clamp(SAFE_LOW, SAFE_HIGH), influence)
        terms = influence * parts.clipped_objective(
            ratio, signal.advantage, self.clip_low, self.clip_high, self.dual_clip
        )
        if self.drop_outliers:
            outliers = (negative & beyond & batch.completion_mask).sum(-1, keepdim=True)
            terms = terms.masked_fill(outliers > 1, 0.0)
        clipped = parts.clip_shares(ratio, signal.advantage, self.clip_low, self.clip_high)
        return Loss(terms, {**clipped, "policy/influence_weight": influence})
