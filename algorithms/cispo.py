"""CISPO: the weight of a token is clipped, never its gradient."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, ModelOutput
from grpobench.algorithms.policy_gradient import GroupNormalized


@dataclass(frozen=True)
class CISPO(GroupNormalized):
    """Clipped IS-weight Policy Optimization (MiniMax-M1, arXiv:2506.13585).

    Degenerate cases: on policy every weight is 1 and the gradient is REINFORCE's; a token whose ratio
    exceeds the cap has the cap as weight and is still trained.
    """

    name = "cispo"
    paper = (
        "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention, arXiv:2506.13585; the "
        "cap: The Art of Scaling Reinforcement Learning Compute for LLMs, arXiv:2510.13786"
    )
    summary = "policy gradient whose importance weights are truncated, so that no token loses its gradient"
    claim = (
        "With truncated weights no token is lost, least of all the rare ones that turn a chain of thought: "
        "with the base model of Qwen2.5-32B it does better on AIME 2024 than DAPO and GRPO in as many steps, "
        "and reaches in half of the steps what DAPO reaches."
    )
    formula = "loss = −1/Σ|o_i| Σ_i Σ_t sg[clip(ρ_t, ratio_floor, ratio_cap)] A_i log π_θ(o_it)"
    departures = (
        "ratio_cap is the largest weight itself, as in TRL and arXiv:2510.13786, which takes 5. The paper "
        "writes 1 + ε_high, so its ε_high is ratio_cap − 1, and publishes no value; libraries disagree "
        "which of the two their option means. There is no lower bound by default, as in the paper's "
        "experiments. These also have DAPO's dynamic sampling and overlong penalty, which are off here "
        "(modify.dynamic_sampling, modify.overlong_buffer). "
        'ScaleRL\'s objective (arXiv:2510.13786) is this one with scale = "batch_centered", '
        'averaging = "prompt_mean", modify.zero_variance_filter and sampler.old_logp = "sampler"; its '
        "permanent removal of problems that are nearly always solved is not here."
    )
    evidence = "verified: the paper's formula; loss and gradient equal TRL 1.16's"
    metrics = (parts.TRUNCATED_METRIC, *parts.KL_METRICS)

    averaging: parts.Averaging = "token_mean"
    ratio_cap: float = 5.0
    """Largest weight of a token, 1 + ε_high."""
    ratio_floor: float = 0.0
    """Smallest weight of a token, 1 − ε_low; 0 sets no bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_cap(self.ratio_cap)
        parts.demand_unit(ratio_floor=self.ratio_floor)

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        # Detached: log π alone carries the gradient, so that a token beyond a bound is still trained.
        ratio = parts.importance_ratio(now.logp, batch.old_logp).detach()
        terms = ratio.clamp(self.ratio_floor, self.ratio_cap) * signal.advantage * now.logp
        return Loss(terms, {parts.TRUNCATED_METRIC.name: (ratio > self.ratio_cap).float()})
