"""Curves against updates, tokens or seconds: the mean of each arm over its seeds, with the interval of the
mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from grpobench.analysis.figures.drawing import tip
from grpobench.analysis.figures.panels import (
    arm_legend,
    grid_of,
    leftmost,
    panel_height,
    points_of,
    shape_of,
    text_width,
)
from grpobench.analysis.figures.scales import (
    Scale,
    apply,
    mark_outside,
    plain,
    round_ticks,
    scale_of,
    ticks_at,
)
from grpobench.analysis.figures.style import BAND, Look, Sheet, look
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.intervals import seed_means

FURTHEST = 1e100
"""Larger values are clipped to it, because scales are computed from sums and ratios of values."""
MARKS = 6
"""Approximate number of markers on a long curve."""
BARS = 8
"""Most evaluations of a curve whose intervals are drawn as bars; with more, they are a band."""
DODGE = 0.012
"""Distance of two arms' bars at one step, as a share of the panel's width."""
MOST_TIP_VALUES = 12
"""Most values of a curve in its tooltip."""
SAME = 1e-12
"""Values whose range is below this, relative to their size, are one value."""
TICK_INCHES = 0.42
"""Least inches from one round number of the horizontal axis to the next."""
TICK_GAP = 0.15
"""Least inches between the numbers at two evaluated steps."""
BESIDE_AXIS = 0.5
"""Inches of a panel's share of the width that its vertical axis takes."""
THIN = "A line becomes thin where a seed of the arm has no more values."
STOPPED = "× marks the end of a run that diverged, collapsed or crashed."
OUTSIDE = "A triangle at an edge marks means beyond it."
UPDATES = "updates"
"""Label of the axis on which ticks are put at evaluated steps."""


@dataclass(frozen=True)
class PanelRow:
    """A row of panels: one metric, a panel per task."""

    label: str
    frame: pd.DataFrame
    """Rows of (arm, task, seed, step, x, value)."""
    log: bool = False
    """Whether a logarithmic axis may be used."""
    shared: Literal["panel", "row", "figure"] = "row"
    """Which panels share a scale so that they can be compared."""
    percent: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """The values that are possible; intervals are cut to them."""


def constant(values: Any) -> float | None:
    """The value of a metric that never changes; None for one that does."""
    array = np.asarray(values, dtype=float)
    if not array.size or np.abs(array).max() > FURTHEST:
        return None
    if np.ptp(array) > SAME * max(1.0, float(np.abs(array).max())):
        return None
    return float(array.mean())


@dataclass(frozen=True)
class DrawnCurves:
    """Curves that have been drawn, and sentences for their caption."""

    figure: Figure
    notes: tuple[str, ...]


def draw_curves(
    experiment: Experiment, rows: Sequence[PanelRow], label: str, sheet: Sheet, points: bool = False
) -> DrawnCurves:
    """A grid with one row of panels per metric for each block of tasks side by side; the metrics of a single
    task stand side by side. With `points` every value has a marker, and few values have bars instead of a
    band."""
    rows = [_drawable(row) for row in rows]
    tasks = [task for task in experiment.tasks if any((row.frame["task"] == task).any() for row in rows)]
    figure, grid = grid_of(len(rows), tasks, sheet, panel_height(len(rows), tasks, sheet))
    _, across = shape_of(len(rows), tasks, sheet)
    room = sheet.width / across - BESIDE_AXIS
    style = look(experiment.arms)
    extents = {(index, task): _extent(rows[index], task) for index, task in grid}
    drawn: set[str] = set()
    marks: set[str] = set()
    for (index, task), axes in grid.items():
        row, task_rows = rows[index], rows[index].frame[rows[index].frame["task"] == task]
        panel = _Panel(axes, row, experiment, style, points, label == UPDATES)
        value = constant(task_rows["value"]) if len(tasks) > 1 else None
        for arm in experiment.arms if value is None else ():
            if len(arm_rows := task_rows[task_rows["arm"] == arm]):
                drawn.add(arm)
                marks |= panel.draw_arm(arm_rows)
        alone = len(tasks) == 1
        first = alone or task == leftmost(tasks, task, sheet)
        _set_up(axes, row, _scale(_compared(extents, row.shared, index, task), row.log), first)
        _set_ticks(axes, experiment, label, task_rows, room)
        if index == len(rows) - 1 or (alone and index >= len(rows) - across):
            axes.set_xlabel(label)
        if index == 0 and not (alone and len(rows) > 1):
            axes.set_title(task)
        if value is not None or task_rows.empty:
            _leave_empty(axes, "not logged" if value is None else f"{_shown(row, value)} throughout")
        elif mark_outside(axes, *_drawn_means(axes)):
            marks.add(OUTSIDE)
    arm_legend(figure, [arm for arm in experiment.arms if arm in drawn], style, failed=STOPPED in marks)
    return DrawnCurves(figure, tuple(note for note in (THIN, STOPPED, OUTSIDE) if note in marks))


