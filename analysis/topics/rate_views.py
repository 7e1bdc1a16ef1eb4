"""The tables and the figure of arms over learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from grpobench.analysis.figures.drawing import Drawing, tip
from grpobench.analysis.figures.panels import arm_legend, grid_of
from grpobench.analysis.figures.scales import plain
from grpobench.analysis.figures.style import BAND, Look, Sheet, look
from grpobench.analysis.figures.table import PAIR, PrintedTable
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.verdicts import no_difference
from grpobench.analysis.tools.text import NONE, interval, number, p_value, percent, points, sweep_value
from grpobench.analysis.topics.rates import ArmAtRate, ArmCurve, RatePair, RateStudy

PAIRS_NOTE = (
    "Differences in points of final accuracy, first − second. Best rates: each arm at the learning rate with "
    "its highest mean. Difference there: cross-fitted, one half of the seeds chooses the rates and the other "
    "half is read, over all halves. Its 95 % interval and adjusted p are those of a test that no choice of "
    "rates can bias: it rejects only if for each rate of one arm some rate of the other is better, corrected "
    "over rates; p also over the pairs of the task. Half, twice: both arms at half and at twice their best "
    "rates, or at the nearest rate tried beyond. Rate-robust: the arms differ at best rates, and the "
    "difference has the same sign at half and at twice. Depends on the rate: the arms differ at some rate, "
    "but that does not hold. Best rate at an edge: the arms differ at best rates, but rates beyond were not "
    "tried; nor is no difference said then. Own rates: those of the recipe."
)
CURVES_NOTE = (
    "Mean final accuracy in % over the seeds; F: how many runs failed (collapsed, diverged, or ended below "
    "their base); * marks the best rate. Lost at half, at twice: points that the arm loses at half and at "
    "twice its best rate (or the nearest rate tried beyond), cross-fitted. Octaves: over how many factors of "
    "two of the rate the mean stays within the margin of the best; ≥ where it still does at an end of the "
    "grid."
)


def rate_pairs_table(study: RateStudy | None) -> PrintedTable:
    """One row per pair of arms and task."""
    pairs = study.pairs if study else ()
    header = ["task", "pair", "over rates", "best rates", "difference there", "95% interval", "adjusted p"]
    header += ["verdict there", "at half", "at twice", "at own rates", "verdict there", "at equal rates"]
    rows = [
        [
            pair.task,
            f"{pair.first}{PAIR}{pair.second}",
            pair.words,
            " and ".join(map(_rate, pair.best_rates)),
            points(pair.at_best.effect),
            interval(pair.at_best.low, pair.at_best.high, points),
            p_value(pair.at_best.p_adjusted),
            no_difference(pair.margin) if pair.verdict == "equivalent" else pair.verdict,
            points(pair.at_half),
            points(pair.at_twice),
            points(pair.at_own.effect) if pair.at_own else NONE,
            pair.at_own.words if pair.at_own else NONE,
            "; ".join(
                f"{_rate(rate)}: {points(compared.effect)} {compared.words}"
                for rate, compared in pair.at_equal.items()
            )
            or NONE,
        ]
        for pair in pairs
    ]
    frame = pd.DataFrame([_flat(pair) for pair in pairs])
    title = "Every pair over learning rates"
    return PrintedTable("learning_rates", title, header, rows, frame, wide=1, note=PAIRS_NOTE)


def rate_curves_table(study: RateStudy | None) -> PrintedTable:
    """One row per arm and task, one column per multiple of the arm's own rate."""
    curves = study.curves if study else ()
    factors = sorted({point.factor for curve in curves for point in curve.points})
    header = ["task", "arm", "own rate", *(f"× {factor:g}" for factor in factors), "best rate"]
    header += ["lost at half", "lost at twice", "octaves"]
    rows, records = [], []
    for curve in curves:
        by_factor = {point.factor: point for point in curve.points}
        best = curve.best
        octaves, open_below, open_above = curve.octaves
        losses = [curve.loss(side) for side in (-1, 1)]
        rows.append(
            [
                curve.task,
                curve.arm,
                _rate(curve.at_own_rate.rate),
                *(_accuracy_words(by_factor.get(factor), best) for factor in factors),
                _rate(best.rate) if best else NONE,
                *(points(loss) if math.isfinite(loss) else NONE for loss in losses),
                f"{'≥ ' * (open_below or open_above)}{number(octaves, 1)}",
            ]
        )
        records += [
            {
                "task": curve.task,
                "arm": curve.arm,
                "factor": point.factor,
                "rate": point.rate,
                "accuracy": point.accuracy.value,
                "low": point.accuracy.low,
                "high": point.accuracy.high,
                "runs": len(point.scores),
                "failed": len(point.failed),
                "best": best is point,
            }
            for point in curve.points
        ]
    frame = pd.DataFrame(records)
    title = "Accuracy over learning rates, and what another rate costs"
    return PrintedTable("rate_curves", title, header, rows, frame, note=CURVES_NOTE)


