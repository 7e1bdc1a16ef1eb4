"""The figure of what more samples of a problem bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.labels import arm_handle
from grpobench.analysis.figures.panels import grid_of, leftmost, legend_above, panel_height
from grpobench.analysis.figures.style import BAND, BASE_COLOUR, BASE_DASH, FAINT, MARKERS, Look, Sheet, look
from grpobench.analysis.logs.matrix import Matrix

KINDS = (("pass", "pass@k (%)"), ("maj", "majority vote of k (%)"))


def draw_sampling(matrix: Matrix, curves: pd.DataFrame | None, sheet: Sheet) -> Drawing | None:
    """pass@k and majority votes against k, before and after training."""
    if curves is None or curves.empty:
        return None
    kinds = [(kind, label) for kind, label in KINDS if (curves["kind"] == kind).any()]
    places = list(dict.fromkeys(curves["place"]))
    figure, grid = grid_of(len(kinds), places, sheet, panel_height(len(kinds), places, sheet, 1.9))
    style = look(matrix.arms)
    for (row, place), axes in grid.items():
        kind, label = kinds[row]
        own = curves[(curves["place"] == place) & (curves["kind"] == kind)]
        _sampling_panel(axes, own, matrix.arms, style)
        if place == leftmost(places, place, sheet):
            axes.set_ylabel(label)
        if row == 0:
            axes.set_title(place)
        if row == len(kinds) - 1:
            axes.set_xlabel("samples k")
    drawn = set(curves.loc[curves["policy"] == "final", "arm"])
    arms = [arm for arm in matrix.arms if arm in drawn]
    handles: list[Any] = [arm_handle(arm, style) for arm in arms]
    if (curves["policy"] == "base").any():
        handles.append(Line2D([], [], color=BASE_COLOUR, linestyle=BASE_DASH, linewidth=1.6))
        arms.append("before training")
    models = list(dict.fromkeys(curves.loc[curves["policy"] == "model", "arm"]))
    handles += [
        Line2D([], [], color="#000000", marker=MARKERS[i % 10], markersize=3) for i in range(len(models))
    ]
    legend_above(figure, handles, [*arms, *models], handlelength=2.6)
    votes = " Votes are over the verifier's reading of the answer, ties go to the answer given first."
    return Drawing(
        "sampling",
        "What more samples bring",
        "pass@k: share of problems that at least one of k samples solves, by the unbiased estimator, up to "
        f"half the samples. Lines are means, faint ones seeds, bands the middle half of the seeds."
        f"{votes if len(kinds) > 1 else ''}",
        figure,
    )


def _sampling_panel(axes: Axes, own: pd.DataFrame, arms: Sequence[str], style: Look) -> None:
    """Curves of one place: the mean of an arm (of all, before training), its seeds and their band."""
    base = own[own["policy"] == "base"]
    series: list[tuple[pd.DataFrame, Any, Any, str | None]] = [(base, BASE_COLOUR, BASE_DASH, None)]
    for arm in arms:
        trained = own[(own["policy"] == "final") & (own["arm"] == arm)]
        series.append((trained, style.colour[arm], style.dash[arm], style.marker[arm]))
    models = own[own["policy"] == "model"]
    for index, (_, rows) in enumerate(models.groupby("arm", sort=False)):
        series.append((rows, "#000000", "-", MARKERS[index % 10]))
    for rows, colour, dash, marker in series:
        values = rows.groupby("k")["value"]
        mean = values.mean()
        if rows["seed"].nunique() > 1:
            low, high = values.quantile(0.25), values.quantile(0.75)
            axes.fill_between(mean.index, low, high, color=colour, alpha=BAND, linewidth=0)
            seeds = [one[["k", "value"]].to_numpy() for _, one in rows.groupby(["arm", "seed"], sort=False)]
            axes.add_collection(LineCollection(seeds, colors=[colour], linewidths=0.5, alpha=FAINT))
        axes.plot(mean.index, mean, color=colour, linewidth=1.5, linestyle=dash, marker=marker, markersize=3)
    axes.set_xscale("log", base=2)
    ticks = sorted(set(own["k"]))
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
