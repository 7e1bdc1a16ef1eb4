"""Split a change of accuracy into two parts: more answers can be read, and readable answers are better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.statistics.intervals import Estimate, Floats, t_quantile


def was_read(outcome: Any, correct: Any) -> Any:
    """Whether an answer was read, of one answer or of columns: its outcome is not `unparsable`, or it scores.
    An answer that scores was read, whatever its verifier calls it: only then is accuracy r · a."""
    return (outcome != "unparsable") | (correct > 0)


COUNTS = ("answers", "readable", "correct", "asked", "likeliest")
"""What is counted of a policy: its answers, those that can be read, those that are right, the problems that
were asked by likelihood, and those whose likeliest option is right. A right answer is a readable one."""


@dataclass(frozen=True)
class GainParts:
    """The two parts of changes of accuracy, as shares; they add up to the change."""

    readable: Floats
    answers: Floats
    assumed: Floats
    """1 where one policy has no readable answer and no likelihoods, so that the parts are a convention."""


def decompose(counts: ArrayLike) -> GainParts:
    """The parts of changes between two policies, from counts of shape (…, 2, 5): before and after, `COUNTS`.
    NaN where a policy has no answers.

    Accuracy is r · a, with r the share of answers that can be read and a the accuracy among these. Between
    two policies

        r₁a₁ − r₀a₀ = (r₁ − r₀) · (a₀ + a₁)/2 + (a₁ − a₀) · (r₀ + r₁)/2,

    the Shapley values of the two factors: exact, and the same whichever factor changes first.

    a is not defined where no answer can be read. The identity then holds for any a, and the accuracy by
    likelihood replaces it: what the policy prefers among the options, whether or not it says so. Without one,
    the a of the other policy replaces it, which makes the whole change one of readability;
    `GainParts.assumed` marks this."""
    array = np.asarray(counts, dtype=np.float64)
    answers, readable, correct, questions, likeliest = np.moveaxis(array, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = readable / answers
        accuracy = np.where(readable > 0, correct / readable, likeliest / questions)
    before, after = accuracy[..., 0], accuracy[..., 1]
    assumed = np.isnan(before) != np.isnan(after)
    # If neither policy wrote anything readable, nothing changed, and any number serves.
    neither = np.isnan(before) & np.isnan(after)
    first = np.where(neither, 0.0, np.where(np.isnan(before), after, before))
    last = np.where(neither, 0.0, np.where(np.isnan(after), before, after))
    return GainParts(
        (share[..., 1] - share[..., 0]) * (first + last) / 2,
        (last - first) * (share[..., 0] + share[..., 1]) / 2,
        assumed.astype(np.float64),
    )


def problem_intervals(counts: ArrayLike) -> tuple[Estimate, Estimate]:
    """The two parts, mean over runs, with 95 % jackknife intervals over clusters of problems (t over G − 1).

    `counts` has the shape (runs, clusters, 2, 5). The interval is about these runs and other problems like
    these; it says nothing about other seeds. There is none for a single cluster.
    """
    array = np.asarray(counts, dtype=np.float64)
    total = array.sum(axis=1)
    parts = decompose(total)
    number = array.shape[1]
    if number < 2:
        means = parts.readable.mean(), parts.answers.mean()
        return Estimate(float(means[0]), math.nan, math.nan), Estimate(float(means[1]), math.nan, math.nan)
    without = decompose(total[:, None] - array)
    factor = float(t_quantile(number - 1))

    def estimate(value: Floats, left_out: Floats) -> Estimate:
        means = left_out.mean(axis=0)
        error = math.sqrt((number - 1) / number * float(((means - means.mean()) ** 2).sum()))
        mean = float(value.mean())
        return Estimate(mean, mean - factor * error, mean + factor * error)

    return estimate(parts.readable, without.readable), estimate(parts.answers, without.answers)


def decides(part: Estimate, change: float) -> bool:
    """Whether a part makes more than half of a change, with an interval that excludes 0."""
    excludes = part.low > 0 if change > 0 else part.high < 0
    return abs(part.value) > abs(change) / 2 and part.value * change > 0 and excludes
