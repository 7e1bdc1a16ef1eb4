"""A*-PO: log-ratios to the reference are regressed on rewards minus an optimal value estimated beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
    Rowwise,
    Signal,
    Tokenwise,
)
from grpobench.algorithms.curriculum import Curriculum, NoProblems, Study, ValuedShuffle

Estimate = Literal["soft", "mean"]


@dataclass(frozen=True)
class OptimalAdvantage(Signal):
    """Every row is a unit of its own."""

    advantage_target: Rowwise
    """r − V*(x), 0 where V* is not known."""
    ref_logp: Tokenwise
    """log π_ref."""


@dataclass(frozen=True)
class AStarPO(Algorithm[OptimalAdvantage]):
    """Policy Optimization via Optimal Advantage Regression (arXiv:2505.20686).

    Before training, `value_samples` completions of the initial policy per training problem are graded; V* is
    estimated from their rewards and stays as it is. On policy, every completion has a term of its own, so
    that one per problem is enough.
    Degenerate cases: where no completion of a problem could be graded, V* is unknown and rows of the problem
    are left out; as beta1 grows, V* goes to the mean reward, and as it falls to the largest; at the first
    step of a run π = π_ref, and the gradient is −2·beta2·(r − V*)·∇log π, REINFORCE's with V* as its
    baseline; an empty completion has log-ratio 0 and no gradient.
    """

    name = "a_star_po"
    label = "A*-PO"
    paper = "Accelerating RL for LLM Reasoning with Optimal Advantage Regression, arXiv:2505.20686"
    summary = "squared error between log-ratios to the reference and r − V*; V* from base rollouts, no group"
    claim = (
        "Competitive with PPO, GRPO and REBEL on mathematics, in as little as half of the training time and "
        "with over 30 % less peak memory (abstract)."
    )
    formula = (
        "V*(x) = beta1·log(1/N Σ_i exp(r_i/beta1)) over N completions of π_ref, before training;  loss = "
        "1/B Σ_i (beta2·Σ_t log π/π_ref(o_i) − (r_i − V*(x_i)))²"
    )
    departures = (
        "The authors draw one completion per problem and step: set train.group_size = 1, which is not our "
        "default; more are as many terms. V* is of the run's own training problems, reward and sampler, "
        "at sampler.temperature, drawn again for each seed. Rewards that the recipe doses are dosed in it "
        "too. The authors' code adds an entropy bonus of 0.001, averaged over tokens; none is added here, "
        "and modify.entropy_bonus averages over completions first. Their beta1 = 0 (V* is the mean "
        'reward) is estimate = "mean"; their beta1 below 0 (V* is 0) is left out.'
    )
    evidence = (
        "verified: V*, its mean and the squared error in the authors' code (ZhaolinGao/A-PO@45b6570, "
        "verl/trainer/apo/core_algos.py, verl/utils/dataset/rl_dataset.py), N, beta1 and beta2 in its "
        "script and configuration (@637ca6f, scripts/apo_math.sh, verl/trainer/config/apo_trainer.yaml); "
        "loss and gradient equal both the authors', restated in the tests, and TRL 1.16's A2POTrainer; of "
        "the paper only the abstract was read"
    )
    cost = (
        "the reference's forward pass; before training, value_samples completions of every training problem, "
        "kept on disk and counted in the run's tokens, FLOPs and seconds"
    )
    metrics = (
        Metric(
            "optimal/error",
            "reward²",
            "mean over rows of (beta2·Σ log π/π_ref − (r − V*))² before the update step",
            "lower",
        ),
        Metric("optimal/value", "reward", "mean over rows of V*; NaN where it is known of none"),
        Metric("optimal/advantage", "reward", "mean over rows of r − V*", "higher"),
        Metric(
            "optimal/implicit_reward",
            "reward",
            "mean over rows of beta2·Σ log π/π_ref before the update step",
        ),
        Metric("optimal/unknown", "share of rows", "rows left out because V* is not known", "lower"),
        *parts.KL_METRICS,
    )

    beta1: float = 0.5
    """Temperature of V*, in rewards: weight of the KL to the reference under which V* is optimal."""
    beta2: float = 1e-3
    """Rewards per nat of log-ratio in the regression: weight of the KL to the reference in training."""
    value_samples: int = 8
    """N: graded completions of the initial policy per training problem."""
    estimate: Estimate = "soft"
    """V* as beta1·log mean exp(r/beta1), or as the mean reward, the limit of a large beta1."""
    skip_unsolved: bool = False
    """Whether problems whose rewards before training are all 0 are never trained on."""

    def __post_init__(self) -> None:
        parts.demand_positive(beta1=self.beta1, beta2=self.beta2)
        parts.demand_count(value_samples=self.value_samples)

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        return ("reference",)

    @property
    def base_rollouts(self) -> int:
        return self.value_samples

    def curriculum(
        self,
        traits: Sequence[Mapping[str, str | float]],
        prompts: int,
        seed: int,
        study: Study | None = None,
    ) -> Curriculum:
        assert study is not None
        # float64: exp(r/beta1) of a large reward would overflow float32 sooner.
        reward = study.reward.double()
        value = optimal_value(reward, self.beta1, self.estimate).tolist()
        solved = (reward.nan_to_num() != 0).any(-1) | reward.isnan().all(-1)
        offered = [i for i in range(len(value)) if solved[i] or not self.skip_unsolved]
        if len(offered) < prompts:
            raise NoProblems(
                f"skip_unsolved: leaves {len(offered)} problems, and a step has {prompts}; set it to false "
                "or lower train.prompts_per_step"
            )
        return ValuedShuffle(value, offered, prompts, seed)

    def compute_signal(self, batch: Batch, models: Models) -> OptimalAdvantage:
        if batch.expected is None:
            raise ValueError("V* of no problem is known: Batch.expected is missing; was none of them graded?")
        value_known = batch.expected.isfinite()
        unit = torch.where(value_known, parts.rows(batch), -1)
        target = torch.where(value_known, batch.reward - batch.expected, torch.zeros_like(batch.reward))
        return OptimalAdvantage(unit, target, models.forward("reference", batch).logp)

    def observe(self, batch: Batch, signal: OptimalAdvantage) -> dict[str, float]:
        value_known = signal.row_group >= 0
        assert batch.expected is not None
        return {
            "optimal/value": batch.expected[value_known].double().mean().item(),
            "optimal/advantage": signal.advantage_target[value_known].double().mean().item(),
            "optimal/unknown": (~value_known).double().mean().item(),
        }

    def loss(self, batch: Batch, signal: OptimalAdvantage, now: Mapping[Role, ModelOutput]) -> Loss:
        logp = now["policy"].logp
        log_ratio = ((logp - signal.ref_logp) * batch.completion_mask).sum(-1)
        implicit = self.beta2 * log_ratio
        terms = (implicit - signal.advantage_target).square()
        metrics = {"optimal/error": terms.detach(), "optimal/implicit_reward": implicit.detach()}
        return Loss(terms, metrics | parts.kl_metrics(logp, signal.ref_logp))

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return parts.per_sequence(batch)


def optimal_value(reward: torch.Tensor, beta1: float, estimate: Estimate) -> torch.Tensor:
    """V* of each problem, (N,), from the rewards (N, n) of completions of the reference; NaN ones do not
    count, and without another one V* is NaN."""
    graded = ~reward.isnan()
    count = graded.sum(-1).to(reward.dtype)
    if estimate == "mean":
        return reward.nan_to_num().sum(-1) / count  # 0/0 is NaN
    # logsumexp subtracts the largest: exp(r/beta1) itself overflows for a reward of 710·beta1.
    total = (reward / beta1).masked_fill(~graded, -math.inf).logsumexp(-1)
    value = beta1 * (total - count.log())
    return value.masked_fill(count == 0, math.nan)
