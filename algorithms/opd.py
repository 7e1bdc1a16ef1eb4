"""On-policy distillation by policy gradient: a teacher's log-probabilities are the reward of each token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import (
    Advantage,
    Batch,
    Loss,
    Metric,
    ModelOutput,
    Models,
    Tokenwise,
)
from grpobench.algorithms.gkd import Distillation

TEACHER_METRIC = Metric(
    "distill/reverse_kl",
    "nats/token",
    "mean of log π − log π_teacher over written tokens, the k1 estimate of the reverse KL",
    "lower",
)


@dataclass(frozen=True)
class Distilled(Advantage):
    """Advantages with the log-probabilities that they come from."""

    teacher_logp: Tokenwise
    """log π_teacher of each completion token."""


@dataclass(frozen=True)
class OPD(Distillation):
    """On-Policy Distillation (Thinking Machines Lab, 2025): the reverse KL to a teacher as the reward. The
    recipe names the teacher: `model.teacher`.

    The expected gradient at discount 0 is that of KL(π‖π_teacher) of the next token alone, over the states
    that the policy visits; with discount 1 it is that of the KL of whole completions.
    Degenerate cases: a policy equal to its teacher has advantage 0 everywhere; a group of one or of equal
    rewards still learns from the teacher; an empty completion has no term.
    """

    name = "opd"
    paper = "On-Policy Distillation (Thinking Machines Lab, 2025); its base: GKD, arXiv:2306.13649"
    summary = (
        "each token's advantage is the teacher's log-probability minus the policy's; no task reward needed"
    )
    claim = (
        "A grade for every token of the student's own text costs a fraction of reinforcement and of "
        "imitation: 70 % on AIME 2024 with a student of 8B and a teacher of 32B, at 9 to 30 times less "
        "compute (numbers second-hand)."
    )
    formula = (
        "A_t = distill_weight·Σ_{s≥t} γ^{s−t} (log π_teacher(o_s) − log π_old(o_s)) + task_weight·(r_i − "
        "mean r)/(std r + ε);  loss = −1/Σ|o_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1−clip_low, 1+clip_high) A_t)"
    )
    departures = (
        "The authors add up all tokens; the default here is the mean over tokens. They read the sampler's "
        "log-probabilities where this reads log π_old, which are the same in a run without a gap. Their "
        "importance sampling has no clip, which clip_low = 1 with an infinite clip_high says, the defaults. "
        'They center a task\'s rewards in their group; scale = "none" does. `bound` is from other libraries.'
    )
    evidence = (
        "verified: sign, detached advantage, coefficient and discount in the authors' code "
        "(thinking-machines-lab/tinker-cookbook@0333e7c, tinker_cookbook/distillation/train_on_policy.py), "
        "whose advantage and loss are restated in a test; the KL's gradient in closed form on an enumerable "
        "policy"
    )
    cost = "one forward pass of the teacher over the completions"
    metrics = (*parts.CLIP_METRICS, *parts.KL_METRICS, TEACHER_METRIC)

    clip_low: float = 1.0
    clip_high: float = math.inf
    discount: float = 0.0
    """γ: how much a token is credited for the teacher's view of later tokens; 0 for its own alone."""
    bound: float = math.inf
    """Largest |log π_teacher − log π_old| of a token that counts, in nats."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_unit(discount=self.discount)
        if not self.bound > 0:
            raise ValueError("bound: must be above 0")

    def compute_signal(self, batch: Batch, models: Models) -> Advantage:
        task = super().compute_signal(batch, models)
        teacher = models.forward("teacher", batch).logp
        gain = self.gain(batch, teacher)
        gain = gain * self.token_weights(gain)
        advantage = task.advantage + self.distill_weight * to_go(gain, batch.completion_mask, self.discount)
        return Distilled(task.row_group, advantage, task.ref_logp, teacher)

    def gain(self, batch: Batch, teacher: Tokenwise) -> Tokenwise:
        """log π_teacher − log π_old within the bound, (B, T) in nats; 0 on tokens of others."""
        return (teacher - batch.old_logp).clamp(-self.bound, self.bound) * batch.completion_mask

    def token_weights(self, gain: Tokenwise) -> Tokenwise:
        """How much each token's gain counts, (B, T)."""
        return torch.ones_like(gain)

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        assert isinstance(signal, Distilled)
        gain = super().objective(batch, signal, now)
        apart = now.logp.detach() - signal.teacher_logp
        return Loss(gain.terms, {**gain.metrics, TEACHER_METRIC.name: apart})


def to_go(gain: Tokenwise, written: torch.Tensor, discount: float) -> Tokenwise:
    """Σ_{s≥t} γ^{s−t} gain_s (B, T), where s and t count the tokens that the policy wrote; 0 on others."""
    if not discount:
        return gain
    # A token's advantage with values of 0 and λ = 1 is its discounted return.
    return parts.generalized_advantage(gain, torch.zeros_like(gain), written, discount, 1.0)
