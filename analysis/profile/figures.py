"""Figures of profiles: a radar of a few algorithms, a heat map of all, and probes at two scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import arm_handle, legend_above, new_figure
from grpobench.analysis.figures.style import BAND, BASE_COLOR, INK, STYLE, Look, look
from grpobench.analysis.profile.scores import Profile
from grpobench.analysis.profile.table import check_known, mean_of, ordered, scored_probes
from grpobench.analysis.profile.transfer import ProbeTransfer

WIDTH = 3.25
"""Inches: one column of a paper."""
MOST = 5
"""Most algorithms in a radar."""
SMALLEST = 6.0
"""Smallest font in points."""
GATED = "#d9d9d9"
COLUMNS = 3
"""Columns of the radar's legend."""
PANEL_COLUMNS = 3
"""Panels in a row of the figure of two scales."""
MOST_LETTERS = 13
"""Longest name in three columns."""
SIDE, EDGE, LINE = 0.54, 0.22, 0.145
"""Inches beside the radar, above and below it, and of a line of its legend."""
SHIFT = 0.045
"""Radians from one algorithm's bars to the next one's."""
ROUND = 0.005
"""A score that rounds to 0 or 1 is not beyond it."""


def radar(profile: Profile, algorithms: Sequence[str]) -> Drawing:
    """Scores of up to five algorithms on axes around a circle, with 95 % intervals.

    Intervals are bands for one or two algorithms, and bars beside each other for more. Scores are cut at 0
    and 1, with a hollow marker where they are. An algorithm without a score on a probe has a gap there.
    Raises ValueError for none, more than five, or unknown algorithms, and for fewer than three probes."""
    names = list(dict.fromkeys(algorithms))
    if not 0 < len(names) <= MOST:
        raise ValueError(f"radar: needs 1 to {MOST} algorithms, got {len(names)}; the heat map shows all")
    for name in names:
        check_known(profile, name)
    probes = [probe for probe in scored_probes(profile) if any(profile.cell(probe, name) for name in names)]
    if len(probes) < 3:
        raise ValueError(f"radar: needs scores on 3 probes or more, got {len(probes)}; run more probes")
    with matplotlib.rc_context(STYLE):
        style = look(names)
        figure, axes = _sheet(WIDTH, math.ceil((len(names) + 1) / _columns(names)))
        _circle(axes, [profile.probes[name].title for name in probes])
        shifts = [(i - (len(names) - 1) / 2) * SHIFT if len(names) > 2 else None for i in range(len(names))]
        cut = [
            _spokes(axes, profile, probes, *name_and_shift, style)
            for name_and_shift in zip(names, shifts, strict=True)
        ]
        _legend(figure, names, style, any(cut))
    caption = (
        "Mean scores over the seeds that do not fail, from 0 at the center to 1 at the rim, with 95 % "
        "intervals. A hollow marker is a score beyond this range, a gap an algorithm without a score."
    )
    return Drawing("profile_radar", f"Profiles of {', '.join(names)}", caption, figure)


def _sheet(width: float, lines: int) -> tuple[Figure, Any]:
    """Room for the titles around the circle and for lines of the legend below, in inches."""
    below = EDGE + LINE * lines
    size = width - 2 * SIDE
    height = size + EDGE + 0.05 + below
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((SIDE / width, below / height, size / width, size / height), projection="polar")
    return figure, axes


def _legend(figure: Figure, names: Sequence[str], style: Look, cut: bool) -> None:
    handles: list[Any] = [arm_handle(name, style) for name in names]
    labels = list(names)
    if cut:
        looks: Any = {"marker": "o", "markersize": 4, "markerfacecolor": "white", "linestyle": ""}
        handles.append(Line2D([], [], color=BASE_COLOR, **looks))
        labels.append("beyond 0 or 1")
    figure.legend(
        handles,
        labels,
        loc="lower center",
        ncols=min(len(labels), _columns(names)),
        fontsize=6.5,
        handlelength=2.2,
        columnspacing=1.0,
        borderaxespad=0.1,
        labelspacing=0.3,
    )


def _columns(names: Sequence[str]) -> int:
    return COLUMNS if max(map(len, names)) <= MOST_LETTERS else 2


