"""MaxRL: toward the likelihood of success instead of its probability."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import ClippedRatio


@dataclass(frozen=True)
class MaxRL(ClippedRatio):
    """Maximum Likelihood Reinforcement Learning (arXiv:2602.02710): the centered reward is divided by the
    group's mean, so that rarely solved problems weigh more. With N completions and success probability p
    the expected gradient is (1 + (1−p) + … + (1−p)^(N−2)) ∇p, which tends to ∇log p.

    Degenerate cases: groups of equal rewards (never or always solved) and groups of one completion have
    advantage exactly 0; with two completions the expected gradient is ∇p itself. Rewards must not be
    negative, since they are divided by their mean.
    """

    name = "maxrl"
    label = "MaxRL"
    paper = "Maximum Likelihood Reinforcement Learning, arXiv:2602.02710"
    summary = "centered rewards divided by the group's mean: rarely solved problems weigh more; PPO's clip"
    claim = (
        "Reinforcement learning maximizes a first-order approximation of the likelihood of a right answer; "
        "here more rollouts make it a better one. It does better than other methods on every model and task "
        "tried, with up to 20 times GRPO's efficiency in test-time scaling (abstract)."
    )
    formula = (
        "A_i = (r_i − mean r)/(mean r + ε);  loss = token mean of "
        "−min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) A_i)"
    )
    departures = (
        "The authors' library has a dual clip of 3, which is off here. Their scripts make one update per "
        "batch, where every ratio is 1 and neither clip matters. Their token mean is that of each "
        "micro-batch. The paper's rewards are 0 or 1; other rewards are divided by their mean too, and a "
        "negative one stops the run."
    )
    evidence = (
        "verified: advantage and ε in the authors' code, the clip in their training scripts, the token mean "
        "in their defaults (tajwarfahim/maxrl@c0698eb, verl/trainer/ppo/core_algos.py: "
        "compute_maxrl_outcome_advantage; qwen3_experiments/run_qwen3_training.sh; "
        "verl/trainer/config/ppo_trainer.yaml); the expected gradient by enumeration"
    )
    minimum_group = 2

    averaging: parts.Averaging = "token_mean"
    epsilon: float = 1e-6
    """Added to the group's mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_scale(0, self.epsilon)
        parts.demand_unpenalized(self.beta, self.kl_placement)

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        parts.demand_range(batch.reward, 0.0, math.inf, "the reward")
        mean = parts.group_mean(batch.reward, batch.group)
        return parts.centered(batch.reward, batch.group, mean) / (mean + self.epsilon)
