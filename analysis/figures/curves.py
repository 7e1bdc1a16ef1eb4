"""Curves against updates, tokens or seconds: every seed thin, the mean of an arm thick."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from grpobench.analysis.figures.panels import arm_legend, grid_of, leftmost, scale_values
from grpobench.analysis.figures.style import look
from grpobench.analysis.logs.matrix import Matrix


def curves(
    matrix: Matrix,
    rows: Sequence[tuple[str, pd.DataFrame, bool]],
    label: str,
    marker: str | None = None,
    percent: bool = False,
) -> Figure:
    """A grid: for each block of at most four tasks, one row of panels per metric."""
    tasks = [task for task in matrix.tasks if any((frame["task"] == task).any() for _, frame, _ in rows)]
    figure, grid = grid_of(len(rows), tasks)
    style = look(matrix.arms)
    drawn: set[str] = set()
    stopped = False
    for (index, task), axes in grid.items():
        name, frame, log = rows[index]
        own = frame[frame["task"] == task]
        for arm in matrix.arms:
            arm_rows = own[own["arm"] == arm]
            if arm_rows.empty:
                continue
            drawn.add(arm)
            stopped |= _arm_curve(axes, matrix, arm_rows, style.colour[arm], style.dash[arm], marker)
        if own.empty:
            axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", color="#888888")
        scale_values(axes, own["value"].to_numpy(dtype=float), log)
        if percent:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        if axes.get_subplotspec() is not None and task == leftmost(tasks, task):
            axes.set_ylabel(name)
        if index == 0:
            axes.set_title(task)
        if index == len(rows) - 1:
            axes.set_xlabel(label)
    arm_legend(figure, [arm for arm in matrix.arms if arm in drawn], style, marker, stopped)
    return figure


def _arm_curve(
    axes: Axes, matrix: Matrix, rows: pd.DataFrame, colour: Any, dash: Any, marker: str | None
) -> bool:
    """Every seed thin, the mean thick. True if a run that stopped early was marked."""
    task, arm = rows["task"].iloc[0], rows["arm"].iloc[0]
    failed = {run.seed for run in matrix.runs if run.arm == arm and run.task == task and run.stopped}
    marked = False
    for seed, own in rows.groupby("seed"):
        own = own.sort_values("step")
        axes.plot(own["x"], own["value"], color=colour, linewidth=0.6, alpha=0.4, linestyle=dash)
        if seed in failed:
            axes.plot(own["x"].iloc[-1], own["value"].iloc[-1], "x", color=colour, markersize=5, zorder=4)
            marked = True
    mean = rows.groupby("step").agg(x=("x", "mean"), value=("value", "mean"), seeds=("seed", "nunique"))
    full = mean["seeds"] == rows["seed"].nunique()
    last = int(np.flatnonzero(full)[-1]) if full.any() else 0
    thick: dict[str, Any] = {
        "color": colour,
        "linewidth": 1.6,
        "zorder": 3,
        "marker": marker,
        "markersize": 2.5,
    }
    axes.plot(mean["x"].iloc[: last + 1], mean["value"].iloc[: last + 1], linestyle=dash, **thick)
    axes.plot(mean["x"].iloc[last:], mean["value"].iloc[last:], linestyle=(0, (1, 1.2)), **thick)
    return marked
