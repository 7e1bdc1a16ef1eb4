"""REBEL: the policy's log-ratios are regressed on differences of rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import (
    Algorithm,
    Batch,
    Loss,
    Metric,
    ModelOutput,
    Models,
    Role,
    Rowwise,
    Signal,
    Tokenwise,
)


@dataclass(frozen=True)
class Regressed(Signal):
    """Rows of a problem are one unit."""

    reward: Rowwise
    """What is regressed on: the reward, of which the KL penalty is taken."""
    size: Rowwise
    """Rows in each row's group."""
    ref_logp: Tokenwise
    """log π_ref, shape (B, 0) when no reference is read."""


@dataclass(frozen=True)
class REBEL(Algorithm[Regressed]):
    """Regressing Relative Rewards (arXiv:2404.16767) over all pairs of a group.

    The mean over pairs of (d_i − d_j)² equals 2/(G − 1) Σ_i (d_i − mean d)², so every row has a term of
    its own. On policy, with groups of one size, the gradient is 4/η times RLOO's.
    Degenerate cases: a group of one row makes no pair and is left out; so is a group of equal rewards,
    whose pairs would only hold the policy where it was; an empty completion has log-ratio 0.
    """

    name = "rebel"
    paper = "REBEL: Reinforcement Learning via Regressing Relative Rewards, arXiv:2404.16767"
    summary = "squared error between differences of log-ratios and differences of rewards; no clip, no critic"
    claim = (
        "Regression on differences of rewards does without critic and clip, has the guarantees of natural "
        "policy gradient, and is as good as or better than PPO and DPO in text and images, cheaper than "
        "PPO (abstract, which gives no number)."
    )
    formula = (
        "d_i = (1/η)·Σ_t log π/π_old(o_i) − (r_i − β·Σ_t log π_old/π_ref(o_i));  loss = mean over problems "
        "of the mean over pairs i < j of (d_i − d_j)²"
    )
    departures = (
        "The authors draw two completions per problem and train four epochs on them; here all pairs of a "
        "group count and the recipe sets the number of updates. They multiply the difference of rewards by "
        "η instead of dividing the log-ratio, so their loss is η² times this one; with their default η = 1 "
        "both are equal. They subtract a KL to the reference from the rewards with a factor of 0.05: set "
        "beta = 0.05. They give a completion without an end a reward of −1 or −4. Groups of equal rewards "
        "are left out."
    )
    evidence = (
        "verified: the squared error over pairs of whole completions, η and the KL in the authors' code "
        "(ZhaolinGao/REBEL@4ad7c11, src/tldr/rebel.py, src/ultrafeedback/rebel.py); pairs by hand and, on "
        "policy, RLOO's gradient; the paper was not read"
    )
    minimum_group = 2
    metrics = (
        Metric(
            "regression/error", "reward²", "mean of (d_i − d_j)² over pairs before the update step", "lower"
        ),
        *parts.KL_METRICS,
    )

    eta: float = 1.0
    """η, the step size: how many nats of log-ratio a difference of 1 in reward asks for."""
    beta: float = 0.0
    """Weight of the KL to the reference that is taken from the rewards; 0 reads no reference model."""

    def __post_init__(self) -> None:
        parts.demand_positive(eta=self.eta)
        parts.demand_not_negative(beta=self.beta)

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        return ("reference",) if self.beta else ()

    def compute_signal(self, batch: Batch, models: Models) -> Regressed:
        reference = models.forward("reference", batch).logp if self.beta else parts.absent(batch)
        reward = parts.kl_penalized_reward(batch, reference, self.beta) if self.beta else batch.reward
        alike = parts.group_equal(reward, batch.group)
        unit = torch.where(alike, torch.full_like(batch.group, -1), batch.group)
        return Regressed(unit, reward, parts.group_size(batch.group).to(reward.dtype), reference)

    def loss(self, batch: Batch, signal: Regressed, now: Mapping[Role, ModelOutput]) -> Loss:
        logp = now["policy"].logp
        log_ratio = ((logp - batch.old_logp) * batch.completion_mask).sum(-1)
        residual = log_ratio / self.eta - signal.reward
        centered = residual - parts.group_mean(residual, batch.group)
        terms = 2 * signal.size / (signal.size - 1).clamp(min=1) * centered.square()
        metrics = {"regression/error": terms.detach()}
        if self.beta:
            metrics |= parts.kl_metrics(logp, signal.ref_logp)
        return Loss(terms, metrics)

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return parts.per_group(batch)
