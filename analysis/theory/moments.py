"""Exact mean and variance of a policy-gradient estimate, by enumeration of all groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.theory.scenarios import Scenario


@dataclass(frozen=True)
class AnswerClass:
    """Completions of one question that an estimator cannot tell apart."""

    probability: float
    reward: float
    """That the estimator sees."""
    best: bool
    """Whether its true reward is the question's greatest."""
    length: int
    ratio: float
    """π/π_old of the whole completion."""
    score: Floats
    """E[∇ log π | class], (D,)."""
    square: float
    """E[‖∇ log π‖² | class]."""
    example: int
    """Row of one of them in `Scenario.completions`."""


Classes: TypeAlias = Sequence[AnswerClass]


def classes_of(
    scenario: Scenario, question: int, verdicts: Floats | None = None, apart: bool = False
) -> list[AnswerClass]:
    """The classes of equal reward, length and ratio, or with `apart` one for each completion. `verdicts` (N,)
    are what a verifier that errs gives in place of the rewards."""
    probability = scenario.probability(scenario.sampling_logits)[question]
    ratio = scenario.probability(scenario.logits)[question] / probability
    rewards, score = scenario.rewards[question], scenario.score[question]
    reported = rewards if verdicts is None else verdicts
    columns = (reported, rewards, scenario.length, ratio.round(12), np.arange(len(rewards)) * apart)
    keys = [*zip(*(column.tolist() for column in columns), strict=True)]
    classes = []
    for key in sorted(set(keys)):
        rows = np.array([row for row, other in enumerate(keys) if other == key])
        share = probability[rows] / probability[rows].sum()
        classes.append(
            AnswerClass(
                probability=float(probability[rows].sum()),
                reward=key[0],
                best=key[1] == rewards.max(),
                length=key[2],
                ratio=key[3],
                score=share @ score[rows],
                square=float(share @ np.square(score[rows]).sum(-1)),
                example=int(rows[0]),
            )
        )
    return classes


def compositions(size: int, classes: int) -> Iterator[tuple[int, ...]]:
    """Every way to deal `size` completions to so many classes."""
    for bars in itertools.combinations(range(size + classes - 1), classes - 1):
        ends = (-1, *bars, size + classes - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(ends))


def multinomial(counts: Sequence[int], probability: Sequence[float]) -> float:
    """Chance that a group has so many completions of each class."""
    ways, left = 1, sum(counts)
    for count in counts:
        ways, left = ways * math.comb(left, count), left - count
    return ways * math.prod(p**n for p, n in zip(probability, counts, strict=True))


@dataclass(frozen=True)
class Response:
    """What an estimator does with a group: sums over the completions of each class, all (C,)."""

    total: Floats
    """Σ c_i, where the gradient is 1/G Σ_i c_i ∇ log π(o_i)."""
    square: Floats
    """Σ c_i²."""
    advantage: Floats
    """Σ A_i."""


@dataclass(frozen=True)
class Moments:
    """Of the gradient of a batch with one group per question, each times the chance of these batches."""

    chance: float
    mean: Floats
    """E g, (Q·D,)."""
    square: float
    """E ‖g‖²."""
    advantage: float
    """E A of a question's best answers, times how often they are drawn, over their probability."""

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.chance + other.chance,
            self.mean + other.mean,
            self.square + other.square,
            self.advantage + other.advantage,
        )

    def times(self, factor: float) -> Moments:
        return Moments(
            factor * self.chance, factor * self.mean, factor * self.square, factor * self.advantage
        )

    @property
    def variance(self) -> float:
        """tr Cov g."""
        return self.square - float(self.mean @ self.mean)


Counts: TypeAlias = tuple[int, ...]
Respond: TypeAlias = Callable[[Sequence[Counts]], Sequence[Response] | None]
"""Counts of each question's classes -> the response of each group; None for batches that are left out."""


def batch_moments(questions: Sequence[Classes], size: int, respond: Respond) -> Moments:
    """The moments over all batches of one group of `size` per question.

    Given its class, a completion's score is independent of all else. With S_c = Σ c_i over the completions of
    class c, mean score μ_c and mean squared norm m_c, a group's gradient has the mean 1/G Σ_c S_c μ_c, and
    its squared norm 1/G² (‖Σ_c S_c μ_c‖² + Σ_c Σ_i c_i² (m_c − ‖μ_c‖²))."""
    groups = [
        [
            (counts, multinomial(counts, [c.probability for c in classes]))
            for counts in compositions(size, len(classes))
        ]
        for classes in questions
    ]
    moments = Moments(0.0, np.zeros(sum(len(classes[0].score) for classes in questions)), 0.0, 0.0)
    for batch in itertools.product(*groups):
        responses = respond([counts for counts, _ in batch])
        if responses is not None:
            chance = math.prod(p for _, p in batch)
            moments += given_counts(questions, size, responses).times(chance)
    return moments


def given_counts(questions: Sequence[Classes], size: int, responses: Sequence[Response]) -> Moments:
    """The moments given how many completions each class has."""
    means, spread, advantage = [], 0.0, 0.0
    rollouts = size * len(questions)
    for classes, response in zip(questions, responses, strict=True):
        score = np.array([c.score for c in classes])
        noise = np.array([c.square for c in classes]) - np.square(score).sum(-1)
        means.append(response.total @ score / rollouts)
        spread += float(response.square @ noise) / rollouts**2
        best = np.array([c.best for c in classes])
        share = sum(c.probability for c in classes if c.best)
        advantage += float(response.advantage[best].sum()) / (rollouts * share)
    mean = np.concatenate(means)
    return Moments(1.0, mean, float(mean @ mean) + spread, advantage)
