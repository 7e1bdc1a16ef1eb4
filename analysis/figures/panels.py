"""Grids of panels, their axes and their legends."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FuncFormatter

from grpobench.analysis.figures.drawing import tip
from grpobench.analysis.figures.scales import plain, round_ticks
from grpobench.analysis.figures.style import BASE_COLOR, INK, NOTE_SIZE, Look, Sheet
from grpobench.analysis.statistics.intervals import seed_mean
from grpobench.analysis.tools.text import number

PANEL = 1.75
"""Height of a panel in inches."""
WIDE = 0.36
"""Least height of a panel of curves as a share of its width, up to `HIGHEST`."""
HIGHEST = 2.4
"""Largest height of a panel of curves in inches."""
TALLEST = 8.8
"""Largest height of a figure in inches: a page of a paper without the caption."""
LOWEST = 1.2
"""Smallest height of a panel in inches."""
LEGEND = 0.5
"""Inches that a legend of several lines adds to a figure."""
ABOVE = 0.35
"""Height of the space above the panels, in inches."""


def panel_height(rows: int, tasks: Sequence[str], sheet: Sheet, height: float = PANEL) -> float:
    """The height of panels of curves: `height`, more if panels are wide, less if a page has no room."""
    blocks, across = shape_of(rows, tasks, sheet)
    preferred = max(height, min(HIGHEST, WIDE * sheet.width / across))
    return min(preferred, max(LOWEST, (TALLEST - ABOVE) / blocks))


def shape_of(rows: int, tasks: Sequence[str], sheet: Sheet) -> tuple[int, int]:
    """Panels below each other and side by side. The rows of a single task stand side by side as well."""
    if len(tasks) == 1 and rows > 1:
        across = sheet.columns(rows)
        return math.ceil(rows / across), across
    across = sheet.columns(len(tasks))
    return rows * (math.ceil(len(tasks) / across) or 1), across


def grid_of(
    rows: int, tasks: Sequence[str], sheet: Sheet, height: float = PANEL
) -> tuple[Figure, dict[tuple[int, str], Axes]]:
    """Panels by (row, task) that fill the width of the sheet, with as many side by side as fit."""
    down, across = shape_of(rows, tasks, sheet)
    figure = new_figure(sheet.width, height * down + ABOVE)
    spec = figure.add_gridspec(down, across)
    grid = {}
    for position, task in enumerate(tasks):
        for row in range(rows):
            cell = (position // across * rows + row, position % across)
            if len(tasks) == 1:
                cell = divmod(row, across)
            grid[row, task] = figure.add_subplot(spec[cell])
    return figure, grid


def new_figure(width: float, height: float) -> Figure:
    """An empty figure with a size in inches and automatic layout."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.04))


def leftmost(tasks: Sequence[str], task: str, sheet: Sheet) -> str:
    """The leftmost task in the row of panels that contains `task`."""
    across = sheet.columns(len(tasks))
    return tasks[tasks.index(task) // across * across]


def points_of(key: str) -> float:
    """A size of letters of the current style, in points."""
    parameters: Any = matplotlib.rcParams
    return float(FontProperties(size=parameters[key]).get_size_in_points())


def text_width(text: str, size: float | None = None) -> float:
    """Inches that the widest line of a text takes in the current font, at `size` points or the font size."""
    points = size or points_of("font.size")
    font = FontProperties(family=matplotlib.rcParams["font.family"], size=points)
    lines = text.split("\n")
    return max(float(MEASURE.get_text_width_height_descent(line, font, False)[0]) for line in lines) / 72


MEASURE = TextToPath()
SPACING = 1.2
"""Space between columns of a legend, in font sizes, as its handles and the space beside them."""
BESIDE_HANDLE = 0.8


def legend_above(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], handlelength: float = 1.6
) -> None:
    """A legend above the panels, with as many columns as fit. A label that is wider than the figure gets more
    lines."""
    size = points_of("legend.fontsize")
    handle = (handlelength + BESIDE_HANDLE) * size / 72
    room = figure.get_figwidth() - 0.2
    labels = [wrapped(label, room - handle, size) for label in labels]
    widths = [text_width(label, size) + handle for label in labels]
    columns = max((n for n in range(1, len(labels) + 1) if _legend_width(widths, n, size) <= room), default=1)
    columns = math.ceil(len(labels) / math.ceil(len(labels) / columns))  # lines of almost equal length
    rows = np.array_split(np.array([label.count("\n") + 1 for label in labels]), columns)
    lines = max(int(column.sum()) for column in rows)
    figure.set_figheight(figure.get_figheight() + 1.65 * size / 72 * (lines - 1))  # panels must not shrink
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=columns,
        handlelength=handlelength,
        handletextpad=BESIDE_HANDLE,
        columnspacing=SPACING,
        borderaxespad=0.2,
    )


