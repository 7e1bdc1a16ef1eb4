"""A/A: one arm compared with itself, on disjoint seeds. What is then called different is a false positive;
and where one of the arms is moved by the margin, so is what is called equivalent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis.calibration.scores import plain
from grpobench.analysis.logs.matrix import MARGIN
from grpobench.analysis.statistics.comparison import compare
from grpobench.analysis.statistics.intervals import wilson
from grpobench.analysis.statistics.verdicts import ALPHA, Verdict

COMPARISONS = 300
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
    equivalent: int
    """Comparisons in which all arms were called equivalent, rightly."""
    wrongly_equivalent: int
    """Comparisons in which the last arm, moved by the margin, was called equivalent to any other."""

    @property
    def rate(self) -> float:
        """Share of comparisons with a false difference."""
        return self.false / self.comparisons

    @property
    def wrong_rate(self) -> float:
        """Share of comparisons with a false equivalence."""
        return self.wrongly_equivalent / self.comparisons

    def row(self) -> dict[str, Any]:
        """As JSON has it, with Wilson's interval as if the comparisons were independent."""
        interval = wilson(self.false, self.comparisons)
        rates = {"rate": self.rate, "wrong_rate": self.wrong_rate}
        told = asdict(self) | rates | {"low": interval.low, "high": interval.high}
        return {name: plain(value) for name, value in told.items()}


def same_arm(
    values: ArrayLike, arms: int, seeds: int, comparisons: int = COMPARISONS, seed: int = 0
) -> SameArm:
    """Draw `comparisons` times `arms` disjoint sets of `seeds` of the final accuracies `values` (n,), pair
    them in the order drawn, and let the report's comparison judge them, once as they are and once with the
    last arm lower by the margin. Raises ValueError where the pool is smaller than one comparison."""
    pool = np.asarray(values, dtype=np.float64)
    if pool.size < arms * seeds:
        raise ValueError(
            f"{arms} arms of {seeds} runs need {arms * seeds} healthy runs; there are {pool.size}"
        )
    rng = np.random.default_rng([seed, arms, seeds])
    false = equivalent = wrong = 0
    for _ in range(comparisons):
        drawn = rng.choice(pool, size=(arms, seeds), replace=False)
        found = verdicts(drawn)
        false += any(verdict in ("better", "worse") for verdict in found.values())
        equivalent += all(verdict == "equivalent" for verdict in found.values())
        drawn[-1] -= MARGIN
        moved = verdicts(drawn)
        wrong += any(verdict == "equivalent" and arms - 1 in pair for pair, verdict in moved.items())
    return SameArm(arms, seeds, pool.size, comparisons, false, equivalent, wrong)


def verdicts(values: ArrayLike) -> dict[tuple[int, int], Verdict]:
    """What the report would say of each pair of these arms, (arms, seeds), at its level and margin."""
    rows = [dict(enumerate(map(float, row))) for row in np.asarray(values)]
    found = compare("pool", {str(arm): row for arm, row in enumerate(rows)}, alpha=ALPHA, margin=MARGIN)
    return {(int(pair.first), int(pair.second)): pair.verdict for pair in found}


def designs(values: ArrayLike) -> list[SameArm]:
    """Every design that the pool is large enough for."""
    pool = np.asarray(values, dtype=np.float64)
    return [same_arm(pool, arms, seeds) for arms, seeds in DESIGNS if arms * seeds <= pool.size]
