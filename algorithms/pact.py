"""PACT: a critic of probabilities that is trained after the policy, for the policy as it is by then."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Loss, Metric, Models, Role, Tokenwise
from grpobench.algorithms.ppo import PPO, CriticTargets
from grpobench.algorithms.sao import RANGE_METRICS, gain_in_range

REPLACED = ("critic/loss", "critic/value_clip")
"""PPO's metrics of a squared error."""


@dataclass(frozen=True)
class Accepted(CriticTargets):
    """PPO's signal, with the weights of the tokens that the critic learns from."""

    accepted: Tokenwise
    """0, or the factor that makes the average over all tokens a mean over those that count."""


@dataclass(frozen=True)
class PACT(PPO):
    """Policy Aligned Critic Training (arXiv:2609.26355). The credit of a token that leaves nothing of the
    reward out, is never rewritten by what follows, and is 0 in expectation before the token is the change of
    the expected reward, V_t − V_{t−1}, and no other. Such differences need values of the policy that is
    trained: here a step's critic updates come after those of its policy, with targets weighed by how much
    likelier the policy has made the token.

    With λ = 1, as in the paper, a token's advantage is R − V_{t−1}. trace = 0 gives its own credit
    V_t − V_{t−1}, and with gae = "turn" that of its turn.
    Degenerate cases: where the policy has not moved every weight is 1, as with aligned = false and during the
    critic's warm-up; a critic of zeros expects the middle of the range of rewards; a step whose ratios are
    all outside of the accepted range leaves the critic as it is; an empty completion has no loss term.
    """

    name = "pact"
    paper = "PACT: From Credit Assignment to Critic Alignment, arXiv:2609.26355"
    summary = "PPO whose critic predicts success and is updated after the policy, for the new policy"
    claim = (
        "PPO's values are those of the policy before. Of the policy as it has become they earn their cost: "
        "72.9 on four sets of mathematics with Qwen3.5-4B, 67.7 without the weights, where PPO with λ = 1 "
        "has 59.7 and GRPO 64.1; PPO with λ = 0.95 collapses."
    )
    formula = (
        "V = σ(z) scaled to the range of rewards;  A_t by GAE, λ = trace;  first all updates of the "
        "policy: loss = token mean of −f(r_t)A_t, r_t = π/π_sampler, f(r) = r for 1 − clip_low < r < "
        "1 + clip_high, else 0;  then all of the critic: loss = mean of log(1 + e^z) − ρ_t R z over tokens "
        "with accept_low ≤ ρ_t ≤ accept_high, ρ_t = π_new/π_old"
    )
    departures = (
        "The default bounds of the policy's ratio are the paper's in mathematics, [0.7, 6], with SAO's f; "
        'in coding it has PPO\'s clip, of unknown bounds: set bounds = "clip" with clip_low and clip_high. '
        "Whether advantages are whitened is not said; here they are not. It makes four updates of each "
        "model per rollout batch (train.num_minibatches = 4); the critic learns at 5e-6 where the policy has "
        "1e-6 (train.learning_rate). Rewards from min_reward to max_reward are scaled to [0, 1] for the "
        "critic and back. As in the paper, the ratio of one token approximates the product of ratios over "
        "the rest of the response. All tokens of a turn learn the return of the turn."
    )
    evidence = (
        "verified: the paper's text (section 4, appendices C.6 and C.7, algorithm 1, table 3), in a copy; "
        "value and gradient of the critic's loss equal its equations by autograd, the conditional mean of "
        "its target is checked by enumeration, the order of updates in the training loop; the authors' "
        "repository was empty"
    )
    cost = PPO.cost + "; one more forward pass of the policy between its updates and the critic's"
    reward_bounds = ("min_reward", "max_reward")
    metrics = (
        *(metric for metric in PPO.metrics if metric.name not in REPLACED),
        *RANGE_METRICS,
        Metric(
            "critic/cross_entropy", "nats", "mean of log(1 + e^z) − target·z over accepted tokens", "lower"
        ),
        Metric("critic/accepted", "share of tokens", "tokens whose ratio lets the critic learn from them"),
    )

    trace: float = 1.0
    clip_low: float = 0.3
    """How far below 1 the ratio may be."""
    clip_high: float = 5.0
    """How far above 1 it may be."""
    bounds: Literal["range", "clip"] = "range"
    """What happens outside: the token is left out, with the ratio to the sampler, or PPO's clip, with that to
    the old policy."""
    value_clip: float = 0.0
    whiten: bool = False
    kl_placement: parts.Placement = "loss"
    aligned: bool = True
    """Whether the critic's targets are weighed by π_new/π_old."""
    accept_low: float = 0.0
    """Smallest π_new/π_old of a token that the critic learns from, ρ_min."""
    accept_high: float = 6.0
    """Greatest one, ρ_max."""
    min_reward: float = 0.0
    """Least reward possible."""
    max_reward: float = 1.0
    """Greatest reward possible."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(accept_low=self.accept_low, accept_high=self.accept_high)
        if not self.accept_low <= 1 <= self.accept_high:
            raise ValueError("accept_low, accept_high: 1 must lie between them")
        parts.demand_finite(min_reward=self.min_reward, max_reward=self.max_reward)
        if not self.min_reward < self.max_reward:
            raise ValueError("max_reward: must be above min_reward")
        if self.critic != "separate":
            raise ValueError("critic: must be separate, since it is updated after the policy")
        if self.discount != 1 or self.turn_rewards or self.value_clip:
            raise ValueError(
                "discount, turn_rewards and value_clip must be 1, 0 and 0: the critic predicts the reward"
            )
        if self.beta and self.kl_placement == "reward":
            raise ValueError("kl_placement: must be loss, since rewards have to stay in their range")
        if self.bounds == "range" and self.dual_clip:
            raise ValueError('dual_clip: needs bounds = "clip"; the range has two sides already')

    def phases(self, step: int) -> tuple[tuple[Role, ...], ...]:
        return tuple((role,) for role in self.updated_roles(step))

    def expectation(self, value: Tokenwise) -> Tokenwise:
        return self.min_reward + (self.max_reward - self.min_reward) * value.sigmoid()

    def estimate(
        self, reward: Tokenwise, value: Tokenwise, steps: torch.Tensor
    ) -> tuple[Tokenwise, Tokenwise]:
        advantage, _ = super().estimate(reward, value, steps)
        # The critic learns rewards whatever λ is.
        return advantage, parts.generalized_advantage(reward, torch.zeros_like(value), steps, 1.0, 1.0)

    def compute_signal(self, batch: Batch, models: Models) -> Accepted:
        parts.demand_range(batch.reward, self.min_reward, self.max_reward, "min_reward and max_reward")
        plain = super().compute_signal(batch, models)
        return Accepted(**vars(plain), accepted=batch.completion_mask.to(plain.returns.dtype))

    def realign(self, batch: Batch, signal: CriticTargets, models: Models) -> CriticTargets:
        assert isinstance(signal, Accepted)
        if not self.aligned:
            return signal
        ratio = parts.importance_ratio(models.forward("policy", batch).logp, batch.old_logp)
        accepted = (ratio >= self.accept_low) & (ratio <= self.accept_high) & batch.completion_mask
        # In the unit of the critic's target: the ratio multiplies the reward as a share of its range.
        target = self.min_reward + ratio.masked_fill(~accepted, 0.0) * (signal.returns - self.min_reward)
        share = (self.loss_weights(batch) * accepted).sum()
        weight = accepted.to(ratio.dtype) / share.clamp(min=torch.finfo(ratio.dtype).tiny)
        return dataclasses.replace(signal, returns=target, accepted=weight)

    def gain(self, batch: Batch, advantage: Tokenwise, logp: Tokenwise) -> Loss:
        if self.bounds == "clip":
            return super().gain(batch, advantage, logp)
        return gain_in_range(logp - batch.sampler_logp, advantage, self.clip_low, self.clip_high)

    def _value_terms(
        self, signal: CriticTargets, value: Tokenwise
    ) -> tuple[Tokenwise, dict[str, torch.Tensor]]:
        assert isinstance(signal, Accepted)
        target = (signal.returns - self.min_reward) / (self.max_reward - self.min_reward)
        # Not torch's cross-entropy, which refuses targets above 1; its gradient is σ(z) − target for any.
        entropy = signal.accepted * (torch.nn.functional.softplus(value) - target * value)
        return entropy, {
            "critic/cross_entropy": entropy.detach(),
            "critic/accepted": (signal.accepted > 0).float(),
            "critic/value": signal.old_value,
        }
