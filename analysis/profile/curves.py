"""An algorithm on a probe over learning rates: scores, failures, and what other rates lose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.statistics.intervals import Estimate, seed_mean
from grpobench.analysis.statistics.rates import FACTOR, TOLERANCE
from grpobench.analysis.tools.text import NONE


@dataclass(frozen=True)
class RatePoint:
    """The runs of an algorithm on a probe at one learning rate."""

    rate: float
    """The policy's; NaN for a probe that averages over rates."""
    scores: Mapping[int, float]
    """By seed, without the runs that failed."""
    failed: tuple[int, ...] | None
    """Seeds whose run failed; None where a row does not record it, so that `scores` may have failed runs."""
    runs: int

    @property
    def score(self) -> Estimate:
        """Mean over seeds with its t interval."""
        return seed_mean([*self.scores.values()])

    @property
    def failures(self) -> str:
        """`3 of 8 seeds fail`, as `3/8`; a dash where it is not recorded."""
        return NONE if self.failed is None or not self.runs else f"{len(self.failed)}/{self.runs}"

    def row(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {
            "rate": self.rate,
            "score": self.score.value,
            "low": self.score.low,
            "high": self.score.high,
            "runs": self.runs,
            "failed": None if self.failed is None else list(self.failed),
            "scores": {str(seed): score for seed, score in sorted(self.scores.items())},
        }


NO_RUNS = RatePoint(math.nan, {}, None, 0)


@dataclass(frozen=True)
class ProbeCurve:
    """An algorithm on a probe over learning rates."""

    best: float
    """The best rate of the algorithm: that of the search, whose seeds nothing else uses."""
    points: tuple[RatePoint, ...]
    """By ascending rate."""

    def at(self, rate: float) -> RatePoint:
        """The runs at a rate; no runs where it was not tried."""
        close = (p for p in self.points if rate <= p.rate * TOLERANCE and p.rate <= rate * TOLERANCE)
        return next(close, NO_RUNS)

    def beside(self, side: int) -> RatePoint:
        """The runs at the nearest rate that is at most half (`side` −1) or at least twice (1) the best
        one."""
        if side < 0:
            below = [point for point in self.points if point.rate * FACTOR <= self.best * TOLERANCE]
            return below[-1] if below else NO_RUNS
        above = [point for point in self.points if point.rate * TOLERANCE >= self.best * FACTOR]
        return above[0] if above else NO_RUNS

    def loss(self, side: int) -> Estimate:
        """How much lower the score is at that rate than at the best one, over the seeds that fail at neither,
        with a t interval. Negative where the other rate is better; NaN where there are no such seeds."""
        best, other = self.at(self.best).scores, self.beside(side).scores
        return seed_mean([best[seed] - other[seed] for seed in best if seed in other])

    def row(self) -> dict[str, Any]:
        """The numbers as plain values."""
        losses = {"below": self.loss(-1), "above": self.loss(1)}
        return {
            "best_rate": self.best,
            "points": [point.row() for point in self.points],
            "loss": {
                side: {
                    "rate": self.beside(sign).rate,
                    "score": losses[side].value,
                    "low": losses[side].low,
                    "high": losses[side].high,
                }
                for side, sign in (("below", -1), ("above", 1))
            },
        }


NO_CURVE = ProbeCurve(math.nan, ())
