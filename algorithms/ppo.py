"""PPO with a critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

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
    Signal,
    Tokenwise,
)
from grpobench.algorithms.turns import remaining_reward, turns_of
from grpobench.analysis.tools.metrics import CRITIC_METRICS


@dataclass(frozen=True)
class CriticTargets(Signal):
    """Token advantages and what the critic learns from."""

    advantage: Tokenwise
    returns: Tokenwise
    old_value: Tokenwise
    ref_logp: Tokenwise


@dataclass(frozen=True)
class PPO(Algorithm[CriticTargets]):
    """Proximal Policy Optimization (arXiv:1707.06347) with GAE (arXiv:1506.02438), as used for language
    models.

    The last token that the policy wrote receives the reward. A truncated completion ends there too,
    without bootstrapping. Returns are computed before advantages are whitened. With gae = "turn" a step of
    GAE is a turn: its reward is the sum over its tokens, its value that of the state before its first token,
    and all its tokens have its advantage and learn its return.
    Degenerate cases: with λ = γ = 1 and a critic of zeros it is REINFORCE with the undiscounted return;
    an empty completion has no loss term; advantages that are equal everywhere whiten to 0; in turns of one
    token gae = "turn" changes nothing.
    """

    name = "ppo"
    paper = "Proximal Policy Optimization Algorithms, arXiv:1707.06347; GAE, arXiv:1506.02438"
    summary = "token-level advantages from a learned critic (a full copy or a head on the policy's trunk)"
    claim = (
        "As reliable as a trust region, much simpler, and the best balance of samples, simplicity and time "
        "in simulated control and Atari games. Of language models the paper says nothing."
    )
    formula = (
        "δ_t = r_t + γV_{t+1} − V_t;  A_t = δ_t + γλA_{t+1};  R_t = A_t + V_t;  loss = token mean of "
        "−min(ρ_t A_t, clip(ρ_t, 1−clip_low, 1+clip_high) A_t) "
        "+ c_v·½ max[(V−R)², (clip(V, V_old ± value_clip) − R)²] − c_e·H + β·KL_t"
    )
    departures = (
        "No KL penalty and no entropy bonus by default. A KL in the reward is k1 per token, a KL in the "
        'loss any estimator, never both. With gae = "turn" a value is read before a turn\'s first token, as '
        "in VAGEN, whose critic learns at that token alone; here it learns the turn's return at all of its "
        "tokens. RAGEN reads the value before the last token. The critic starts from the policy's weights "
        "with a value head of zeros; critic_warmup steps train it alone before the policy moves."
    )
    evidence = (
        "verified: the papers' text; GAE, value loss and gradients against closed forms and autograd; "
        "turn-level GAE against mll-lab-nu/VAGEN@3871795, "
        "vagen/algorithms/turn_level_gae/turn_level_gae.py, restated in the tests"
    )
    has_advantages = True
    cost = "the critic's forward pass for values, and its forward and backward pass in training"
    metrics: ClassVar[tuple[Metric, ...]] = (
        *parts.CLIP_METRICS,
        *parts.KL_METRICS,
        Metric("critic/loss", "reward²", "mean value loss, ½ of the squared error after clipping", "lower"),
        Metric("critic/value_clip", "share of tokens", "tokens whose clipped value error is the larger one"),
        *CRITIC_METRICS,
        Metric("critic/value", "reward", "mean value that the critic gave before the update"),
    )

    critic: Literal["separate", "shared"] = "separate"
    """A full second model, or a value head on the policy's trunk."""
    discount: float = 1.0
    """γ."""
    trace: float = 0.95
    """λ of GAE."""
    clip_low: float = 0.2
    """Lower clip range."""
    clip_high: float = 0.2
    """Upper clip range; DAPO uses 0.28."""
    dual_clip: float = 0.0
    """Largest ratio that counts if the advantage is negative (dual clip, arXiv:1912.09729, with 3; also
    called two-sided clipping); 0 sets no bound."""
    value_clip: float = 0.2
    """How far a value may move from its old one before its error stops shrinking; 0 turns this off."""
    value_coefficient: float = 1.0
    """Weight of the value loss; it matters if the trunk is shared."""
    critic_warmup: int = 0
    """First steps, which train only the critic."""
    whiten: bool = True
    """Whether advantages get zero mean and unit variance over the batch's tokens."""
    averaging: parts.Averaging = "token_mean"
    """How token terms are averaged: sequence_mean (GRPO), sequence_sum (log-probabilities of whole
    completions), token_mean (DAPO), turn_mean (over each turn's tokens, then over turns), prompt_mean (over
    each group's tokens, then over groups; ScaleRL, arXiv:2510.13786) or constant (Dr. GRPO)."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy in the objective."""
    beta: float = 0.0
    """Weight of the KL penalty; 0 reads no reference model."""
    kl_estimator: parts.Estimator = "k3"
    """Estimator of the KL in the loss; anywhere else the penalty is k1."""
    kl_placement: parts.Placement = "reward"
    """Whether the KL is subtracted from each token's reward or added to the loss."""
    gae: Literal["token", "turn"] = "token"
    """Whether the steps that γ and λ count are tokens or turns."""
    turn_rewards: float = 0.0
    """Weight of the environment's rewards of single turns in the episode's reward: as much of it is taken
    from the episode's end to their turns' last tokens. 1 if the reward is the score `return`."""

    def __post_init__(self) -> None:
        if not (0 <= self.discount <= 1 and 0 <= self.trace <= 1):
            raise ValueError("discount and trace must be from 0 to 1")
        parts.demand_clip(self.clip_low, self.clip_high)
        parts.demand_dual_clip(self.dual_clip, self.clip_high)
        parts.demand_not_negative(
            value_clip=self.value_clip,
            value_coefficient=self.value_coefficient,
            critic_warmup=self.critic_warmup,
            entropy_bonus=self.entropy_bonus,
            beta=self.beta,
            turn_rewards=self.turn_rewards,
        )

    @property
    def _values(self) -> Role:
        return "critic" if self.critic == "separate" else "value_head"

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("policy", self._values)

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        return ("reference",) if self.beta else ()

    @property
    def differentiates_entropy(self) -> bool:
        return self.entropy_bonus > 0

    def updated_roles(self, step: int) -> tuple[Role, ...]:
        return (self._values,) if step <= self.critic_warmup else self.trained_roles

    def compute_signal(self, batch: Batch, models: Models) -> CriticTargets:
        reference = models.forward("reference", batch).logp if self.beta else parts.absent(batch)
        # Masked, so that values of padding and tool output enter neither returns nor metrics.
        value = self.expectation(models.forward(self._values, batch).value) * batch.completion_mask
        reward = self._token_reward(batch, reference)
        # Returns before whitening: the critic must learn rewards in their unit, not whitened advantages.
        written, steps = batch.completion_mask, self.steps(batch.completion_mask)
        estimated = self.estimate(self.over_steps(reward, written), value, steps)
        advantage, returns = (self.over_steps(of_step * steps, written) for of_step in estimated)
        if self.whiten:
            advantage = parts.whiten(advantage, written)
        return CriticTargets(parts.rows(batch), advantage, returns, value, reference)

    def expectation(self, value: Tokenwise) -> Tokenwise:
        """The reward to go that an output of the critic stands for."""
        return value

    def _token_reward(self, batch: Batch, reference: Tokenwise) -> Tokenwise:
        """The completion's reward at its last token, of which the turns' part is at theirs, less each token's
        KL where that is in the reward."""
        outcome = remaining_reward(batch, self.turn_rewards)
        reward = outcome[:, None] * parts.last_written(batch.completion_mask)
        if self.turn_rewards and batch.turn_reward is not None:
            reward = reward + self.turn_rewards * batch.turn_reward
        if self.beta and self.kl_placement == "reward":
            reward = reward - self.beta * (batch.old_logp - reference) * batch.completion_mask
        return reward

    def steps(self, written: torch.Tensor) -> torch.Tensor:
        """Bool (B, T): the first token of each step of GAE."""
        return written if self.gae == "token" else turns_of(written).first

    def over_steps(self, value: Tokenwise, written: torch.Tensor) -> Tokenwise:
        """At each token the sum of a value (B, T) over the tokens of its step."""
        if self.gae == "token":
            return value
        turns = turns_of(written)
        return turns.spread(turns.total(value))

    def estimate(
        self, reward: Tokenwise, value: Tokenwise, steps: torch.Tensor
    ) -> tuple[Tokenwise, Tokenwise]:
        """(advantages for the policy, returns that the critic learns) at the first tokens of steps, before
        whitening."""
        advantage = parts.generalized_advantage(reward, value, steps, self.discount, self.trace)
        return advantage, advantage + value

    def observe(self, batch: Batch, signal: CriticTargets) -> dict[str, float]:
        others = parts.group_baseline(batch.reward, batch.group, "leave_one_out")
        # A group of one has no other rows and would be compared with itself, a perfect prediction.
        compared = batch.completion_mask & (parts.group_size(batch.group) > 1)[:, None]
        # λ-returns shrink toward the critic's values, and held against them every other forecast looks worse
        # than it is. Rewards to go, GAE with λ = 1 and no values, favor neither.
        written = batch.completion_mask
        reward = self.over_steps(self._token_reward(batch, signal.ref_logp), written)
        to_go = parts.generalized_advantage(
            reward, torch.zeros_like(reward), self.steps(written), self.discount, 1.0
        )
        to_go = self.over_steps(to_go, written)
        return {
            "critic/explained_variance": parts.explained_variance(
                signal.returns, signal.old_value, batch.completion_mask
            ),
            "critic/group_explained": parts.explained_variance(
                to_go, others[:, None].expand_as(to_go), compared
            ),
            "critic/outcome_explained": parts.explained_variance(to_go, signal.old_value, compared),
        }

    def loss(self, batch: Batch, signal: CriticTargets, now: Mapping[Role, ModelOutput]) -> Loss:
        terms, metrics = torch.zeros_like(signal.returns), dict[str, torch.Tensor]()
        if self._values in now:  # absent in updates of the policy alone
            error, metrics = self._value_terms(signal, now[self._values].value)
            terms = self.value_coefficient * error
        if "policy" in now:  # absent while the critic is warmed up
            logp = now["policy"].logp
            gain = self.gain(batch, signal.advantage, logp)
            terms = terms - gain.terms
            metrics |= gain.metrics
            if self.entropy_bonus:
                terms = terms - self.entropy_bonus * now["policy"].entropy
            if self.beta:
                metrics |= parts.kl_metrics(logp, signal.ref_logp)
                if self.kl_placement == "loss":
                    ratio = parts.importance_ratio(logp, batch.old_logp)
                    penalty = parts.kl_estimate(logp, signal.ref_logp, self.kl_estimator, ratio)
                    terms = terms + self.beta * penalty
        return Loss(terms, metrics)

    def gain(self, batch: Batch, advantage: Tokenwise, logp: Tokenwise) -> Loss:
        """What the policy maximizes, unreduced, (B, T), with metrics."""
        ratio = parts.importance_ratio(logp, batch.old_logp)
        terms = parts.clipped_objective(ratio, advantage, self.clip_low, self.clip_high, self.dual_clip)
        return Loss(terms, parts.clip_shares(ratio, advantage, self.clip_low, self.clip_high))

    def _value_terms(
        self, signal: CriticTargets, value: Tokenwise
    ) -> tuple[Tokenwise, dict[str, torch.Tensor]]:
        plain = (value - signal.returns).square()
        error, clipped = plain, torch.zeros_like(plain)
        if self.value_clip:
            moved = (value - signal.old_value).clamp(-self.value_clip, self.value_clip)
            # The larger error: like PPO's clip, it stops the gradient of a value that moved too far in the
            # right direction, but never of one that moved away from the returns.
            bounded = (signal.old_value + moved - signal.returns).square()
            error, clipped = torch.maximum(plain, bounded), (bounded > plain).float()
        metrics = {"critic/loss": 0.5 * error, "critic/value_clip": clipped, "critic/value": signal.old_value}
        return 0.5 * error, metrics

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return parts.average(batch, self.averaging)
