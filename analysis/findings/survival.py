"""Survival curves of a finding by dose: the share of runs that have not collapsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import matplotlib
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import legend_above, new_figure
from grpobench.analysis.figures.style import INK, NOTE_SIZE, STYLE
from grpobench.analysis.findings.contrasts import values_covered
from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.record import Record
from grpobench.analysis.findings.result import Judged, Result
from grpobench.analysis.statistics.survival import kaplan_meier
from grpobench.analysis.tools.text import number, sweep_value
from grpobench.analysis.topics.captions import counted

SIDES: Sequence[tuple[str, Literal["-", "--"]]] = (("#0173b2", "-"), ("#de8f05", "--"))
"""Color and line of the arms that a contrast adds and subtracts: told apart without color."""


def draw_survival(record: Record, result: Result) -> Drawing:
    """Kaplan–Meier curves of the two sides of each test with a dose: a row of panels for each series, a
    column for each dose. A tick marks censored runs; each panel gives the difference of restricted means."""
    judged = {test_result.test.name: test_result for test_result in result.tests}
    columns = max(len(series.tests) for series in result.series)
    rows = len(result.series)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(7.0, 1.55 * rows + 0.55)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for row, series in zip(grid, result.series, strict=True):
            for axes in row[len(series.tests) :]:
                axes.set_axis_off()
            for axes, name, dose in zip(row, series.tests, series.doses, strict=False):
                _panel(axes, record, judged[name])
                axes.set_title(f"{series.name}{', ' * bool(series.name)}{sweep_value(dose)}")
            row[0].set_ylabel("runs without\na collapse (%)")
        for axes in grid[-1]:
            axes.set_xlabel("updates")
        names = _side_names(judged[result.series[0].tests[0]])
        handles = [Line2D([], [], color=color, linestyle=line) for color, line in SIDES]
        legend_above(figure, handles, names)
        sns.despine(figure)
    seeds = counted(
        [len(test_result.seeds) for test_result in result.tests if test_result.test.dose is not None], "seed"
    )
    caption = (
        f"Share of runs that have not collapsed (Kaplan–Meier) over {seeds} per curve, by "
        f"{result.finding.dose}. A tick is a run that reached the end. Numbers are differences of restricted "
        "means, in updates, with the p of the log-rank test by permutation inside seeds, not adjusted for "
        "the number of tests."
    )
    return Drawing(f"{result.finding.name}-survival", result.finding.claim, caption, figure)


def _side_names(test_result: Judged) -> list[str]:
    """The algorithms of a contrast: the arm before its sweep values."""
    return [name.partition("+")[0].upper() for name in _sides(test_result.test.contrast)]


def _sides(contrast: Mapping[str, float]) -> list[str]:
    """The names that are added, then those that are subtracted."""
    return sorted(contrast, key=lambda name: -contrast[name])


def _panel(axes: Axes, record: Record, test_result: Judged) -> None:
    values, horizons = record.values[test_result.test.name], record.horizons[test_result.test.name]
    end = max(horizons.values())
    for name, (color, line) in zip(_sides(test_result.test.contrast), SIDES, strict=False):
        _curve(axes, values_covered(name, values), horizons, color, line)
    axes.set_xlim(0, 1.03 * end)
    axes.set_ylim(0, 106)
    p = f", p {number(test_result.p_log_rank, 3)}" if np.isfinite(test_result.p_log_rank) else ""
    effect_text = f"{test_result.effect.value:+.0f}{p}".replace("-", "−")
    # On a patch of its own: curves that fall to 0 run through this corner.
    patch = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
    axes.text(0.03, 0.06, effect_text, transform=axes.transAxes, fontsize=NOTE_SIZE, color=INK, bbox=patch)


def _curve(
    axes: Axes,
    values: Mapping[Key, float],
    horizons: Mapping[Key, float],
    color: str,
    line: Literal["-", "--"],
) -> None:
    steps = np.array([*values.values()])
    ends = np.array([horizons[run] for run in values])
    curve = kaplan_meier(steps, steps < ends)
    x = np.concatenate([[0.0], curve.steps, [ends.max()]])
    y = 100 * np.concatenate([[1.0], curve.shares, [curve.last]])
    axes.step(x, y, where="post", color=color, linestyle=line, linewidth=1.4)
    censored = steps[steps >= ends]
    if len(censored):
        axes.plot(censored.max(), 100 * curve.last, marker="|", color=color, markersize=6, linestyle="")
