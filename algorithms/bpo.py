"""BPO: a token is weighed by how much of the others' probability has changed, not by its ratio."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, ModelOutput
from grpobench.algorithms.policy_gradient import GroupNormalized


@dataclass(frozen=True)
class BPO(GroupNormalized):
    """Bellman Policy Optimization (arXiv:2609.15987): along a response the advantages of policy mirror
    descent add up to R − V(x), so that its condition needs no value between. Linearized, with the binary KL
    in place of that over the vocabulary, it is GRPO with a ratio of complementary probabilities as weight:
    ∇(log π + KL_bin(μ‖π)) = (1 − μ)/(1 − π)·∇log π.

    Degenerate cases: where the policy is the sampler every weight is 1 and the gradient is REINFORCE's with
    GRPO's advantages; improbable tokens have weights near 1 however far their ratio is from it; a token of
    probability 1 has at most the weight (1 + smoothing)/smoothing; groups of equal rewards and of one
    completion have advantage exactly 0; an empty completion has no loss term.
    """

    name = "bpo"
    paper = "Bellman Policy Optimization, arXiv:2609.15987"
    summary = "GRPO whose token weights are ratios of complementary probabilities, (1 − μ)/(1 − π)"
    claim = (
        "Derived without a critic from policy mirror descent, whose optimum it shares before it is "
        "approximated; in place of the importance ratio its weight takes the mean of AIME 2024 to 2026 from "
        "the 39.5 of GRPO and the 47.4 of CISPO to 50.5 at their peaks with Qwen3-30B-A3B-Base (numbers "
        "second-hand)."
    )
    formula = (
        "ω_t = (1 + smoothing − μ(o_t))/(1 + smoothing − π(o_t)), μ the sampler's probability;  M_t = 0 "
        "where ω_t > 1 + clip_high and A_i > 0 or ω_t < 1 − clip_low and A_i < 0, else 1;  loss = "
        "−1/B Σ_i 1/|o_i| Σ_t sg[M_t·min(ω_t, ratio_cap)] A_i log π(o_t)"
    )
    departures = (
        "The paper gives no bounds for its mask, by accounts of it; 0.2 is GRPO's, and its own GRPO has 0.28 "
        "above. It makes eight updates per rollout batch (train.num_minibatches = 8), since with one every "
        'ω is 1, and replays the sampler\'s routes (sampler.router_replay = "R3"). Its derivation has a '
        "reward at the end and deterministic transitions, so that episodes with an environment are beyond "
        "it. sampler.correction would weigh tokens by the sampler twice: leave it off."
    )
    evidence = (
        "reconstruction: loss, smoothing, cap and averaging are from two accounts of the paper and a trainer "
        "that others wrote for TRL (behroozazarkhalili/trl@a1cc53e, trl/experimental/bpo/bpo_trainer.py), "
        "which agree; its authors have published no code. Value and gradient equal that trainer's, restated "
        "in the tests, and autograd of log π + the binary KL"
    )
    metrics = (*parts.CLIP_METRICS, parts.TRUNCATED_METRIC, *parts.KL_METRICS)

    clip_low: float = 0.2
    """How far below 1 the weight of a token of negative advantage may be."""
    clip_high: float = 0.2
    """How far above 1 the weight of a token of positive advantage may be."""
    smoothing: float = 0.1
    """ε, added to both complementary probabilities, so that a sure token has a finite weight."""
    ratio_cap: float = 3.0
    """C, largest weight of a token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_clip(self.clip_low, self.clip_high)
        parts.demand_cap(self.ratio_cap)
        if not 0 < self.smoothing < float("inf"):
            raise ValueError("smoothing: must be above 0 and finite")

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        # Detached: weight and mask multiply log π, which alone carries the gradient.
        complement, sampled = (1 + self.smoothing - p.exp() for p in (now.logp.detach(), batch.sampler_logp))
        ratio = sampled / complement
        shares = parts.clip_shares(ratio, signal.advantage, self.clip_low, self.clip_high)
        masked = (shares["policy/clip_low"] + shares["policy/clip_high"]).bool()
        # The mask is that of the weight before the cap.
        weight = ratio.clamp(max=self.ratio_cap).masked_fill(masked, 0.0)
        truncated = {parts.TRUNCATED_METRIC.name: (ratio > self.ratio_cap).float()}
        return Loss(weight * signal.advantage * now.logp, {**shares, **truncated})
