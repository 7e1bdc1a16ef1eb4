"""Figures of accuracy: at the end, between pairs of arms, and during training.

The numbers and tables behind them are in `topics.accuracy` and `topics.comparisons`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from grpobench.analysis.figures.drawing import Drawing, meaning
from grpobench.analysis.figures.panels import (
    legend_above,
    point_handles,
    rows_of_names,
    seeds_and_mean,
    widen,
)
from grpobench.analysis.figures.style import BASE_COLOR, BASE_DASH, Sheet, look
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.comparison import Comparison
from grpobench.analysis.topics.accuracy import describe_decoding, headline_of
from grpobench.analysis.topics.budgets import AXES, unit_of, with_axis
from grpobench.analysis.topics.curves import Row, curves

ALIKE = 1e-9
"""Accuracies before training closer than this are equal: they are sums of floats."""
MOST_ARMS = 6
"""With more arms, a figure of all pairs would not fit a page."""


def draw_validation(
    experiment: Experiment, axis: str, definitions: Mapping[str, str], sheet: Sheet
) -> Drawing | None:
    """Validation accuracy against `updates`, `tokens` or `seconds`."""
    frames = []
    modes = set()
    for task in experiment.tasks:
        mode = headline_of(experiment, task).mode
        frame = experiment.select(f"eval/validation/{mode}/correct")
        frames.append(frame[frame["task"] == task])
        modes.add(mode)
    frame = with_axis(experiment, pd.concat(frames), axis)
    label, frame = _along(axis, frame)
    if frame.empty or (axis != "updates" and not frame["x"].any()):
        return None
    row = Row("accuracy (%)", frame, shared="panel", percent=True)
    figure = curves(experiment, [row], label, sheet, points=True)
    what = meaning("eval/<split>/<mode>/correct", definitions)
    return Drawing(
        f"accuracy_{axis}",
        f"Validation accuracy against {AXES[axis]}",
        f"Validation accuracy ({' and '.join(describe_decoding(experiment, m) for m in sorted(modes))}): "
        f"{what}.",
        figure,
    )


def _along(axis: str, frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Label of the horizontal axis, and the frame in its unit."""
    if axis == "updates":
        return "updates", frame
    if axis == "seconds":
        return "training time (s)", frame
    unit, suffix = unit_of(float(frame["x"].max()) if len(frame) else 0.0)
    return f"generated tokens{suffix}", frame.assign(x=frame["x"] / unit)


def draw_final_accuracy(experiment: Experiment, runs: pd.DataFrame, sheet: Sheet) -> Drawing | None:
    """Every seed's final accuracy, the mean with its interval, and the base model's level."""
    counted = runs.dropna(subset=["counted"])
    if counted.empty:
        return None
    tasks = [task for task in experiment.tasks if (counted["task"] == task).any()]
    figure, grid = rows_of_names(tasks, experiment.arms, sheet)
    color, apart = look(experiment.arms).color, False
    for (_, task), axes in grid.items():
        task_rows = counted[counted["task"] == task]
        base = runs[runs["task"] == task].groupby("arm")["base"].mean().dropna()
        begun: dict[str, Any] = {"color": BASE_COLOR, "linewidth": 0.8, "linestyle": BASE_DASH}
        if len(base) and base.max() - base.min() > ALIKE:  # arms of other models, or of several experiments
            apart = True
            for arm, value in base.items():
                row = experiment.arms.index(str(arm))
                axes.plot([100 * value] * 2, [row - 0.4, row + 0.4], **begun)
        elif len(base):
            axes.axvline(100 * runs.loc[runs["task"] == task, "base"].mean(), **begun)
        for row, arm in enumerate(experiment.arms):
            seeds = task_rows[task_rows["arm"] == arm]
            broken = seeds["final"].isna()
            seeds_and_mean(axes, row, 100 * seeds["counted"], color[arm], broken, name=f"{arm} on {task}")
        axes.set_xlabel("accuracy (%)")
        widen(axes)
    handles = [*point_handles(), Line2D([], [], color=BASE_COLOR, linewidth=0.8, linestyle=BASE_DASH)]
    labels = ["seed", "mean, 95% interval", "before training"]
    if counted["final"].isna().any():
        handles.append(Line2D([], [], color=BASE_COLOR, linestyle="", marker="x", markersize=5))
        labels.append("diverged, counted as 0")
    legend_above(figure, handles, labels)
    counted_in = sorted({(str(row.split), str(row.mode)) for row in counted.itertuples()})
    where = " and ".join(f"{split}, {describe_decoding(experiment, mode)}" for split, mode in counted_in)
    return Drawing(
        "final_accuracy",
        "Final accuracy by arm",
        f"Accuracy after the last update ({where}). Each point is a seed, the bar is the t interval over "
        f"seeds, and the dashed line is the mean accuracy before training{' of each arm' * apart}.",
        figure,
    )


def draw_differences(experiment: Experiment, compared: Sequence[Comparison], sheet: Sheet) -> Drawing | None:
    """Paired differences between arms, in points."""
    pairs = [pair for pair in compared if pair.seeds]
    if not pairs:
        return None
    only = ""
    if len(experiment.arms) > MOST_ARMS and not experiment.control:
        pairs = [pair for pair in pairs if pair.first == experiment.arms[0]]
        only = f" The figure shows only the pairs with {experiment.arms[0]}; the table has all pairs."
    tasks = [task for task in experiment.tasks if any(pair.task == task for pair in pairs)]
    names = list(dict.fromkeys(f"{pair.first} − {pair.second}" for pair in pairs))
    figure, grid = rows_of_names(tasks, names, sheet)
    for (_, task), axes in grid.items():
        axes.axvline(0, color=BASE_COLOR, linewidth=0.8)
        for pair in (pair for pair in pairs if pair.task == task):
            row = names.index(f"{pair.first} − {pair.second}")
            settled = pair.verdict != "unresolved"
            tint = "#000000" if settled else "#777777"
            values = 100 * np.array(pair.differences)
            label = f"{names[row]} on {task} (points)"
            seeds_and_mean(axes, row, values, tint, hollow=not settled, least=-100.0, name=label)
        axes.set_xlabel("difference (points)")
        widen(axes)
    handles = [
        *point_handles(),
        Line2D([], [], marker="D", color="#777777", markerfacecolor="white", markersize=4),
    ]
    handles[1] = Line2D([], [], marker="D", color="#000000", markersize=4, linewidth=1.2)
    legend_above(figure, handles, ["seed", "mean, 95% interval: resolved", "unresolved"])
    return Drawing(
        "differences",
        "Paired differences between arms",
        "Difference of final accuracies inside each seed, with the t interval of their mean. A hollow mean "
        "marks a difference that the paired permutation test does not resolve. The interval assumes normal "
        "differences and ignores all other pairs. The test does neither, so the interval may exclude 0 "
        f"where the mean is hollow.{only}",
        figure,
    )
