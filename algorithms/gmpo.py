"""GMPO: the geometric mean of clipped token ratios."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, Metric, ModelOutput
from grpobench.algorithms.policy_gradient import GroupNormalized


@dataclass(frozen=True)
class GMPO(GroupNormalized):
    """Geometric-Mean Policy Optimization (arXiv:2507.20673): each token's log ratio is clipped on the
    side that the advantage pushes it to. A response's weight is the exponential of their mean.

    Degenerate cases: a one-token response has GRPO's clipped ratio with the range e^±clip; an empty one
    has weight 1 and no gradient; on policy the gradient is GRPO's; an advantage of 0 clips nothing and
    counts nothing.
    """

    name = "gmpo"
    paper = "Geometric-Mean Policy Optimization, arXiv:2507.20673"
    summary = "geometric instead of arithmetic mean of token ratios, each clipped in log space, wider range"
    claim = (
        "A geometric mean suffers less from single tokens with extreme ratios than GRPO's arithmetic one. "
        "It trains more stably and adds up to 4.1 % to mean pass@1 in math at 7B (abstract)."
    )
    formula = (
        "ℓ_t = min(log ρ_t, clip_high) if A_i > 0, max(log ρ_t, −clip_low) if A_i < 0;  "
        "loss = −1/B Σ_i exp(1/|o_i| Σ_t ℓ_t) A_i"
    )
    departures = "None. β > 0 adds a KL penalty; the paper trains without one."
    evidence = "verified: the paper's formula; loss and gradient equal TRL 1.16's experimental GMPOTrainer's"
    metrics = (
        Metric(
            "policy/log_clip_low",
            "share of tokens",
            "mean of [log ratio < -clip_low and A < 0] over written tokens",
        ),
        Metric(
            "policy/log_clip_high",
            "share of tokens",
            "mean of [log ratio > clip_high and A > 0] over written tokens",
        ),
        *parts.KL_METRICS,
    )

    clip_low: float = 0.4
    """Lower clip range of a token's log ratio."""
    clip_high: float = 0.4
    """Upper clip range of a token's log ratio."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(clip_low=self.clip_low, clip_high=self.clip_high)

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        log_ratio, advantage = now.logp - batch.old_logp, signal.advantage
        low, high = (
            (log_ratio < -self.clip_low) & (advantage < 0),
            (log_ratio > self.clip_high) & (advantage > 0),
        )
        clipped = log_ratio.masked_fill(low, -self.clip_low).masked_fill(high, self.clip_high)
        weight = parts.sequence_mean(clipped, batch.completion_mask).exp()
        # One term per token, so that every averaging means something; their mean is the response's term.
        return Loss(
            weight[:, None] * advantage,
            {
                "policy/log_clip_low": low.float(),
                "policy/log_clip_high": high.float(),
            },
        )
