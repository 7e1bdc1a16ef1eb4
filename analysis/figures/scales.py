"""The range of a vertical axis, and how its numbers are printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from grpobench.analysis.figures.style import BASE_COLOR, NOTE_SIZE

FENCE = 3.0
"""Values are outside the scale if their distance from the middle nine tenths exceeds this many widths."""
MOST_TICKS = 6
"""Most steps between ticks of a vertical axis."""
DECADES = 100.0
"""Ratio of the largest to the smallest value from which a logarithmic axis is used."""
SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclass(frozen=True)
class Scale:
    """The vertical axis of one panel, or of several panels that share it."""

    low: float
    high: float
    kind: str = "linear"
    """`linear`, `flat` (one value) or `log`."""


def scale_of(values: Any, log: bool = False) -> Scale:
    """The scale for these values. Outliers that would turn the other values into a flat line stay outside,
    and `mark_outside` marks them. The scale is logarithmic if `log` allows it, all values are positive and
    they span more than `DECADES`."""
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return Scale(0.0, 1.0)
    if log and (finite > 0).all() and finite.max() > DECADES * finite.min():
        return Scale(float(finite.min()) / 1.3, float(finite.max()) * 1.3, "log")
    low, high = _within(finite)
    if low == high:
        room = max(abs(high) * 0.05, 0.05)
        return Scale(low - room, high + room, "flat")
    room = 0.06 * (high - low)
    return Scale(low - room, high + room)


def _within(values: Any) -> tuple[float, float]:
    """The smallest and the largest value, without outliers that would take three quarters of the height. Of
    fewer than 20 values, one at either end can be an outlier."""
    first, last = (float(end) for end in np.quantile(values, [0.05, 0.95]))
    if 5 <= values.size < 20:
        first, last = (float(end) for end in np.sort(values)[[1, -2]])
    fence = FENCE * (last - first)
    inliers = values[(values >= first - fence) & (values <= last + fence)]
    spread = float(values.max() - values.min())
    if last > first and spread > 4 * float(inliers.max() - inliers.min()):
        return float(inliers.min()), float(inliers.max())
    return float(values.min()), float(values.max())


def apply(axes: Axes, scale: Scale, percent: bool = False) -> None:
    """Set the scale of an axis, with numbers that have no offset and no common factor."""
    axis = axes.yaxis
    if scale.kind == "log":
        axes.set_yscale("log")
        axis.set_major_locator(LogLocator(numticks=5))
    elif scale.kind == "flat":
        axes.set_yticks([(scale.low + scale.high) / 2])
    else:
        axis.set_major_locator(round_ticks(MOST_TICKS))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(100 * value if percent else value)))
    axes.set_ylim(scale.low, scale.high)


def round_ticks(most: int, integer: bool = False) -> MaxNLocator:
    """At most `most` + 1 ticks at round numbers: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    return MaxNLocator(most, steps=[1, 2, 5, 10] if integer else [1, 2, 2.5, 5, 10], integer=integer)


def ticks_at(axes: Axes, values: Sequence[float], most: int) -> None:
    """Put the ticks of the horizontal axis at values of the data, such as the evaluated steps: at all of
    them, or at every n-th where there are more than `most`. The first always has one, the last where n allows
    it."""
    steps = sorted(set(values))
    least = max(1, math.ceil((len(steps) - 1) / max(1, most - 1)))
    even = (n for n in range(least, 2 * least + 1) if (len(steps) - 1) % n == 0)
    axes.xaxis.set_major_locator(FixedLocator(steps[:: next(even, least)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def plain(value: float) -> str:
    """A number on an axis: 0.25, 4,000, 2·10⁻⁵."""
    size = abs(value)
    if size < 1e-15:
        return "0"
    if 1e-3 <= size < 1e5:
        text = f"{size:,.10g}" if size >= 1000 else f"{size:.6g}"
    else:
        digits, _, power = f"{size:.2e}".partition("e")
        factor = f"{float(digits):g}"
        ten = f"10{str(int(power)).translate(SUPERSCRIPT)}"
        text = ten if factor == "1" else f"{factor}·{ten}"
    return f"−{text}" if value < 0 else text


def mark_outside(axes: Axes, along: Any, values: Any) -> bool:
    """Draw a triangle at the edge for each value beyond it, and print the furthest value. Return whether
    there was one."""
    low, high = axes.get_ylim()
    along, values = np.asarray(along, dtype=float), np.asarray(values, dtype=float)
    for outside, edge, sign, text in (
        (values < low, 0.0, "v", "down to"),
        (values > high, 1.0, "^", "up to"),
    ):
        if not outside.any():
            continue
        positions = np.unique(along[outside])
        across = axes.get_xaxis_transform()
        axes.plot(
            positions,
            np.full(positions.size, edge),
            sign,
            color=BASE_COLOR,
            markersize=3.5,
            transform=across,
            clip_on=False,
            zorder=5,
        )
        furthest = values[outside].min() if edge == 0 else values[outside].max()
        axes.text(
            0.98,
            0.14 if edge == 0 else 0.86,
            f"{text} {plain(float(f'{furthest:.2g}'))}",
            transform=axes.transAxes,
            ha="right",
            va="center",
            fontsize=NOTE_SIZE,
            color=BASE_COLOR,
            bbox={"facecolor": "#ffffff", "alpha": 0.8, "linewidth": 0, "pad": 0.8},
            zorder=5,
        )
    return bool(((values < low) | (values > high)).any())