def _legend_width(widths: Sequence[float], columns: int, size: float) -> float:
    """Inches of a legend with so many columns, which matplotlib fills from above."""
    parts = np.array_split(np.array(widths), columns)
    return float(sum(part.max() for part in parts)) + (columns - 1) * SPACING * size / 72


def wrapped(label: str, room: float, size: float) -> str:
    """A label in lines of at most `room` inches."""
    width = text_width(label, size)
    if width <= room or not label:
        return label
    return "\n".join(textwrap.wrap(label, max(4, int(len(label) * room / width)))) or label


LINE = 1.5
"""Height of a line of a name with the space around it, in font sizes."""
MOST_NAME = 0.35
"""Largest share of a figure's width that the names of rows take."""


def rows_of_names(
    tasks: Sequence[str], rows: Sequence[str], sheet: Sheet, least: float = 0.9, above: float = 0.0
) -> tuple[Figure, dict[tuple[int, str], Axes]]:
    """Panels with one line per name and `above` inches for more above them; only the left panel of each block
    shows the names."""
    size = points_of("ytick.labelsize")
    names = [wrapped(name, MOST_NAME * sheet.width, size) for name in rows]
    lines = max((name.count("\n") + 1 for name in names), default=1)
    line = max(0.24, lines * LINE * size / 72 + 0.04)
    height = above + max(least, line * len(rows) + 0.45)
    blocks, _ = shape_of(1, tasks, sheet)
    lowest = above + lines * size / 72 * len(rows) + 0.45  # below it names would overlap
    height = max(lowest, min(height, (TALLEST - LEGEND - ABOVE) / blocks))
    figure, grid = grid_of(1, tasks, sheet, height=height)
    for (_, task), axes in grid.items():
        is_leftmost = task == leftmost(tasks, task, sheet)
        axes.set_yticks(range(len(rows)), names if is_leftmost else [""] * len(rows))
        for label in axes.get_yticklabels():
            label.set_linespacing(1.0)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.xaxis.set_major_locator(round_ticks(_bins(sheet, tasks)))
        axes.set_title(task)
    return figure, grid


def point_handles() -> list[Any]:
    """Legend handles for a seed and for a mean with its interval, as `seeds_and_mean` draws them."""
    grey = {"color": BASE_COLOR, "linestyle": ""}
    return [
        Line2D([], [], marker="o", markersize=3.5, alpha=0.5, markeredgewidth=0, **grey),  # type: ignore[arg-type]
        Line2D([], [], marker="D", markersize=4, color=BASE_COLOR, linewidth=1.2),
    ]


Extent: TypeAlias = tuple[float, float, float]
"""What a row of a panel shows: its lower end, its mean and its upper end."""


def seeds_and_mean(
    axes: Axes,
    row: float,
    values: Any,
    color: Any,
    failed: Any = None,
    hollow: bool = False,
    least: float = 0.0,
    name: str = "",
) -> Extent | None:
    """Draw all seeds as points, and their mean as a diamond with the t interval, cut at `least` and 100.
    Returns what is drawn; None without values."""
    array = np.asarray(values, dtype=float)
    if not array.size:
        return None
    broken = np.zeros(array.size, dtype=bool) if failed is None else np.asarray(failed, dtype=bool)
    spot = np.full(array.size, row + 0.18)
    axes.plot(array[~broken], spot[~broken], "o", color=color, markersize=3.5, alpha=0.5, markeredgewidth=0)
    axes.plot(array[broken], spot[broken], "x", color=color, markersize=5)
    mean = seed_mean(array)
    ends = [float(array.min()), float(array.max())]
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
    return min(ends[0], float(array.min())), mean.value, max(ends[1], float(array.max()))


