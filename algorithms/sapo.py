"""SAPO: a smooth gate instead of a clip."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, Metric, ModelOutput
from grpobench.algorithms.policy_gradient import GroupNormalized


@dataclass(frozen=True)
class SAPO(GroupNormalized):
    """Soft Adaptive Policy Optimization (arXiv:2511.20347).

    Degenerate cases: on policy the gate has slope 1 and the gradient is GRPO's. As the ratio grows, the
    slope goes to 0. As the ratio falls to 0, the slope stays above ¾ at these temperatures, and a token's
    gradient vanishes only with its ratio. As both temperatures go to 0, it becomes the unclipped ratio,
    up to a constant.
    """

    name = "sapo"
    paper = "Soft Adaptive Policy Optimization, arXiv:2511.20347"
    summary = "sigmoid gate on each token's ratio in place of clipping, steeper for negative advantages"
    claim = (
        "A soft gate weakens the tokens that are off policy and keeps the signal of all others, which "
        "clips lose. Training is steadier and pass@1 in math higher than with GRPO and GSPO at equal "
        "budgets (abstract, which gives no number)."
    )
    formula = (
        "loss = −1/B Σ_i 1/|o_i| Σ_t (4/τ) σ(τ(ρ_t − 1)) A_i;  τ = temperature_positive if A_i > 0, else "
        "temperature_negative"
    )
    departures = "None."
    evidence = "verified: the paper's formula; loss and gradient equal TRL 1.16's"
    metrics = (
        Metric(
            "policy/gate",
            "factor",
            "mean slope of the gate, 4σ(1 − σ): 1 on policy, near 0 where the ratio is large",
        ),
        *parts.KL_METRICS,
    )

    temperature_positive: float = 1.0
    """τ where the advantage is positive."""
    temperature_negative: float = 1.05
    """τ elsewhere."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 < t < float("inf") for t in (self.temperature_positive, self.temperature_negative)):
            raise ValueError("temperature_positive and temperature_negative: must be above 0 and finite")

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        ratio = parts.importance_ratio(now.logp, batch.old_logp)
        positive = signal.advantage > 0
        temperature = torch.full_like(ratio, self.temperature_negative).masked_fill(
            positive, self.temperature_positive
        )
        gate = torch.sigmoid(temperature * (ratio - 1))
        slope = 4 * gate.detach() * (1 - gate.detach())
        return Loss(4 / temperature * gate * signal.advantage, {"policy/gate": slope})
