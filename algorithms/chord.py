"""CHORD: GRPO mixed with a supervised loss on expert answers, whose weight follows a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, Metric, ModelOutput, Role, Tokenwise
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized

TokenWeight = Literal["phi", "probability", "none"]


@dataclass(frozen=True)
class CHORD(GroupNormalized, ClippedRatio):
    """Controllable harmonization of on- and off-policy reinforcement learning (arXiv:2508.11408).

    Expert answers are rows of their own: no rollouts, no group, no ratio. The defaults are CHORD-φ: μ is
    constant and every expert token has the weight p(1 − p), largest where the policy is undecided. CHORD-μ is
    mu_peak = 0.9, mu_valley = 0.05, mu_decay_steps = 200 and token_weight = "none".
    Degenerate cases: with mu_peak = mu_valley = 0 it is GRPO with these settings; with 1 the rollouts count
    nothing; groups of equal rewards have advantage 0, and the step learns from the experts alone; an expert
    token that the policy is sure of, or that it all but excludes, has weight 0 under φ.
    """

    name = "chord"
    label = "CHORD"
    paper = (
        "On-Policy RL Meets Off-Policy Experts: Harmonizing Supervised Fine-Tuning and Reinforcement "
        "Learning via Dynamic Weighting, arXiv:2508.11408"
    )
    summary = "GRPO mixed with a supervised loss on expert answers, by a schedule and by token"
    claim = (
        "Mixing expert answers into reinforcement by a schedule and by token avoids the damage of supervised "
        "training first, and ends more accurate than both in turn (abstract, without numbers)."
    )
    formula = (
        "loss = (1 − μ)·GRPO's + μ·(−1/Σ|y| Σ_y Σ_t φ_t·log π(y_t));  φ = p(1 − p) with p = π(y_t), constant "
        "in the gradient;  μ rises linearly from 0 to mu_peak over mu_warmup_steps, then falls by a half "
        "cosine to mu_valley over mu_decay_steps"
    )
    departures = (
        "The authors' experts are a data set of their own. Here they are the task's reference answers to "
        "the problems that warm starts learn, which may be far shorter than what the policy writes, or "
        "those of a file (train.experts). The expert answers of a step are dealt to its updates, so that "
        "each is learned once a step however many passes the rollouts get. Averages are over the "
        "minibatch; theirs over each micro-batch. With beta above 0, the KL is scaled by 1 − μ and covers "
        "rollouts alone; theirs is not scaled and covers experts too. A later version of their code has a "
        "dual clip of 3, which is off here (dual_clip = 3). μ is that of the number of finished steps, 0 "
        "in the first."
    )
    evidence = (
        "verified: the mixture, φ, the weighting by p, μ's schedule, CHORD-φ's and CHORD-μ's values and 64 "
        "experts and 256 rollouts in the authors' code (modelscope/Trinity-RFT@0414330, "
        "trinity/algorithm/policy_loss_fn/chord_policy_loss.py, examples/mix_chord/mix_chord.yaml); loss and "
        "gradient equal theirs, restated in the tests; of the paper only the abstract was read"
    )
    cost = "a forward and a backward pass over expert_answers answers per step"
    metrics = (
        *parts.CLIP_METRICS,
        *parts.KL_METRICS,
        Metric(
            "expert/share", "share", "weight of the expert answers in the loss; the rollouts have the rest"
        ),
        Metric(
            "expert/nll",
            "nats/token",
            "mean of −log π over the tokens of the expert answers, before the update step",
            "lower",
        ),
        Metric("expert/token_weight", "share", "mean over these tokens of φ, or of its replacement"),
    )

    averaging: parts.Averaging = "token_mean"
    epsilon: float = 1e-6
    """Added to the standard deviation."""
    expert_answers: int = 64
    """Expert answers per step, dealt to its minibatches."""
    mu_peak: float = 0.1
    """Greatest μ, from 0 to 1: the weight of the expert answers after the warm-up."""
    mu_valley: float = 0.1
    """μ after the decay."""
    mu_warmup_steps: int = 0
    """Steps over which μ rises from 0."""
    mu_decay_steps: int = 0
    """Steps over which μ falls from mu_peak to mu_valley; with 0 it is mu_valley from the warm-up on."""
    token_weight: TokenWeight = "phi"
    """Weight of an expert token: p(1 − p) (phi), p (probability), or 1 (none); p is the policy's probability
    of it, without a gradient."""
    expert_averaging: Literal["token_mean", "sequence_mean"] = "token_mean"
    """How expert tokens are averaged: over all of an update, or over each answer first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_count(expert_answers=self.expert_answers)
        parts.demand_unit(mu_peak=self.mu_peak, mu_valley=self.mu_valley)
        parts.demand_not_negative(mu_warmup_steps=self.mu_warmup_steps, mu_decay_steps=self.mu_decay_steps)

    def mu(self, step: int) -> float:
        """The weight of the expert answers at a step (from 1)."""
        done = step - 1
        if done < self.mu_warmup_steps:
            return self.mu_peak * done / self.mu_warmup_steps
        done -= self.mu_warmup_steps
        if done >= self.mu_decay_steps:
            return self.mu_valley
        left = 0.5 * (1 + math.cos(math.pi * done / self.mu_decay_steps))
        return self.mu_valley + (self.mu_peak - self.mu_valley) * left

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        return {"expert/share": self.mu(batch.step)}

    def loss(self, batch: Batch, signal: Advantage, now: Mapping[Role, ModelOutput]) -> Loss:
        explored = super().loss(batch, signal, now)
        return Loss((1 - self.mu(batch.step)) * explored.terms, explored.metrics)

    def expert_loss(self, batch: Batch, now: Mapping[Role, ModelOutput]) -> Loss:
        logp = now["policy"].logp
        # Detached: the weight says how much a token counts, and is not itself trained.
        weight = self.weight_of(logp.detach())
        terms = -self.mu(batch.step) * weight * logp
        return Loss(terms, {"expert/nll": -logp.detach(), "expert/token_weight": weight})

    def expert_weights(self, batch: Batch) -> torch.Tensor:
        return parts.average(batch, self.expert_averaging)

    def weight_of(self, logp: Tokenwise) -> Tokenwise:
        """The weight of each expert token, given its log-probability."""
        if self.token_weight == "none":
            return torch.ones_like(logp)
        probability = logp.exp()
        return probability if self.token_weight == "probability" else probability * (1 - probability)
