"""Compute curves: accuracy against tokens, FLOPs and seconds, fitted to the first part and tested on the
rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from grpobench.analysis.figures.drawing import Drawing, tip
from grpobench.analysis.figures.panels import arm_handle, grid_of, leftmost, legend_above, panel_height
from grpobench.analysis.figures.scales import apply, scale_of
from grpobench.analysis.figures.style import BAND, BASE_COLOR, Look, Sheet, look
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import FINISHED, RUN_KEYS, Experiment
from grpobench.analysis.statistics.intervals import Estimate, seed_mean
from grpobench.analysis.statistics.sigmoid import EXPONENTS, LEVEL, Extrapolation, Floats, extrapolate
from grpobench.analysis.tools.text import NONE, count, interval, number, percent, points
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.budgets import ROUNDING, unit_of, with_axis

COMPUTE = {"tokens": "generated tokens", "flops": "FLOPs", "seconds": "seconds"}
"""Kind of compute -> how tables name it."""
MAIN = ("flops", "tokens", "seconds")
"""Tables take ceiling, exponent and prediction from the first of these that was logged."""
SHARE = 0.5
"""Share of the compute in whose evaluations a curve is fitted."""
LEAST_SEEDS = 4
LEAST_FITTED = 4
"""Fewest evaluations in the fitted part: one more than the curve has parameters."""
LEAST_HELD_OUT = 2
WIDEST = 0.2
"""Widest interval of a ceiling that says anything."""
LARGEST_FALL = 0.05
"""Largest fall below its highest mean with which a fitted part may end."""
AT_BOUND = 1e-6
"""A parameter this close to its bound, as a share, is at it."""
LEAST_INSIDE = 0.8
"""Share of held-out points in the band below which the table says where the others lie."""
BEND = "the bend lies between two evaluations, so that exponent and midpoint say nothing"
SEED = 0
NO_ESTIMATE = Estimate(math.nan, math.nan, math.nan)

# Numbers


@dataclass(frozen=True)
class Trajectories:
    """Validation accuracies of the S finished seeds of an arm at the K evaluations that all of them have."""

    task: str
    arm: str
    start: Floats
    """(S,): before training."""
    accuracy: Floats
    """(S, K)."""
    compute: Mapping[str, Floats]
    """Kind of compute -> what was spent by each evaluation, (S, K); without what was not logged."""
    obstacle: str = ""
    """Why no curve can describe these runs; empty: one may."""


@dataclass(frozen=True)
class ComputeCurve:
    """The mean over seeds of an arm on a task against one kind of compute, and the curve if it has one."""

    task: str
    arm: str
    axis: str
    """Kind of compute; empty where none was logged."""
    seeds: int
    start: float
    compute: Floats
    """(K,)."""
    accuracy: Floats
    """(K,)."""
    fitted: int
    """Evaluations in the fitted part."""
    remark: str
    """Why there is no curve, or which held-out points it misses."""
    fit: Extrapolation | None = None

    @property
    def above(self) -> int:
        """How many held-out points lie above the band; 0 without a curve."""
        return int((self.accuracy > self.fit.high)[self.fitted :].sum()) if self.fit else 0

    @property
    def below(self) -> int:
        """How many held-out points lie below the band; 0 without a curve."""
        return int((self.accuracy < self.fit.low)[self.fitted :].sum()) if self.fit else 0

    @property
    def held_out(self) -> int:
        """Evaluations after the fitted part."""
        return len(self.compute) - self.fitted

    @property
    def inside(self) -> float:
        """Share of the held-out points that lie in the band; NaN without a curve."""
        return 1 - (self.above + self.below) / self.held_out if self.fit else math.nan

    @property
    def jumps(self) -> bool:
        """Whether half of the gain came before the first evaluation, or from one evaluation to the next."""
        if self.fit is None:
            return False
        curve = self.fit.curve
        return bool(curve.midpoint < self.compute[0] or curve.exponent > EXPONENTS[1] * (1 - AT_BOUND))

    @property
    def predicted(self) -> Estimate:
        """The accuracy at the last evaluation as the curve has it, with the band."""
        if self.fit is None:
            return NO_ESTIMATE
        value = float(self.fit.curve(self.compute[-1:])[0])
        return Estimate(value, float(self.fit.low[-1]), float(self.fit.high[-1]))


def trajectories(experiment: Experiment, runs: pd.DataFrame) -> list[Trajectories]:
    """Of every arm on every task with finished runs, given the result of `finals`."""
    all_trajectories = []
    fell = runs[runs["state"].isin(["diverged", "collapsed"]) | runs["collapsed_at"].notna()]
    for task in experiment.tasks:
        mode = headline_of(experiment, task).mode
        frame = experiment.select(f"eval/validation/{mode}/correct")
        frame = frame[frame["task"] == task]
        placed = {axis: with_axis(experiment, frame, axis) for axis in COMPUTE}
        for arm in experiment.arms:
            mine = [run for run in experiment.runs if (run.task, run.arm) == (task, arm)]
            seeds, total = [run.seed for run in mine if run.finished], len(mine)
            fallen = int(((fell["task"] == task) & (fell["arm"] == arm)).sum())
            values = _by_seed(frame, arm, seeds, "value")
            compute = {axis: _by_seed(rows, arm, seeds, "x") for axis, rows in placed.items()}
            all_trajectories.append(
                _trajectories(task, arm, values, compute, f"{fallen} of {total}" if fallen else "")
            )
    return [of_arm for of_arm in all_trajectories if of_arm.accuracy.size or of_arm.obstacle]


def spent_by_run(experiment: Experiment) -> dict[tuple[str, str, int], list[list[float]]]:
    """(task, arm, seed) -> [[step, tokens, FLOPs, seconds], …] at the evaluations on validation, NaN for what
    was not logged: what a kept table holds of a run's compute."""
    names = [name for name in experiment.names("eval/validation/") if name.endswith("/correct")]
    frame = pd.concat([experiment.select(name) for name in names]) if names else experiment.metrics.iloc[:0]
    rows = frame[frame["step"] > 0].drop_duplicates([*RUN_KEYS, "step"])[[*RUN_KEYS, "step"]]
    for axis in COMPUTE:
        placed = with_axis(experiment, rows[[*RUN_KEYS, "step"]], axis).rename(columns={"x": axis})
        rows = rows.merge(placed, on=[*RUN_KEYS, "step"], how="left")
    return {
        (str(task), str(arm), int(seed)): run[["step", *COMPUTE]].to_numpy(dtype=np.float64).tolist()
        for (arm, task, seed), run in rows.sort_values("step").groupby(RUN_KEYS, sort=False)
    }