def _drawable(row: PanelRow) -> PanelRow:
    """The row with values that a renderer can draw."""
    values = row.frame["value"]
    if not (values.abs() > FURTHEST).any():
        return row
    return replace(row, frame=row.frame.assign(value=values.clip(-FURTHEST, FURTHEST)))


def _shown(row: PanelRow, value: float) -> str:
    return plain(float(f"{100 * value if row.percent else value:.6g}"))


def _leave_empty(axes: Axes, text: str) -> None:
    """A panel with nothing to see but why."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#767676")


def _compared(extents: Mapping[tuple[int, str], Any], shared: str, index: int, task: str) -> Any:
    """The extents of all panels that share the scale of a panel."""
    return np.concatenate(
        [
            values
            for key, values in extents.items()
            if shared == "figure" or key == (index, task) or (shared == "row" and key[0] == index)
        ],
        axis=1,
    )


def _extent(row: PanelRow, task: str) -> Any:
    """The means of all arms in a panel with both ends of their intervals, (3, values)."""
    ends = [np.empty((3, 0))]
    for _, rows in row.frame[row.frame["task"] == task].groupby("arm", sort=False):
        ends.append(np.stack(bounded_means(_by_step_and_seed(rows)[1], row.bounds)))
    return np.concatenate(ends, axis=1)


def _scale(extent: Any, log: bool) -> Scale:
    """The scale for the means that are no outliers, with their intervals."""
    means = scale_of(extent[0], log)
    inside = extent[:, (extent[0] >= means.low) & (extent[0] <= means.high)]
    if means.kind == "log":
        return scale_of(inside[inside > 0], log=True)
    return scale_of(inside)


def bounded_means(table: Any, bounds: tuple[float, float]) -> tuple[Any, Any, Any]:
    """Means over seeds of a table (steps, seeds) and their t intervals, cut to possible values."""
    mean, low, high = seed_means(table)
    return mean, np.maximum(low, bounds[0]), np.minimum(high, bounds[1])


def _set_up(axes: Axes, row: PanelRow, scale: Scale, first: bool) -> None:
    """Set scale and labels. The metric is named on the left of each block, and numbers are repeated where
    each panel has its own scale."""
    apply(axes, scale, row.percent)
    if first:
        axes.set_ylabel(row.label)
    elif row.shared != "panel":
        axes.tick_params(labelleft=False)


def _set_ticks(axes: Axes, experiment: Experiment, label: str, rows: pd.DataFrame, room: float) -> None:
    """Ticks at the evaluated steps within the data, as many as fit in `room` inches; at round numbers where
    the axis is not of updates or fewer than two steps were evaluated."""
    steps = evaluated_steps(experiment, set(rows["task"])) if label == UPDATES else []
    steps = [step for step in steps if rows["x"].min() <= step <= rows["x"].max()]
    if len(steps) > 1:
        widest = text_width(plain(steps[-1]), points_of("xtick.labelsize"))
        ticks_at(axes, steps, max(2, int(room / (widest + TICK_GAP))))
    else:
        most = max(2, min(5, int(room / TICK_INCHES)))
        axes.xaxis.set_major_locator(round_ticks(most, integer=label == UPDATES))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def evaluated_steps(experiment: Experiment, tasks: set[str]) -> list[float]:
    """The steps at which runs of these tasks were evaluated on the validation split."""
    metrics = experiment.metrics
    ours = metrics["task"].isin(tasks) & metrics["metric"].astype(str).str.startswith("eval/validation/")
    return sorted(float(step) for step in metrics.loc[ours, "step"].unique())


@dataclass(frozen=True)
class _Panel:
    """What is needed to draw the curves of one panel."""

    axes: Axes
    row: PanelRow
    experiment: Experiment
    style: Look
    points: bool
    dodges: bool
    """Whether all arms have values at the same places, so that their bars would hide each other."""

    def draw_arm(self, rows: pd.DataFrame) -> set[str]:
        """Draw the interval of the mean (none for one seed) and a thick mean that becomes thin where a seed
        has no more values. Return the notes that the caption needs."""
        arm = rows["arm"].iloc[0]
        x, table = _by_step_and_seed(rows)
        color, dash = self.style.color[arm], self.style.dash[arm]
        is_finite = np.isfinite(table)
        mean, low, high = bounded_means(table, self.row.bounds)
        bars = self.points and len(mean) <= BARS
        mean_x = _means(x, is_finite)
        along = mean_x + (self._dodge(arm) if bars else 0.0)
        if bars:
            there = np.isfinite(low)
            self.axes.vlines(along[there], low[there], high[there], color=color, linewidth=0.9, zorder=2.5)
        elif table.shape[1] > 1:
            self.axes.fill_between(along, low, high, color=color, alpha=BAND, linewidth=0)
        lasting = is_finite.sum(axis=1) == is_finite.any(axis=0).sum()
        last = int(np.flatnonzero(lasting)[-1]) if lasting.any() else 0
        every = 1 if self.points else max(1, len(along) // MARKS)
        start = 0 if self.points else self.experiment.arms.index(arm) % every
        (thick,) = self.axes.plot(
            along[: last + 1],
            mean[: last + 1],
            color=color,
            linestyle=dash,
            linewidth=1.2 if bars else 1.5,
            marker=self.style.marker[arm],
            markersize=2.8,
            markevery=(start, every),
            zorder=3,
            gid=tip(curve_tip(arm, rows["task"].iloc[0], table.shape[1], mean_x, mean, self.row.percent)),
        )
        thick.set_label(arm)
        notes = {STOPPED} if _mark_stopped(self.axes, self.experiment, rows, color) else set()
        if last + 1 < len(along):
            self.axes.plot(along[last:], mean[last:], color=color, linestyle=dash, linewidth=0.7, zorder=3)
            notes.add(THIN)
        return notes

    def _dodge(self, arm: str) -> float:
        if not self.dodges:
            return 0.0
        span = float(np.ptp(self.row.frame["x"])) or 1.0
        arms = self.experiment.arms
        return DODGE * span * (arms.index(arm) - (len(arms) - 1) / 2)


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


def _means(table: Any, has_value: Any) -> Any:
    """Means of rows over the seeds that have a value there."""
    return np.where(has_value, table, 0.0).sum(axis=1) / np.maximum(has_value.sum(axis=1), 1)


def _drawn_means(axes: Axes) -> tuple[Any, Any]:
    """Places and values of all means in a panel."""
    lines = [np.asarray(line.get_xydata(), dtype=float) for line in axes.get_lines()]
    points = np.concatenate([np.empty((0, 2)), *lines])
    return points[:, 0], points[:, 1]


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
