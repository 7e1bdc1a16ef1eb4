"""A/A: one arm compared with itself, on disjoint seeds. What is then called different is a false positive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.calibration.scores import plain
from grpobench.analysis.statistics.comparison import compare
from grpobench.analysis.statistics.intervals import wilson
from grpobench.analysis.statistics.verdicts import ALPHA

COMPARISONS = 400
"""Of each design."""
DESIGNS = ((2, 6), (2, 8), (2, 10), (3, 8))
"""Arms and seeds of each."""


@dataclass(frozen=True)
class SameArm:
    """Comparisons of made-up arms that are one: sets of runs drawn from a pool, no run in two arms."""

    arms: int
    seeds: int
    pool: int
    """Runs to draw from."""
    comparisons: int
    false: int
    """Comparisons in which any pair of arms was called different."""

    @property
    def rate(self) -> float:
        """Share of comparisons with a false positive."""
        return self.false / self.comparisons

    def row(self) -> dict[str, Any]:
        """As JSON has it, with Wilson's interval as if the comparisons were independent."""
        interval = wilson(self.false, self.comparisons)
        told = asdict(self) | {"rate": self.rate, "low": interval.low, "high": interval.high}
        return {name: plain(value) for name, value in told.items()}


def same_arm(
    values: ArrayLike, arms: int, seeds: int, comparisons: int = COMPARISONS, seed: int = 0
) -> SameArm:
    """Draw `comparisons` times `arms` disjoint sets of `seeds` of the final accuracies `values` (n,), pair
    them in the order drawn, and let the report's comparison judge them. Raises ValueError where the pool is
    smaller than one comparison."""
    pool = np.asarray(values, dtype=np.float64)
    if pool.size < arms * seeds:
        raise ValueError(
            f"{arms} arms of {seeds} runs need {arms * seeds} healthy runs; there are {pool.size}"
        )
    rng = np.random.default_rng([seed, arms, seeds])
    false = 0
    for _ in range(comparisons):
        drawn = rng.choice(pool, size=(arms, seeds), replace=False)
        false += different({f"arm {i}": dict(enumerate(map(float, row))) for i, row in enumerate(drawn)})
    return SameArm(arms, seeds, pool.size, comparisons, false)


def different(values: Mapping[str, Mapping[int, float]]) -> bool:
    """Whether the report would call any two of these arms different at its level."""
    return any(pair.verdict in ("better", "worse") for pair in compare("pool", values, alpha=ALPHA))


def designs(values: ArrayLike) -> list[SameArm]:
    """Every design that the pool is large enough for."""
    pool = np.asarray(values, dtype=np.float64)
    return [same_arm(pool, arms, seeds) for arms, seeds in DESIGNS if arms * seeds <= pool.size]
