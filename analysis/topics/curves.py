"""Curves against updates, tokens or seconds: the mean of each arm, a band over its seeds, and faint seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpobench.analysis.figures.drawing import tip
from grpobench.analysis.figures.panels import grid_of, leftmost, name_arms, panel_height
from grpobench.analysis.figures.scales import Scale, apply, mark_outside, plain, scale_of
from grpobench.analysis.figures.style import BAND, FAINT, Look, Sheet, look
from grpobench.analysis.runfolder.experiment import Experiment

FURTHEST = 1e100
"""Larger values are clipped to it, because scales are computed from sums and ratios of values."""
AROUND = 0.65
"""Inches of a panel's height for title and labels."""
MARKS = 6
"""Approximate number of markers on a long curve."""
MOST_TIP_VALUES = 12
"""Most values of a curve in its tooltip."""
MOST_SEEDS = 10
"""Most seeds of an arm that are drawn one by one; with more, only the band is drawn."""


@dataclass(frozen=True)
class Row:
    """A row of panels: one metric, a panel per task."""

    label: str
    frame: pd.DataFrame
    """Rows of (arm, task, seed, step, x, value)."""
    log: bool = False
    """Whether a logarithmic axis may be used."""
    shared: Literal["panel", "row", "figure"] = "row"
    """Which panels share a scale so that they can be compared."""
    percent: bool = False


def curves(
    experiment: Experiment, rows: Sequence[Row], label: str, sheet: Sheet, points: bool = False
) -> Figure:
    """A grid with one row of panels per metric for each block of tasks side by side. With `points` every
    value has a marker, otherwise a few values have one."""
    rows = [_drawable(row) for row in rows]
    tasks = [task for task in experiment.tasks if any((row.frame["task"] == task).any() for row in rows)]
    height = panel_height(len(rows), tasks, sheet)
    figure, grid = grid_of(len(rows), tasks, sheet, height)
    style = look(experiment.arms)
    drawn: set[str] = set()
    stopped = False
    for (index, task), axes in grid.items():
        row = rows[index]
        task_rows = row.frame[row.frame["task"] == task]
        for arm in experiment.arms:
            arm_rows = task_rows[task_rows["arm"] == arm]
            if len(arm_rows):
                drawn.add(arm)
                stopped |= _arm_curve(axes, experiment, arm_rows, style, points, row.percent)
        scale = scale_of(_compared(rows, row, task_rows), row.log)
        _set_up(axes, row, scale, label, first=task == leftmost(tasks, task, sheet))
        if index == len(rows) - 1:
            axes.set_xlabel(label)
        if task_rows.empty:
            axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", color="#767676")
        mark_outside(axes, task_rows["x"], task_rows["value"])
        if index == 0:
            axes.set_title(task)
    arms = [arm for arm in experiment.arms if arm in drawn]
    if tasks:
        beside = grid[0, tasks[sheet.columns(len(tasks)) - 1]]
        name_arms(figure, beside, _ends(beside), arms, style, height - AROUND, failed=stopped)
    return figure


def _drawable(row: Row) -> Row:
    """The row with values that a renderer can draw."""
    values = row.frame["value"]
    if not (values.abs() > FURTHEST).any():
        return row
    return replace(row, frame=row.frame.assign(value=values.clip(-FURTHEST, FURTHEST)))


def _compared(rows: Sequence[Row], row: Row, panel_rows: pd.DataFrame) -> Any:
    """The values that determine the scale of a panel."""
    if row.shared == "figure":
        return np.concatenate([other.frame["value"].to_numpy(dtype=float) for other in rows])
    return (row.frame if row.shared == "row" else panel_rows)["value"].to_numpy(dtype=float)


def _set_up(axes: Axes, row: Row, scale: Scale, label: str, first: bool) -> None:
    """Set scale, ticks and labels. The metric is named on the left of each block, and numbers are repeated
    where each panel has its own scale."""
    apply(axes, scale, row.percent)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=label == "updates"))
    if first:
        axes.set_ylabel(row.label)
    elif row.shared != "panel":
        axes.tick_params(labelleft=False)


