"""How steadily each arm trained: collapses and recoveries, run lifetimes, spikes, drawdown and spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grpobench.analysis.detectors.gradient import POLICY, GradientInstability
from grpobench.analysis.detectors.history import History, Series, no_answers, slope
from grpobench.analysis.detectors.registry import DETECTORS, Findings
from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import arm_legend, grid_of, leftmost
from grpobench.analysis.figures.scales import round_ticks
from grpobench.analysis.figures.style import Look, Sheet, look
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import RUN_KEYS, Experiment, Run, finite_mean
from grpobench.analysis.statistics.comparison import pairs_of
from grpobench.analysis.statistics.permutation import holm
from grpobench.analysis.statistics.survival import Survival, kaplan_meier, log_rank
from grpobench.analysis.tools.text import NONE, number, p_value, percent, points, sweep_value
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.captions import counted, joined
from grpobench.analysis.topics.events import collapse_of, history_of
from grpobench.analysis.topics.sweep import axes_of

# Numbers

LATE = 1 / 3
"""Share of a run's evaluations, its last ones, whose slope is the late slope; at least three."""


@dataclass(frozen=True)
class Lifetimes:
    """The runs of an arm on a task: how long each lasted, in steps or in what else time is counted, and
    whether it ended there, in a collapse or in what else is waited for. Other runs are censored."""

    runs: Sequence[Run]
    steps: Sequence[float]
    ended: Sequence[bool]

    @property
    def curve(self) -> Survival:
        """Kaplan–Meier."""
        return kaplan_meier(self.steps, self.ended)


def compute_lifetimes(
    experiment: Experiment, findings: Mapping[str, Findings]
) -> dict[tuple[str, str], Lifetimes]:
    """Lifetimes by (task, arm) of the runs that logged a step. A run that did not collapse is censored at its
    last step."""
    last = experiment.metrics.groupby(RUN_KEYS, sort=False)["step"].max().to_dict()
    runs_by_cell: dict[tuple[str, str], list[tuple[Run, int, bool]]] = {}
    for task in experiment.tasks:
        for arm in experiment.arms:
            runs_by_cell[task, arm] = []
    for run in experiment.runs:
        if (key := (run.arm, run.task, run.seed)) in last:
            end = collapse_of(run, findings.get(run.name))
            step = end.step if end else int(last[key])
            runs_by_cell[run.task, run.arm].append((run, step, end is not None))
    return {key: Lifetimes(*zip(*entries, strict=True)) for key, entries in runs_by_cell.items() if entries}


def compute_stability(
    experiment: Experiment, findings: Mapping[str, Findings], runs: pd.DataFrame
) -> pd.DataFrame:
    """One row per task and arm, from what was found in each run and the rows of `finals`: runs; collapsed and
    recovered (runs); first (median step of collapse); surviving (Kaplan–Meier share at the end) and
    half_life (its median step, NaN where more than half remain); spikes (per 100 updates); drawdown (best
    minus last validation accuracy); spread (standard deviation of final accuracies over seeds); late_slope
    (change of validation accuracy per 100 updates over the last third of the evaluations); events and
    infrastructure (kind: runs and median onset, as text)."""
    modes = {task: headline_of(experiment, task).mode for task in experiment.tasks}
    names = [POLICY, *(f"eval/validation/{mode}/correct" for mode in dict.fromkeys(modes.values()))]
    policy_metrics = experiment.metrics[experiment.metrics["metric"].isin(names)]
    logged = dict(iter(policy_metrics.groupby(RUN_KEYS, sort=False)))
    none = policy_metrics.iloc[:0]
    rows = []
    for (task, arm), lifetimes in compute_lifetimes(experiment, findings).items():
        measured = [
            _measured(run, logged.get((run.arm, run.task, run.seed), none), modes[task])
            for run in lifetimes.runs
        ]
        rows.append({"task": task, "arm": arm, **_cell(findings, runs, lifetimes, measured)})
    return pd.DataFrame(rows)


