"""Slopes of logged metrics, whose errors resemble those of the step before."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpobench.analysis.detect.history import Series

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
    rest = series.values - series.values.mean() - value * steps
    total = float(rest @ rest)
    if total <= 1e-18 * max(1.0, float(series.values @ series.values)):  # a straight line has no error
        return Slope(value, value, value)
    lag = min(max(float(rest[1:] @ rest[:-1]) / total, 0.0), 0.95)
    inflation = (1 + lag) / (1 - lag)
    free = max(1, int(count / inflation) - 2)
    t = T_975[free - 1] if free <= len(T_975) else 1.96 + 2.4 / free
    half = t * math.sqrt(total / (count - 2) / squares * inflation)
    return Slope(value, value - half, value + half)
