"""The halves of policy-gradient methods: advantages from rewards, objectives, and the KL penalty."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from grpobench.algorithms import parts, returned
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
    Tokenwise,
)


@dataclass(frozen=True)
class PolicyGradient(Algorithm[Advantage]):
    """``loss = −average(objective) + β·average(KL)``. Subclasses give `advantage` and `objective`.

    An algorithm combines two halves and may replace either: how rewards become advantages (`GroupNormalized`,
    as in GRPO) and which objective is maximized given them (`ClippedRatio`, as in PPO, or `Reinforce`, the
    plain policy gradient)."""

    has_advantages = True
    credits_turns = True

    averaging: parts.Averaging = "sequence_mean"
    """How token terms are averaged: sequence_mean (GRPO), sequence_sum (log-probabilities of whole
    completions), token_mean (DAPO), turn_mean (over each turn's tokens, then over turns), prompt_mean (over
    each group's tokens, then over groups; ScaleRL, arXiv:2510.13786) or constant (Dr. GRPO)."""
    beta: float = 0.0
    """Weight of the KL penalty; 0 reads no reference model."""
    kl_estimator: parts.Estimator = "k3"
    """Estimator of the KL in the loss; anywhere else the penalty is k1."""
    kl_placement: Literal["loss", "reward", "advantage"] = "loss"
    """Where the KL penalty goes: "loss" adds a term to the loss, "reward" subtracts the k1 of the whole
    completion from the reward, "advantage" subtracts from each token's advantage the k1 of that token and
    all later ones."""

    def __post_init__(self) -> None:
        parts.demand_not_negative(beta=self.beta)

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        return ("reference",) if self.beta else ()

    @abstractmethod
    def advantage(self, batch: Batch, models: Models) -> Rowwise | Tokenwise:
        """Advantages, (B,) or (B, T), from `batch.reward`, from which a KL in the reward is already
        subtracted."""

    def row_groups(self, batch: Batch) -> torch.Tensor:
        """A row group for each row, (B,); −1 for rows that an algorithm leaves out. Gets the same batch as
        `advantage`."""
        return parts.rows(batch)

    @abstractmethod
    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        """What is maximized, unreduced, (B, T) or (B,), with metrics."""

    def compute_signal(self, batch: Batch, models: Models) -> Advantage:
        return self.penalize(batch, self.signal_from_rewards(batch, models))

    def signal_from_rewards(self, batch: Batch, models: Models) -> Advantage:
        """The signal before a KL is subtracted from the advantage of each token."""
        reference = models.forward("reference", batch).logp if self.beta else parts.absent(batch)
        if self.beta and self.kl_placement == "reward":
            # Before advantages: the group's baseline and deviation must see the penalized reward.
            reward = parts.kl_penalized_reward(batch, reference, self.beta)
            batch = dataclasses.replace(batch, reward=reward)
        advantage = (
            batch.credit(self.advantage, batch, models) if batch.credit else self.advantage(batch, models)
        )
        device = batch.completion.device
        returned.demand(self, "advantage", "advantages", advantage, *returned.both(batch), device=device)
        if advantage.dim() == 1:
            advantage = advantage[:, None]
        # The mask makes every advantage (B, T), with 0 on tokens that the policy did not write.
        return Advantage(self.row_groups(batch), advantage * batch.completion_mask, reference)

    def penalize(self, batch: Batch, signal: Advantage) -> Advantage:
        """The signal after a KL is subtracted from the advantage of each token, if that is its place."""
        if not (self.beta and self.kl_placement == "advantage"):
            return signal
        # After the group's normalization, which would otherwise rescale β.
        penalty = self.beta * parts.kl_to_go(batch, signal.ref_logp) * batch.completion_mask
        return dataclasses.replace(signal, advantage=signal.advantage - penalty)

    def loss(self, batch: Batch, signal: Advantage, now: Mapping[Role, ModelOutput]) -> Loss:
        policy = now["policy"]
        gain = returned.demand_loss(self, "objective", batch, self.objective(batch, signal, policy))
        terms, metrics = -gain.terms, {**gain.metrics}
        if self.beta:
            metrics |= parts.kl_metrics(policy.logp, signal.ref_logp)
            if self.kl_placement == "loss":
                # Not detached: k3_unbiased needs the ratio's gradient.
                ratio = parts.importance_ratio(policy.logp, batch.old_logp)
                penalty = parts.kl_estimate(policy.logp, signal.ref_logp, self.kl_estimator, ratio)
                if terms.dim() == 1:  # one term per response: broadcasting (B,) with (B, T) would be wrong
                    penalty = parts.sequence_mean(penalty, batch.completion_mask)
                terms = terms + self.beta * penalty
        return Loss(terms, metrics)

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return parts.average(batch, self.averaging)


@dataclass(frozen=True)
class Selected(Advantage):
    """Advantages with the tokens that a statistic of the whole batch has picked out."""

    selected: torch.Tensor
    """Bool (B, T)."""

    def share(self, written: torch.Tensor) -> float:
        """Share of the written tokens that is selected; NaN without any."""
        return self.selected[written].double().mean().item()


@dataclass(frozen=True)
class SignedAdvantages(Advantage):
    """Advantages with the sign of what the whole response earned."""

    negative: torch.Tensor
    """Bool (B,): the advantage that its reward gave a response is negative, before a KL was taken from its
    tokens."""

    @classmethod
    def of(cls, algorithm: PolicyGradient, batch: Batch, models: Models) -> SignedAdvantages:
        """The signal of an algorithm whose advantages are equal for all tokens of a response."""
        earned = algorithm.signal_from_rewards(batch, models)
        signal = algorithm.penalize(batch, earned)
        negative = (earned.advantage < 0).any(-1)
        return cls(signal.row_group, signal.advantage, signal.ref_logp, negative)


@dataclass(frozen=True)
class GroupNormalized(PolicyGradient):
    """``A_i = (r_i − baseline of the group) / (std + ε)``."""

    minimum_group = 2

    baseline: parts.Baseline = "mean"
    """What a reward is compared with in its group. With `none` nothing is subtracted, and groups of equal
    rewards train too; a division by their deviation would be one by ε, so that `scale` must not be of the
    group."""
    scale: parts.Scale = "group"
    """Standard deviation that divides the centered reward: of the group, of the group's other rows
    (leave_one_out; a row whose others are all equal is not divided), of the batch's rewards, of the
    batch's centered rewards (ScaleRL, arXiv:2510.13786), or none."""
    ddof: int = 1
    """Degrees of freedom subtracted in the standard deviation: 0 or 1."""
    epsilon: float = 1e-4  # well above the rounding noise of almost equal rewards
    """Added to the standard deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_scale(self.ddof, self.epsilon)
        if self.baseline == "none" and self.scale in ("group", "leave_one_out"):
            raise ValueError(f"baseline: without one, scale must not be {self.scale}; try scale = 'none'")

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        return parts.group_advantage(
            batch.reward, batch.group, self.baseline, self.scale, self.ddof, self.epsilon
        )


@dataclass(frozen=True)
class ClippedRatio(PolicyGradient):
    """``min(ρ_t A, clip(ρ_t, 1 − clip_low, 1 + clip_high)·A)`` (PPO, arXiv:1707.06347, eq. 7)."""

    metrics: ClassVar[tuple[Metric, ...]] = (*parts.CLIP_METRICS, *parts.KL_METRICS)

    clip_low: float = 0.2
    """Lower clip range."""
    clip_high: float = 0.2
    """Upper clip range; DAPO uses 0.28."""
    dual_clip: float = 0.0
    """Largest ratio that counts if the advantage is negative (dual clip, arXiv:1912.09729, with 3; also
    called two-sided clipping); 0 sets no bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_clip(self.clip_low, self.clip_high)
        parts.demand_dual_clip(self.dual_clip, self.clip_high)

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        ratio = parts.importance_ratio(now.logp, batch.old_logp)
        terms = parts.clipped_objective(
            ratio, signal.advantage, self.clip_low, self.clip_high, self.dual_clip
        )
        return Loss(terms, parts.clip_shares(ratio, signal.advantage, self.clip_low, self.clip_high))


@dataclass(frozen=True)
class Reinforce(PolicyGradient):
    """``A·log π_θ`` (REINFORCE), without ratio or clip: nothing corrects a second update on the same rollouts
    for a policy that has moved."""

    metrics: ClassVar[tuple[Metric, ...]] = (parts.ADVANTAGE_METRIC, *parts.KL_METRICS)

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        return Loss(signal.advantage * now.logp, {parts.ADVANTAGE_METRIC.name: signal.advantage.abs()})
