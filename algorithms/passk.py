"""Pass@k training: a sample is worth what it adds to the best of k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import ClippedRatio


@dataclass(frozen=True)
class PassK(ClippedRatio):
    """Pass@k as the objective, in two forms. `subsets` (arXiv:2508.10751, §2.4): the advantage of a
    completion is the mean best reward of the k-subsets of its group that hold it, minus that of all
    k-subsets, over its standard deviation. With rewards of 0 and 1 these are the paper's closed forms in
    the number of wrong completions; other rewards give the expected maximum of k. `best`
    (arXiv:2503.19595): only the best completion has an advantage, its lead over the second best divided
    by the group's standard deviation; k is the whole group.

    Undivided, the expected gradient of `subsets` is (1/k − 1/G) times that of pass@k, and that of `best`
    (summed over the group) is that of pass@G.
    Degenerate cases: a group has advantage exactly 0 if its rewards are equal, if fewer than k
    completions are wrong (`subsets`) or if two are best (`best`). Groups of at most k completions
    (`subsets`) or of one (`best`) are left out.
    """

    name = "passk"
    label = "pass@k"
    paper = (
        "Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large Reasoning Models, "
        "arXiv:2508.10751; Optimizing Language Models for Inference Time Objectives using Reinforcement "
        "Learning, arXiv:2503.19595"
    )
    summary = (
        "advantages of the best of k samples: over all k-subsets of a group, or for its best sample only"
    )
    claim = (
        "Rewarded for the best of k samples, a policy explores more, and exploring does not cost it "
        "accuracy at one sample: each helps the other (abstract, which gives no number)."
    )
    formula = (
        "subsets: R̄ = 1 − C(N_wrong, k)/C(N, k), σ = √(R̄(1−R̄)), A_right = (1−R̄)/σ, A_wrong = (1 − R̄ − "
        "C(N_wrong−1, k−1)/C(N−1, k−1))/σ;  best: A = (r_max − r_second)/std r for the best sample, else "
        "0;  loss = token mean of −min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) A_i)"
    )
    departures = (
        "k is 4 by default, below the default train.group_size of 8; the paper has 8 with 32 completions. "
        "Rewards other than 0 and 1 are allowed (the expected maximum). Both forms use the first paper's "
        "clip range and averaging."
    )
    evidence = (
        "verified: the closed forms in the first paper's authors' code; the second form in verl's code; "
        "expected gradients and other rewards by enumeration; reconstruction: clip range and averaging are "
        "second-hand"
    )

    form: Literal["subsets", "best"] = "subsets"
    """Advantages over all k-subsets of the group, or only for its best completion."""
    k: int = 4
    """Completions of which the best counts, below train.group_size; `best` takes the whole group."""
    divide: bool = True
    """Whether advantages are divided by the standard deviation."""
    epsilon: float = 1e-6
    """Added to the standard deviation."""
    averaging: parts.Averaging = "token_mean"
    clip_high: float = 0.28

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_scale(0, self.epsilon)
        parts.demand_count(k=self.k)

    @property
    def minimum_group(self) -> int:
        return self.k + 1 if self.form == "subsets" else 2

    def row_groups(self, batch: Batch) -> torch.Tensor:
        return parts.rows(batch).masked_fill(parts.group_size(batch.group) < self.minimum_group, -1)

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        advantage = torch.zeros_like(batch.reward)
        telling = ~parts.group_equal(batch.reward, batch.group)
        telling &= parts.group_size(batch.group) >= self.minimum_group
        for number in batch.group[telling].unique():
            rows = batch.group == number
            advantage[rows] = self.worth(batch.reward[rows])
        return advantage

    def worth(self, reward: torch.Tensor) -> torch.Tensor:
        """Advantages in one group, (N,)."""
        if self.form == "subsets":
            mean, spread, holding = best_of(reward.tolist(), self.k)
            worth = reward.new_tensor(holding) - mean
        else:
            best, second = reward.topk(2).values
            worth, spread = (best - second) * (reward == best), reward.std(correction=1).item()
        return worth / (spread + self.epsilon) if self.divide else worth


def best_of(reward: Sequence[float], k: int) -> tuple[float, float, list[float]]:
    """The best reward of k samples drawn from a group without replacement: its mean, its standard deviation,
    and for each sample its mean when that sample is among the k."""
    mean = expected_best(sorted(reward), k)
    square = expected_best(sorted(reward), k, power=2)
    holding = []
    for index, sample_reward in enumerate(reward):
        others = sorted(max(sample_reward, r) for i, r in enumerate(reward) if i != index)
        holding.append(expected_best(others, k - 1) if k > 1 else sample_reward)
    return mean, max(0.0, square - mean**2) ** 0.5, holding


def expected_best(ascending: Sequence[float], k: int, power: int = 1) -> float:
    """Mean of a power of the largest of k of these numbers: the j-th is the largest of C(j − 1, k − 1) of the
    C(N, k) subsets."""
    ways = (comb(rank, k - 1) * r**power for rank, r in enumerate(ascending))
    return sum(ways) / comb(len(ascending), k)