def widen(axes: Axes, least: float = 2.0) -> None:
    """Give the horizontal axis at least `least` points, so that equal values do not look far apart."""
    low, high = axes.get_xlim()
    if high - low < least:
        axes.set_xlim((low + high - least) / 2, (low + high + least) / 2)


APART = 3.0
"""An axis is broken at a gap that is so many times as wide as what most rows show."""


def far_rows(extents: Mapping[float, Extent], least: float = 2.0) -> list[float]:
    """The rows, at most a third, that lie so far from the others that an axis for all would squeeze these."""
    ordered = sorted(extents, key=lambda row: extents[row][1])
    widest, far = 1.0, []
    for cut in range(1, len(ordered)):
        below, above = ordered[:cut], ordered[cut:]
        gap = min(extents[row][0] for row in above) - max(extents[row][2] for row in below)
        few, most = sorted((below, above), key=len)
        low, high = _ends([extents[row] for row in most])
        share = gap / (APART * max(high - low, least))
        if len(most) >= max(2, 2 * len(few)) and share > widest:
            widest, far = share, few
    return far


def _ends(extents: Iterable[Extent]) -> tuple[float, float]:
    lows, _, highs = zip(*extents, strict=True)
    return min(lows), max(highs)


def break_axis(axes: Axes, extents: Mapping[float, Extent], least: float = 2.0) -> list[float]:
    """Break the horizontal axis beside `far_rows`, which get an arrow and their mean at its end. Returns
    them."""
    far = far_rows(extents, least)
    if far:
        low, high = _ends([extents[row] for row in extents if row not in far])
        room = 0.08 * max(high - low, least)
        axes.set_xlim(low - room, high + room)
        left = extents[far[0]][1] < low
        for row in far:
            mean = number(extents[row][1], 1)
            x, align = (0.02, "left") if left else (0.98, "right")
            axes.text(
                x,
                row,
                f"◂ {mean}" if left else f"{mean} ▸",
                transform=axes.get_yaxis_transform(),
                horizontalalignment=align,
                verticalalignment="center",
                fontsize=NOTE_SIZE,
                gid="beyond",
            )
        slashes = np.array([0.0, 0.015]) + (0.0 if left else 0.985)
        mark: Any = [(-1, -2), (1, 2)]
        look: dict[str, Any] = {"color": INK, "clip_on": False, "linestyle": "", "markersize": 6}
        axes.plot(slashes, [0, 0], marker=mark, transform=axes.transAxes, **look)
    return far


def _bins(sheet: Sheet, tasks: Sequence[str]) -> int:
    """Steps between ticks for which a horizontal axis has room."""
    return 6 if sheet.width / sheet.columns(len(tasks)) > NARROW else 4


NARROW = 1.8
"""Inches of a panel up to which its horizontal axis has fewer ticks."""
GAIN_AXIS = 0.45
"""Inches that an upper axis takes with its label and the second line of a title."""


def add_gain_axis(axes: Axes, base: float) -> None:
    """An upper axis with the gain over `base`, in points where the lower axis is in percent."""

    def gain(accuracy: Any) -> Any:
        return accuracy - base

    def accuracy(gain: Any) -> Any:
        return gain + base

    upper = axes.secondary_xaxis("top", functions=(gain, accuracy))
    upper.xaxis.set_major_locator(round_ticks(6))
    upper.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"+{x:g}" if x > 0 else plain(x)))
    upper.set_xlabel("gain (points)", fontsize=NOTE_SIZE, labelpad=2)
    upper.tick_params(length=2, pad=1, labelsize=NOTE_SIZE)
    upper.spines["top"].set_visible(True)
    upper.set_zorder(3)  # above the grid


# Arms


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
