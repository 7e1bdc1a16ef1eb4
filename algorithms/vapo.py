"""VAPO: PPO for long chains of thought, with a critic that is trained first and trusted by length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Loss, Metric, ModelOutput, Models, Role, Rowwise, Tokenwise
from grpobench.algorithms.ppo import PPO, CriticTargets


@dataclass(frozen=True)
class Imitated(CriticTargets):
    """What PPO knows, with the completions whose likelihood is raised besides."""

    imitation: Rowwise
    """0, or for a correct completion the factor that makes the average of its tokens' terms a mean over the
    tokens of correct completions."""


@dataclass(frozen=True)
class VAPO(PPO):
    """Value-model-based Augmented PPO (arXiv:2504.05118): value pre-training and separate λ for policy
    and critic from VC-PPO (arXiv:2503.01491), a policy λ by length, clip-higher, token mean, and
    imitation of correct completions.

    Degenerate cases: a completion of at most 1/length_scale tokens has λ = 0, so its advantages are the
    critic's one-step errors; a step without correct completions imitates nothing; during the critic's
    warm-up nothing moves the policy, imitation included; an empty completion has no loss term.
    """

    name = "vapo"
    paper = (
        "VAPO: Efficient and Reliable Reinforcement Learning for Advanced Reasoning Tasks, arXiv:2504.05118"
    )
    summary = (
        "PPO whose critic learns full returns and is warmed up, with λ by length and imitation of successes"
    )
    claim = (
        "60.4 points on AIME 2024 with Qwen 32B within 5,000 steps, over 10 more than DAPO, and no run "
        "crashed: a critic is worth its cost if it is trained well (abstract)."
    )
    formula = (
        "λ_policy = max(0, 1 − 1/(length_scale·|o_i|)), λ_critic = trace;  PPO's token-mean loss with these, "
        "and + nll·(−1/Σ_{i∈C}|o_i| Σ_{i∈C} Σ_t log π_θ(o_it)),  C the correct completions"
    )
    departures = (
        "The paper trains the critic alone until its loss and explained variance are good; here for "
        "critic_warmup = 10 fixed steps, on rollouts of the unmoved policy. The formula of λ is made for "
        "chains of thousands of tokens; below 1/length_scale = 20 tokens it is negative and held at 0: "
        "raise length_scale for short answers. C is taken over the rollout batch, so with several "
        "minibatches its mean is not that of each. The paper's critic learns at 2e-6 and its policy at "
        "1e-6: set train.learning_rate. Value clipping and whitening are PPO's defaults here; this was not "
        "checked."
    )
    evidence = "verified: the paper's formulas; GAE per row, value targets and gradients against closed forms"
    cost = PPO.cost + "; critic_warmup steps without an update of the policy"
    metrics = (
        *PPO.metrics,
        Metric(
            "policy/imitation",
            "nats/token",
            "mean imitation term: with a token mean −log π over correct completions' tokens, 0 without any",
            "lower",
        ),
        Metric(
            "advantage/trace", "λ", "mean λ of the policy's advantages over completions that are not empty"
        ),
    )

    trace: float = 1.0
    """λ of the critic's returns."""
    length_scale: float = 0.05
    """α in the policy's λ = 1 − 1/(α·length); with gae = "turn" the length is a number of turns."""
    clip_high: float = 0.28
    critic_warmup: int = 10
    nll: float = 0.1
    """μ, weight of the correct completions' negative log-likelihood; above 0 needs the score `correct`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(nll=self.nll)
        if not 0 < self.length_scale < float("inf"):
            raise ValueError("length_scale: must be above 0 and finite")

    @property
    def scores(self) -> frozenset[str]:
        return frozenset({"correct"}) if self.nll else frozenset()

    def estimate(
        self, reward: Tokenwise, value: Tokenwise, steps: torch.Tensor
    ) -> tuple[Tokenwise, Tokenwise]:
        trace = self._trace(steps)
        advantage = parts.generalized_advantage(reward, value, steps, self.discount, trace)
        _, returns = super().estimate(reward, value, steps)
        return advantage, returns

    def _trace(self, steps: torch.Tensor) -> Rowwise:
        length = steps.sum(-1).clamp(min=1)
        return (1 - 1 / (self.length_scale * length)).clamp(min=0)

    def compute_signal(self, batch: Batch, models: Models) -> Imitated:
        plain = super().compute_signal(batch, models)
        correct = torch.zeros_like(batch.reward)
        if self.nll:
            correct = (batch.scores["correct"] >= 1).to(correct.dtype)
        share = (self.loss_weights(batch) * correct[:, None]).sum()
        return Imitated(**vars(plain), imitation=correct / share if share > 0 else correct)

    def observe(self, batch: Batch, signal: CriticTargets) -> dict[str, float]:
        trace = self._trace(self.steps(batch.completion_mask))[batch.completion_mask.any(-1)]
        return super().observe(batch, signal) | {"advantage/trace": trace.double().mean().item()}

    def loss(self, batch: Batch, signal: CriticTargets, now: Mapping[Role, ModelOutput]) -> Loss:
        assert isinstance(signal, Imitated)
        plain = super().loss(batch, signal, now)
        if not self.nll or "policy" not in now:
            return plain
        imitation = -signal.imitation[:, None] * now["policy"].logp
        metrics = {**plain.metrics, "policy/imitation": imitation.detach()}
        return Loss(plain.terms + self.nll * imitation, metrics)
