"""Estimators of the policy gradient as formulas, written from their papers without the algorithms' code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.theory.flips import NO_FLIPS, Flips, worlds
from grpobench.analysis.theory.moments import (
    AnswerClass,
    Classes,
    Counts,
    Moments,
    Respond,
    Response,
    batch_moments,
)
from grpobench.analysis.theory.scenarios import Scenario

Divisor: TypeAlias = Literal["completion", "token", "constant", "sum"]
Rule: TypeAlias = Callable[[Floats, float], Any]
"""Rewards of a group (G,), reward of the greedy answer -> advantages (G,)."""


def centered(reward: Floats, greedy: float) -> Any:
    return reward - reward.mean()


def leave_one_out(reward: Floats, greedy: float) -> Any:
    return reward - (reward.sum() - reward) / (len(reward) - 1)


def from_median(reward: Floats, greedy: float) -> Any:
    return reward - np.median(reward)


def plain_reward(reward: Floats, greedy: float) -> Any:
    return reward


def from_greedy(reward: Floats, greedy: float) -> Any:
    return reward - greedy


def over_deviation(reward: Floats, greedy: float) -> Any:
    """GRPO with ddof 1 and ε = 1e-4."""
    return (reward - reward.mean()) / (reward.std(ddof=1) + 1e-4)


def over_mean(reward: Floats, greedy: float) -> Any:
    """MaxRL with ε = 1e-6."""
    return (reward - reward.mean()) / (reward.mean() + 1e-6)


def best_of_subsets(k: int, divide: bool) -> Rule:
    """Pass@k over every subset of k: mean best of those that hold the completion, minus that of all, over the
    deviation over all if `divide`, with ε = 1e-6."""

    def rule(reward: Floats, greedy: float) -> Any:
        subsets = np.array(list(itertools.combinations(range(len(reward)), k)))
        best = reward[subsets].max(1)
        holding = np.array([best[(subsets == row).any(1)].mean() for row in range(len(reward))])
        return (holding - best.mean()) / (best.std() + 1e-6 if divide else 1.0)

    return rule


@dataclass(frozen=True)
class Formula:
    """An estimator: gradient = 1/Σ_groups G Σ_i w_i A_i (ρ_i) ∇ log π(o_i)."""

    rule: Rule
    averaging: Divisor = "completion"
    """w_i: 1/|o_i|, rollouts/Σ|o_i|, 1/L_max or 1."""
    clip: tuple[float, float] | None = (0.2, 0.2)
    """How far the ratio may fall and rise before a term's gradient is 0; None: there is no ratio."""
    telling: Literal["all", "redrawn", "scaled"] = "all"
    """Groups of equal rewards are trained on, replaced by further groups until none is left (DAPO), or left
    out of the average (GPG)."""

    def respond(self, questions: Sequence[Classes], longest: int, greedy: Sequence[float]) -> Respond:
        """What the estimator does with one group of each question."""

        def respond(batch: Sequence[Counts]) -> list[Response] | None:
            pairs = [*zip(questions, batch, strict=True)]
            if self.telling != "all" and any(is_equal(*pair) for pair in pairs):
                return None
            tokens = sum(
                n * c.length for classes, counts in pairs for c, n in zip(classes, counts, strict=True)
            )
            mean_length = tokens / sum(map(sum, batch))
            return [
                self.group_response(classes, counts, longest, mean_length, greedy_reward)
                for (classes, counts), greedy_reward in zip(pairs, greedy, strict=True)
            ]

        return respond

    def group_response(
        self, classes: Classes, counts: Counts, longest: int, mean_length: float, greedy: float
    ) -> Response:
        reward = np.array([c.reward for c in classes])
        rows = np.repeat(np.arange(len(classes)), counts)
        advantage = np.zeros(len(classes))
        advantage[rows] = self.rule(reward[rows], greedy)
        length = np.array([c.length for c in classes])
        divisor = {"completion": length, "token": mean_length, "constant": longest, "sum": 1}[self.averaging]
        weight = np.array([self.weight(c, a) for c, a in zip(classes, advantage, strict=True)]) / divisor
        number = np.array(counts)
        coefficient = weight * advantage
        return Response(number * coefficient, number * coefficient**2, number * advantage)

    def weight(self, answer: AnswerClass, advantage: float) -> float:
        """Factor of A ∇ log π: the ratio, or 0 where the clip holds it."""
        if self.clip is None:
            return 1.0
        low, high = self.clip
        clipped = answer.ratio > 1 + high if advantage > 0 else answer.ratio < 1 - low
        return 0.0 if clipped else answer.ratio

    def moments(self, scenario: Scenario, size: int, copies: int = 1, flips: Flips = NO_FLIPS) -> Moments:
        """Of a batch of `copies` groups of `size` for each question."""
        longest = scenario.logits.shape[1]
        if copies > 1 and self.averaging == "token" and len(set(scenario.lengths)) > 1:
            raise ValueError("copies: a token mean over completions of several lengths couples groups")
        parts = []
        for chance, questions in worlds(scenario, flips):
            respond = self.respond(questions, longest, scenario.greedy_rewards.tolist())
            parts.append(batch_moments(questions, size, respond).times(chance))
        group = sum(parts[1:], parts[0])
        if self.telling == "all":
            return average(group, copies)
        telling = group.times(1 / group.chance)
        if self.telling == "redrawn":
            return average(telling, copies)
        # Scaled: the average over the k of `copies` groups that tell something; nothing without any.
        chances = [binomial(k, copies, group.chance) for k in range(1, copies + 1)]
        each = [average(telling, k).times(p) for k, p in enumerate(chances, start=1)]
        return sum(each[1:], each[0])


def average(group: Moments, copies: int) -> Moments:
    """Of the mean of independent batches of one group per question."""
    square = float(group.mean @ group.mean) + group.variance / copies
    return Moments(group.chance, group.mean, square, group.advantage)


def binomial(successes: int, trials: int, chance: float) -> float:
    return math.comb(trials, successes) * chance**successes * (1 - chance) ** (trials - successes)


def is_equal(classes: Classes, counts: Counts) -> bool:
    """Whether a group's rewards are all equal."""
    return len({c.reward for c, n in zip(classes, counts, strict=True) if n}) == 1
