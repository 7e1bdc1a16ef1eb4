"""Doses: planned changes of the training rewards, to measure how an algorithm reacts to them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from grpobench.runs.settings.config import RewardConfig
from grpobench.runs.tools.seeds import derive


@dataclass(frozen=True)
class Dosed:
    """A reward after the doses."""

    reward: float
    flipped: bool
    outlier: bool


def dosed(
    reward: float,
    settings: RewardConfig,
    weights: Mapping[str, float],
    seed: int,
    completion_key: tuple[str, str, int],
) -> Dosed:
    """A reward with the doses of the recipe. `weights` are those of its components, `seed` the run's,
    `completion_key` is (stream, problem, index in the group) of the completion.

    In this order, for a reward r of weights w_k (settings `reward.flip`, `scale`, `offset`, `outliers`)::

        r ← Σ w_k − r                with probability flip
        r ← scale · r + offset
        r ← r ± outlier_size         with probability outliers, both signs equally likely

    Σ w_k is the sum of the smallest and the largest reward that the weights can give to scores from 0 to 1,
    so that a flip turns the best reward into the worst: of a reward of 0 or 1 it is 1 − r. Every draw has a
    seed made of the run's seed, the step, the problem and the place in the group, and none depends on the
    share: arms with the same seed have the same draws, and a larger share flips all that a smaller one flips.
    Evaluations are graded without doses."""
    flipped = outlier = False
    if settings.flip:
        flipped = random.Random(derive(seed, "flip", *completion_key)).random() < settings.flip
        reward = sum(weights.values()) - reward if flipped else reward
    reward = settings.scale * reward + settings.offset
    if settings.outliers:
        draws = random.Random(derive(seed, "outlier", *completion_key))
        outlier, up = draws.random() < settings.outliers, draws.random() < 0.5
        reward += (settings.outlier_size if up else -settings.outlier_size) if outlier else 0.0
    return Dosed(reward, flipped, outlier)
