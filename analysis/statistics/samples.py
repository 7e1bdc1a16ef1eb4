"""Scores of many samples per problem: pass@k, majority votes and calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:  # SciPy, which a run does not need
    from grpobench.analysis.statistics.intervals import Floats


def pass_at_k(samples: ArrayLike, correct: ArrayLike, k: int) -> Floats:
    """Unbiased pass@k, 1 − C(n−c, k)/C(n, k) = 1 − Π_{i=n−c+1..n} (1 − k/i), elementwise.

    `samples` n ≥ k and `correct` c broadcast against each other. The product never makes a large number, and
    is exactly 0 where n − c < k.
    """
    n, c = np.broadcast_arrays(np.asarray(samples, dtype=np.int64), np.asarray(correct, dtype=np.int64))
    if k < 1 or np.any(n < k) or np.any(c < 0) or np.any(c > n):
        raise ValueError("pass_at_k: needs 1 <= k <= samples and 0 <= correct <= samples")
    out = np.ones(n.shape)
    for index in np.ndindex(n.shape):
        terms = np.arange(int(n[index] - c[index]) + 1, int(n[index]) + 1, dtype=np.float64)
        out[index] = 1.0 if n[index] - c[index] < k else 1.0 - float(np.prod(1.0 - k / terms))
    return out


def pass_curve(samples: ArrayLike, correct: ArrayLike) -> dict[int, float]:
    """k -> unbiased pass@k, mean over problems, for k = 1, 2, 4, … up to half the samples of the problem that
    has fewest: with n < 2k the estimate rests on too few subsets. Empty without problems."""
    n, c = np.broadcast_arrays(np.asarray(samples, dtype=np.int64), np.asarray(correct, dtype=np.int64))
    most = int(n.min()) // 2 if n.size else 0
    return {k: float(pass_at_k(n, c, k).mean()) for k in doubling(most)}


def solved(correct: Sequence[float]) -> int:
    """Number of samples with full score; a partial score is not a solution."""
    return sum(score > 1 - 1e-9 for score in correct)


def doubling(most: int) -> list[int]:
    """1, 2, 4, … up to `most`."""
    return [2**i for i in range(most.bit_length())]


def overconfidence(
    answers: Sequence[Sequence[str | None]], correct: Sequence[Sequence[float]]
) -> float | None:
    """How much more often two samples of a problem agree than a sample is right, mean over problems. None
    where no sample has an answer. Each problem needs two samples.

    A policy is calibrated if the answers that it gives with probability p are right with probability p. Two
    of its samples then agree as often as one is right, both Σ p² (generalization disagreement equality and
    class-aggregated calibration of Jiang et al., 2022, arXiv:2106.13799). Above 0 it is overconfident, below
    0 underconfident. Pairs of different samples make the estimate unbiased for any number of samples, which
    the share of the most frequent answer is not. Errors of opposite signs cancel: 0 is necessary for
    calibration and does not prove it. An unreadable answer, None, agrees with none."""
    if not any(answer is not None for samples in answers for answer in samples):
        return None
    gaps = []
    for samples, scores in zip(answers, correct, strict=True):
        counts = Counter(answer for answer in samples if answer is not None).values()
        agreement = sum(n * (n - 1) for n in counts) / (len(samples) * (len(samples) - 1))
        gaps.append(agreement - float(np.mean(scores)))
    return float(np.mean(gaps))


def majority(answers: Sequence[str | None], correct: Sequence[float]) -> float:
    """The score of the most frequent answer. None has no vote. A tie goes to the answer that was given first.
    Without votes the score is 0."""
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    winner = votes.most_common(1)[0][0]  # of equal counts the first that was met
    return correct[answers.index(winner)]


def majority_curve(
    answers: Sequence[Sequence[str | None]], correct: Sequence[Sequence[float]]
) -> dict[int, float]:
    """k -> maj@k, mean over problems, for k = 1, 2, 4, … up to the samples of the problem that has fewest.

    The samples of a problem are split into groups of k in the given order, so no sample is in two votes. The
    remainder is not used. Empty where no sample has an answer.
    """
    if not any(answer is not None for samples in answers for answer in samples):
        return {}
    fewest = min(map(len, answers))
    pairs = list(zip(answers, correct, strict=True))
    return {k: float(np.mean([_blocks(*pair, k) for pair in pairs])) for k in doubling(fewest)}


def _blocks(answers: Sequence[str | None], correct: Sequence[float], k: int) -> float:
    starts = range(0, len(answers) - k + 1, k)
    return float(np.mean([majority(answers[i : i + k], correct[i : i + k]) for i in starts]))
