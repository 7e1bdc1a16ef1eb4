"""Targets: what runs spend until validation accuracy reaches a level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import arm_legend, grid_of, leftmost
from grpobench.analysis.figures.scales import round_ticks
from grpobench.analysis.figures.style import Sheet, look
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.measure import BUDGETS
from grpobench.analysis.runfolder.experiment import Experiment, Run
from grpobench.analysis.statistics.comparison import pairs_of
from grpobench.analysis.statistics.permutation import holm
from grpobench.analysis.statistics.survival import paired_log_rank
from grpobench.analysis.tools.text import NONE, p_value, percent
from grpobench.analysis.topics.budgets import ROUNDING, common_budget, unit_of, validation_curves
from grpobench.analysis.topics.captions import counted
from grpobench.analysis.topics.figure_names import AXES
from grpobench.analysis.topics.stability import Lifetimes, draw_lifetimes

JUST_AFTER = 1 + 1e-7
"""A run that has not reached the level within a budget needs more than it; one that reaches it with the last
evaluation needs the budget. This factor keeps the two apart, and no print shows it."""
SAME = 1e-9
"""Accuracies are means of floats, and may miss a level that they equal by this much."""
RunKey: TypeAlias = tuple[str, str, int]
"""Arm, task, seed."""


# Numbers


@dataclass(frozen=True)
class Arrival:
    """When a run reached a level on an axis."""

    run: Run
    at: float
    """What it had spent by the first evaluation at the level or above; infinite if there is none."""
    spent: float
    """What it had spent by its last evaluation; infinite for a run that diverged or collapsed, because more
    training is not part of its result: it never reaches the level."""


def arrivals(experiment: Experiment, task: str, level: float, axis: str) -> tuple[list[Arrival], float]:
    """The runs on a task that have a result and an evaluation on validation with a position on the axis, and
    the budget: what every finished run spent, 0 without one."""
    curves = validation_curves(experiment, task, axis, None)
    reached = []
    for run in experiment.runs:
        curve = curves.get((run.arm, run.seed))
        if run.task != task or not run.settled or curve is None:
            continue
        x = curve["x"].to_numpy(float)
        above = x[curve["value"].to_numpy(float) >= level - SAME]
        spent = float(x[-1]) if run.finished else math.inf
        reached.append(Arrival(run, float(above[0]) if len(above) else math.inf, spent))
    return reached, common_budget(experiment, task, curves) or 0.0


def within_budget(
    experiment: Experiment, task: str, level: float, axis: str
) -> tuple[dict[RunKey, float], dict[RunKey, float]]:
    """What the runs on a task spent until they reached the level, and the largest possible value, which runs
    have that do not reach it within the budget. All have one budget: a run that spends little and never
    reaches the level must not seem fast. Empty without a budget."""
    reached, budget = arrivals(experiment, task, level, axis)
    horizon, values = budget * JUST_AFTER, {}
    for arrival in reached if budget else ():
        key = arrival.run.arm, task, arrival.run.seed
        values[key] = arrival.at if arrival.at <= budget * ROUNDING else horizon
    return values, dict.fromkeys(values, horizon)


def lifetimes_until(experiment: Experiment, task: str, level: float, axis: str) -> dict[str, Lifetimes]:
    """By arm, how long runs last without the level. A run that never reaches it is censored at the end of its
    own log, or, if it diverged or collapsed, at the largest end of the task."""
    reached, _ = arrivals(experiment, task, level, axis)
    ends = [
        end for arrival in reached for end in (arrival.at, arrival.spent) if math.isfinite(end) and end > 0
    ]
    if not ends:
        return {}
    by_arm: dict[str, list[tuple[Run, float, bool]]] = {}
    for arrival in reached:
        is_there = math.isfinite(arrival.at)
        last = arrival.at if is_there else min(arrival.spent, max(ends))
        by_arm.setdefault(arrival.run.arm, []).append((arrival.run, last, is_there))
    return {arm: Lifetimes(*zip(*by_arm[arm], strict=True)) for arm in experiment.arms if arm in by_arm}


def panels_of_targets(experiment: Experiment) -> dict[tuple[str, float], dict[str, dict[str, Lifetimes]]]:
    """By task and level, then by axis that was logged: the lifetimes of each arm until the level. Empty for a
    map, whose arms are sweep values."""
    panels = {}
    for task in experiment.tasks:
        for level in () if experiment.sweep_values else experiment.targets:
            by_axis = {axis: lifetimes_until(experiment, task, level, axis) for axis in BUDGETS}
            panels[task, level] = {axis: arms for axis, arms in by_axis.items() if arms}
    return panels


def compare_arrivals(
    experiment: Experiment, task: str, level: float, axis: str, pairs: Sequence[tuple[str, str]]
) -> list[tuple[float, float]]:
    """p of the paired log-rank test of each pair over the seeds that both have, and the same after Holm over
    the pairs; NaN where no run of a pair reached the level. Runs are censored at the budget of the task,
    since swaps inside seeds need arms that are censored alike."""
    values, horizons = within_budget(experiment, task, level, axis)
    p = []
    for pair in pairs:
        first, second = ({seed for arm, of, seed in values if (arm, of) == (name, task)} for name in pair)
        keys = [[(name, task, seed) for seed in sorted(first & second)] for name in pair]
        arm, other = (
            ([values[key] for key in of_arm], [values[key] < horizons[key] for key in of_arm])
            for of_arm in keys
        )
        p.append(paired_log_rank(arm, other))
    adjusted = holm([1.0 if math.isnan(value) else value for value in p])
    return [(value, float(after)) for value, after in zip(p, adjusted, strict=True)]


# Tables


def median_spent(lifetimes: Lifetimes) -> str:
    """The median of what an arm's runs spent; with > the earliest end of a run without the level, where more
    than half of the runs have not reached it."""
    median = lifetimes.curve.median
    pairs = zip(lifetimes.steps, lifetimes.ended, strict=True)
    shown = median if math.isfinite(median) else min(step for step, is_there in pairs if not is_there)
    unit, letter = unit_of(shown)
    return f"{'> ' * math.isinf(median)}{shown / unit:.3g}{letter.strip(' ()')}"


def targets_table(experiment: Experiment) -> PrintedTable:
    """One row per task, level and arm: how many runs reached the level, and the median of what they spent."""
    records: list[dict[str, Any]] = []
    rows = []
    for (task, level), by_axis in panels_of_targets(experiment).items():
        for arm, lifetimes in by_axis.get("updates", {}).items():
            count, total = sum(lifetimes.ended), len(lifetimes.runs)
            spent = {axis: of_arms[arm] for axis, of_arms in by_axis.items() if arm in of_arms}
            medians = {axis: spent[axis].curve.median if axis in spent else math.nan for axis in BUDGETS}
            shown = [median_spent(spent[axis]) if axis in spent else NONE for axis in BUDGETS]
            rows.append([task, arm, percent(level), f"{count} of {total}", *shown])
            records.append(
                {"task": task, "arm": arm, "level": level, "runs": total, "reached": count, **medians}
            )
    note = (
        "Runs whose validation accuracy reaches the level at an evaluation, and the Kaplan–Meier median of "
        "what they had spent by the first such evaluation. A run that has not reached it is censored at its "
        "end; one that diverged or collapsed never reaches it. > means that more than half of the runs did "
        "not. The first of several noisy evaluations at a level comes early, in all arms alike."
    )
    header = ["task", "arm", "level (%)", "reached", *map(axis_in_words, BUDGETS)]
    title = "What runs spend to reach a target"
    return PrintedTable("targets", title, header, rows, pd.DataFrame(records), note=note)


def target_pairs_table(experiment: Experiment) -> PrintedTable:
    """One row per task, level and pair of arms, with the paired log-rank test on each axis; none where no run
    reached the level, and none across experiments, whose runs are not paired."""
    records: list[dict[str, Any]] = []
    rows = []
    panels = {} if experiment.apart else panels_of_targets(experiment)
    for (task, level), by_axis in panels.items():
        arms = by_axis.get("updates", {})
        if not any(any(lifetimes.ended) for lifetimes in arms.values()):
            continue
        pairs = pairs_of(list(arms), experiment.control)
        tested = {axis: compare_arrivals(experiment, task, level, axis, pairs) for axis in by_axis}
        for index, (first, second) in enumerate(pairs):
            of_axes = {axis: tested[axis][index] if axis in tested else (math.nan, 1.0) for axis in BUDGETS}
            shown = [NONE if math.isnan(p) else p_value(after) for p, after in of_axes.values()]
            rows.append([task, f"{first}, {second}", percent(level), *shown])
            ps = {f"p_{axis}": p for axis, (p, _) in of_axes.items()}
            ps |= {f"p_holm_{axis}": after for axis, (_, after) in of_axes.items()}
            records.append({"task": task, "first": first, "second": second, "level": level, **ps})
    note = (
        "p of the two-sided log-rank test of what was spent until the level, by swapping the runs of a seed "
        "between both arms, after Holm over the pairs of a task. Runs are censored at what every finished "
        "run of the task spent. The axes are separate questions."
    )
    header = ["task", "arms", "level (%)", *(f"p, {axis_in_words(axis)}" for axis in BUDGETS)]
    title = "Which arm reaches a target sooner"
    return PrintedTable("target_pairs", title, header, rows, pd.DataFrame(records), note=note)


def axis_in_words(axis: str) -> str:
    """An axis as tables and figures name it."""
    return AXES.get(axis, axis.upper().replace("FLOPS", "FLOPs"))


# Figure


def draw_targets(experiment: Experiment, sheet: Sheet) -> Drawing | None:
    """Share of runs that have reached a level: a column for each task and level with a run that has, a row
    for each axis. None without such a run."""
    panels = {
        f"{task}, {percent(level)} %": by_axis
        for (task, level), by_axis in panels_of_targets(experiment).items()
        if any(any(lifetimes.ended) for lifetimes in by_axis.get("updates", {}).values())
    }
    axes_drawn = [axis for axis in BUDGETS if any(axis in by_axis for by_axis in panels.values())]
    if not panels:
        return None
    titles = list(panels)
    figure, grid = grid_of(len(axes_drawn), titles, sheet)
    style = look(experiment.arms)
    for (row, title), axes in grid.items():
        axis = axes_drawn[row]
        panel = panels[title].get(axis)
        axes.set_title(title)
        if panel is None:
            axes.set_axis_off()
            continue
        scale, unit = unit_of(max(max(lifetimes.steps) for lifetimes in panel.values()))
        draw_lifetimes(axes, panel, style, scale, rising=True)
        axes.set_ylim(-4, 104)
        axes.set_xlabel(f"{axis_in_words(axis)}{unit}")
        axes.xaxis.set_major_locator(round_ticks(5))
        if len(titles) == 1 or title == leftmost(titles, title, sheet):
            axes.set_ylabel("runs at the level (%)")
    drawn_arms = [
        arm for arm in experiment.arms if any(arm in by_axis["updates"] for by_axis in panels.values())
    ]
    arm_legend(figure, drawn_arms, style, marker=False)
    sizes = [len(lifetimes.runs) for by_axis in panels.values() for lifetimes in by_axis["updates"].values()]
    caption = (
        "Kaplan–Meier share of runs in % whose validation accuracy has reached the level, against what they "
        f"spent. Curves are of {counted(sizes, 'seed')} per arm and panel, without intervals. A tick marks a "
        "run whose log ends before those of the others without the level."
    )
    return Drawing("targets", "How soon runs reach a target", caption, figure)
