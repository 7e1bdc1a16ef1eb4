"""Agreement of repeated ratings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def krippendorff_alpha(ratings: Sequence[Sequence[float]]) -> float:
    """Krippendorff's alpha of interval data, 1 − D_o/D_e. `ratings` holds those of each unit, in any number.

    D_o is the mean squared difference of two ratings of one unit, where unit u with m_u ratings counts m_u
    times, and D_e that of any two ratings (Krippendorff, Content Analysis, 2004, chapter 11)::

        D_o = 1/n · Σ_u 1/(m_u − 1) · Σ_{i≠j} (x_ui − x_uj)²,    D_e = 1/(n(n − 1)) · Σ_{k≠l} (x_k − x_l)²

    1: repetitions agree; 0: they differ as much as ratings of different units. Units with fewer than two
    ratings are left out. NaN if none is left, or if all ratings are equal."""
    units = [np.asarray(unit, dtype=np.float64) for unit in ratings if len(unit) > 1]
    if not units:
        return math.nan
    # Σ_{i≠j} (x_i − x_j)² = 2m · Σ_i (x_i − mean)², which does not cancel for close ratings.
    every = np.concatenate(units)
    if (every == every[0]).all():
        return math.nan
    count = len(every)
    observed = sum(2 * len(unit) * ((unit - unit.mean()) ** 2).sum() / (len(unit) - 1) for unit in units)
    expected = 2 * count * ((every - every.mean()) ** 2).sum() / (count - 1)
    return float(1 - observed / expected)