def kept_trajectories(task: str, arm: str, runs: Sequence[Mapping[str, Any]], mode: str) -> Trajectories:
    """Of an arm's runs in a kept table. Raises KeyError for a table that was kept without compute."""
    fallen = sum(run["state"] != FINISHED or run["collapsed_at"] is not None for run in runs)
    finished = [run for run in runs if run["state"] == FINISHED]
    values = pd.DataFrame({run["seed"]: dict(run["validation"][mode]) for run in finished}).T
    compute = {
        axis: pd.DataFrame({run["seed"]: {row[0]: row[column] for row in run["spent"]} for run in finished}).T
        for column, axis in enumerate(COMPUTE, start=1)
    }
    compute_without_gaps = {axis: frame.dropna(axis="columns") for axis, frame in compute.items()}
    fell = f"{fallen} of {len(runs)}" if fallen else ""
    return _trajectories(task, arm, values.dropna(axis="columns"), compute_without_gaps, fell)


def _by_seed(frame: pd.DataFrame, arm: str, seeds: Sequence[int], column: str) -> pd.DataFrame:
    """A column by seed (rows) and step, without steps that a seed lacks."""
    rows = frame[(frame["arm"] == arm) & frame["seed"].isin(seeds)]
    return rows.pivot(index="seed", columns="step", values=column).dropna(axis="columns")


def _trajectories(
    task: str, arm: str, values: pd.DataFrame, compute: Mapping[str, pd.DataFrame], fell: str
) -> Trajectories:
    """From accuracies and compute by seed (rows) and step. `fell` says how many runs collapsed."""
    obstacle = f"{fell} runs collapsed or diverged, and the curve cannot fall" if fell else ""
    if not fell and 0 not in values.columns:
        obstacle = "not evaluated before training"
    steps = [step for step in values.columns if step > 0]
    start = values[0].to_numpy() if 0 in values.columns else np.full(len(values), math.nan)
    spent = {
        axis: frame[steps].to_numpy(dtype=np.float64)
        for axis, frame in compute.items()
        if set(steps) <= set(frame.columns) and len(frame) == len(values)
    }
    # Runs that draw on recorded rollouts generate none: their tokens do not grow.
    grows = {axis: x for axis, x in spent.items() if x.size and (np.diff(x.mean(0), prepend=0) > 0).all()}
    return Trajectories(task, arm, start, values[steps].to_numpy(dtype=np.float64), grows, obstacle)