def _cell(
    findings: Mapping[str, Findings],
    runs: pd.DataFrame,
    lifetimes: Lifetimes,
    measured: Sequence[Mapping[str, float]],
) -> dict[str, Any]:
    findings_of_runs = [findings[run.name] for run in lifetimes.runs if run.name in findings]
    ends = [step for step, fell in zip(lifetimes.steps, lifetimes.ended, strict=True) if fell]
    task, arm = lifetimes.runs[0].task, lifetimes.runs[0].arm
    counted = runs.loc[(runs["task"] == task) & (runs["arm"] == arm), "counted"].dropna()
    half_life = lifetimes.curve.median
    return {
        "runs": len(lifetimes.runs),
        "collapsed": sum(lifetimes.ended),
        "recovered": sum(
            any(event.recovered is not None for event in record.of_family("collapse"))
            and record.collapse() is None
            for record in findings_of_runs
        ),
        "first": float(np.median(ends)) if ends else math.nan,
        "surviving": lifetimes.curve.last,
        "half_life": half_life if math.isfinite(half_life) else math.nan,
        **{
            name: finite_mean(pd.Series([record[name] for record in measured]))
            for name in ("spikes", "drawdown", "late_slope")
        },
        "spread": float(counted.std(ddof=1)) if len(counted) > 1 else math.nan,
        "events": events_in_words(findings_of_runs, ("collapse", "instability")),
        "infrastructure": events_in_words(findings_of_runs, ("infrastructure",)),
    }


def events_in_words(all_findings: Sequence[Findings], families: Sequence[str]) -> str:
    """`entropy collapse: 2 runs, from step 40; …`, each kind with the median of its onsets."""
    lines = []
    for kind, detector in DETECTORS.items():
        if detector.family not in families:
            continue
        onsets = [
            min(steps)
            for findings in all_findings
            if (steps := [e.onset for e in findings.events if e.kind == kind])
        ]
        if onsets:
            count = f"{len(onsets)} run{'s' * (len(onsets) > 1)}"
            lines.append(f"{event_words(kind)}: {count}, from step {np.median(onsets):g}")
    return "; ".join(lines)


def event_words(kind: str) -> str:
    """A kind of event as it is written in sentences."""
    return kind.replace("_", " ").replace("kl ", "KL ")


def _measured(run: Run, rows: pd.DataFrame, mode: str) -> dict[str, float]:
    """Spikes per 100 updates, drawdown and late slope of a run from its logged rows; NaN where the metrics
    are missing."""
    name = f"eval/validation/{mode}/correct"
    history = history_of(run, rows, int(rows["step"].max()) if len(rows) else 0, no_answers)
    accuracy, norms = history.get(name), history.updates(POLICY)
    measures = {"spikes": _spikes(history), "drawdown": math.nan, "late_slope": math.nan}
    if len(accuracy):
        measures["drawdown"] = float(accuracy.values.max() - accuracy.values[-1])
    late = max(3, round(LATE * len(accuracy)))
    if len(accuracy) >= 3:
        tail = Series(name, accuracy.steps[-late:], accuracy.values[-late:])
        measures["late_slope"] = 100 * slope(tail).value
    return measures if len(norms) else measures | {"spikes": math.nan}


def _spikes(history: History) -> float:
    """Spikes of the gradient norm per 100 updates after the baseline, as the detector counts them."""
    norms, detector = history.updates(POLICY), GradientInstability()
    behind = int(np.count_nonzero(norms.steps > history.about.warmup + history.window))
    if detector.bound(history, norms) is None or not behind:
        return math.nan
    return 100 * int(detector.beyond(history, norms).sum()) / behind


def describe_stability(row: Mapping[str, Any]) -> str:
    """The stability of an arm on a task in a sentence, from a row of `compute_stability`."""
    runs, collapsed, recovered = row["runs"], row["collapsed"], row["recovered"]
    if not collapsed:
        text = f"None of {runs} runs collapsed" if runs > 1 else "Its only run did not collapse"
    elif runs == 1:
        text = f"Its only run collapsed at step {row['first']:g}"
    else:
        when = "at step" if collapsed == 1 else "at the median step"
        text = f"{collapsed} of {runs} runs collapsed, {when} {row['first']:g}"
    if recovered:
        text += f"; {recovered} fell and recovered"
    if row["events"] and not collapsed:
        text += ", but some had events of instability"
    if row["infrastructure"]:
        text += "; the infrastructure failed in some"
    return f"{text}."


