"""Grids of panels, their axes, their legends, and the names of arms beside curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from grpobench.analysis.figures.drawing import tip
from grpobench.analysis.figures.style import BASE_COLOR, TEXT, Look, Sheet
from grpobench.analysis.statistics.intervals import seed_mean

PANEL = 1.75
"""Height of a panel in inches."""
TALLEST = 8.8
"""Largest height of a figure in inches: a page of a paper without the caption."""
LOWEST = 1.2
"""Smallest height of a panel in inches."""
ABOVE = 0.35
"""Height of the space above the panels, in inches."""


def panel_height(rows: int, tasks: Sequence[str], sheet: Sheet, height: float = PANEL) -> float:
    """The height of panels of curves: `height`, or less if a page has no room for it."""
    blocks = math.ceil(len(tasks) / sheet.columns(len(tasks))) or 1
    return min(height, max(LOWEST, (TALLEST - ABOVE) / (rows * blocks)))


def grid_of(
    rows: int, tasks: Sequence[str], sheet: Sheet, height: float = PANEL
) -> tuple[Figure, dict[tuple[int, str], Axes]]:
    """Panels by (row, task), with as many tasks side by side as fit on the sheet."""
    across = sheet.columns(len(tasks))
    blocks = math.ceil(len(tasks) / across) or 1
    width = min(sheet.width, (3.4, 5.0, TEXT.width)[min(across, 3) - 1])
    figure = new_figure(width, height * rows * blocks + ABOVE)
    spec = figure.add_gridspec(rows * blocks, across)
    grid = {}
    for position, task in enumerate(tasks):
        for row in range(rows):
            grid[row, task] = figure.add_subplot(spec[position // across * rows + row, position % across])
    return figure, grid


def new_figure(width: float, height: float) -> Figure:
    """An empty figure with a size in inches and automatic layout."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.04))


def leftmost(tasks: Sequence[str], task: str, sheet: Sheet) -> str:
    """The leftmost task in the row of panels that contains `task`."""
    across = sheet.columns(len(tasks))
    return tasks[tasks.index(task) // across * across]


def legend_above(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], handlelength: float = 1.6
) -> None:
    """A legend above the panels, with as many columns as fit."""
    widths = [0.06 * len(label) + 0.2 + 0.11 * handlelength for label in labels]  # inches, at its font size
    fits = sum(widths) <= figure.get_figwidth()
    columns = len(labels) if fits else max(1, int(figure.get_figwidth() / max(widths)))
    lines = math.ceil(len(labels) / columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * (lines - 1))  # more lines must not shrink the panels
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=columns,
        handlelength=handlelength,
        columnspacing=1.2,
        borderaxespad=0.2,
    )


