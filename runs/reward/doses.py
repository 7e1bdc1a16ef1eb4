"""Doses: planned changes of the training rewards, to measure how an algorithm reacts to them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from grpobench.runs.settings.config import RewardConfig
from grpobench.runs.settings.verifier_errors import VerifierErrors
from grpobench.runs.tools.seeds import derive


@dataclass(frozen=True)
class Dosed:
    """A reward after the doses."""

    reward: float
    flipped: bool
    outlier: bool
    was_high: bool | None = None
    """Whether the reward before the flip was above its opposite, as that of a right answer is; None where
    both are equal, or nothing can be flipped."""

    @property
    def columns(self) -> dict[str, bool | None]:
        """By metric, whether the dose happened; None where it could not have."""
        return {
            "flipped_share": self.flipped,
            "false_positive_rate": self.flipped if self.was_high is False else None,
            "false_negative_rate": self.flipped if self.was_high else None,
            "outlier_share": self.outlier,
        }


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

        r ← Σ w_k − r                with probability flip, or that of its kind of error
        r ← scale · r + offset
        r ← r ± outlier_size         with probability outliers, both signs equally likely

    Σ w_k is the sum of the smallest and the largest reward that the weights can give to scores from 0 to 1,
    so that a flip turns the best reward into the worst: of a reward of 0 or 1 it is 1 − r. A flip that raises
    a reward is a false positive, one that lowers it a false negative (`VerifierErrors`). Every draw has a
    seed made of the run's seed, the step, the problem and the place in the group, of a flip as far as its
    `by` says, and none depends on the share: arms with the same seed have the same draws, and a larger share
    flips all that a smaller one flips. Evaluations are graded without doses."""
    flipped = outlier = False
    was_high = None
    if settings.flip:
        errors, opposite = VerifierErrors.of(settings.flip), sum(weights.values()) - reward
        was_high = None if reward == opposite else reward > opposite
        chance = errors.false_negative if was_high else errors.false_positive
        flipped = random.Random(derive(seed, "flip", *errors.draw_key(*completion_key))).random() < chance
        reward = opposite if flipped else reward
    reward = settings.scale * reward + settings.offset
    if settings.outliers:
        draws = random.Random(derive(seed, "outlier", *completion_key))
        outlier, up = draws.random() < settings.outliers, draws.random() < 0.5
        reward += (settings.outlier_size if up else -settings.outlier_size) if outlier else 0.0
    return Dosed(reward, flipped, outlier, was_high)
