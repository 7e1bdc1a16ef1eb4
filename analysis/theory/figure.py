"""The figure of docs/theory.md: predicted numbers against measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from grpobench.analysis.figures.drawing import Drawing, tip
from grpobench.analysis.figures.panels import legend_above, new_figure
from grpobench.analysis.figures.style import BASE_COLOR, INK, PALETTE, STYLE
from grpobench.analysis.theory.comparison import CheckedNumber, Theory, words

PANELS: Mapping[str, tuple[str, ...]] = {
    "expectation": ("advantage", "gain", "sideways"),
    "variance": ("noise",),
}
"""Numbers of each panel."""
MARKS: Mapping[str, tuple[str, str]] = {
    "advantage": ("o", PALETTE[0]),
    "gain": ("s", PALETTE[1]),
    "sideways": ("^", PALETTE[2]),
    "noise": ("D", PALETTE[3]),
}


def draw(theory: Theory) -> Drawing:
    """Every estimator, beside the line on which prediction and measurement are equal."""
    with matplotlib.rc_context(STYLE):
        figure = new_figure(7.0, 3.3)
        for position, (title, quantities) in enumerate(PANELS.items(), start=1):
            axes = figure.add_subplot(1, 2, position)
            rows = [row for row in theory.counted if row.quantity in quantities]
            for row in rows:
                _point(axes, row)
            if title == "variance":
                axes.set_xscale("log")
                axes.set_yscale("log")
                for axis in (axes.xaxis, axes.yaxis):
                    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ends = [end for row in rows for end in (row.low, row.high, row.predicted)]
            axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color=INK, linewidth=0.8, zorder=0)
            axes.set_title(title)
            axes.set_xlabel("predicted")
            axes.set_ylabel("measured")
        legend_above(figure, [_handle(name) for name in MARKS], [*MARKS])
        sns.despine(figure)
    counted = len(theory.counted)
    caption = (
        f"{counted} predicted numbers of {len(theory.estimators)} estimators on scenarios against what the "
        "algorithms' code gave on drawn batches, with 95% intervals. Hollow: outside of its interval "
        f"({len(theory.outside)})."
    )
    return Drawing("theory", "Predicted and measured", caption, figure)


def _point(axes: Axes, row: CheckedNumber) -> None:
    marker, color = MARKS[row.quantity]
    axes.plot([row.predicted] * 2, [row.low, row.high], color=BASE_COLOR, linewidth=0.8, zorder=1)
    look: dict[str, Any] = {"markersize": 4, "markeredgecolor": color, "linestyle": ""}
    face = color if row.inside else "white"
    axes.plot(row.predicted, row.measured, marker, gid=tip(words(row)), markerfacecolor=face, **look)


def _handle(quantity: str) -> Line2D:
    marker, color = MARKS[quantity]
    return Line2D([], [], linestyle="", marker=marker, color=color, markersize=4)
