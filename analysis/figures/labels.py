"""The names of arms, beside their curves where there is room and above the panels where there is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpobench.analysis.figures.panels import legend_above
from grpobench.analysis.figures.style import BASE_COLOUR, Look

MOST = 6
"""Beyond so many arms names beside the curves would not stand near them."""
LINE = 8.5 / 72
"""Inches from one name to the next."""
FAR = 1.3
"""So many lines away a name is no longer beside its curve."""
LONGEST = 16
"""Characters of a name beyond which it takes too much from the panels."""


def arm_handle(arm: str, style: Look, marker: bool = True) -> Line2D:
    """What a legend shows for an arm's curve."""
    return Line2D(
        [],
        [],
        color=style.colour[arm],
        linestyle=style.dash[arm],
        linewidth=1.5,
        marker=style.marker[arm] if marker else None,
        markersize=3.2,
    )


def arm_legend(
    figure: Figure, arms: Sequence[str], style: Look, marker: bool = True, failed: bool = False
) -> None:
    """A legend of arms, and of the mark of failed runs where there is one."""
    handles: list[Any] = [arm_handle(arm, style, marker) for arm in arms]
    labels = list(arms)
    if failed:
        handles.append(Line2D([], [], color=BASE_COLOUR, linestyle="", marker="x", markersize=5))
        labels.append("run failed")
    if handles:
        legend_above(figure, handles, labels, handlelength=2.6)


def name_arms(
    figure: Figure,
    axes: Axes,
    ends: Mapping[str, tuple[float, float]],
    arms: Sequence[str],
    style: Look,
    height: float,
    failed: bool = False,
) -> None:
    """Write each arm beside the end of its curve in `axes`, `height` inches high, or make a legend where
    there are too many, a name is long, a curve is not in that panel, or the curves end on each other."""
    fits = 1 < len(arms) <= MOST and set(arms) <= set(ends) and all(len(arm) <= LONGEST for arm in arms)
    gap = LINE / height
    shares = {arm: level(axes, ends[arm]) for arm in arms} if fits else {}
    placed = spread(shares, gap)
    if not fits or max(abs(placed[arm] - min(max(shares[arm], 0), 1)) for arm in arms) > FAR * gap:
        arm_legend(figure, arms, style, failed=failed)
        return
    for arm, share in placed.items():
        axes.annotate(
            arm,
            xy=ends[arm] if 0 <= shares[arm] <= 1 else (ends[arm][0], axes.get_ylim()[shares[arm] > 1]),
            xytext=(1.06, share),
            textcoords="axes fraction",
            va="center",
            ha="left",
            fontsize=7.5,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": style.colour[arm], "linewidth": 0.7, "shrinkA": 1},
        )
    if failed:
        arm_legend(figure, [], style, failed=True)


def level(axes: Axes, point: tuple[float, float]) -> float:
    """The height of a point as a share of its panel's."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform(point))[1])


def spread(shares: Mapping[str, float], gap: float) -> dict[str, float]:
    """Heights in the order of `shares`, at least `gap` apart and as near to them as a panel of height 1
    lets them be."""
    names = sorted(shares, key=lambda name: shares[name])
    wanted = [min(max(shares[name], 0.0), 1.0) for name in names]
    placed: list[float] = []
    for share in wanted:
        placed.append(max(share, placed[-1] + gap) if placed else share)
    moved = sum(placed) - sum(wanted)
    roof = max(1.0, gap * (len(names) - 1))
    for index in range(len(placed) - 1, -1, -1):  # each pushed one takes those below it half of the way back
        placed[index] = min(placed[index] - moved / len(placed), roof)
        roof = placed[index] - gap
    lift = max(0.0, -placed[0]) if placed else 0.0
    return dict(zip(names, (share + lift for share in placed), strict=True))
