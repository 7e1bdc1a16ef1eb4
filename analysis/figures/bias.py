"""Figures of social bias, by category and against updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from grpobench.analysis.figures.curves import Row, curves
from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import legend_above, new_figure
from grpobench.analysis.figures.scales import plain
from grpobench.analysis.figures.style import BASE_COLOUR, Look, Sheet, look
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.bias import bias_curves
from grpobench.analysis.summary.budgets import with_axis

BIAS_COLUMNS = (
    ("accuracy_ambiguous", "accuracy, ambiguous"),
    ("bias_ambiguous", "bias, ambiguous"),
    ("bias_disambiguated", "bias, disambiguated"),
    ("accuracy_disambiguated", "accuracy, disambiguated"),
)


def draw_bias(matrix: Matrix, frame: pd.DataFrame, sheet: Sheet) -> Drawing | None:
    """Bias scores and disambiguated accuracy by category, from what `bias_metrics` found; a row of panels per
    task that logs them."""
    columns = [(metric, label) for metric, label in BIAS_COLUMNS if (frame["metric"] == metric).any()]
    if frame.empty or not columns:
        return None
    tasks = [task for task in matrix.tasks if (frame["task"] == task).any()]
    style = look(matrix.arms)
    lines = {task: _categories(frame[frame["task"] == task]) for task in tasks}
    line = max(0.3, 0.09 * len(matrix.arms) + 0.1)
    heights = [line * len(lines[task]) + 0.6 for task in tasks]
    across = min(len(columns), sheet.across)
    down = math.ceil(len(columns) / across)
    figure = new_figure(sheet.width, down * sum(heights) + 0.4)
    ratios = [height for height in heights for _ in range(down)]
    spec = figure.add_gridspec(len(ratios), across, height_ratios=ratios)
    for index, task in enumerate(tasks):
        for position, (metric, label) in enumerate(columns):
            axes = figure.add_subplot(spec[index * down + position // across, position % across])
            own = frame[(frame["task"] == task) & (frame["metric"] == metric)]
            _bias_panel(axes, own, lines[task], matrix.arms, style)
            axes.set_yticklabels(lines[task] if position % across == 0 else [])
            axes.set_title(f"{task}: {label}" if len(tasks) > 1 else label)
            axes.set_xlabel("accuracy (share)" if metric.startswith("accuracy") else "bias score (−1 to 1)")
    handles: list[Any] = [
        Line2D([], [], marker=style.marker[arm], linestyle="", color=style.colour[arm], markersize=4.5)
        for arm in matrix.arms
    ]
    handles.append(Line2D([], [], marker="|", linestyle="", color=BASE_COLOUR, markersize=8))
    legend_above(figure, handles, [*matrix.arms, "before training"])
    return Drawing(
        "bias",
        "Bias scores by category",
        "s_DIS = 2·biased/non-unknown − 1 on disambiguated questions, s_AMB = (1 − accuracy)·s on ambiguous "
        "ones (0 is unbiased, 1 always the stereotype): small points are seeds, large ones their mean; "
        "always answering “unknown” gives s_AMB = 0, so disambiguated accuracy stands beside it.",
        figure,
    )


def draw_bias_updates(matrix: Matrix, sheet: Sheet) -> Drawing | None:
    """Bias metrics of the validations against updates."""
    rows = [
        Row(label, with_axis(matrix, frame, "updates"), shared="row")
        for label, frame in bias_curves(matrix).items()
    ]
    if not rows:
        return None
    return Drawing(
        "bias_updates",
        "Bias on the validation split against updates",
        "As in the figure by category; lean is the probability of the stereotype's person less that of the "
        "other one, by likelihood. Where the category of the training item is measured apart, the rows that "
        "do not name it are about all others.",
        curves(matrix, rows, "updates", sheet, points=True),
    )


def _categories(frame: pd.DataFrame) -> list[str]:
    return ["all", *sorted(set(frame["category"]) - {"all"})]


def _bias_panel(axes: Axes, own: pd.DataFrame, lines: list[str], arms: Sequence[str], style: Look) -> None:
    step = 0.7 / max(len(arms), 1)
    for position, category in enumerate(lines):
        cell = own[own["category"] == category]
        base = cell.loc[cell["when"] == "base", "value"]
        if len(base):
            axes.plot(base.mean(), position, "|", color=BASE_COLOUR, markersize=min(24, 8 * len(arms)))
        for index, arm in enumerate(arms):
            values = cell.loc[(cell["when"] == "final") & (cell["arm"] == arm), "value"].to_numpy(dtype=float)
            if len(values):
                height = position + (index - (len(arms) - 1) / 2) * step
                colour = style.colour[arm]
                axes.plot(values, [height] * len(values), "o", color=colour, markersize=2, alpha=0.5)
                axes.plot(values.mean(), height, style.marker[arm], color=colour, markersize=4.5)
    if str(own["metric"].iloc[0]).startswith("bias"):
        axes.axvline(0, color=BASE_COLOUR, linewidth=0.6, zorder=0)
        reach = max(0.1, 1.15 * float(own["value"].abs().max()))
        axes.set_xlim(-reach, reach)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)))
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    for position in range(1, len(lines)):
        axes.axhline(position - 0.5, color="#eeeeee", linewidth=0.6, zorder=0)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