def compare_lifetimes(experiment: Experiment, findings: Mapping[str, Findings]) -> pd.DataFrame:
    """Whether the runs of one arm last longer than those of another, for the pairs of arms (`pairs_of`) on
    the tasks on which a run collapsed: task, first, second; collapsed and runs (of both arms); p (log-rank by
    permutation, two-sided) and p_holm (corrected for the pairs of the task)."""
    rows = []
    all_lifetimes = compute_lifetimes(experiment, findings)
    for task in experiment.tasks:
        arms = {arm: lifetimes for (where, arm), lifetimes in all_lifetimes.items() if where == task}
        if not any(any(lifetimes.ended) for lifetimes in arms.values()):
            continue
        pairs = pairs_of(list(arms), experiment.control)
        p = [log_rank((arms[a].steps, arms[a].ended), (arms[b].steps, arms[b].ended)) for a, b in pairs]
        finite_p = [1.0 if math.isnan(value) else value for value in p]
        for (a, b), value, adjusted in zip(pairs, p, holm(finite_p), strict=True):
            counts = tuple(sum(arms[arm].ended) for arm in (a, b))
            sizes = tuple(len(arms[arm].runs) for arm in (a, b))
            rows.append((task, a, b, counts, sizes, value, float(adjusted)))
    return pd.DataFrame(rows, columns=["task", "first", "second", "collapsed", "runs", "p", "p_holm"])


# Tables

NOTE = (
    "A run collapses if its validation accuracy or its training reward falls and does not recover, if an "
    "event stops it that the recipe names, or if it diverges; docs/stability.md has every rule. At: median "
    "step at which collapses began. Surviving: Kaplan–Meier share of runs at the end of training, with runs "
    "that did not collapse censored at their last step. Spikes: gradient norms above the bound that the "
    "first steps set, per 100 updates. Drawdown: best minus last validation accuracy, in points. Spread: "
    "standard deviation of final accuracies over seeds, in points. Late slope: points of validation accuracy "
    "per 100 updates over the last third of the evaluations. Faults of the infrastructure are listed "
    "separately and do not count against an algorithm."
)


def stability_table(
    experiment: Experiment, findings: Mapping[str, Findings], runs: pd.DataFrame
) -> PrintedTable:
    """A row per task and arm."""
    frame = compute_stability(experiment, findings, runs)
    records = frame.to_dict("records")
    if len(frame):
        frame["sentence"] = [describe_stability(row) for row in records]
    rows = [
        [
            row["task"],
            row["arm"],
            f"{row['collapsed']} of {row['runs']}",
            number(row["first"], 0),
            str(row["recovered"]),
            percent(row["surviving"]),
            number(row["spikes"], 1),
            number(100 * row["drawdown"], 1),
            number(100 * row["spread"], 1),
            points(row["late_slope"]),
            "; ".join(filter(None, [row["events"], row["infrastructure"] and describe_infrastructure(row)]))
            or NONE,
            describe_stability(row),
        ]
        for row in records
    ]
    header = ["task", "arm", "collapsed", "at", "recovered", "surviving (%)", "spikes", "drawdown"]
    header += ["spread", "late slope", "events", "in words"]
    title, heading = "How steadily each arm trained", "The table in words"
    return PrintedTable("stability", title, header, rows, frame, wide=2, note=NOTE, sentence_heading=heading)


def describe_infrastructure(row: Mapping[str, object]) -> str:
    """Faults of the infrastructure, which are not events of an algorithm."""
    return f"infrastructure: {row['infrastructure']}"


def survival_table(experiment: Experiment, findings: Mapping[str, Findings]) -> PrintedTable:
    """One row per pair of arms, for tasks on which a run collapsed."""
    frame = compare_lifetimes(experiment, findings)
    rows = [
        [
            pair.task,
            f"{pair.first}, {pair.second}",
            *(f"{count} of {size}" for count, size in zip(pair.collapsed, pair.runs, strict=True)),
            NONE if math.isnan(pair.p) else p_value(pair.p),
            p_value(pair.p_holm),
        ]
        for pair in frame.itertuples()
    ]
    note = (
        "Two-sided log-rank test of the steps at which runs collapsed, by permuting all runs over the two "
        "arms. Unlike the asymptotic test, it is exact for few runs. Holm: corrected for the pairs of the "
        "task."
    )
    header = ["task", "arms", "collapsed, first", "collapsed, second", "p", "p (Holm)"]
    return PrintedTable("survival", "Which arm's runs last longer", header, rows, frame, note=note)