def fit_curves(
    all_trajectories: Sequence[Trajectories], shape: float, share: float = SHARE
) -> list[ComputeCurve]:
    """The curve of each arm against each kind of compute that was logged. It is fitted to the evaluations in
    the first `share` of the compute. `shape` is the error of the curve itself for which the band allows, as a
    share of accuracy. The same random seeds are drawn for each curve."""
    curves = []
    for trajectories in all_trajectories:
        axes = [axis for axis in COMPUTE if axis in trajectories.compute]
        curves += [fit_curve(trajectories, axis, shape, np.random.default_rng(SEED), share) for axis in axes]
        if not axes:
            reason = trajectories.obstacle or "no compute was logged that grows"
            names, empty = (trajectories.task, trajectories.arm), np.zeros(0)
            curves.append(ComputeCurve(*names, "", 0, math.nan, empty, empty, 0, reason))
    return curves


def fit_curve(
    trajectories: Trajectories, axis: str, shape: float, rng: np.random.Generator, share: float = SHARE
) -> ComputeCurve:
    """The curve of an arm against one kind of compute, or the reason why there is none."""
    task, arm, start = trajectories.task, trajectories.arm, trajectories.start
    spent, means = trajectories.compute[axis].mean(0), trajectories.accuracy.mean(0)
    fitted = int((spent <= share * spent[-1] * ROUNDING).sum())
    curve = ComputeCurve(task, arm, axis, len(start), float(start.mean()), spent, means, fitted, "")
    if reason := trajectories.obstacle or _too_little(trajectories, fitted) or _no_rise(trajectories, fitted):
        return replace(curve, remark=reason)
    fit = extrapolate(trajectories.compute[axis], trajectories.accuracy, start, fitted, rng, shape)
    if reason := _open_end(fit, float(spent[fitted - 1])):
        return replace(curve, remark=reason)
    curve = replace(curve, fit=fit)
    remarks = [_misses(curve), BEND if curve.jumps else ""]
    return replace(curve, remark="; ".join(filter(None, remarks)))


def _too_little(trajectories: Trajectories, fitted: int) -> str:
    """Why there are too few seeds or evaluations; empty: there are enough."""
    seeds, evaluations = trajectories.accuracy.shape
    if seeds < LEAST_SEEDS:
        return f"too few seeds to say: {seeds} of {LEAST_SEEDS}"
    if fitted < LEAST_FITTED or evaluations - fitted < LEAST_HELD_OUT:
        return f"too few evaluations to say: not {LEAST_FITTED} to fit and {LEAST_HELD_OUT} to hold out"
    return ""


def _no_rise(trajectories: Trajectories, fitted: int) -> str:
    """Why the fitted part does not rise; empty: it does."""
    gain = seed_mean(trajectories.accuracy[:, fitted - 1] - trajectories.start, LEVEL)
    if not gain.low > 0:
        return f"no gain in the fitted part: {points(gain.value)} ({interval(gain.low, gain.high, points)})"
    means = trajectories.accuracy[:, :fitted].mean(0)
    fall = float(means.max() - means[-1])
    if fall > LARGEST_FALL:
        return f"the fitted part ends {percent(fall)} points below its highest, and the curve cannot fall"
    return ""


def _open_end(fit: Extrapolation, last: float) -> str:
    """What the fitted part leaves open; empty: nothing."""
    if fit.ceiling.high - fit.ceiling.low > WIDEST:
        return f"too short to say: ceiling from {percent(fit.ceiling.low)} to {percent(fit.ceiling.high)}"
    if fit.midpoint.high > last:
        return "too short to say: the midpoint may lie beyond the fitted part"
    if fit.curve.ceiling > 1 - AT_BOUND:
        return "accuracy nears 100 % faster than the curve can, whose ceiling is at that bound"
    return ""


def _misses(curve: ComputeCurve) -> str:
    """On which side of the band held-out points lie, if many do."""
    if curve.inside >= LEAST_INSIDE:
        return ""
    missed = f"{curve.above + curve.below} of {curve.held_out} points are outside the band"
    return f"{missed}: {curve.above} above it, {curve.below} below"


# Table