def _arm_curve(
    axes: Axes, experiment: Experiment, rows: pd.DataFrame, style: Look, points: bool, percent: bool
) -> bool:
    """Draw faint seeds (up to `MOST_SEEDS`), a band from their first to their third quartile, and a thick
    mean that becomes thin where a seed has no more values. Return whether a run that stopped early was
    marked."""
    task, arm = rows["task"].iloc[0], rows["arm"].iloc[0]
    x, table = _by_step_and_seed(rows)
    color, dash = style.color[arm], style.dash[arm]
    known = np.isfinite(table)
    along, mean = _means(x, known), _means(table, known)
    if table.shape[1] > 1:
        seeds = [
            np.column_stack([x[there, k], table[there, k]]) for k, there in enumerate(known.T) if there.any()
        ]
        if table.shape[1] <= MOST_SEEDS:
            axes.add_collection(LineCollection(seeds, colors=[color], linewidths=0.5, alpha=FAINT))
        band = np.nanquantile(np.where(known.any(axis=1)[:, None], table, 0.0), [0.25, 0.75], axis=1)
        axes.fill_between(along, *band, color=color, alpha=BAND, linewidth=0)
    lasting = known.sum(axis=1) == known.any(axis=0).sum()
    last = int(np.flatnonzero(lasting)[-1]) if lasting.any() else 0
    every = 1 if points else max(1, len(along) // MARKS)
    start = 0 if points else experiment.arms.index(arm) % every
    (thick,) = axes.plot(
        along[: last + 1],
        mean[: last + 1],
        color=color,
        linestyle=dash,
        linewidth=1.5,
        marker=style.marker[arm],
        markersize=2.8,
        markevery=(start, every),
        zorder=3,
        gid=tip(curve_tip(arm, task, table.shape[1], along, mean, percent)),
    )
    thick.set_label(arm)
    axes.plot(along[last:], mean[last:], color=color, linestyle=dash, linewidth=0.7, zorder=3)
    return _mark_stopped(axes, experiment, rows, color)


def _by_step_and_seed(rows: pd.DataFrame) -> tuple[Any, Any]:
    """`x` and `value` of an arm's rows, (steps, seeds), both ascending; NaN where a seed has none."""
    steps, row = np.unique(rows["step"].to_numpy(), return_inverse=True)
    seeds, column = np.unique(rows["seed"].to_numpy(), return_inverse=True)
    indices = row * len(seeds) + column
    if len(np.unique(indices)) < len(indices):
        raise ValueError("a seed has two values at a step")
    tables = np.full((2, len(steps) * len(seeds)), np.nan)
    tables[:, indices] = rows["x"], rows["value"]
    x, values = tables.reshape(2, len(steps), len(seeds))
    return x, values


def _means(table: Any, known: Any) -> Any:
    """Means of rows over the seeds that have a value there."""
    return np.where(known, table, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)


def curve_tip(arm: str, task: str, seeds: int, along: Any, mean: Any, percent: bool) -> str:
    """The tooltip of a curve with its values; a long curve shows every n-th value."""
    every = max(1, -(-len(along) // MOST_TIP_VALUES))
    indices = sorted({*range(0, len(along), every), len(along) - 1})
    factor = 100 if percent else 1
    values = ", ".join(f"{along[i]:.4g}: {plain(float(f'{factor * mean[i]:.3g}'))}" for i in indices)
    return f"{arm} on {task}, mean of {seeds} seed{'s' * (seeds > 1)}. {values}"


def _mark_stopped(axes: Axes, experiment: Experiment, rows: pd.DataFrame, color: Any) -> bool:
    """Draw a cross where a run stopped early, and return whether there was one."""
    task, arm = rows["task"].iloc[0], rows["arm"].iloc[0]
    stopped = {run.seed for run in experiment.runs if run.stopped and (run.arm, run.task) == (arm, task)}
    if not stopped:
        return False
    ends = rows[rows["seed"].isin(stopped)].sort_values("step").groupby("seed").tail(1)
    if len(ends):
        axes.plot(ends["x"], ends["value"], "x", color=color, markersize=5, zorder=4)
    return bool(len(ends))


def _ends(axes: Axes) -> Mapping[str, tuple[float, float]]:
    """Where the thick curve of each arm ends."""
    arm_lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    points = {str(line.get_label()): np.asarray(line.get_xydata(), dtype=float)[-1] for line in arm_lines}
    return {arm: (float(x), float(y)) for arm, (x, y) in points.items()}
