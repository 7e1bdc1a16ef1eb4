"""Tasks of several turns: accuracy by horizon, and how credit spreads over the turns."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import arm_handle, grid_of, leftmost, legend_above, panel_height
from grpobench.analysis.figures.style import BAND, BASE_COLOR, BASE_DASH, Look, Sheet, look
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.intervals import seed_means
from grpobench.analysis.tools.text import NONE, each_seed, number, percent, points
from grpobench.analysis.topics.accuracy import answers_at_ends
from grpobench.analysis.topics.captions import BANDS, CUT, joined, means_in_words, seeds_of

HORIZON = "trait/difficulty"
"""The trait that says how long a problem of several turns is."""
COUNTS = ("turns", "calls", "malformed", "errors")
"""Counts of an evaluated episode."""


def by_horizon(experiment: Experiment) -> pd.DataFrame:
    """Means of the headline evaluation before training and after the last update, by seed and horizon: task,
    arm, seed, horizon, step, problems, correct, turns, calls, malformed, errors. Only tasks of several
    turns whose problems have the trait `difficulty`."""
    frame = answers_at_ends(experiment)
    if not {HORIZON, "turns"} <= {*frame.columns}:
        return pd.DataFrame()
    frame = frame[frame["turns"].notna()]
    keys = ["task", "arm", "seed", HORIZON, "step"]
    # A task whose prompts describe tools in words of their own may count calls as a score.
    columns = [(name, column) for name in COUNTS for column in (f"score/{name}", name) if column in frame]
    measured = {"correct": "score/correct", **dict(columns)}
    means = frame.groupby(keys, sort=False).agg(
        problems=("problem", "nunique"), **{name: (column, "mean") for name, column in measured.items()}
    )
    return means.reset_index().rename(columns={HORIZON: "horizon"})


def horizons_table(experiment: Experiment) -> PrintedTable:
    """Accuracy and counts of episodes by horizon, before and after training."""
    frame = by_horizon(experiment)
    rows = []
    cells = dict(list(frame.groupby(["task", "horizon", "arm"]))) if len(frame) else {}
    tasks, arms = experiment.tasks, experiment.arms
    for task, horizon, arm in sorted(
        cells, key=lambda key: (tasks.index(key[0]), key[1], arms.index(key[2]))
    ):
        runs = cells[task, horizon, arm]
        before, after = runs[runs["step"] == 0], runs[runs["step"] > 0].sort_values("seed")
        gain = after["correct"].mean() - before["correct"].mean()
        counts = [
            f"{number(before[name].mean(), 1)} → {number(after[name].mean(), 1)}"
            if name in runs and runs[name].notna().any()
            else NONE
            for name in COUNTS
        ]
        accuracy = [percent(part["correct"].mean()) for part in (before, after)]
        head = [task, f"{horizon:g}", arm, str(runs["problems"].iloc[0])]
        rows.append([*head, *accuracy, points(gain), each_seed(list(after["correct"])), *counts])
    header = ["task", "horizon", "arm", "problems", "before", "after", "gain", "each seed", *COUNTS]
    note = (
        "Accuracy in percent by the trait `difficulty` of the problems, on the split and with the decoding "
        "of the first table; means over seeds. Turns of the policy, calls of tools, calls that could not be "
        "read, and errors that the environment reported are per episode, before → after training."
    )
    return PrintedTable("horizons", "Accuracy by horizon", header, rows, frame, text_columns=3, note=note)


# Credit

TRUE = (
    "True: the same of the turns' true advantages, under a policy that the task knows, a line for each "
    "number of turns."
)


def credit_by_turn(experiment: Experiment) -> pd.DataFrame:
    """Shares of credit by turn, of each run in the mean over its updates: task, arm, seed, kind (`turn` of
    the advantages, `true` of the task's own credit), turn, value."""
    names = {
        f"credit/{kind}_{turn}": (kind, turn)
        for kind in ("turn", "true")
        for turn in range(1, 1 + len(experiment.names(f"credit/{kind}_")))
    }
    logged = experiment.metrics[experiment.metrics["metric"].isin(names)]
    logged = logged[np.isfinite(logged["value"])]
    keys = ["task", "arm", "seed", "metric"]
    frame = logged.groupby(keys, sort=False, observed=True)["value"].mean().reset_index()
    frame[["kind", "turn"]] = [names[str(name)] for name in frame["metric"]] or np.empty((0, 2))
    return frame.drop(columns="metric")


def draw_credit(experiment: Experiment, sheet: Sheet) -> Drawing | None:
    """The share of all credit that each turn gets from each arm, beside the task's own."""
    frame = credit_by_turn(experiment)
    tasks = [task for task in experiment.tasks if (frame["task"] == task).any()]
    if not tasks:
        return None
    figure, grid = grid_of(1, tasks, sheet, panel_height(1, tasks, sheet))
    style = look(experiment.arms)
    for (_, task), axes in grid.items():
        _credit_panel(axes, frame[frame["task"] == task], style)
        axes.set_title(task)
        axes.set_xlabel("turn")
        if task == leftmost(tasks, task, sheet):
            axes.set_ylabel("share of credit (%)")
    arms = [arm for arm in experiment.arms if (frame["arm"] == arm).any()]
    handles = [arm_handle(arm, style) for arm in arms]
    true_drawn = bool((frame["kind"] == "true").any())
    if true_drawn:
        handles.append(Line2D([], [], color=BASE_COLOR, linestyle=BASE_DASH, linewidth=1.6))
    legend_above(figure, handles, [*arms, *["true"] * true_drawn], handlelength=2.6)
    caption = joined(
        [
            "Share of Σ|A_k| in percent that each turn k has, A_k its mean advantage; mean over updates.",
            TRUE * true_drawn,
            means_in_words(seeds_of(frame), BANDS + CUT),
        ]
    )
    return Drawing("credit", "Credit by turn", caption, figure)


def _credit_panel(axes: Axes, rows: pd.DataFrame, style: Look) -> None:
    """The arms' curves with their bands, and the true ones, each over the arms with as many turns."""
    for arm, of_arm in rows[rows["kind"] == "turn"].groupby("arm", sort=False):
        turns, mean, low, high = _means(of_arm)
        color = style.color[arm]
        if of_arm["seed"].nunique() > 1:
            low, high = np.maximum(low, 0), np.minimum(high, 100)
            axes.fill_between(turns, low, high, color=color, alpha=BAND, linewidth=0)
        axes.plot(
            turns,
            mean,
            color=color,
            linewidth=1.5,
            linestyle=style.dash[arm],
            marker=style.marker[arm],
            markersize=3,
        )
    true = rows[rows["kind"] == "true"]
    for _, of_length in true.groupby(true.groupby("arm")["turn"].transform("max"), sort=True):
        turns, mean, _, _ = _means(of_length)
        axes.plot(turns, mean, color=BASE_COLOR, linestyle=BASE_DASH, linewidth=1.6)
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _means(rows: pd.DataFrame) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
    """Turns, and the mean share of each over runs with its interval, in percent."""
    table = rows.pivot_table(index="turn", columns=["arm", "seed"], values="value")
    mean, low, high = (100 * np.asarray(values) for values in seed_means(table))
    return [int(turn) for turn in table.index], mean, low, high
