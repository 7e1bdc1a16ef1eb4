"""What updates cost: seconds per phase, tokens per second, peak memory, and the gap of separate samplers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import legend_above, new_figure, rows_of_names
from grpobench.analysis.figures.scales import plain, round_ticks
from grpobench.analysis.figures.style import BASE_COLOR, MARKERS, PALETTE, Sheet, look
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import Experiment, by_cell, finite_mean
from grpobench.analysis.tools.text import NONE, count, listed, number, percent, points, small
from grpobench.analysis.topics.axes import OnAxes
from grpobench.analysis.topics.budgets import mean_at_equal_budgets, sum_costs
from grpobench.analysis.topics.captions import seeds_in_words, seeds_of
from grpobench.analysis.topics.figure_names import AXES
from grpobench.analysis.topics.runs import MOST_COLUMNS

# Numbers

PHASES = ("sample", "verify", "forward", "backward", "optimize", "sync", "other")
"""Parts of time/step, in the order of a step."""
PHASE_COLORS = tuple(PALETTE[index] for index in (0, 1, 9, 2, 4, 8, 7))
"""Neighbors differ in hue and in brightness."""


def update_costs(experiment: Experiment) -> pd.DataFrame:
    """Per task and arm, means over all updates of all seeds: seconds of each phase per update, tokens per
    second of training, tokens per second of sampling; and the highest peak memory in GB."""
    rows = []
    phases = {phase: by_cell(experiment.select(f"time/{phase}")) for phase in PHASES}
    step, memory = by_cell(experiment.select("time/step")), by_cell(experiment.select("cost/peak_memory_gb"))
    tokens = by_cell(experiment.select("cost/generated_tokens"))
    for task in experiment.tasks:
        for arm in experiment.arms:
            by_phase = {name: cell(arm, task) for name, cell in phases.items()}
            total, spent = step(arm, task), tokens(arm, task)
            if total.empty and spent.empty and all(frame.empty for frame in by_phase.values()):
                continue
            generated = float(spent.groupby("seed")["value"].max().sum()) if len(spent) else math.nan
            peak = memory(arm, task)["value"]
            rows.append(
                {"task": task, "arm": arm, "seconds": finite_mean(total["value"])}
                | {phase: finite_mean(frame["value"]) for phase, frame in by_phase.items()}
                | {
                    "tokens_per_second": _ratio(generated, float(total["value"].sum())),
                    "sampling_tokens_per_second": _ratio(generated, float(by_phase["sample"]["value"].sum())),
                    "peak_memory_gb": float(peak.max()) if len(peak) else math.nan,
                }
            )
    rates = ["tokens_per_second", "sampling_tokens_per_second", "peak_memory_gb"]
    return pd.DataFrame(rows, columns=["task", "arm", "seconds", *PHASES, *rates])


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


GAPS: Mapping[str, tuple[str, str]] = {
    "mean": ("gap/mean", "mean"),
    "largest": ("gap/max", "max"),
    "effective": ("gap/ess", "min"),
    "after_sync": ("gap/sync", "max"),
    "weight": ("correction/weight_mean", "mean"),
    "clipped": ("correction/clipped", "mean"),
}
"""Column of `sampler_gaps` -> its metric, and how values of the metric are combined."""


def sampler_gaps(experiment: Experiment) -> pd.DataFrame:
    """Per task and arm, over all updates of all seeds: the gap between the log-probabilities of sampler and
    trainer in nats (mean and largest |Δ log p|, smallest effective sample size, largest gap after a weight
    synchronization), and the correction for it. Empty unless an arm has a sampler with separate or earlier
    weights or corrects for the gap."""
    if not any(map(experiment.has, ("gap/sync", "sampler/lag", "correction/weight_mean"))):
        return pd.DataFrame(columns=["task", "arm", *GAPS])
    logged = {name: (by_cell(experiment.select(metric)), how) for name, (metric, how) in GAPS.items()}
    rows = []
    for task in experiment.tasks:
        for arm in experiment.arms:
            values_by_name = {name: (cell(arm, task)["value"], how) for name, (cell, how) in logged.items()}
            if any(len(values) for values, _ in values_by_name.values()):
                rows.append(
                    {"task": task, "arm": arm}
                    | {name: v.agg(how) for name, (v, how) in values_by_name.items()}
                )
    return pd.DataFrame(rows, columns=["task", "arm", *GAPS])


# Tables


def budgets_table(experiment: Experiment) -> PrintedTable:
    """Updates, tokens and seconds of a run, a row per task and arm."""
    frame = sum_costs(experiment)
    rows = [
        [
            r["task"],
            r["arm"],
            number(r["updates"], 0),
            count(r["generated_tokens"]),
            count(r["trained_tokens"]),
            number(r["train_seconds"], 0),
            number(r["evaluate_seconds"], 0),
        ]
        for r in frame.to_dict("records")
    ]
    note = "Mean over seeds, with failed runs. Evaluation of the base model is left out: all arms share it."
    header = ["task", "arm", "updates", "generated tokens", "trained tokens", "training s", "evaluation s"]
    return PrintedTable("budgets", "What each run spent", header, rows, frame, note=note)


def equal_budgets_table(experiment: Experiment) -> PrintedTable:
    """Validation accuracy at equal budgets, one row per task and axis."""
    frame = mean_at_equal_budgets(experiment)
    rows, is_long = [], len(experiment.arms) > MOST_COLUMNS
    for (task, axis, budget), group in frame.groupby(["task", "axis", "budget"], sort=False):
        accuracy = dict(zip(group["arm"], group["accuracy"], strict=True))
        labels = [task, f"{count(budget)} {AXES[axis]}"]
        if is_long:  # an arm below the other
            rows += [[*labels, arm, percent(share)] for arm, share in accuracy.items()]
        else:
            rows.append([*labels, *(percent(accuracy.get(arm, math.nan)) for arm in experiment.arms)])
    note = (
        "Validation accuracy in percent at the largest budget that every finished run of the task reached: "
        "linear between the evaluations before and after it, mean over seeds. A run that diverged before the "
        "budget counts as 0. No number where a run was evaluated only before training by then. Equal "
        "updates, equal generated tokens and equal seconds are three different comparisons."
    )
    header = ["task", "at equal budget", *(("arm", "accuracy") if is_long else experiment.arms)]
    return PrintedTable(
        "equal_budgets", "Accuracy at equal budgets", header, rows, frame, 3 if is_long else 2, note=note
    )


def costs_table(frame: pd.DataFrame) -> PrintedTable:
    """Seconds of each phase of an update, rates and memory, one row per task and arm of `update_costs`."""
    rows = [
        [r["task"], r["arm"], number(r["seconds"], 2)]
        + [number(r[phase], 2) for phase in PHASES]
        + [
            count(r["tokens_per_second"]),
            count(r["sampling_tokens_per_second"]),
            number(r["peak_memory_gb"], 2),
        ]
        for r in frame.to_dict("records")
    ]
    header = ["task", "arm", "s/update", *PHASES, "tokens/s", "tokens/s sampling", "peak GB"]
    note = "Means over all updates of all seeds, without evaluation. Peak memory is the highest of any seed."
    return PrintedTable("costs", "Costs", header, rows, frame, note=note)


def gaps_table(experiment: Experiment) -> PrintedTable:
    """How well samplers with separate weights agreed with the trainer."""
    frame = sampler_gaps(experiment)
    rows = [
        [
            *(r["task"], r["arm"]),
            *(small(r[name]) for name in ("mean", "largest", "after_sync")),
            *(number(r["effective"], 4), number(r["weight"], 4), percent(r["clipped"])),
        ]
        for r in frame.to_dict("records")
    ]
    header = ["task", "arm", "mean gap", "largest gap", "largest after sync"]
    header += ["effective sample", "correction weight", "corrected, % of tokens"]
    note = (
        "Gap in nats between the log-probabilities of the sampler and of the trainer on the same weights, "
        "over all updates of all seeds. After sync: the gap on the probe that checks that the engine "
        "received the weights. Effective sample: the smallest effective share of samples under the "
        "probability ratios; it is 1 without a gap."
    )
    return PrintedTable("gaps", "Sampler and trainer", header, rows, frame, note=note)


def axes_table(pairs: Sequence[OnAxes]) -> PrintedTable:
    """Verdicts at equal updates, tokens and seconds, a row per task and pair."""
    rows = []
    for on_axes in pairs:
        cells = []
        for axis in AXES:
            pair = on_axes.comparisons.get(axis)
            cells += [points(pair.effect), pair.words] if pair else [NONE, NONE]
        rows.append(
            [on_axes.task, f"{on_axes.first} − {on_axes.second}", *cells, "yes" if on_axes.depends else "no"]
        )
    header = ["task", "pair", *(h for axis in AXES for h in (f"at equal {axis}", "verdict")), "depends"]
    note = (
        "Differences of validation accuracy at the equal budgets of the previous table, in points, taken "
        "inside each seed. Verdicts are about the first arm and use the tests of final accuracies, corrected "
        "over the pairs of a task on one axis. Depends: whether the verdict differs between axes. "
        f"{NONE}: a run of the pair was evaluated only before training by then. Seconds "
        "depend on the machines of the runs and on other programs that ran there."
    )
    dependent = [on_axes.sentence for on_axes in pairs if on_axes.depends]
    if dependent:
        note += f" The answer depends on the axis: {listed(dependent)}."
    frame = pd.DataFrame(
        [{"axis": axis, **asdict(pair)} for on_axes in pairs for axis, pair in on_axes.comparisons.items()]
    )
    return PrintedTable("axes", "Verdicts at equal budgets", header, rows, frame, note=note)


# Figures


def _seeds(experiment: Experiment) -> list[int]:
    """The number of seeds of each arm on each task that logged an update."""
    updates = experiment.metrics
    return seeds_of(updates[updates["step"] > 0])


def draw_seconds(experiment: Experiment, frame: pd.DataFrame, sheet: Sheet) -> Drawing | None:
    """Seconds per update, stacked by phase, from `update_costs`."""
    phases = [phase for phase in PHASES if frame[phase].fillna(0).gt(0).any()]
    if frame.empty or not phases:
        return None
    tasks = [task for task in experiment.tasks if (frame["task"] == task).any()]
    figure, grid = rows_of_names(tasks, experiment.arms, sheet)
    tints = dict(zip(PHASES, PHASE_COLORS, strict=True))
    for (_, task), axes in grid.items():
        for row in frame[frame["task"] == task].to_dict("records"):
            left = 0.0
            for phase in phases:
                width = float(row[phase]) if math.isfinite(row[phase]) else 0.0
                position = experiment.arms.index(row["arm"])
                axes.barh(
                    position,
                    width,
                    left=left,
                    height=0.65,
                    color=tints[phase],
                    edgecolor="#ffffff",
                    linewidth=0.4,
                )
                left += width
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        axes.set_xlabel("seconds per update")
        axes.set_xlim(left=0)
    legend_above(figure, [Patch(color=tints[phase]) for phase in phases], phases)
    return Drawing(
        "seconds",
        "Seconds per update by phase",
        "Mean wall time of one update in seconds by phase: sampling, verifying, forward passes, backward "
        "passes, optimizer, sending weights to the sampler (sync), and the rest. Evaluation is left out. "
        f"Means over all updates of {seeds_in_words(_seeds(experiment))}, without intervals.",
        figure,
    )


def draw_rates(experiment: Experiment, frame: pd.DataFrame, sheet: Sheet) -> Drawing | None:
    """Tokens per second and peak memory, from `update_costs`."""
    rows = [("tokens_per_second", "generated tokens per second"), ("peak_memory_gb", "peak memory (GB)")]
    rows = [(name, label) for name, label in rows if frame[name].notna().any()]
    if frame.empty or not rows:
        return None
    tasks = [task for task in experiment.tasks if (frame["task"] == task).any()]
    across = sheet.columns(len(rows)) if sheet.across > 2 else 1  # names and two axes do not fit a column
    down = len(rows) // across
    figure = new_figure(sheet.width, (0.24 * len(experiment.arms) + 0.6) * down + 0.25)
    color = look(experiment.arms).color
    for position, (name, label) in enumerate(rows):
        axes = figure.add_subplot(down, across, position + 1)
        for row in frame.to_dict("records"):
            mark = MARKERS[tasks.index(row["task"]) % len(MARKERS)]
            axes.plot(
                row[name], experiment.arms.index(row["arm"]), mark, color=color[row["arm"]], markersize=4.5
            )
        axes.set_yticks(
            range(len(experiment.arms)),
            experiment.arms if position % across == 0 else [""] * len(experiment.arms),
        )
        axes.set_ylim(len(experiment.arms) - 0.5, -0.5)
        axes.set_xlim(0, 1.08 * float(np.nanmax(frame[name])) or 1.0)
        axes.xaxis.set_major_locator(round_ticks(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)
    handles = [
        Line2D([], [], marker=MARKERS[i % len(MARKERS)], linestyle="", color=BASE_COLOR, markersize=4.5)
        for i in range(len(tasks))
    ]
    if len(tasks) > 1:
        legend_above(figure, handles, tasks)
    return Drawing(
        "rates",
        "Throughput and memory",
        f"Generated tokens per second of training over {seeds_in_words(_seeds(experiment))}, and the "
        "highest peak memory of any seed in GB; without "
        f"intervals.{' Each task has a marker.' * (len(tasks) > 1)}",
        figure,
    )