def compute_table(curves: Sequence[ComputeCurve]) -> PrintedTable:
    """Ceiling, exponent, midpoints and the prediction beside what was measured, a row per task and arm."""
    cells: dict[tuple[str, str], dict[str, ComputeCurve]] = {}
    for curve in curves:
        cells.setdefault((curve.task, curve.arm), {})[curve.axis] = curve
    axes = [axis for axis in COMPUTE if any(curve.axis == axis for curve in curves)]
    rows = [_row(task, arm, by_axis, axes) for (task, arm), by_axis in cells.items()]
    if len(rows) > 1 and len({tuple(row[2:]) for row in rows}) == 1 and not any(c.fit for c in curves):
        rows = [["all", "all", *rows[0][2:]]]  # one reason for all
    header = ["task", "arm", "ceiling", "exponent", *(f"midpoint, {COMPUTE[axis]}" for axis in axes)]
    header += ["predicted", "measured", "inside", "why"]
    note = (
        "Validation accuracy R after compute C as R₀ + (A − R₀)/(1 + (midpoint/C)^exponent), A the ceiling, "
        f"fitted to the mean over seeds in the first {SHARE:.0%} of the compute. In brackets: {LEVEL:.0%} "
        "intervals over seeds; those of ceiling and prediction also allow for an error of the curve within "
        "the margin. Predicted and measured: accuracy in percent at the last evaluation. Inside: "
        "how many of the later evaluations lie in the band. Ceiling, exponent and prediction are those "
        "against FLOPs, else tokens."
    )
    note += f" {coverage(curves)}"
    if curves and "flops" not in axes:
        note += " These logs lack FLOPs, which runs of earlier versions did not write."
    return PrintedTable(
        "compute_curves",
        "Compute curves",
        header,
        rows,
        _frame(curves),
        note=note,
        sentence_heading="No curve, or one that misses",
    )


def coverage(curves: Sequence[ComputeCurve]) -> str:
    """How many held-out points lie in the bands of the curves that the table shows, in a sentence."""
    cells: dict[tuple[str, str], list[ComputeCurve]] = {}
    for curve in curves:
        cells.setdefault((curve.task, curve.arm), []).append(curve)
    shown = [curve for cell_curves in cells.values() if (curve := min(cell_curves, key=_rank)).fit]
    total = sum(curve.held_out for curve in shown)
    if not total:
        return "No arm has a curve."
    inside = total - sum(curve.above + curve.below for curve in shown)
    return (
        f"{len(shown)} of {len(cells)} arms have a curve; {inside} of their {total} held-out points lie in "
        f"the band ({inside / total:.0%})."
    )


def _rank(curve: ComputeCurve) -> int:
    """Its place in the order in which tables choose a kind of compute."""
    return (*MAIN, "").index(curve.axis)


def _row(task: str, arm: str, by_axis: Mapping[str, ComputeCurve], axes: Sequence[str]) -> list[str]:
    main = min(by_axis.values(), key=_rank)
    if main.fit is None:
        return [task, arm, *[NONE] * (len(axes) + 5), main.remark]
    midpoints = []
    for axis in axes:
        curve = by_axis.get(axis)
        show = (lambda seconds: number(seconds, 1)) if axis == "seconds" else count
        has_midpoint = curve is not None and curve.fit is not None and not curve.jumps
        midpoints.append(bracketed(curve.fit.midpoint, show) if has_midpoint else NONE)  # type: ignore[union-attr]
    return [
        *(task, arm, bracketed(main.fit.ceiling)),
        NONE if main.jumps else bracketed(main.fit.exponent, lambda b: number(b, 1)),
        *midpoints,
        *(bracketed(main.predicted), percent(float(main.accuracy[-1]))),
        f"{main.held_out - main.above - main.below} of {main.held_out}",
        main.remark,
    ]


def bracketed(estimate: Estimate, show: Any = percent) -> str:
    """`74.2 (71.0 to 80.3)`."""
    return f"{show(estimate.value)} ({interval(estimate.low, estimate.high, show)})"


def _frame(curves: Sequence[ComputeCurve]) -> pd.DataFrame:
    """One row per task, arm and kind of compute."""
    rows = []
    for curve in curves:
        row: dict[str, Any] = {"task": curve.task, "arm": curve.arm, "axis": curve.axis, "seeds": curve.seeds}
        row |= {"fitted": curve.fitted, "held_out": curve.held_out, "start": curve.start}
        for name in ("ceiling", "exponent", "midpoint"):
            estimate: Estimate = getattr(curve.fit, name) if curve.fit else NO_ESTIMATE
            row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        predicted = curve.predicted
        last = [float(values[-1]) if len(values) else math.nan for values in (curve.compute, curve.accuracy)]
        row |= {"compute": last[0], "predicted": predicted.value}
        row |= {"predicted_low": predicted.low, "predicted_high": predicted.high}
        row |= {"measured": last[1], "inside": curve.inside, "remark": curve.remark}
        rows.append(row)
    return pd.DataFrame(rows)


