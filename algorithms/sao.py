"""SAO: one rollout per prompt, a critic, and no gradient for tokens that have left the sampler's range."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Loss, Metric, Tokenwise
from grpobench.algorithms.vapo import VAPO

RANGE_METRICS = (
    Metric("policy/below_range", "share of tokens", "tokens with π/sampler ≤ 1 − clip_low, left out"),
    Metric("policy/above_range", "share of tokens", "tokens with π/sampler ≥ 1 + clip_high, left out"),
)


@dataclass(frozen=True)
class SAO(VAPO):
    """Single-Rollout Asynchronous Optimization (arXiv:2607.07508), with which GLM-5.2 was trained: VAPO's
    critic and its λ by length, without imitation, and a ratio to the sampler whose range has two sides
    whatever the advantage.

    Degenerate cases: where every ratio is in range and the sampler is the old policy it is VAPO with nll = 0
    and these settings without a clip; a completion of one token has λ = 1/3 and of an empty one nothing;
    clip_low = 1 with an infinite clip_high leaves no token out; during the critic's warm-up nothing moves the
    policy.
    """

    name = "sao"
    label = "SAO"
    paper = "Single-Rollout Asynchronous Optimization for Agentic Reinforcement Learning, arXiv:2607.07508"
    summary = "PPO with one rollout per prompt: tokens whose ratio to the sampler leaves a range are left out"
    claim = (
        "In asynchronous training groups wait for their slowest rollout; a critic in their place and strict "
        "masks train stably for 1,000 steps: 97.3 on AIME 2025 and 29.8 on SWE-Bench Verified with "
        "Qwen3-30B-A3B, where GRPO with the same masks has 93.5 and 27.0 (numbers second-hand)."
    )
    formula = (
        "r_t = π(o_t)/π_sampler(o_t);  f(r) = r for 1 − clip_low < r < 1 + clip_high, else 0;  loss = token "
        "mean of −sg[f(r_t)]·A_t·log π(o_t) + ½(V − R)²;  A_t by GAE with λ = max(0, 1 − "
        "1/(length_scale·|o|)), R_t with λ = trace, both from a token that the policy wrote to the next one, "
        "replies left out"
    )
    departures = (
        "The number of rollouts per prompt is the recipe's: train.group_size = 1 is the paper's. Its critic "
        "makes two updates for each of the policy, learns at 5e-6 where the policy has 1e-6, keeps its "
        "attention frozen and was trained before; here it makes as many updates as the policy, with all "
        "weights; set train.learning_rate. Its ranges are clip_low = 0.3 and clip_high = 5 in mathematics, "
        "the defaults, and 0.8 and 3 in coding. Whether it whitens advantages and clips values could not be "
        "read; neither is on here. Asynchronous rollouts are sampler.lag. sampler.correction would weigh "
        "tokens by the sampler twice: leave it off."
    )
    evidence = (
        "reconstruction: equations 1 to 5, the settings and the numbers are from quotations of the paper and "
        "three summaries, which agree; its authors have published no code. The range and its gradient equal "
        "a reproduction by others (TorchTrade/torchtrade@5b1f72d, torchtrade/losses/sao_loss.py), the "
        "advantages those equations, both restated in the tests"
    )
    cost = VAPO.cost
    metrics = (*(metric for metric in VAPO.metrics if metric not in parts.CLIP_METRICS), *RANGE_METRICS)

    clip_low: float = 0.3
    """How far below 1 the ratio to the sampler may be, ε_ℓ; a token at or below the bound has no gradient."""
    clip_high: float = 5.0
    """How far above 1 it may be, ε_h."""
    length_scale: float = 1.5
    nll: float = 0.0
    whiten: bool = False
    value_clip: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dual_clip:
            raise ValueError("dual_clip: clip_low and clip_high bound the ratio on both sides already; use 0")

    def gain(self, batch: Batch, advantage: Tokenwise, logp: Tokenwise) -> Loss:
        return gain_in_range(logp - batch.sampler_logp, advantage, self.clip_low, self.clip_high)


def gain_in_range(log_ratio: Tokenwise, advantage: Tokenwise, low: float, high: float) -> Loss:
    """Ratio times advantage where 1 − low < ratio < 1 + high, else 0, unreduced, with `RANGE_METRICS`."""
    ratio = log_ratio.detach().exp()
    below, above = ratio <= 1 - low, ratio >= 1 + high
    outside = below | above
    # Masked before the exponential: its gradient would be 0 times infinity where the ratio overflows.
    terms = (advantage * log_ratio.masked_fill(outside, 0.0).exp()).masked_fill(outside, 0.0)
    return Loss(terms, {"policy/below_range": below.float(), "policy/above_range": above.float()})