def _circle(axes: Any, titles: Sequence[str]) -> None:
    angles = _angles(len(titles))
    axes.set_theta_offset(math.pi / 2)
    axes.set_theta_direction(-1)
    axes.set_ylim(0, 1)
    axes.set_yticks([0.25, 0.5, 0.75], [".25", ".5", ".75"], fontsize=SMALLEST, color=BASE_COLOR)
    axes.set_rlabel_position(math.degrees(angles[0] + angles[1]) / 2)
    for label in axes.get_yticklabels():
        label.set(ha="center", va="center", zorder=5)
        label.set_bbox({"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.5})
    axes.set_xticks(angles, [""] * len(titles))
    axes.grid(True, linewidth=0.4)
    axes.spines["polar"].set_linewidth(0.5)
    axes.spines["polar"].set_color("#bbbbbb")
    for angle, title in zip(angles, titles, strict=True):
        side, up = math.sin(angle), math.cos(angle)
        is_pole = abs(side) < 0.1
        axes.annotate(
            title if is_pole else title.replace(" ", "\n"),
            xy=(angle, 1.0),
            xytext=(4 * side, 4 * up),
            textcoords="offset points",
            ha="center" if is_pole else "left" if side > 0 else "right",
            va="center" if abs(up) < 0.7 else "bottom" if up > 0 else "top",
            fontsize=6.5,
            annotation_clip=False,
            linespacing=0.95,
        )


def _angles(count: int) -> list[float]:
    return [2 * math.pi * i / count for i in range(count)]


def _spokes(
    axes: Any, profile: Profile, probes: Sequence[str], name: str, shift: float | None, style: Look
) -> bool:
    """Draw one algorithm; True where a score is beyond the circle. A shift (radians) keeps bars apart;
    None draws a band."""
    cells = [profile.cell(probe, name) for probe in probes]
    table = np.array([(c.mean, c.low, c.high) if c else (math.nan,) * 3 for c in cells])
    angles = np.array(_angles(len(probes))) + (shift or 0.0)
    mean, low, high = np.clip(table, 0, 1).T
    around = np.append(angles, angles[0] + 2 * math.pi)
    color = style.color[name]
    if shift is not None:
        axes.vlines(angles, low, high, color=color, linewidth=0.7, alpha=0.8)
    else:
        axes.fill_between(
            around, np.append(low, low[0]), np.append(high, high[0]), color=color, alpha=BAND, lw=0
        )
    axes.plot(around, np.append(mean, mean[0]), color=color, linestyle=style.dash[name], linewidth=0.9)
    beyond = (table[:, 0] < -ROUND) | (table[:, 0] > 1 + ROUND)
    looks: dict[str, Any] = {"marker": style.marker[name], "linestyle": "", "clip_on": False, "zorder": 4}
    axes.plot(angles[~beyond], mean[~beyond], color=color, markersize=2.6, markeredgewidth=0, **looks)
    hollow = {"markersize": 3.6, "markerfacecolor": "white", "markeredgewidth": 0.8}
    axes.plot(angles[beyond], mean[beyond], color=color, **hollow, **looks)
    return bool(beyond.any())


# Heat map


def heatmap(profile: Profile) -> Drawing:
    """Scores of all algorithms on all probes. Algorithms with similar scores are side by side, by average
    linkage with optimal leaf order (scipy.cluster.hierarchy) over the probes. Raises ValueError without
    scores."""
    probes = [name for name in scored_probes(profile) if profile.scores.get(name)]
    names = ordered(profile)
    if not probes or not names:
        raise ValueError("heatmap: no scores are kept; run grpobench profile first")
    values = np.array([[mean_of(profile, probe, name) for probe in probes] for name in names])
    rows = similar_order(values)
    names, values = [names[i] for i in rows], values[rows]
    gated = np.array([[name in profile.gated.get(probe, ()) for probe in probes] for name in names])
    titles = [profile.probes[name].title for name in probes]
    with matplotlib.rc_context(STYLE):
        figure = _heat(values, gated, names, titles)
    caption = (
        "Mean scores over the seeds that do not fail, where .52 stands for 0.52; colors are cut at 0 and 1. "
        "Hatched: runs without a score, as of an algorithm that does not learn. White: no runs."
    )
    return Drawing("profile_heatmap", "Scores of all algorithms on the probes", caption, figure)


def similar_order(values: np.ndarray[Any, Any]) -> list[int]:
    """Rows of (algorithms, probes) so that similar ones are neighbors, the higher end first; NaN counts as
    its column's mean, and scores are cut at 0 and 1."""
    from scipy.cluster import hierarchy

    if len(values) < 3:
        return list(range(len(values)))
    clipped = np.clip(values, 0, 1)
    counts = np.maximum(np.isfinite(clipped).sum(axis=0), 1)
    filled = np.where(np.isfinite(clipped), clipped, np.nansum(clipped, axis=0) / counts)
    order: list[int] = hierarchy.leaves_list(
        hierarchy.linkage(filled, "average", optimal_ordering=True)
    ).tolist()
    half = len(order) // 2
    sums = filled.sum(axis=1)
    first, last = (float(np.mean(sums[part])) for part in (order[:half], order[-half:]))
    return order if first >= last else order[::-1]


def _heat(
    values: np.ndarray[Any, Any],
    gated: np.ndarray[Any, Any],
    names: Sequence[str],
    titles: Sequence[str],
) -> Figure:
    import seaborn as sns

    labels = np.array([[short(value) for value in row] for row in values])
    legend = 0.25 if gated.any() else 0.0
    figure = new_figure(WIDTH, 0.128 * len(names) + 1.15 + legend)
    axes = figure.add_subplot()
    sns.heatmap(
        values, ax=axes, vmin=0, vmax=1, cmap="cividis", annot=labels, fmt="", mask=~np.isfinite(values),
        annot_kws={"fontsize": SMALLEST}, linewidths=0.3, linecolor="white",
        cbar_kws={"location": "bottom", "aspect": 40, "pad": 0.01, "shrink": 0.6},
    )  # fmt: skip
    for row, column in zip(*np.nonzero(gated), strict=True):
        axes.add_patch(
            Rectangle((column, row), 1, 1, facecolor=GATED, edgecolor="#888888", hatch="////", linewidth=0)
        )
    axes.set_yticks(np.arange(len(names)) + 0.5, names, rotation=0, fontsize=SMALLEST)
    axes.set_xticks(np.arange(len(titles)) + 0.5, titles, rotation=90, fontsize=6.5)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=1.5)
    axes.grid(False)
    bar = figure.axes[-1]
    bar.tick_params(labelsize=SMALLEST, length=1.5, pad=1)
    bar.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    bar.set_xlabel("score", fontsize=SMALLEST, labelpad=1)
    if gated.any():
        handle = Patch(facecolor=GATED, edgecolor="#888888", hatch="////", linewidth=0)
        figure.legend(
            [handle], ["runs, but no score"], loc="outside lower center", fontsize=SMALLEST, borderaxespad=0.1
        )
    return figure


def short(value: float) -> str:
    """A score in at most three characters: .52, 1, −.1, 1.3; empty for NaN."""
    if math.isnan(value):
        return ""
    digits = 2 if 0 <= round(value, 2) < 1 else 1
    text = f"{value:.{digits}f}" if abs(value) < 9.95 else f"{value:.0f}"
    text = text.replace("-", "−") if float(text) else "0"
    return "1" if text == "1.0" else text.replace("0.", ".", 1)


def draw_probes(
    probe_transfers: Sequence[ProbeTransfer], names: tuple[str, str] = ("nano", "SmolLM2")
) -> Drawing:
    """A panel for each probe: every algorithm's score at one scale against its score at the other."""
    import seaborn as sns

    algorithms = sorted({name for probe_transfer in probe_transfers for name in probe_transfer.first})
    style = look(algorithms)
    rows = -(-len(probe_transfers) // PANEL_COLUMNS)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(7.0, 2.15 * rows + 0.5)
        grid = figure.subplots(rows, PANEL_COLUMNS, squeeze=False)
        for axes, probe_transfer in zip(grid.flat, probe_transfers, strict=False):
            for name in probe_transfer.first:
                (x, across), (y, along) = (
                    (cell.mean, [[cell.mean - cell.low], [cell.high - cell.mean]])
                    for cell in (probe_transfer.first[name], probe_transfer.second[name])
                )
                axes.errorbar(
                    x,
                    y,
                    xerr=across,
                    yerr=along,
                    color=style.color[name],
                    marker=style.marker[name],
                    markersize=4,
                    linewidth=0.9,
                )
            axes.axline((0, 0), slope=1, color=INK, linewidth=0.8, linestyle=":", zorder=0)
            axes.set_title(probe_transfer.probe.title)
        for axes in list(grid.flat)[len(probe_transfers) :]:
            axes.set_axis_off()
        figure.supxlabel(f"score at {names[0]} scale", fontsize="medium")
        figure.supylabel(f"score of {names[1]}", fontsize="medium")
        legend_above(figure, [arm_handle(name, style) for name in algorithms], algorithms)
        sns.despine(figure)
    caption = (
        f"Scores of {len(algorithms)} algorithms on {len(probe_transfers)} probes at two scales, with 95% "
        "intervals over seeds. On the dotted line they are equal; where points rise from left to right, the "
        "order holds."
    )
    return Drawing("transfer_probes", "Probes at two scales", caption, figure)
