"""Kimi k1.5's policy optimization: a regression of log-ratios on rewards."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, Metric, ModelOutput, Models, Rowwise
from grpobench.algorithms.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class Kimi(PolicyGradient):
    """The variant of online mirror descent of Kimi k1.5 (arXiv:2501.12599), section 2.3.

    The optimum of E[r] − τ KL(π ‖ π_i) satisfies r − τ log Z = τ log(π/π_i) for every response. The loss
    is the squared difference, with the group's mean reward for τ log Z and π_old for π_i.
    Degenerate cases: on policy the gradient is REINFORCE's with the group's mean as baseline; groups of
    equal rewards and groups of one response are only pulled back to π_old; an empty response has no loss
    term.
    """

    name = "kimi"
    label = "Kimi"
    paper = "Kimi k1.5: Scaling Reinforcement Learning with LLMs, arXiv:2501.12599"
    summary = (
        "squared error between centered reward and the sequence's log-ratio, no clip, optional length reward"
    )
    claim = (
        "Reinforcement learning with long contexts needs no tree search, no critic and no process rewards: "
        "77.5 points on AIME and 96.2 on MATH 500, which match OpenAI's o1. This is the whole system's "
        "result, for a model whose size is not told."
    )
    formula = (
        "S_i = log π_θ(o_i)/π_old(o_i);  A_i = r_i − mean r;  loss = −1/B Σ_i (A_i S_i − τ/2 S_i²), which is "
        "1/(2τB) Σ_i (A_i − τ S_i)² up to a constant;  with a length reward r_i += w·λ_i if correct, "
        "w·min(0, λ_i) if not, λ_i = 1/2 − (|o_i| − min)/(max − min) in the group"
    )
    departures = (
        "The report gives no τ; 0.1 is our choice. π_i is π_old, renewed with every rollout batch, without "
        "the report's reset of the optimizer. The length reward is off; the report turns it on after a "
        "first phase of training, which a recipe cannot do, and gives no w. Its sampling by difficulty, easy "
        "problems first and then by 1 − success rate, is not here."
    )
    evidence = (
        "verified: the report's sections 2.3.2 to 2.3.4; its eq. 3, the gradient, and the length reward of "
        "2.3.3 in closed form"
    )
    minimum_group = 2
    metrics = (
        Metric(
            "policy/sequence_log_ratio_square", "nats²", "mean of (log π − log π_old)² of whole responses"
        ),
        Metric("advantage/length_reward", "reward", "mean length reward, its weight included"),
        *parts.KL_METRICS,
    )

    averaging: parts.Averaging = "sequence_sum"
    temperature: float = 0.1
    """τ: strength of the pull to the old policy."""
    length_reward: float = 0.0
    """w, weight of the length reward; 0 turns it off. It needs the task's score `correct`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(temperature=self.temperature, length_reward=self.length_reward)

    @property
    def scores(self) -> frozenset[str]:
        return frozenset({"correct"}) if self.length_reward else frozenset()

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        reward = batch.reward + self._length_reward(batch) if self.length_reward else batch.reward
        return parts.group_advantage(reward, batch.group, "mean", "none", 0, 1.0)

    def _length_reward(self, batch: Batch) -> Rowwise:
        length = batch.completion_mask.sum(-1).to(batch.reward.dtype)
        shortest, longest = parts.group_extremes(length, batch.group)
        spread = longest - shortest
        gain = (0.5 - (length - shortest) / spread.clamp(min=1)) * (spread > 0)
        return self.length_reward * gain.where(batch.scores["correct"] >= 1, gain.clamp(max=0))

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        if not self.length_reward:
            return {}
        return {"advantage/length_reward": self._length_reward(batch).double().mean().item()}

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        log_ratio = (now.logp - batch.old_logp) * batch.completion_mask
        total = log_ratio.sum(-1, keepdim=True)
        # The sequence's square is spread over its tokens, so that their sum is the sequence's term.
        square = total.square() / batch.completion_mask.sum(-1, keepdim=True).clamp(min=1)
        terms = signal.advantage * log_ratio - self.temperature / 2 * square
        return Loss(terms, {"policy/sequence_log_ratio_square": total.detach().square().squeeze(-1)})
