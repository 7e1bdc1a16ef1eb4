"""Measure what an algorithm's own code does: on batches drawn from a policy, and over all groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.curriculum import Curriculum
from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.theory.flips import Flips
from grpobench.analysis.theory.moments import (
    Classes,
    Counts,
    Moments,
    Response,
    batch_moments,
    classes_of,
)
from grpobench.analysis.theory.predictions import Prediction
from grpobench.analysis.theory.scenarios import SCENARIOS, Rows, Scenario, softmax
from grpobench.runs.calibration.batches import Rollouts, ScenarioPolicy, Update
from grpobench.runs.reward.doses import dosed
from grpobench.runs.settings.config import RewardConfig

FEW = 4
"""Answers up to which each is a class of its own: 165 groups of eight."""


def sampled_updates(
    algorithm: Algorithm[Any], prediction: Prediction, batches: int, seed: int
) -> tuple[Floats, Floats]:
    """(gradients (N, Q·T·V), advantages (N,) as `Moments.advantage` counts them) of N batches."""
    scenario = SCENARIOS[prediction.scenario]
    policy, rng = ScenarioPolicy(scenario), np.random.default_rng(seed)
    best = scenario.rewards == scenario.rewards.max(1, keepdims=True)
    share = (scenario.probability(scenario.sampling_logits) * best).sum(1)
    gradients, advantages = [], []
    for number in range(batches):
        rollouts = draw_batch(algorithm, prediction, rng, (seed, number))
        update = policy.update(algorithm, rollouts)
        is_best = best[rollouts.question, rollouts.row]
        gradients.append(update.gradient)
        advantages.append(float((update.advantage * is_best / share[rollouts.question]).mean()))
    return np.array(gradients), np.array(advantages)


def draw_batch(
    algorithm: Algorithm[Any], prediction: Prediction, rng: np.random.Generator, key: tuple[int, int]
) -> Rollouts:
    """Groups of every question. The algorithm's curriculum may replace groups, as in training."""
    scenario = SCENARIOS[prediction.scenario]
    questions = np.repeat(np.arange(len(scenario.logits)), prediction.copies)
    curriculum = algorithm.curriculum([{}] * len(questions), len(questions), key[0])
    rows = np.zeros((len(questions), prediction.size), dtype=int)
    reward = np.zeros(rows.shape)
    pending = np.arange(len(questions))
    for attempt in range(curriculum.attempts):
        rows[pending] = draw_groups(scenario, questions[pending], prediction.size, rng)
        exact = scenario.rewards[questions[pending, None], rows[pending]]
        reward[pending] = flip(exact, rows[pending], prediction.flips, (*key, attempt))
        accepted = curriculum.accept(1, pending.tolist(), reward[pending].tolist())
        pending = pending[~np.array(accepted)]
        if not len(pending):
            break
    return Rollouts(np.repeat(questions, prediction.size), rows.ravel(), reward.ravel(), prediction.size)


def draw_groups(scenario: Scenario, questions: Rows, size: int, rng: np.random.Generator) -> Rows:
    """Rows of completions, (groups, size), drawn token by token."""
    cumulated = softmax(scenario.sampling_logits).cumsum(-1)[questions]
    uniform = rng.random((len(questions), size, cumulated.shape[1], 1))
    tokens = (uniform > cumulated[:, None]).sum(-1).clip(max=cumulated.shape[2] - 1)
    return scenario.row_of(tokens)


def flip(exact: Floats, rows: Rows, flips: Flips, key: tuple[int, ...]) -> Floats:
    """Rewards (groups, size) after the setting `reward.flip`, with one draw for what flips together."""
    if not flips.share:
        return exact
    settings, rewards = RewardConfig(flip=flips.share), exact.copy()
    for group, index in np.ndindex(*exact.shape):
        together = {"rollout": index, "group": 0, "answer": int(rows[group, index])}[flips.kind]
        draw = (f"theory {key}", str(group), together)
        true_reward = float(exact[group, index])
        rewards[group, index] = dosed(true_reward, settings, {"correct": 1.0}, key[0], draw).reward
    return rewards


def enumerated_moments(algorithm: Algorithm[Any], prediction: Prediction) -> Moments:
    """The moments of a batch of one group per question, over all batches, with the algorithm's own code.

    Exact with one question of few answers. Elsewhere completions of equal reward and length are taken as
    equal, and so are the tokens of one, which not every algorithm does."""
    scenario = SCENARIOS[prediction.scenario]
    policy = ScenarioPolicy(scenario)
    apart = scenario.rewards.size <= FEW
    questions = [classes_of(scenario, q, apart=apart) for q in range(len(scenario.logits))]
    curriculum = algorithm.curriculum([{}] * len(questions), len(questions), 0)

    def respond(batch: Sequence[Counts]) -> list[Response] | None:
        groups = [
            np.repeat(np.arange(len(classes)), counts)
            for classes, counts in zip(questions, batch, strict=True)
        ]
        rollouts = rollouts_of(questions, groups, prediction.size)
        if not all(accepts(curriculum, rollouts)):
            return None
        return responses(questions, groups, policy.update(algorithm, rollouts))

    moments = batch_moments(questions, prediction.size, respond)
    return moments.times(1 / moments.chance)


def accepts(curriculum: Curriculum, rollouts: Rollouts) -> list[bool]:
    groups = rollouts.reward.reshape(-1, rollouts.size).tolist()
    return curriculum.accept(1, range(len(groups)), groups)


def rollouts_of(questions: Sequence[Classes], groups: Sequence[Rows], size: int) -> Rollouts:
    """A batch with one group per question, of examples of its completions' classes."""
    classes = [questions[q][index] for q, group in enumerate(groups) for index in group]
    return Rollouts(
        np.repeat(np.arange(len(questions)), size),
        np.array([c.example for c in classes]),
        np.array([c.reward for c in classes]),
        size,
    )


def responses(questions: Sequence[Classes], groups: Sequence[Rows], update: Update) -> list[Response]:
    """The sums over each class of what the algorithm's code gave to its completions."""
    coefficient = len(update.advantage) * update.coefficient[:, 0]
    parts = (np.split(values, len(groups)) for values in (coefficient, update.advantage))
    return [
        Response(*(sums(group, values, len(classes)) for values in (factor, factor**2, advantage)))
        for classes, group, factor, advantage in zip(questions, groups, *parts, strict=True)
    ]


def sums(group: Rows, values: Floats, classes: int) -> Floats:
    """Over the completions of each class, (C,)."""
    return np.bincount(group, values, classes).astype(float)
