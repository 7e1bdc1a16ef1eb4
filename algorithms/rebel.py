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
    Reader,
    Reading,
    Role,
    Rowwise,
    Signal,
)


@dataclass(frozen=True)
class Regressed(Signal):
    """Rows of a problem are one unit."""

    size: Rowwise
    """Rows in each row's group."""


@dataclass(frozen=True)
class REBEL(Algorithm[Regressed]):
    """Regressing Relative Rewards (arXiv:2404.16767), eq. 4, over all pairs of a group.

    The sum over pairs is ``mean over pairs of (d_i − d_j)² = 2/(G − 1) Σ_i (d_i − mean d)²``, so that every
    row carries a term of its own. On policy its gradient is 4/η times that of RLOO.
    Degenerate cases: a group of one row makes no pair and is left out, and so is a group of equal rewards,
    whose pairs would only hold the policy where it was; an empty completion has log-ratio 0.
    """

    name = "rebel"
    paper = "REBEL: Reinforcement Learning via Regressing Relative Rewards, arXiv:2404.16767"
    summary = "squared error between differences of log-ratios and differences of rewards; no clip, no critic"
    formula = (
        "d_i = (1/η)·Σ_t log π/π_old(o_i) − r_i;  loss = mean over problems of the mean over pairs i < j of "
        "(d_i − d_j)²"
    )
    departures = (
        "The paper draws two completions per problem and regresses until convergence; here all pairs of the "
        "group count and the recipe sets the number of updates. The paper tunes η per task; 1 is its choice "
        "for summaries (from memory). Groups of equal rewards are left out."
    )
    evidence = (
        "reconstruction: equation and η are from memory, because the paper was not read here; checked by "
        "pairs worked by hand and, on policy, RLOO's gradient"
    )
    minimum_group = 2
    metrics = (
        Metric(
            "regression/error", "reward²", "mean of (d_i − d_j)² over pairs before the update step", "lower"
        ),
    )

    eta: float = 1.0
    """η, the step size: how many nats of log-ratio a difference of 1 in reward asks for."""

    def __post_init__(self) -> None:
        if not 0 < self.eta < float("inf"):
            raise ValueError("eta: must be positive and finite")

    def credit(self, batch: Batch, models: Reader) -> Regressed:
        alike = parts.group_equal(batch.reward, batch.group)
        unit = torch.where(alike, torch.full_like(batch.group, -1), batch.group)
        return Regressed(unit, parts.group_size(batch.group).to(batch.reward.dtype))

    def loss(self, batch: Batch, signal: Regressed, now: Mapping[Role, Reading]) -> Loss:
        log_ratio = ((now["policy"].logp - batch.old_logp) * batch.written).sum(-1)
        residual = log_ratio / self.eta - batch.reward
        centred = residual - parts.group_mean(residual, batch.group)
        terms = 2 * signal.size / (signal.size - 1).clamp(min=1) * centred.square()
        return Loss(terms, {"regression/error": terms.detach()})

    def weigh(self, batch: Batch) -> torch.Tensor:
        return parts.per_sequence(batch)