# Figure


def draw_survival(experiment: Experiment, findings: Mapping[str, Findings], sheet: Sheet) -> Drawing | None:
    """Kaplan–Meier curves, one panel per task (in a map, per combination of sweep values) on which a run
    collapsed; None where no run did."""
    arms, all_panels = panels_of(experiment, findings)
    panels = {
        title: lifetimes
        for title, lifetimes in all_panels.items()
        if any(any(of_arm.ended) for of_arm in lifetimes.values())
    }
    tasks = list(panels)
    if not tasks:
        return None
    figure, grid = grid_of(1, tasks, sheet)
    style = look(arms)
    for (_, task), axes in grid.items():
        draw_lifetimes(axes, panels[task], style)
        axes.set_ylim(-4, 104)
        axes.set_title(task)
        axes.set_xlabel("updates")
        axes.xaxis.set_major_locator(round_ticks(5, integer=True))
        if task == leftmost(tasks, task, sheet):
            axes.set_ylabel("runs not collapsed (%)")
    drawn_arms = [arm for arm in arms if any(arm in panels[task] for task in tasks)]
    arm_legend(figure, drawn_arms, style, marker=False)
    sizes = [len(lifetimes.runs) for task in tasks for lifetimes in panels[task].values()]
    caption = joined(
        [
            (
                "Kaplan–Meier share of runs in % that have not collapsed, against updates. A collapse is a "
                "lasting fall of validation accuracy or of the training reward, an event that the recipe "
                "stops for, or a divergence."
            ),
            f"Curves are of {counted(sizes, 'seed')} per arm and panel, without intervals.",
            (
                "A tick marks a run without a collapse whose logs end before those of the others. Curves are "
                "shifted slightly where they would hide each other."
            ),
        ]
    )
    return Drawing("survival", "How long runs last", caption, figure)


def draw_lifetimes(
    axes: Axes, panel: Mapping[str, Lifetimes], style: Look, scale: float = 1.0, rising: bool = False
) -> None:
    """Kaplan–Meier curves in % by arm, against steps divided by `scale`; `rising`: of the share that has
    ended. A tick marks a run that is censored before the last step of the others."""
    end = max(max(lifetimes.steps) for lifetimes in panel.values())
    for index, (arm, lifetimes) in enumerate(panel.items()):
        curve = lifetimes.curve
        shift = 0.006 * (index - (len(panel) - 1) / 2)  # curves on each other stay apart
        steps = np.concatenate([[0.0], curve.steps, [float(end)]])
        left = np.concatenate([[1.0], curve.shares, [curve.last]])
        looks = {"color": style.color[arm], "linestyle": style.dash[arm], "linewidth": 1.4}
        shares = 100 * ((1 - left if rising else left) + shift)
        axes.step(steps / scale, shares, where="post", **looks)
        censored = [
            step
            for step, fell in zip(lifetimes.steps, lifetimes.ended, strict=True)
            if not fell and step < end
        ]
        level = [share_at(steps[:-1], shares[:-1], step) for step in censored]
        axes.plot(np.array(censored) / scale, level, "|", color=style.color[arm], markersize=6)


def panels_of(
    experiment: Experiment, findings: Mapping[str, Findings]
) -> tuple[Sequence[str], Mapping[str, Mapping[str, Lifetimes]]]:
    """The arms, and for each panel title the lifetimes of their runs. There is a panel per task. In a map,
    whose arms are those of the recipe, there is a panel per combination of sweep values."""
    all_lifetimes = compute_lifetimes(experiment, findings)
    axes = axes_of(experiment.sweep_values)
    panels: dict[str, dict[str, Lifetimes]] = {}
    for (task, arm), lifetimes in all_lifetimes.items():
        title, name = task, arm
        if axes is not None:
            point = experiment.sweep_values[arm]
            level = [point.values[key] for key in (*axes.others, axes.key)]
            title = ", ".join([*[task] * (len(experiment.tasks) > 1), *map(sweep_value, level)])
            name = point.arm
        panels.setdefault(title, {})[name] = lifetimes
    return (axes.arms if axes else experiment.arms), panels


def share_at(steps: np.ndarray, shares: np.ndarray, step: float) -> float:
    """The share at a step; `steps` begin with 0."""
    return float(shares[int(np.searchsorted(steps, step, side="right")) - 1])
