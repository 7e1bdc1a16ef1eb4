"""Figures that a paper could print: every seed visible, one colour per arm everywhere, no chart junk.

Each function returns None where the logs hold nothing to draw. Figures are made without pyplot, so nothing is
kept open, and saved without dates and with a fixed hash salt, so the same logs give the same bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, ScalarFormatter

from grpobench.analysis import summary
from grpobench.analysis.load import Matrix
from grpobench.analysis.scores import Comparison, seed_mean
from grpobench.analysis.visible import visible

STYLE: Any = {
    **sns.axes_style("ticks"),
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same figure on every machine
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "grpobench",
}
WIDTH = 7.0
"""Inches: the text width of a two-column page. One column is 3.4."""
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)))
"""Line styles for arms beyond the ten colours of the palette."""
BASE_COLOUR = "#555555"
BASE_DASH = (0, (3, 2))
MOST_ARMS = 6
"""Beyond this many arms a figure of all pairs would not fit a page."""

DEFINITIONS: Mapping[str, str] = {
    "eval/<split>/<mode>/correct": "share of evaluated answers that the task's verifier accepts",
    "reward/mean": "mean reward of all rollouts sampled for the update, rejected groups included, before any "
    "normalisation",
    "reward/<component>": "mean of this part of the reward over all rollouts sampled for the update, before "
    "its weight",
    "score/<name>": "mean of this score of the task over all rollouts sampled for the update, whatever is "
    "rewarded",
    "policy/entropy": "next-token entropy over the full vocabulary at the sampling temperature, of the "
    "policy before the update, mean over all tokens sampled for it",
    "trained/entropy": "the same over the tokens trained on, of the policy as the update met it",
    "trained/kl_old": "mean of log π_old − log π over the tokens trained on",
    "policy/kl_reference_k1": "mean of −log x, x = π_ref/π, over the tokens trained on",
    "policy/kl_reference_k2": "mean of ½(log x)², x = π_ref/π, over the tokens trained on",
    "policy/kl_reference_k3": "mean of x − 1 − log x, x = π_ref/π, over the tokens trained on",
    "policy/clip_low": "share of the tokens trained on with a ratio below the lower clip bound and a "
    "negative advantage",
    "policy/clip_high": "share of the tokens trained on with a ratio above the upper clip bound and a "
    "positive advantage",
    "grad_norm/<role>": "global L2 norm of the role's gradient before clipping",
    "length/mean": "tokens per completion, mean over all completions sampled for the update",
    "groups/zero_signal": "share of all groups sampled for the update whose rewards are all equal, which "
    "teach a group baseline nothing",
    "trained/zero_signal": "the same share of the groups trained on",
    "groups/sampled": "groups sampled for the update; more where a curriculum rejects some and draws again",
    "trained/share": "share of all sampled rollouts that the update used",
    "critic/explained_variance": "1 − Var(R − V)/Var(R) over the tokens trained on",
    "critic/group_explained": "the same were V the mean reward of the group's other rollouts",
}
"""Captions quote these where the caller passes no definition of its own."""


@dataclass(frozen=True)
class Panel:
    """One logged metric as a row of panels."""

    metric: str
    label: str
    log: bool = False
    """Whether a logarithmic axis may be used where the values span more than two decades."""


@dataclass(frozen=True)
class Drawing:
    """A finished figure with what stands around it."""

    name: str
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Look:
    """Colour and line style of every arm, the same in all figures."""

    colour: Mapping[str, Any]
    dash: Mapping[str, Any]


def look(arms: Sequence[str]) -> Look:
    """Seaborn's colour-blind palette in the order of the recipe; line styles change after ten arms."""
    palette = sns.color_palette("colorblind", 10)
    return Look(
        {arm: palette[i % 10] for i, arm in enumerate(arms)},
        {arm: DASHES[i // 10 % len(DASHES)] for i, arm in enumerate(arms)},
    )


TRAINING: tuple[tuple[str, str, tuple[Panel, ...]], ...] = (
    ("reward", "Training reward", (Panel("reward/mean", "mean reward"),)),
    (
        "entropy",
        "Policy entropy",
        (
            Panel("policy/entropy", "all that was sampled\n(nats/token)"),
            Panel("trained/entropy", "trained on\n(nats/token)"),
        ),
    ),
    (
        "kl",
        "Divergence of the policy",
        (
            Panel("trained/kl_old", "KL to old policy\n(nats/token)", log=True),
            Panel("policy/kl_reference_k3", "KL to reference, k3\n(nats/token)", log=True),
        ),
    ),
    (
        "clip",
        "Clipped tokens",
        (
            Panel("policy/clip_low", "clipped low\n(share of tokens)"),
            Panel("policy/clip_high", "clipped high\n(share of tokens)"),
        ),
    ),
    ("length", "Completion length", (Panel("length/mean", "length (tokens)"),)),
    (
        "zero_signal",
        "Groups without signal",
        (
            Panel("groups/zero_signal", "all that were sampled\n(share)"),
            Panel("trained/zero_signal", "trained on\n(share)"),
        ),
    ),
    (
        "sampled",
        "What was sampled, and how much of it was trained on",
        (Panel("groups/sampled", "groups sampled"), Panel("trained/share", "rollouts trained on\n(share)")),
    ),
    (
        "explained_variance",
        "Critic's explained variance",
        (
            Panel("critic/explained_variance", "explained variance\nby the critic"),
            Panel("critic/group_explained", "explained variance\nby the group's others"),
        ),
    ),
)
"""(name, title, panels) of the training metrics that are drawn against updates."""


def draw(
    matrix: Matrix,
    runs: pd.DataFrame,
    compared: Sequence[Comparison],
    definitions: Mapping[str, str] | None = None,
    curves: pd.DataFrame | None = None,
) -> Iterator[Drawing]:
    """All figures that the logs allow, in the order of the report. `runs` comes from `summary.finals`,
    `curves` from `evaluations.sampling`."""
    known = {**DEFINITIONS, **(definitions or {})}
    makers: list[Callable[[], Drawing | None]] = [
        partial(final_accuracy, matrix, runs),
        partial(sampling, matrix, curves),
        partial(differences, matrix, compared),
        *(partial(validation, matrix, axis, known) for axis in summary.AXES),
        *(partial(panels, matrix, name, title, rows, known) for name, title, rows in TRAINING),
        partial(components, matrix, known),
        partial(gradients, matrix, known),
        partial(bias, matrix),
        partial(bias_updates, matrix),
        partial(seconds, matrix),
        partial(rates, matrix),
    ]
    for make in makers:
        with matplotlib.rc_context(STYLE):
            drawing = make()
            if drawing is not None:
                FigureCanvasAgg(drawing.figure)
                drawing.figure.draw_without_rendering()  # lay out once, not once per format
                drawing.figure.set_layout_engine("none")
        if drawing is not None:
            yield drawing


def validation(matrix: Matrix, axis: str, definitions: Mapping[str, str]) -> Drawing | None:
    """Validation accuracy against `updates`, `tokens` or `seconds`."""
    frames = []
    modes = set()
    for task in matrix.tasks:
        mode = summary.headline(matrix, task).mode
        frame = matrix.select(f"eval/validation/{mode}/correct")
        frames.append(frame[frame["task"] == task])
        modes.add(mode)
    frame = summary.with_axis(matrix, pd.concat(frames), axis)
    label, frame = _along(axis, frame)
    if frame.empty or (axis != "updates" and not frame["x"].any()):
        return None
    figure = _curves(matrix, [("accuracy (%)", frame, False)], label, marker="o", percent=True)
    what = _meaning("eval/<split>/<mode>/correct", definitions)
    return Drawing(
        f"accuracy_{axis}",
        f"Validation accuracy against {summary.AXES[axis]}",
        f"Validation accuracy ({' and '.join(summary.decoding(matrix, m) for m in sorted(modes))}): {what}.",
        figure,
    )


def _along(axis: str, frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Label of the horizontal axis, and the frame in its unit."""
    if axis == "updates":
        return "updates", frame
    if axis == "seconds":
        return "training time (s)", frame
    largest = float(frame["x"].max()) if len(frame) else 0.0
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= 2 * unit:
            return f"generated tokens ({name})", frame.assign(x=frame["x"] / unit)
    return "generated tokens", frame


def panels(
    matrix: Matrix, name: str, title: str, rows: Sequence[Panel], definitions: Mapping[str, str]
) -> Drawing | None:
    """Metrics of training against updates, a row of panels each; metrics never logged are left out."""
    drawn = []
    for panel in rows:
        frame = summary.with_axis(matrix, matrix.select(panel.metric), "updates")
        if len(frame):
            drawn.append((panel, frame))
    if not drawn:
        return None
    figure = _curves(matrix, [(panel.label, frame, panel.log) for panel, frame in drawn], "updates")
    named = dict.fromkeys(_family(panel.metric, definitions) for panel, _ in drawn)
    meaning = "; ".join(f"{metric}: {_meaning(metric, definitions)}" for metric in named)
    return Drawing(name, title, f"{meaning}.", figure)


def components(matrix: Matrix, definitions: Mapping[str, str]) -> Drawing | None:
    """Every part of the reward, and the verifier's verdict on the same rollouts."""
    parts = summary.components(matrix)
    rows = [Panel(f"reward/{part}", f"{part.replace('_', ' ')}\n(mean)") for part in parts]
    rows.append(Panel(summary.VERDICT, "verdict\n(share correct)"))
    title = "What was rewarded, and the verifier's verdict on the same rollouts"
    return panels(matrix, "components", title, rows, definitions) if parts else None


def gradients(matrix: Matrix, definitions: Mapping[str, str]) -> Drawing | None:
    """Gradient norm of every trained role."""
    rows = [
        Panel(name, f"gradient norm\n({name.removeprefix('grad_norm/').replace('_', ' ')})", log=True)
        for name in matrix.names("grad_norm/")
    ]
    return panels(matrix, "gradient", "Gradient norm by role", rows, definitions)


def _family(metric: str, definitions: Mapping[str, str]) -> str:
    """The name under which a metric is defined: its own, or the pattern that it is one of."""
    patterns = {"grad_norm/": "grad_norm/<role>", "reward/": "reward/<component>", "score/": "score/<name>"}
    family = next((name for stem, name in patterns.items() if metric.startswith(stem)), metric)
    return metric if metric in definitions else family


def _meaning(metric: str, definitions: Mapping[str, str]) -> str:
    return definitions.get(metric, "as logged").rstrip(".")


def _curves(
    matrix: Matrix,
    rows: Sequence[tuple[str, pd.DataFrame, bool]],
    label: str,
    marker: str | None = None,
    percent: bool = False,
) -> Figure:
    """A grid: for each block of at most four tasks, one row of panels per metric."""
    tasks = [task for task in matrix.tasks if any((frame["task"] == task).any() for _, frame, _ in rows)]
    figure, grid = _grid(len(rows), tasks)
    style = look(matrix.arms)
    drawn: set[str] = set()
    stopped = False
    for (index, task), axes in grid.items():
        name, frame, log = rows[index]
        own = frame[frame["task"] == task]
        for arm in matrix.arms:
            arm_rows = own[own["arm"] == arm]
            if arm_rows.empty:
                continue
            drawn.add(arm)
            stopped |= _arm_curve(axes, matrix, arm_rows, style.colour[arm], style.dash[arm], marker)
        if own.empty:
            axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", color="#888888")
        _scale(axes, own["value"].to_numpy(dtype=float), log)
        if percent:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        if axes.get_subplotspec() is not None and task == _first_of_block(tasks, task):
            axes.set_ylabel(name)
        if index == 0:
            axes.set_title(task)
        if index == len(rows) - 1:
            axes.set_xlabel(label)
    _legend(figure, [arm for arm in matrix.arms if arm in drawn], style, marker, stopped)
    return figure


def _arm_curve(
    axes: Axes, matrix: Matrix, rows: pd.DataFrame, colour: Any, dash: Any, marker: str | None
) -> bool:
    """Every seed thin, the mean thick. True if a run that stopped early was marked."""
    task, arm = rows["task"].iloc[0], rows["arm"].iloc[0]
    failed = {run.seed for run in matrix.runs if run.arm == arm and run.task == task and run.stopped}
    marked = False
    for seed, own in rows.groupby("seed"):
        own = own.sort_values("step")
        axes.plot(own["x"], own["value"], color=colour, linewidth=0.6, alpha=0.4, linestyle=dash)
        if seed in failed:
            axes.plot(own["x"].iloc[-1], own["value"].iloc[-1], "x", color=colour, markersize=5, zorder=4)
            marked = True
    mean = rows.groupby("step").agg(x=("x", "mean"), value=("value", "mean"), seeds=("seed", "nunique"))
    full = mean["seeds"] == rows["seed"].nunique()
    last = int(np.flatnonzero(full)[-1]) if full.any() else 0
    thick: dict[str, Any] = {
        "color": colour,
        "linewidth": 1.6,
        "zorder": 3,
        "marker": marker,
        "markersize": 2.5,
    }
    axes.plot(mean["x"].iloc[: last + 1], mean["value"].iloc[: last + 1], linestyle=dash, **thick)
    axes.plot(mean["x"].iloc[last:], mean["value"].iloc[last:], linestyle=(0, (1, 1.2)), **thick)
    return marked


def _grid(
    rows: int, tasks: Sequence[str], height: float = 1.75
) -> tuple[Figure, dict[tuple[int, str], Axes]]:
    """Panels keyed by (row, task); at most four tasks stand side by side."""
    across = _across(tasks)
    blocks = math.ceil(len(tasks) / across) or 1
    width = 3.4 if across == 1 else 5.0 if across == 2 else WIDTH
    figure = _figure(width, height * rows * blocks + 0.35)
    spec = figure.add_gridspec(rows * blocks, across)
    grid = {}
    for place, task in enumerate(tasks):
        for row in range(rows):
            grid[row, task] = figure.add_subplot(spec[place // across * rows + row, place % across])
    return figure, grid


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.04))


def _across(tasks: Sequence[str]) -> int:
    """Panels side by side: at most four, and the rows as even as they can be (five are three and two)."""
    return math.ceil(len(tasks) / math.ceil(len(tasks) / 4)) if tasks else 1


def _first_of_block(tasks: Sequence[str], task: str) -> str:
    """The task that stands leftmost in the row of `task`."""
    return tasks[tasks.index(task) // _across(tasks) * _across(tasks)]


def _scale(axes: Axes, values: Any, log: bool) -> None:
    """A logarithmic axis where allowed, all values are positive and they span more than two decades."""
    if log and len(values):
        positive = values[values > 0]
        if len(positive) == len(values) and positive.max() > 100 * positive.min():
            axes.set_yscale("log")
        elif len(positive) and positive.max() > 100 * max(float(np.median(positive)), 1e-12):
            axes.set_yscale("symlog", linthresh=float(np.median(positive)))
    if axes.get_yscale() == "linear":
        plain = ScalarFormatter(useMathText=False)  # setting every tick label as mathematics is slow
        plain.set_powerlimits((-3, 5))
        axes.yaxis.set_major_formatter(plain)


def _legend(figure: Figure, arms: Sequence[str], style: Look, marker: str | None, failed: bool) -> None:
    handles: list[Any] = [
        Line2D(
            [],
            [],
            color=style.colour[arm],
            linestyle=style.dash[arm],
            linewidth=1.6,
            marker=marker,
            markersize=3,
        )
        for arm in arms
    ]
    labels = list(arms)
    if failed:
        handles.append(Line2D([], [], color=BASE_COLOUR, linestyle="", marker="x", markersize=5))
        labels.append("run failed")
    _above(figure, handles, labels)


def _above(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend over the panels, in as many columns as the width holds."""
    widths = [0.062 * len(label) + 0.42 for label in labels]  # inches, at the legend's font size
    fits = sum(widths) <= figure.get_figwidth()
    columns = len(labels) if fits else max(1, int(figure.get_figwidth() / max(widths)))
    lines = math.ceil(len(labels) / columns)
    figure.set_figheight(
        figure.get_figheight() + 0.17 * (lines - 1)
    )  # further lines take nothing from panels
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=columns,
        handlelength=1.6,
        columnspacing=1.2,
        borderaxespad=0.2,
    )


def _rows_of_arms(
    matrix: Matrix, tasks: Sequence[str], rows: Sequence[str], least: float = 0.9
) -> tuple[Figure, dict[tuple[int, str], Axes]]:
    """Panels with one line per name, the names on the left of each block only."""
    figure, grid = _grid(1, tasks, height=max(least, 0.24 * len(rows) + 0.45))
    for (_, task), axes in grid.items():
        axes.set_yticks(range(len(rows)), rows if task == _first_of_block(tasks, task) else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_title(task)
    return figure, grid


def final_accuracy(matrix: Matrix, runs: pd.DataFrame) -> Drawing | None:
    """Every seed's final accuracy, the mean with its interval, and the base model's level."""
    counted = runs.dropna(subset=["counted"])
    if counted.empty:
        return None
    tasks = [task for task in matrix.tasks if (counted["task"] == task).any()]
    figure, grid = _rows_of_arms(matrix, tasks, matrix.arms)
    colour = look(matrix.arms).colour
    for (_, task), axes in grid.items():
        own = counted[counted["task"] == task]
        base = runs.loc[runs["task"] == task, "base"].mean()
        if math.isfinite(base):
            axes.axvline(100 * base, color=BASE_COLOUR, linewidth=0.8, linestyle=BASE_DASH)
        for row, arm in enumerate(matrix.arms):
            seeds = own[own["arm"] == arm]
            _seeds_and_mean(axes, row, 100 * seeds["counted"], colour[arm], seeds["final"].isna())
        axes.set_xlabel("accuracy (%)")
        _open(axes)
    handles = [*_point_handles(), Line2D([], [], color=BASE_COLOUR, linewidth=0.8, linestyle=BASE_DASH)]
    labels = ["seed", "mean, 95% interval", "before training"]
    if counted["final"].isna().any():
        handles.append(Line2D([], [], color=BASE_COLOUR, linestyle="", marker="x", markersize=5))
        labels.append("diverged, counted as 0")
    _above(figure, handles, labels)
    counted_in = sorted({(str(row.split), str(row.mode)) for row in counted.itertuples()})
    where = " and ".join(f"{split}, {summary.decoding(matrix, mode)}" for split, mode in counted_in)
    return Drawing(
        "final_accuracy",
        "Final accuracy by arm",
        f"Accuracy after the last update ({where}): each point is a seed, the bar the t interval over seeds, "
        "the dashed line the mean accuracy before training.",
        figure,
    )


def _point_handles() -> list[Any]:
    grey = {"color": BASE_COLOUR, "linestyle": ""}
    return [
        Line2D([], [], marker="o", markersize=3.5, alpha=0.5, markeredgewidth=0, **grey),  # type: ignore[arg-type]
        Line2D([], [], marker="D", markersize=4, color=BASE_COLOUR, linewidth=1.2),
    ]


def _seeds_and_mean(
    axes: Axes,
    row: float,
    values: Any,
    colour: Any,
    failed: Any = None,
    hollow: bool = False,
    least: float = 0.0,
) -> None:
    """Points of all seeds beside a diamond at their mean with the t interval, cut at `least` and 100."""
    array = np.asarray(values, dtype=float)
    if not array.size:
        return
    broken = np.zeros(array.size, dtype=bool) if failed is None else np.asarray(failed, dtype=bool)
    spot = np.full(array.size, row + 0.18)
    axes.plot(array[~broken], spot[~broken], "o", color=colour, markersize=3.5, alpha=0.5, markeredgewidth=0)
    axes.plot(array[broken], spot[broken], "x", color=colour, markersize=5)
    mean = seed_mean(array)
    if math.isfinite(mean.low):
        ends = [max(mean.low, least), min(mean.high, 100.0)]
        axes.plot(ends, [row - 0.12] * 2, color=colour, linewidth=1.2)
    face = "white" if hollow else colour
    axes.plot(mean.value, row - 0.12, "D", markerfacecolor=face, markeredgecolor=colour, markersize=4)


def _open(axes: Axes, least: float = 2.0) -> None:
    """Give the horizontal axis at least `least` points, so that equal values do not look far apart."""
    low, high = axes.get_xlim()
    if high - low < least:
        axes.set_xlim((low + high - least) / 2, (low + high + least) / 2)


KINDS = (("pass", "pass@k (%)"), ("maj", "majority vote of k (%)"))


def sampling(matrix: Matrix, curves: pd.DataFrame | None) -> Drawing | None:
    """pass@k and majority votes against k, before and after training."""
    if curves is None or curves.empty:
        return None
    kinds = [(kind, label) for kind, label in KINDS if (curves["kind"] == kind).any()]
    places = list(dict.fromkeys(curves["place"]))
    figure, grid = _grid(len(kinds), places, height=1.9)
    style = look(matrix.arms)
    for (row, place), axes in grid.items():
        kind, label = kinds[row]
        own = curves[(curves["place"] == place) & (curves["kind"] == kind)]
        _sampling_panel(axes, own, matrix.arms, style)
        if place == _first_of_block(places, place):
            axes.set_ylabel(label)
        if row == 0:
            axes.set_title(place)
        if row == len(kinds) - 1:
            axes.set_xlabel("samples k")
    drawn = set(curves.loc[curves["policy"] == "final", "arm"])
    arms = [arm for arm in matrix.arms if arm in drawn]
    handles: list[Any] = [
        Line2D([], [], color=style.colour[arm], linestyle=style.dash[arm], linewidth=1.6) for arm in arms
    ]
    if (curves["policy"] == "base").any():
        handles.append(Line2D([], [], color=BASE_COLOUR, linestyle=BASE_DASH, linewidth=1.6))
        arms.append("before training")
    models = list(dict.fromkeys(curves.loc[curves["policy"] == "model", "arm"]))
    handles += [
        Line2D([], [], color="#000000", marker=_shape(10 * i), markersize=3) for i in range(len(models))
    ]
    _above(figure, handles, [*arms, *models])
    votes = " Votes are over the verifier's reading of the answer, ties go to the answer given first."
    return Drawing(
        "sampling",
        "What more samples bring",
        "pass@k: share of problems that at least one of k samples solves, by the unbiased estimator, up to "
        f"half the samples. Thin lines are seeds, thick ones their mean.{votes if len(kinds) > 1 else ''}",
        figure,
    )


def _sampling_panel(axes: Axes, own: pd.DataFrame, arms: Sequence[str], style: Look) -> None:
    """Curves of one place: every seed thin, the mean of an arm (of all, before training) thick."""
    base = own[own["policy"] == "base"]
    series: list[tuple[pd.DataFrame, Any, Any, str | None]] = [(base, BASE_COLOUR, BASE_DASH, None)]
    for arm in arms:
        trained = own[(own["policy"] == "final") & (own["arm"] == arm)]
        series.append((trained, style.colour[arm], style.dash[arm], None))
    models = own[own["policy"] == "model"]
    for index, (_, rows) in enumerate(models.groupby("arm", sort=False)):
        series.append((rows, "#000000", "-", _shape(10 * index)))
    for rows, colour, dash, marker in series:
        if rows["seed"].nunique() > 1:
            for _, seed in rows.groupby(["arm", "seed"], sort=False):
                axes.plot(seed["k"], seed["value"], color=colour, linewidth=0.6, alpha=0.4, linestyle=dash)
        mean = rows.groupby("k")["value"].mean()
        axes.plot(mean.index, mean, color=colour, linewidth=1.6, linestyle=dash, marker=marker, markersize=3)
    axes.set_xscale("log", base=2)
    ticks = sorted(set(own["k"]))
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))


def differences(matrix: Matrix, compared: Sequence[Comparison]) -> Drawing | None:
    """Paired differences between arms, in points."""
    shown = [pair for pair in compared if pair.seeds]
    if not shown:
        return None
    only = ""
    if len(matrix.arms) > MOST_ARMS:
        shown = [pair for pair in shown if pair.first == matrix.arms[0]]
        only = f" Only the pairs with {matrix.arms[0]} are drawn; the table has all."
    tasks = [task for task in matrix.tasks if any(pair.task == task for pair in shown)]
    names = list(dict.fromkeys(f"{pair.first} − {pair.second}" for pair in shown))
    figure, grid = _rows_of_arms(matrix, tasks, names)
    for (_, task), axes in grid.items():
        axes.axvline(0, color=BASE_COLOUR, linewidth=0.8)
        for pair in (pair for pair in shown if pair.task == task):
            row = names.index(f"{pair.first} − {pair.second}")
            settled = pair.verdict != "unresolved"
            tint = "#000000" if settled else "#777777"
            _seeds_and_mean(
                axes, row, 100 * np.array(pair.differences), tint, hollow=not settled, least=-100.0
            )
        axes.set_xlabel("difference (points)")
        _open(axes)
    handles = [
        *_point_handles(),
        Line2D([], [], marker="D", color="#777777", markerfacecolor="white", markersize=4),
    ]
    handles[1] = Line2D([], [], marker="D", color="#000000", markersize=4, linewidth=1.2)
    _above(figure, handles, ["seed", "mean, 95% interval: resolved", "unresolved"])
    return Drawing(
        "differences",
        "Paired differences between arms",
        "Difference of final accuracies inside each seed, with the t interval of their mean; a hollow mean "
        "is a difference that the paired permutation test does not resolve. The interval takes the "
        "differences as normal and its pair as the only one; the test does neither, so the interval may "
        f"leave 0 out beside a hollow mean.{only}",
        figure,
    )


BIAS_COLUMNS = (
    ("accuracy_ambiguous", "accuracy, ambiguous"),
    ("bias_ambiguous", "bias, ambiguous"),
    ("bias_disambiguated", "bias, disambiguated"),
    ("accuracy_disambiguated", "accuracy, disambiguated"),
)


def bias(matrix: Matrix) -> Drawing | None:
    """Bias scores and disambiguated accuracy by category; a row of panels per task that logs them."""
    frame = summary.bias(matrix)
    columns = [(metric, label) for metric, label in BIAS_COLUMNS if (frame["metric"] == metric).any()]
    if frame.empty or not columns:
        return None
    tasks = [task for task in matrix.tasks if (frame["task"] == task).any()]
    style = look(matrix.arms)
    lines = {task: _categories(frame[frame["task"] == task]) for task in tasks}
    line = max(0.3, 0.09 * len(matrix.arms) + 0.1)
    heights = [line * len(lines[task]) + 0.6 for task in tasks]
    figure = _figure(WIDTH, sum(heights) + 0.4)
    grid = figure.subplots(len(tasks), len(columns), squeeze=False, height_ratios=heights)
    for task, row in zip(tasks, grid, strict=True):
        for (metric, label), axes in zip(columns, row, strict=True):
            own = frame[(frame["task"] == task) & (frame["metric"] == metric)]
            _bias_panel(axes, own, lines[task], matrix.arms, style)
            axes.set_yticklabels(lines[task] if axes is row[0] else [])
            axes.set_title(f"{task}: {label}" if len(tasks) > 1 else label)
            axes.set_xlabel("accuracy (share)" if metric.startswith("accuracy") else "bias score (−1 to 1)")
    handles: list[Any] = [
        Line2D([], [], marker=_shape(place), linestyle="", color=style.colour[arm])
        for place, arm in enumerate(matrix.arms)
    ]
    handles.append(Line2D([], [], marker="|", linestyle="", color=BASE_COLOUR, markersize=8))
    _above(figure, handles, [*matrix.arms, "before training"])
    return Drawing(
        "bias",
        "Bias scores by category",
        "s_DIS = 2·biased/non-unknown − 1 on disambiguated questions, s_AMB = (1 − accuracy)·s on ambiguous "
        "ones (0 is unbiased, 1 always the stereotype): small points are seeds, large ones their mean; "
        "always answering “unknown” gives s_AMB = 0, so disambiguated accuracy stands beside it.",
        figure,
    )


def bias_updates(matrix: Matrix) -> Drawing | None:
    """Bias metrics of the validations against updates."""
    rows = [
        (label, summary.with_axis(matrix, frame, "updates"), False)
        for label, frame in summary.bias_curves(matrix).items()
    ]
    if not rows:
        return None
    return Drawing(
        "bias_updates",
        "Bias on the validation split against updates",
        "As in the figure by category; lean is the probability of the stereotype's person less that of the "
        "other one, by likelihood. Where the category of the training item is measured apart, the rows that "
        "do not name it are about all others.",
        _curves(matrix, rows, "updates", marker="o"),
    )


def _shape(place: int) -> str:
    """The marker of an arm: it changes where the ten colours start again."""
    return "os^"[place // 10 % 3]


def _categories(frame: pd.DataFrame) -> list[str]:
    return ["all", *sorted(set(frame["category"]) - {"all"})]


def _bias_panel(axes: Axes, own: pd.DataFrame, lines: list[str], arms: Sequence[str], style: Look) -> None:
    step = 0.7 / max(len(arms), 1)
    for place, category in enumerate(lines):
        cell = own[own["category"] == category]
        base = cell.loc[cell["when"] == "base", "value"]
        if len(base):
            axes.plot(base.mean(), place, "|", color=BASE_COLOUR, markersize=min(24, 8 * len(arms)))
        for index, arm in enumerate(arms):
            values = cell.loc[(cell["when"] == "final") & (cell["arm"] == arm), "value"].to_numpy(dtype=float)
            if len(values):
                height = place + (index - (len(arms) - 1) / 2) * step
                colour = style.colour[arm]
                axes.plot(values, [height] * len(values), "o", color=colour, markersize=2, alpha=0.5)
                axes.plot(values.mean(), height, _shape(index), color=colour, markersize=4.5)
    if str(own["metric"].iloc[0]).startswith("bias"):
        axes.axvline(0, color=BASE_COLOUR, linewidth=0.6, zorder=0)
        reach = max(0.1, 1.15 * float(own["value"].abs().max()))
        axes.set_xlim(-reach, reach)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)))
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    for place in range(1, len(lines)):
        axes.axhline(place - 0.5, color="#eeeeee", linewidth=0.6, zorder=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))


def seconds(matrix: Matrix) -> Drawing | None:
    """Seconds per update, stacked by phase."""
    frame = summary.costs(matrix)
    phases = [phase for phase in summary.PHASES if frame[phase].fillna(0).gt(0).any()]
    if frame.empty or not phases:
        return None
    tasks = [task for task in matrix.tasks if (frame["task"] == task).any()]
    figure, grid = _rows_of_arms(matrix, tasks, matrix.arms)
    tints = dict(zip(summary.PHASES, sns.color_palette("viridis", len(summary.PHASES)), strict=True))
    for (_, task), axes in grid.items():
        for row in frame[frame["task"] == task].to_dict("records"):
            left = 0.0
            for phase in phases:
                width = float(row[phase]) if math.isfinite(row[phase]) else 0.0
                place = matrix.arms.index(row["arm"])
                axes.barh(place, width, left=left, height=0.65, color=tints[phase], linewidth=0)
                left += width
        axes.set_xlabel("seconds per update")
        axes.set_xlim(left=0)
    _above(figure, [Patch(color=tints[phase]) for phase in phases], phases)
    return Drawing(
        "seconds",
        "Seconds per update by phase",
        "Mean wall time of one update, stacked by phase: sampling, verifying, forward passes (read), "
        "backward passes, optimiser, handing the weights to the sampler (sync), the rest; evaluation is left "
        "out.",
        figure,
    )


def rates(matrix: Matrix) -> Drawing | None:
    """Tokens per second and peak memory."""
    frame = summary.costs(matrix)
    rows = [("tokens_per_second", "generated tokens per second"), ("peak_memory_gb", "peak memory (GB)")]
    rows = [(name, label) for name, label in rows if frame[name].notna().any()]
    if frame.empty or not rows:
        return None
    tasks = [task for task in matrix.tasks if (frame["task"] == task).any()]
    figure = _figure(3.5 * len(rows), 0.24 * len(matrix.arms) + 0.85)
    colour = look(matrix.arms).colour
    markers = "osD^vP*X<>"
    for place, (name, label) in enumerate(rows):
        axes = figure.add_subplot(1, len(rows), place + 1)
        for row in frame.to_dict("records"):
            mark = markers[tasks.index(row["task"]) % len(markers)]
            axes.plot(
                row[name], matrix.arms.index(row["arm"]), mark, color=colour[row["arm"]], markersize=4.5
            )
        axes.set_yticks(range(len(matrix.arms)), matrix.arms if place == 0 else [""] * len(matrix.arms))
        axes.set_ylim(len(matrix.arms) - 0.5, -0.5)
        axes.set_xlim(0, 1.08 * float(np.nanmax(frame[name])) or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(5, prune="upper"))
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)
    handles = [
        Line2D([], [], marker=markers[i % len(markers)], linestyle="", color=BASE_COLOUR, markersize=4.5)
        for i in range(len(tasks))
    ]
    if len(tasks) > 1:
        _above(figure, handles, tasks)
    return Drawing(
        "rates",
        "Throughput and memory",
        "Generated tokens over training seconds, and the highest peak memory of any seed; a marker per task.",
        figure,
    )


def svg(drawing: Drawing) -> str:
    """The figure as SVG text, without a date."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):  # straight to the canvas: savefig would draw everything twice
        canvas: Any = FigureCanvasSVG(drawing.figure)
        canvas.print_svg(buffer, metadata={"Date": None})
    return visible(buffer.getvalue())


def png(drawing: Drawing, dpi: int = 200) -> bytes:
    """The figure as a PNG image."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        drawing.figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def pdf(drawing: Drawing, path: Path) -> None:
    """Write the figure as PDF, without a date."""
    with matplotlib.rc_context(STYLE):
        canvas: Any = FigureCanvasPdf(drawing.figure)
        canvas.print_pdf(path, metadata={"CreationDate": None})
