"""RAE: rewards minus a moving average of the rewards of the same role."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Metric, Models, Rowwise, State
from grpobench.algorithms.policy_gradient import ClippedRatio

BASELINE_METRIC = Metric(
    "rae/baseline", "reward", "mean over rows of the moving average that their role had before the step"
)


@dataclass(frozen=True)
class RAE(ClippedRatio):
    """Role-conditioned Advantage Estimation (SPIRAL, arXiv:2506.24119): each role has a moving average of its
    rewards, from which its next rewards are measured. The role of a row is the category of its problem (in a
    mixture of tasks, its task). The averages are part of every checkpoint.

    Degenerate cases: a role's first row of a run has its reward as advantage; equal rewards have an advantage
    until the average has reached them; where no problem has a category it is REINFORCE with one moving
    average; with decay = 0 the only row of a role in a step is compared with the one before it.
    """

    name = "rae"
    label = "RAE"
    paper = (
        "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn Reinforcement "
        "Learning, arXiv:2506.24119"
    )
    summary = "reward minus a moving average of the rewards of the same category; no group"
    claim = (
        "A baseline of each role keeps self-play of one policy in several roles stable, whose reasoning "
        "carries over: up to 10 % better on eight reasoning benchmarks for four models, among them "
        "DeepSeek-R1-Distill-Qwen-7B (abstract)."
    )
    formula = (
        "one row of a role: A = r − b, then b ← decay·b + (1 − decay)·r;  n rows in a step, the mean over "
        "their orders: A_i = r_i − (w·b + (1 − w)·mean_{j≠i} r_j), w = (1 − decay^n)/(n·(1 − decay)), then b "
        "← decay^n·b + (1 − decay^n)·mean r;  b = 0 at first;  objective as PPO's"
    )
    departures = (
        "The authors and prime-rl go through the rows one after the other; a step's rows have no order here, "
        "so that each gets the mean of its advantages over all orders, which is also the mean average that "
        "the step leaves. The paper moves the average before it subtracts it, by accounts of it; both codes "
        "after. Roles are categories of problems, since tasks here have one player. The authors' script "
        "makes two epochs of updates over a batch (train.epochs = 2), on one trajectory of each role and "
        "game (train.group_size = 1); each of their actors has averages of its own, those of a run here are "
        "common to all. prime-rl's objective is `dppo`'s with a penalty."
    )
    evidence = (
        "verified: the average, its order, its beginning and the averaging in the authors' code "
        "(spiral-rl/spiral@a02d0ed, train_spiral.py: prepare_trajectories, SelfPlayLearner; spiral/utils.py: "
        "EMA), the average in PrimeIntellect-ai/prime-rl@559b447, src/prime_rl/orchestrator/algo/rae.py; "
        "advantages, averages and the gradient equal theirs, restated in the tests, as the mean over all "
        "orders; of the paper only the abstract was read"
    )
    metrics = (*parts.CLIP_METRICS, *parts.KL_METRICS, BASELINE_METRIC)

    averaging: parts.Averaging = "constant"
    decay: float = 0.95
    """α: how much of a role's average is left by each of its rewards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay < 1:
            raise ValueError("decay: must be at least 0 and below 1")

    # The state: {"averages": {number of the role: average}}

    def initial_state(self) -> State:
        return {"averages": {}}

    def next_state(self, batch: Batch, models: Models) -> State:
        reward = batch.reward
        if self.beta and self.kl_placement == "reward":
            reward = parts.kl_penalized_reward(batch, models.forward("reference", batch).logp, self.beta)
        rewards: dict[str, list[float]] = {}
        for role, value in zip(roles_of(batch).tolist(), reward.tolist(), strict=True):
            if math.isfinite(value):
                rewards.setdefault(str(role), []).append(value)
        averages = dict(averages_of(batch.state))
        for name, values in rewards.items():
            left = self.decay ** len(values)
            averages[name] = left * averages.get(name, 0.0) + (1 - left) * sum(values) / len(values)
        return {"averages": averages}

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        role = roles_of(batch)
        count = parts.group_size(role).to(batch.reward.dtype)
        share = (1 - self.decay**count) / (count * (1 - self.decay))
        others = parts.group_baseline(batch.reward, role, "leave_one_out")
        return batch.reward - (share * before_step(batch) + (1 - share) * others)

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        return {BASELINE_METRIC.name: before_step(batch).double().mean().item()}


def roles_of(batch: Batch) -> torch.Tensor:
    """The number of each row's role, long (B,); −1 for all rows without a category."""
    return torch.full_like(batch.group, -1) if batch.category is None else batch.category


def averages_of(state: State) -> Mapping[str, float]:
    """The average of each role, by its number as text."""
    return state["averages"] if state else {}


def before_step(batch: Batch) -> Rowwise:
    """The average that each row's role had before this step, (B,)."""
    averages = averages_of(batch.state)
    return batch.reward.new_tensor([averages.get(str(role), 0.0) for role in roles_of(batch).tolist()])