def _flat(pair: RatePair) -> dict[str, Any]:
    """The row of a pair with columns for each equal rate."""
    row = pair.row()
    at_equal = row.pop("at_equal")
    return row | {f"{key}_at_{rate}": value for rate, at in at_equal.items() for key, value in at.items()}


def _rate(rate: float) -> str:
    return sweep_value(rate) if math.isfinite(rate) else NONE


def _accuracy_words(point: ArmAtRate | None, best: ArmAtRate | None) -> str:
    if point is None or not point.scores:
        return NONE
    failed = f" F{len(point.failed)}" if point.failed else ""
    return f"{percent(point.accuracy.value)}{'*' * (point is best)}{failed}"


# Figure


def draw_learning_rates(experiment: Experiment, study: RateStudy | None, sheet: Sheet) -> Drawing | None:
    """One panel per task: accuracy against the policy's learning rate, a curve with its interval for each
    arm, the best rate circled; below it, the share of failed runs, if any failed."""
    if study is None or not study.curves:
        return None
    tasks = [task for task in experiment.tasks if any(curve.task == task for curve in study.curves)]
    style = look(experiment.arms)
    any_failed = any(point.failed for curve in study.curves for point in curve.points)
    figure, grid = grid_of(1 + any_failed, tasks, sheet)
    for task in tasks:
        curves = [curve for curve in study.curves if curve.task == task]
        _draw_accuracies(grid[0, task], curves, style)
        grid[0, task].set_title(task)
        panels = [grid[0, task]]
        if any_failed:
            panels.append(grid[1, task])
            _draw_failures(grid[1, task], curves, style)
        for axes in panels:
            _rate_axis(axes, curves)
        for axes in panels if len(tasks) == 1 else panels[-1:]:  # the rows of one task stand side by side
            axes.set_xlabel("learning rate")
    grid[0, tasks[0]].set_ylabel("accuracy (%)")
    if any_failed:
        grid[1, tasks[0]].set_ylabel("failed runs (%)")
    drawn = [arm for arm in experiment.arms if any(curve.arm == arm for curve in study.curves)]
    arm_legend(figure, drawn, style)
    seeds = sorted({len(point.scores) for curve in study.curves for point in curve.points})
    caption = (
        f"Mean final accuracy against the learning rate, with 95 % t intervals over "
        f"{' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds. A circle marks the rate with "
        "the arm's highest mean, a thick tick the arm's own rate."
    )
    if any_failed:
        caption += " Failed runs collapsed, diverged, or ended below their base."
    return Drawing("learning_rates", "Accuracy over learning rates", caption, figure)


def _draw_accuracies(axes: Axes, curves: Sequence[ArmCurve], style: Look) -> None:
    for curve in curves:
        measured = [point for point in curve.points if point.scores]
        rates = [point.rate for point in measured]
        means = [100 * point.accuracy.value for point in measured]
        color = style.color[curve.arm]
        axes.plot(rates, means, gid=tip(f"{curve.arm} on {curve.task}"), **_line(curve.arm, style))
        bands = [point.accuracy for point in measured]
        if all(math.isfinite(band.low) for band in bands):
            lows, highs = [100 * band.low for band in bands], [100 * band.high for band in bands]
            axes.fill_between(rates, lows, highs, color=color, alpha=BAND, linewidth=0)
        if best := curve.best:
            axes.plot(
                [best.rate],
                [100 * best.accuracy.value],
                linestyle="",
                marker="o",
                markersize=8,
                markerfacecolor="none",
                markeredgecolor=color,
                markeredgewidth=1.1,
            )
        own_rate = curve.at_own_rate.rate
        axes.plot(
            [own_rate, own_rate], [0, 0.03], transform=axes.get_xaxis_transform(), color=color, linewidth=2.5
        )


def _draw_failures(axes: Axes, curves: Sequence[ArmCurve], style: Look) -> None:
    for curve in curves:
        measured = [point for point in curve.points if point.scores]
        shares = [100 * point.failed_share for point in measured]
        axes.plot([point.rate for point in measured], shares, **_line(curve.arm, style))
    axes.set_ylim(-4, 104)


def _line(arm: str, style: Look) -> dict[str, Any]:
    """The look of an arm's curve."""
    by_arm = {"color": style.color[arm], "linestyle": style.dash[arm], "marker": style.marker[arm]}
    return by_arm | {"markersize": 3.2, "linewidth": 1.3}


def _rate_axis(axes: Axes, curves: Sequence[ArmCurve]) -> None:
    """A logarithmic axis with a tick at each rate tried, thinned to six."""
    rates = sorted({point.rate for curve in curves for point in curve.points})
    shown = rates[:: math.ceil(len(rates) / 6)]
    axes.set_xscale("log")
    axes.set_xticks(shown, [plain(rate) for rate in shown])
    axes.xaxis.set_minor_locator(NullLocator())
