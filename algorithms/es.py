"""Evolution strategies: noise in the weights is weighed by what it earns, without a backward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import (
    Advantage,
    Algorithm,
    Batch,
    Loss,
    Metric,
    ModelOutput,
    Models,
    Role,
    Rowwise,
    WeightNoise,
)

SPREAD_METRIC = Metric("es/fitness_std", "reward", "standard deviation of the members' mean rewards")


@dataclass(frozen=True)
class ES(Algorithm[Advantage]):
    """Evolution strategies (arXiv:2509.24372): a population of weights θ + σ·ε_k answers the step's problems,
    and θ moves along Σ_k z_k·ε_k, where z_k says by how many deviations member k earned more than the others.
    Member k writes the k-th completion of every problem: train.group_size is the population.

    Degenerate cases: members of equal mean rewards, or one alone, make no update; with `mirrored` two members
    of opposite noise and equal rewards leave no trace; a member whose completions all failed to be graded is
    not part of the population.
    """

    name = "es"
    paper = "Evolution Strategies at Scale: LLM Fine-Tuning Beyond Reinforcement Learning, arXiv:2509.24372"
    summary = "a population of noisy weights; the noise of what earned more is added: no backward pass"
    claim = (
        "Full-parameter fine-tuning of billions of weights by evolution strategies tolerates late rewards "
        "better than reinforcement learning, depends less on the base model, hacks rewards less and is more "
        "stable (abstract)."
    )
    formula = (
        "F_k = mean reward of member k;  z_k = (F_k − mean F)/(std F + ε);  θ ← θ + α/K Σ_k z_k·ε_k, as "
        "descent along the gradient of −σ/K Σ_k z_k·log N(θ_k; θ, σ²I)"
    )
    departures = (
        "The gradient goes through the recipe's optimizer: the authors' update takes train.optimizer = "
        "'torch:SGD', train.max_grad_norm = inf and their α = 0.0005 as learning rate. They decode greedily; "
        "here members sample at the recipe's temperature, with the seeds that other arms' completions have. "
        "Their population is 30. They take noise off again by subtraction, which rounds; here the weights "
        "are restored. Their noise is drawn in the type of the weights, here in float32."
    )
    evidence = (
        "verified: σ, α, the population, z-scores with ε and the update "
        "(VsonicV/es-fine-tuning-paper@04d4075, countdown/es_fine-tuning_countdown.py); the update equals "
        "that loop, restated in the tests, and in expectation the gradient of the smoothed objective; of the "
        "paper only the abstract was read; arXiv:2608.27351, on the same subject, could not be read"
    )
    cost = "no backward pass; a copy of the weights while sampling, and completions of one member at a time"
    metrics = (SPREAD_METRIC,)

    has_advantages = True
    minimum_group = 2
    sigma: float = 1e-3
    """σ: standard deviation of the noise."""
    mirrored: bool = False
    """Whether each second member has the noise of the one before it, times −1 (antithetic sampling)."""
    epsilon: float = 1e-8
    """Added to the standard deviation."""

    def __post_init__(self) -> None:
        parts.demand_scale(0, self.epsilon)
        if not 0 < self.sigma < math.inf:
            raise ValueError("sigma: must be above 0 and finite")

    @property
    def weight_noise(self) -> WeightNoise:
        return WeightNoise(self.sigma, self.mirrored)

    def compute_signal(self, batch: Batch, models: Models) -> Advantage:
        member, fitness = population(batch)
        score = (fitness - fitness.mean()) / (fitness.std(correction=0) + self.epsilon)
        # The mean of equal numbers may differ from them by rounding, which the division would blow up.
        equal = fitness == fitness[:1]
        score = score.masked_fill(equal.all(), 0.0)[member]
        return Advantage(parts.rows(batch), score[:, None] * batch.completion_mask, parts.absent(batch))

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        return {SPREAD_METRIC.name: population(batch)[1].double().std(correction=0).item()}

    def loss(self, batch: Batch, signal: Advantage, now: Mapping[Role, ModelOutput]) -> Loss:
        # Times σ: the authors' learning rate has taken the 1/σ of the density's gradient in.
        return Loss(-self.sigma * (signal.advantage * now["policy"].logp).sum(-1), {})

    def loss_weights(self, batch: Batch) -> Rowwise:
        """1/(K·n_k), with n_k rows of the member that have a token to carry its log-probability."""
        member, fitness = population(batch)
        carries = batch.completion_mask.any(-1).to(batch.reward.dtype)
        rows = torch.zeros_like(fitness).index_add(0, member, carries)
        return carries / (len(fitness) * rows.clamp(min=1))[member]


def population(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(number of each row's member among the K that are graded, (B,); mean reward of each member, (K,))."""
    if batch.member is None:
        raise ValueError("es: the batch does not say which weights wrote its rows (Batch.member)")
    _, member, rows = batch.member.unique(return_inverse=True, return_counts=True)
    total = batch.reward.new_zeros(len(rows)).index_add(0, member, batch.reward)
    return member, total / rows
