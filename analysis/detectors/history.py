"""What a detector reads: the logged numbers of one run, its settings, and slopes of its metrics."""

# Needs NumPy alone, because runs check themselves with the same code while they train.

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Steps: TypeAlias = NDArray[np.int64]
Answers: TypeAlias = Mapping[int, Mapping[str, Sequence[float]]]
"""Step -> problem -> score `correct` of each of its graded samples."""
BASELINE = 20
"""Most steps of a baseline; in a short run a quarter, at least `FEWEST`."""
IN_A_ROW = 8
"""Most steps in a row that a rule requires; in a short run a fifth, at least `FEWEST`."""
FEWEST = 3
MODES = ("greedy", "sampled", "likelihood")
"""Modes of evaluation; detectors use the first that was logged."""


@dataclass(frozen=True)
class Series:
    """One metric at the steps where it was finite, in rising order of step. Both arrays have shape (n,)."""

    name: str
    steps: Steps
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)

    def at(self, steps: Steps) -> Floats:
        """The values at other steps, of the shape of `steps`; NaN where there is none."""
        value_by_step = dict(zip(self.steps.tolist(), self.values.tolist(), strict=True))
        return np.array([value_by_step.get(step, math.nan) for step in steps.tolist()], dtype=np.float64)


@dataclass(frozen=True)
class About:
    """The settings of a run that detectors need."""

    planned: int = 0
    """Planned updates; 0 if unknown."""
    warmup: int = 0
    """Updates during which the learning rate rises; they are not part of a baseline."""
    problems: int = 0
    """Validation problems; 0 if unknown."""
    group: int = 0
    """Completions per problem; 0 if unknown."""


def no_answers(split: str, mode: str) -> Answers:
    """No answers, for runs that did not store any."""
    return {}


@dataclass(frozen=True)
class History:
    """The numbers of one run so far. Detectors are functions of a history."""

    series: Mapping[str, Series]
    """Series by metric, without metrics that were never finite."""
    holes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Metric -> steps at which it was logged and was not finite."""
    last: int = 0
    """The last step that was logged."""
    about: About = field(default_factory=About)
    answers: Callable[[str, str], Answers] = no_answers
    """(split, mode) -> answers; empty if answers were not stored."""

    @classmethod
    def of_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        about: About | None = None,
        answers: Callable[[str, str], Answers] = no_answers,
    ) -> History:
        """From rows of metrics.jsonl in rising order of `step`; None and NaN are logged, and not finite."""
        logged: dict[str, tuple[list[int], list[float]]] = {}
        holes: dict[str, list[int]] = {}
        last = 0
        for row in rows:
            last = int(row["step"])
            for name, value in row.items():
                if name == "step":
                    continue
                if value is None or not math.isfinite(value):
                    holes.setdefault(name, []).append(last)
                    continue
                steps, values = logged.setdefault(name, ([], []))
                steps.append(last)
                values.append(float(value))
        series = {
            name: Series(name, np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64))
            for name, (steps, values) in logged.items()
        }
        return cls(series, holes, last, about or About(), answers)

    def get(self, name: str) -> Series:
        """A metric's series, empty where it was never finite."""
        series = self.series.get(name)
        return series if series is not None else Series(name, np.empty(0, np.int64), np.empty(0))

    def updates(self, name: str) -> Series:
        """A metric's series without step 0, the policy before training."""
        series = self.get(name)
        trained = series.steps > 0
        return Series(name, series.steps[trained], series.values[trained])

    def matching(self, pattern: str) -> list[str]:
        """The logged names of a pattern such as ``grad_norm/<role>``, sorted."""
        if "<" not in pattern:
            return [pattern] if pattern in self.series else []
        parts = [re.escape(part) for part in re.split(r"<\w+>", pattern)]
        regex = re.compile("[^/]+".join(parts))
        return sorted(name for name in self.series if regex.fullmatch(name))

    def first(self, *names: str) -> Series | None:
        """The first of some metrics that was logged."""
        return next((self.series[name] for name in names if name in self.series), None)

    def evaluated(self, split: str = "validation", metric: str = "correct") -> tuple[str, Series]:
        """The mode of evaluation that is looked at, and the metric's series in it; empty where none was."""
        for mode in MODES:
            if (name := f"eval/{split}/{mode}/{metric}") in self.series:
                return mode, self.series[name]
        return "", self.get("")

    # Lengths of baselines and spells

    @property
    def length(self) -> int:
        """Updates of the run: planned, or as many as there are."""
        return self.about.planned or self.last

    @property
    def window(self) -> int:
        """Steps of a baseline."""
        return min(BASELINE, max(FEWEST, self.length // 4))

    @property
    def in_a_row(self) -> int:
        """Steps in a row that a rule requires."""
        return min(IN_A_ROW, max(FEWEST, self.length // 5))

    @property
    def shortened(self) -> str:
        """How rules were adapted to a short run, in words; empty for a run that is long enough."""
        if self.window == BASELINE and self.in_a_row == IN_A_ROW:
            return ""
        return f"of {self.length} updates the first {self.window} are the baseline, {self.in_a_row} in a row"


# Slopes, with errors that are autocorrelated

T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""97.5 % quantiles of t for 1 to 30 degrees of freedom. SciPy, which has them too, is not loaded by runs."""


@dataclass(frozen=True)
class Slope:
    """Change per step with its 95 % interval; the interval is the whole line where there are too few
    values."""

    value: float
    low: float
    high: float


def slope(series: Series) -> Slope:
    """Least squares over the steps. The residuals' autocorrelation ρ at lag 1 widens the error by
    √((1+ρ)/(1−ρ)) and takes degrees of freedom: n(1−ρ)/(1+ρ) − 2 are left."""
    count = len(series)
    if count < 3:
        return Slope(0.0, -math.inf, math.inf)
    steps = series.steps - series.steps.mean()
    squares = float(steps @ steps)
    value = float(steps @ series.values) / squares
    residuals = series.values - series.values.mean() - value * steps
    total = float(residuals @ residuals)
    if total <= 1e-18 * max(1.0, float(series.values @ series.values)):  # a straight line has no error
        return Slope(value, value, value)
    # Not below 0, which would narrow the interval, and not near 1, where its width has no bound.
    lag = min(max(float(residuals[1:] @ residuals[:-1]) / total, 0.0), 0.95)
    inflation = (1 + lag) / (1 - lag)
    free = max(1, int(count / inflation) - 2)
    t = T_975[free - 1] if free <= len(T_975) else 1.96 + 2.4 / free
    half = t * math.sqrt(total / (count - 2) / squares * inflation)
    return Slope(value, value - half, value + half)
