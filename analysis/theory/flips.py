"""Verifiers that are wrong by chance, as mixtures of verifiers that are wrong for certain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from grpobench.analysis.theory.moments import AnswerClass, classes_of
from grpobench.analysis.theory.scenarios import Scenario

FlipKind = Literal["rollout", "group", "answer"]


@dataclass(frozen=True)
class Flips:
    """Verdicts that are wrong with a probability: r becomes 1 − r."""

    share: float = 0.0
    kind: FlipKind = "rollout"
    """What is flipped together: nothing (each rollout by itself), all rollouts of a group, or the equal
    answers in a group."""


NO_FLIPS = Flips()


def worlds(scenario: Scenario, flips: Flips) -> list[tuple[float, list[list[AnswerClass]]]]:
    """(chance, classes of each question) of every way in which the verifier may be wrong for a whole
    group."""
    questions = [classes_of(scenario, q) for q in range(len(scenario.logits))]
    share = flips.share
    if not share:
        return [(1.0, questions)]
    if flips.kind == "rollout":
        return [(1.0, [[part for c in classes for part in split(c, share)] for classes in questions])]
    if flips.kind == "group":
        wrong = [[replace(c, reward=1 - c.reward) for c in classes] for classes in questions]
        return [(1 - share, questions), (share, wrong)]
    return [
        (
            math.prod(share if is_wrong else 1 - share for is_wrong in pattern),
            [given_pattern(scenario, pattern)],
        )
        for pattern in itertools.product((False, True), repeat=len(scenario.completions))
    ]


def split(answer: AnswerClass, share: float) -> tuple[AnswerClass, AnswerClass]:
    """The completions of a class whose verdict is right, and those whose verdict is wrong."""
    return (
        replace(answer, probability=(1 - share) * answer.probability),
        replace(answer, probability=share * answer.probability, reward=1 - answer.reward),
    )


def given_pattern(scenario: Scenario, pattern: Sequence[bool]) -> list[AnswerClass]:
    """The classes of a scenario of one question if the verdict on these answers is wrong."""
    return classes_of(scenario, 0, np.where(pattern, 1 - scenario.rewards[0], scenario.rewards[0]))
