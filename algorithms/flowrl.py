"""FlowRL: the policy's probabilities are matched to the exponentials of rewards, with a learned log Z."""

from __future__ import annotations

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
)


@dataclass(frozen=True)
class FlowRL(Algorithm[Advantage]):
    """Matching reward distributions by flow balance (arXiv:2509.15207).

    The target is π(o) ∝ π_ref(o)·exp(β r̂(o)). Its trajectory balance, per token, is an equation of the policy
    and of log Z(x), which a head on the policy's trunk learns from the same squared error. A reward says how
    probable a response shall be, not that it shall be the only one.
    Degenerate cases: equal rewards and a group of one response have r̂ = 0, and pull the policy to the
    reference; where the policy is the reference and Z is 1 that is a gradient of 0; an empty response has no
    loss term.
    """

    name = "flowrl"
    label = "FlowRL"
    paper = "FlowRL: Matching Reward Distributions for LLM Reasoning, arXiv:2509.15207"
    summary = (
        "squared error of a flow balance with a learned partition function, so that policies stay diverse"
    )
    claim = (
        "Matching the distribution of rewards instead of maximizing them keeps the rarer solutions: 10.0 % "
        "over GRPO and 5.1 % over PPO on average in math, and better in code as well (abstract)."
    )
    formula = (
        "δ_i = log Z_φ(x) + mean_t log π/π_ref(o_it) − β·r̂_i;  r̂_i = (r_i − mean r)/(std r + ε);  "
        "loss = 1/B Σ_i sg[min(Π_t ρ_it, ratio_cap)] δ_i²"
    )
    departures = (
        "log Z is a linear head at the last token of the prompt, with a learning rate of its own, which "
        "starts at 0; the authors' is a perceptron of three layers with dropout on the mean of the prompt's "
        "hidden states, trained at the policy's rate. Both send their gradient into the policy's trunk. The "
        "abstract's objective has one weight w; the authors' first code computes a clipped ratio but "
        "multiplies by the whole one (ratio_cap = inf), their recipe for verl, as here, bounds it at 10. An "
        "empty response has no loss term; there it is not a number. No further KL, entropy bonus or overlong "
        "penalty (their script for verl: modify.overlong_buffer)."
    )
    evidence = (
        "verified: residual, β, ratio and averaging in the authors' code (Xuekai-Zhu/FlowRL@decbc57, "
        "verl@FlowRL/verl/workers/actor/dp_actor.py) and recipe (verl-project/verl-recipe@48ea0a7, "
        "flowrl/flowrl_actor.py); loss and gradients equal theirs, restated in the tests; of the paper only "
        "the abstract was read"
    )
    cost = "the reference's forward pass; a value head on the policy's trunk"
    has_advantages = True
    minimum_group = 2
    metrics = (
        Metric("flow/log_z", "nats", "mean over responses of the learned log Z before the update step"),
        Metric(
            "flow/error", "nats²", "mean over responses of the squared error before the update step", "lower"
        ),
        Metric("flow/weight", "factor", "mean importance weight of a response, 1 on policy"),
        *parts.KL_METRICS,
    )

    reward_scale: float = 15.0
    """β: nats per token that one deviation of reward is worth in the target."""
    ratio_cap: float = 10.0
    """Largest importance ratio of a whole response; inf sets no bound."""
    ddof: int = 1
    """Degrees of freedom subtracted in the standard deviation of rewards: 0 or 1."""
    epsilon: float = 1e-6
    """Added to the standard deviation."""

    def __post_init__(self) -> None:
        parts.demand_not_negative(reward_scale=self.reward_scale)
        parts.demand_cap(self.ratio_cap)
        parts.demand_scale(self.ddof, self.epsilon)

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("policy", "value_head")

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        return ("reference",)

    def compute_signal(self, batch: Batch, models: Models) -> Advantage:
        reference = models.forward("reference", batch).logp
        reward = parts.group_advantage(batch.reward, batch.group, "mean", "group", self.ddof, self.epsilon)
        return Advantage(parts.rows(batch), reward[:, None] * batch.completion_mask, reference)

    def loss(self, batch: Batch, signal: Advantage, now: Mapping[Role, ModelOutput]) -> Loss:
        written, logp = batch.completion_mask, now["policy"].logp
        # The state before the first token is the prompt alone.
        first = written & (written.cumsum(-1) == 1)
        log_z = (now["value_head"].value * first).sum(-1)
        reward = self.reward_scale * parts.sequence_mean(signal.advantage, written)
        error = log_z + parts.sequence_mean(logp - signal.ref_logp, written) - reward
        # Detached: the weight corrects for stale rollouts, and is not itself trained.
        log_ratio = ((logp.detach() - batch.old_logp) * written).sum(-1)
        weight = log_ratio.exp().clamp(max=self.ratio_cap)
        terms = weight * error.square() * written.any(-1)
        metrics = {
            "flow/log_z": log_z.detach(),
            "flow/error": error.detach().square(),
            "flow/weight": weight,
        }
        return Loss(terms, metrics | parts.kl_metrics(logp, signal.ref_logp))

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return parts.per_sequence(batch)
