"""Figures of time, throughput and memory."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import legend_above, new_figure, rows_of_names
from grpobench.analysis.figures.style import BASE_COLOUR, MARKERS, Sheet, look
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.costs import PHASES


def draw_seconds(matrix: Matrix, frame: pd.DataFrame, sheet: Sheet) -> Drawing | None:
    """Seconds per update, stacked by phase, of what `update_costs` found."""
    phases = [phase for phase in PHASES if frame[phase].fillna(0).gt(0).any()]
    if frame.empty or not phases:
        return None
    tasks = [task for task in matrix.tasks if (frame["task"] == task).any()]
    figure, grid = rows_of_names(tasks, matrix.arms, sheet)
    ramp = matplotlib.colormaps["viridis"](np.linspace(0, 1, len(PHASES) + 2)[1:-1])[:, :3]
    half = (len(PHASES) + 1) // 2  # neighbours are half of the ramp apart, so that they differ in grey too
    tints = {phase: ramp[place // 2 + (place % 2) * half] for place, phase in enumerate(PHASES)}
    for (_, task), axes in grid.items():
        for row in frame[frame["task"] == task].to_dict("records"):
            left = 0.0
            for phase in phases:
                width = float(row[phase]) if math.isfinite(row[phase]) else 0.0
                position = matrix.arms.index(row["arm"])
                axes.barh(
                    position,
                    width,
                    left=left,
                    height=0.65,
                    color=tints[phase],
                    edgecolor="#ffffff",
                    linewidth=0.4,
                )
                left += width
        axes.set_xlabel("seconds per update")
        axes.set_xlim(left=0)
    legend_above(figure, [Patch(color=tints[phase]) for phase in phases], phases)
    return Drawing(
        "seconds",
        "Seconds per update by phase",
        "Mean wall time of one update, stacked by phase: sampling, verifying, forward passes (read), "
        "backward passes, optimiser, handing the weights to the sampler (sync), the rest; evaluation is left "
        "out.",
        figure,
    )


def draw_rates(matrix: Matrix, frame: pd.DataFrame, sheet: Sheet) -> Drawing | None:
    """Tokens per second and peak memory, of what `update_costs` found."""
    rows = [("tokens_per_second", "generated tokens per second"), ("peak_memory_gb", "peak memory (GB)")]
    rows = [(name, label) for name, label in rows if frame[name].notna().any()]
    if frame.empty or not rows:
        return None
    tasks = [task for task in matrix.tasks if (frame["task"] == task).any()]
    across = sheet.columns(len(rows)) if sheet.across > 2 else 1  # names and two axes do not fit a column
    down = len(rows) // across
    figure = new_figure(
        sheet.width / (2 / across if sheet.across > 2 else 1), (0.24 * len(matrix.arms) + 0.6) * down + 0.25
    )
    colour = look(matrix.arms).colour
    markers = MARKERS
    for position, (name, label) in enumerate(rows):
        axes = figure.add_subplot(down, across, position + 1)
        for row in frame.to_dict("records"):
            mark = markers[tasks.index(row["task"]) % len(markers)]
            axes.plot(
                row[name], matrix.arms.index(row["arm"]), mark, color=colour[row["arm"]], markersize=4.5
            )
        axes.set_yticks(
            range(len(matrix.arms)), matrix.arms if position % across == 0 else [""] * len(matrix.arms)
        )
        axes.set_ylim(len(matrix.arms) - 0.5, -0.5)
        axes.set_xlim(0, 1.08 * float(np.nanmax(frame[name])) or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(5, prune="upper"))
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)
    handles = [
        Line2D([], [], marker=markers[i % len(markers)], linestyle="", color=BASE_COLOUR, markersize=4.5)
        for i in range(len(tasks))
    ]
    if len(tasks) > 1:
        legend_above(figure, handles, tasks)
    return Drawing(
        "rates",
        "Throughput and memory",
        "Generated tokens over training seconds, and the highest peak memory of any seed; a marker per task.",
        figure,
    )