# Figure


def draw_compute_curves(
    experiment: Experiment, curves: Sequence[ComputeCurve], sheet: Sheet
) -> Drawing | None:
    """Accuracy against each kind of compute with the fitted curves; None where no arm has one."""
    fitted = {(curve.task, curve.axis) for curve in curves if curve.fit}
    tasks = [task for task in experiment.tasks if any(task == name for name, _ in fitted)]
    rows = [axis for axis in COMPUTE if any(axis == name for _, name in fitted)]
    if not fitted:
        return None
    # A row of panels for each kind of compute and a column for each task; of one task, all in a row.
    alone = len(tasks) == 1
    columns = rows if alone else tasks
    down = 1 if alone else len(rows)
    figure, grid = grid_of(down, columns, sheet, panel_height(down, columns, sheet))
    style = look(experiment.arms)
    for (index, column), axes in grid.items():
        axis, task = (column, tasks[0]) if alone else (rows[index], column)
        of_axis = [curve for curve in curves if curve.axis == axis and curve.task in tasks]
        _draw_panel(axes, [curve for curve in of_axis if curve.task == task], axis, of_axis, style)
        if column == leftmost(columns, column, sheet):
            axes.set_ylabel("accuracy (%)")
        if index == 0 and (not alone or column == columns[0]):
            axes.set_title(task)
    arms = [arm for arm in experiment.arms if any(c.arm == arm and c.task in tasks for c in curves)]
    dot: dict[str, Any] = {"color": BASE_COLOR, "linestyle": "", "marker": "o", "markersize": 3.2}
    handles: list[Any] = [arm_handle(arm, style) for arm in arms]
    handles += [Line2D([], [], **dot), Line2D([], [], markerfacecolor="white", **dot)]
    handles.append(Patch(color=BASE_COLOR, alpha=2 * BAND, linewidth=0))
    legend_above(figure, handles, [*arms, "fitted", "held out", f"{LEVEL:.0%} band"], handlelength=2.6)
    return Drawing(
        "compute_curve",
        "Compute curves",
        "Validation accuracy against compute, mean over seeds. Each curve is fitted to the filled points, "
        f"which lie in the first {SHARE:.0%} of the compute, and held against the hollow ones. The band is "
        f"the {LEVEL:.0%} band for the mean of as many seeds, with an error of the curve. The table "
        "says why an arm has no curve.",
        figure,
    )


def _draw_panel(
    axes: Axes, shown: Sequence[ComputeCurve], axis: str, of_axis: Sequence[ComputeCurve], style: Look
) -> None:
    """The arms of a task against one kind of compute, in a unit for the curves of all tasks."""
    largest = max(float(curve.compute[-1]) for curve in of_axis)
    unit, suffix = (1.0, " of training") if axis == "seconds" else unit_of(largest)
    values = [np.zeros(0)]
    for curve in shown:
        _draw_curve(axes, curve, unit, style)
        values.append(np.array([curve.start, *curve.accuracy]))
        if curve.fit:
            values += [curve.fit.low[curve.fitted :], curve.fit.high[curve.fitted :]]
    apply(axes, scale_of(np.concatenate(values)), percent=True)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{COMPUTE[axis]}{suffix}")


def _draw_curve(axes: Axes, curve: ComputeCurve, unit: float, style: Look) -> None:
    """An arm's points, its curve, and the band over the held-out part."""
    color, x, first = style.color[curve.arm], curve.compute / unit, curve.fitted
    points_look: dict[str, Any] = {"color": color, "marker": style.marker[curve.arm], "markersize": 3.2}
    points_look |= {"linestyle": "", "zorder": 4}
    axes.plot([0, *x[:first]], [curve.start, *curve.accuracy[:first]], **points_look)
    axes.plot(x[first:], curve.accuracy[first:], markerfacecolor="white", **points_look)
    if curve.fit is None:
        return
    fit, along = curve.fit, np.linspace(0, curve.compute[-1], 200)
    text = (
        f"{curve.arm} on {curve.task}: ceiling {bracketed(fit.ceiling)}; at the end predicted "
        f"{bracketed(curve.predicted)}, measured {percent(float(curve.accuracy[-1]))}"
    )
    (line,) = axes.plot(along / unit, fit.curve(along), color=color, linewidth=1.2, zorder=3, gid=tip(text))
    line.set_linestyle(style.dash[curve.arm])
    low, high = fit.low[first - 1 :], fit.high[first - 1 :]
    axes.fill_between(x[first - 1 :], low, high, color=color, alpha=BAND, linewidth=0)
