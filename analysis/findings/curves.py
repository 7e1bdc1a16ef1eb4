"""Curves of a finding that sweeps one setting: what the first test measures by value, a line for each arm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import arm_handle, legend_above, new_figure
from grpobench.analysis.figures.scales import round_ticks
from grpobench.analysis.figures.style import INK, STYLE, look
from grpobench.analysis.findings.contrasts import values_covered
from grpobench.analysis.findings.description import ArmMean, arm_means
from grpobench.analysis.findings.figures import SHARES, axis_words
from grpobench.analysis.findings.record import Record
from grpobench.analysis.findings.result import Result
from grpobench.analysis.tools.text import RATE_SUFFIX, sweep_value
from grpobench.analysis.topics.captions import counted

SWEPT = re.compile(r"(?P<arm>[^+]+)\+(?P<key>[a-z_]+)-(?P<value>[0-9_]+(?:e-?[0-9]+)?)")
"""An arm at one value of one swept setting, such as `lora+learning_rate-1e-4`; `_` is a decimal point."""
FEWEST = 3
"""Values of an arm from which on there is a curve."""
RING: Mapping[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "markersize": 9,
    "markerfacecolor": "none",
    "color": INK,
}
"""The mark around the values that the first test compares."""


def swept(record: Record, result: Result) -> tuple[str, Mapping[str, Mapping[float, ArmMean]]]:
    """The setting, and by arm and value what the first test measures of it. Both empty unless every arm with
    such a name sweeps the same setting over `FEWEST` values or more, on one task. Of a test at best rates it
    is the multiple of the arm's own learning rate."""
    curves: dict[str, dict[float, ArmMean]] = {}
    keys = set()
    at_best = result.primary.test.best_rate
    means = [arm_mean for arm_mean in arm_means(record, result.primary.test.name) if arm_mean.values]
    for arm_mean in means:
        if at_best:
            arm, _, factor = arm_mean.arm.partition(RATE_SUFFIX)
            curves.setdefault(arm, {})[float(factor or 1)] = arm_mean
            keys.add("multiple of the own learning rate")
        elif match := SWEPT.fullmatch(arm_mean.arm):
            value = float(match["value"].replace("_", "."))
            curves.setdefault(match["arm"], {})[value] = arm_mean
            keys.add(match["key"])
    tasks = {arm_mean.task for arm_mean in means}
    if (
        keys == {result.finding.bases}
        or len(keys) != 1
        or len(tasks) != 1
        or any(len(curve) < FEWEST for curve in curves.values())
    ):
        return "", {}
    return keys.pop(), {arm: dict(sorted(curve.items())) for arm, curve in curves.items()}


def draw_curves(record: Record, result: Result) -> Drawing:
    """A line through the means over seeds for each arm, with t intervals and the seeds themselves. Rings mark
    the values that the first test compares. Raises ValueError where `swept` finds nothing."""
    key, curves = swept(record, result)
    if not curves:
        raise ValueError(f"finding {result.finding.name} sweeps no setting")
    test = result.primary.test
    factor = 100 if test.unit in SHARES else 1
    compared = {run[0] for name in test.contrast for run in values_covered(name, record.values[test.name])}
    if test.best_rate:
        best = {name.partition("@")[0]: curves[name.partition("@")[0]] for name in test.contrast}
        compared = {max(curve.values(), key=lambda point: point.mean.value).arm for curve in best.values()}
    style = look([*curves])
    with matplotlib.rc_context(STYLE):
        figure = new_figure(5.2, 3.0)
        axes = figure.add_subplot()
        axes.set_xscale("log")
        handles = {arm: arm_handle(arm, style) for arm in curves}
        values = sorted({value for curve in curves.values() for value in curve})
        for arm, curve in curves.items():
            _curve(axes, curve, factor, handles[arm])
            chosen = [value for value, arm_mean in curve.items() if arm_mean.arm in compared]
            axes.plot(chosen, [factor * curve[value].mean.value for value in chosen], **RING)
        axes.xaxis.set_ticks(values, [sweep_value(value) for value in values], minor=False)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(key.replace("_", " "))
        axes.set_ylabel(axis_words(test.outcome, test.unit))
        axes.yaxis.set_major_locator(round_ticks(6))
        names = [*curves, "compared"]
        legend_above(figure, [*handles.values(), Line2D([], [], **RING)], names)
        sns.despine(figure)
    seeds = counted(
        [len(arm_mean.values) for curve in curves.values() for arm_mean in curve.values()], "seed"
    )
    caption = (
        f"Lines join means over {seeds} for each value, with 95% t intervals; points are seeds. Rings mark "
        "the values that the first test compares."
    )
    return Drawing(f"{result.finding.name}-curves", result.finding.claim, caption, figure)


def _curve(axes: Axes, curve: Mapping[float, ArmMean], factor: float, handle: Line2D) -> None:
    """One arm: seeds, means with intervals, and the line of its handle in the legend."""
    x, color = np.array([*curve]), handle.get_color()
    for value, arm_mean in curve.items():
        y = factor * np.array(arm_mean.values)
        axes.plot([value] * len(y), y, linestyle="", marker=".", markersize=3, color=color, alpha=0.5)
    mean, low, high = (
        factor * np.array([getattr(arm_mean.mean, part) for arm_mean in curve.values()])
        for part in ("value", "low", "high")
    )
    line = Line2D(x, mean)
    line.update_from(handle)
    axes.add_line(line)
    axes.vlines(x, low, high, color=color, linewidth=1.1)
