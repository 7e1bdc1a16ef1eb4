"""DPPO: a trust region of probabilities instead of ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, Metric, ModelOutput, Tokenwise
from grpobench.algorithms.policy_gradient import GroupNormalized


@dataclass(frozen=True)
class DPPO(GroupNormalized):
    """Divergence Proximal Policy Optimization (arXiv:2602.04879) with its binary approximations, which
    reduce the distribution to the written token against all others.

    A token is left out if its probability has already moved further than `threshold` in the direction in
    which its advantage pushes.
    Degenerate cases: on policy nothing is left out and the gradient is REINFORCE's; a rare token with a
    large ratio is kept while its probability is small; a likely token that loses much of it is left out
    although its ratio is near 1.
    """

    name = "dppo"
    paper = "Rethinking the Trust Region in LLM Reinforcement Learning, arXiv:2602.04879"
    summary = "tokens are left out by how far their probability moved (TV or KL), not clipped by their ratio"
    claim = (
        "A ratio clip holds rare tokens back too much and likely ones too little. A bound on how far "
        "probabilities move trains more stably and efficiently; less than 0.5 % of the updates make "
        "training unstable."
    )
    formula = (
        "D = |π_θ − π_old| (tv) or π_old log(π_old/π_θ) + (1−π_old) log((1−π_old)/(1−π_θ)) (kl), of the "
        "written token;  M = 0 where D > threshold and (π_θ − π_old)·A > 0, else 1;  A_i = r_i − mean r;  "
        "loss = −1/B Σ_i Σ_t sg[min(ρ_t, ratio_cap)·M_t] A_i log π_θ(o_it)"
    )
    departures = (
        "The region lies around the trainer's π_old; in the authors' runs it lies around the sampler's "
        'probabilities (bypass mode): set sampler.old_logp = "sampler". They clamp the log ratio to [−20, '
        "20]; here ratio_cap alone bounds it. Their top-k approximation is not here. Hours after their "
        "script was merged, verl's maintainers divided its sums over tokens by the longest response "
        '(b8d91ef8d); averaging = "constant" divides by the limit, a constant factor.'
    )
    evidence = (
        "verified: mask, cap, the 1e-8 of kl, sums over tokens, centered rewards without division, and both "
        "thresholds in the first author's loss and script (verl-project/verl@182383bbb, "
        "verl/trainer/ppo/core_algos.py: compute_policy_loss_dppo_tv, compute_policy_loss_dppo_kl; "
        "examples/dppo_trainer/run_qwen30b_dppo.sh)"
    )
    metrics = (
        Metric(
            "policy/divergence_masked",
            "share of tokens",
            "tokens left out because their probability moved further than the threshold",
        ),
        parts.TRUNCATED_METRIC,
        *parts.KL_METRICS,
    )

    averaging: parts.Averaging = "sequence_sum"
    scale: parts.Scale = "none"
    divergence: Literal["tv", "kl"] = "tv"
    """Total variation or KL divergence, of the written token against all others."""
    threshold: float = 0.15
    """Divergence beyond which a token is left out; the authors use 0.15 with tv and 0.05 with kl."""
    ratio_cap: float = 1e4
    """Largest weight of a token; the authors' 10⁴ hardly bounds it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_cap(self.ratio_cap)
        if not self.threshold > 0:
            raise ValueError("threshold: must be above 0")

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        # Detached: mask and weight multiply log π, which alone carries the gradient.
        logp, old = now.logp.detach(), batch.old_logp
        ratio = parts.importance_ratio(logp, old)
        further = (logp - old) * signal.advantage > 0
        masked = further & (self._divergence(logp, old) > self.threshold)
        weight = ratio.clamp(max=self.ratio_cap) * ~masked
        metrics = {
            "policy/divergence_masked": masked.float(),
            parts.TRUNCATED_METRIC.name: (ratio > self.ratio_cap).float(),
        }
        return Loss(weight * signal.advantage * now.logp, metrics)

    def _divergence(self, logp: Tokenwise, old: Tokenwise) -> Tokenwise:
        if self.divergence == "tv":
            return (logp.exp() - old.exp()).abs()
        # added as in the authors' code, so that a probability that rounds to 1 leaves something to the others
        complement_logp, old_complement_logp = ((1 - p.exp() + 1e-8).log() for p in (logp, old))
        return old.exp() * (old - logp) + (1 - old.exp()) * (old_complement_logp - complement_logp)