def rows_of_names(
    tasks: Sequence[str], rows: Sequence[str], sheet: Sheet, least: float = 0.9
) -> tuple[Figure, dict[tuple[int, str], Axes]]:
    """Panels with one line per name; only the left panel of each block shows the names."""
    figure, grid = grid_of(1, tasks, sheet, height=max(least, 0.24 * len(rows) + 0.45))
    for (_, task), axes in grid.items():
        is_leftmost = task == leftmost(tasks, task, sheet)
        axes.set_yticks(range(len(rows)), rows if is_leftmost else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_title(task)
    return figure, grid


def point_handles() -> list[Any]:
    """Legend handles for a seed and for a mean with its interval, as `seeds_and_mean` draws them."""
    grey = {"color": BASE_COLOR, "linestyle": ""}
    return [
        Line2D([], [], marker="o", markersize=3.5, alpha=0.5, markeredgewidth=0, **grey),  # type: ignore[arg-type]
        Line2D([], [], marker="D", markersize=4, color=BASE_COLOR, linewidth=1.2),
    ]


def seeds_and_mean(
    axes: Axes,
    row: float,
    values: Any,
    color: Any,
    failed: Any = None,
    hollow: bool = False,
    least: float = 0.0,
    name: str = "",
) -> None:
    """Draw all seeds as points, and their mean as a diamond with the t interval, cut at `least` and 100."""
    array = np.asarray(values, dtype=float)
    if not array.size:
        return
    broken = np.zeros(array.size, dtype=bool) if failed is None else np.asarray(failed, dtype=bool)
    spot = np.full(array.size, row + 0.18)
    axes.plot(array[~broken], spot[~broken], "o", color=color, markersize=3.5, alpha=0.5, markeredgewidth=0)
    axes.plot(array[broken], spot[broken], "x", color=color, markersize=5)
    mean = seed_mean(array)
    if math.isfinite(mean.low):
        ends = [max(mean.low, least), min(mean.high, 100.0)]
        axes.plot(ends, [row - 0.12] * 2, color=color, linewidth=1.2)
    face = "white" if hollow else color
    tip_text = f"{name}: mean {mean.value:.1f}"
    if math.isfinite(mean.low):
        tip_text += f", 95% interval {max(mean.low, least):.1f} to {min(mean.high, 100.0):.1f}"
    tip_text += f"; seeds {', '.join(f'{value:.1f}' for value in array)}"
    looks: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": color, "markersize": 4}
    axes.plot(mean.value, row - 0.12, "D", gid=tip(tip_text), **looks)


def widen(axes: Axes, least: float = 2.0) -> None:
    """Give the horizontal axis at least `least` points, so that equal values do not look far apart."""
    low, high = axes.get_xlim()
    if high - low < least:
        axes.set_xlim((low + high - least) / 2, (low + high + least) / 2)


# Names of arms

MOST = 6
"""Most arms whose names fit beside their curves."""
LINE = 8.5 / 72
"""Inches from one name to the next."""
FAR = 1.3
"""A name this many lines away is no longer beside its curve."""
LONGEST = 16
"""Most characters of a name beside a curve; a longer name would shrink the panels."""


def arm_handle(arm: str, style: Look, marker: bool = True) -> Line2D:
    """The legend handle of an arm's curve."""
    return Line2D(
        [],
        [],
        color=style.color[arm],
        linestyle=style.dash[arm],
        linewidth=1.5,
        marker=style.marker[arm] if marker else None,
        markersize=3.2,
    )


def arm_legend(
    figure: Figure, arms: Sequence[str], style: Look, marker: bool = True, failed: bool = False
) -> None:
    """A legend of arms, and of the mark of failed runs if `failed`."""
    handles: list[Any] = [arm_handle(arm, style, marker) for arm in arms]
    labels = list(arms)
    if failed:
        handles.append(Line2D([], [], color=BASE_COLOR, linestyle="", marker="x", markersize=5))
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
    """Write each arm beside the end of its curve in `axes`, which is `height` inches high. Use a legend
    instead if there are many arms, a name is long, a curve is missing in the panel, or curves end at the same
    height."""
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
            arrowprops={"arrowstyle": "-", "color": style.color[arm], "linewidth": 0.7, "shrinkA": 1},
        )
    if failed:
        arm_legend(figure, [], style, failed=True)


def level(axes: Axes, point: tuple[float, float]) -> float:
    """The height of a point as a share of its panel."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform(point))[1])


def spread(shares: Mapping[str, float], gap: float) -> dict[str, float]:
    """Heights in the order of `shares`, at least `gap` apart and as close to `shares` as a panel of height 1
    allows."""
    names = sorted(shares, key=lambda name: shares[name])
    wanted = [min(max(shares[name], 0.0), 1.0) for name in names]
    placed: list[float] = []
    for share in wanted:
        placed.append(max(share, placed[-1] + gap) if placed else share)
    moved = sum(placed) - sum(wanted)
    roof = max(1.0, gap * (len(names) - 1))
    for index in range(
        len(placed) - 1, -1, -1
    ):  # move groups of pushed names back, so that they stay centered
        placed[index] = min(placed[index] - moved / len(placed), roof)
        roof = placed[index] - gap
    lift = max(0.0, -placed[0]) if placed else 0.0
    return dict(zip(names, (share + lift for share in placed), strict=True))
