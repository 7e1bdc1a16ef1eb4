"""The stability map: what becomes of each arm's runs over a grid of doses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import legend_above, new_figure
from grpobench.analysis.figures.style import BASE_COLOUR, Sheet
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.doses import (
    COLLAPSES,
    DRIFTS,
    LEARNS,
    STALLS,
    Cell,
    Frontier,
    arms_run,
    axes_of,
    frontiers,
)
from grpobench.analysis.summary.doses import (
    Axes as Grid,
)
from grpobench.analysis.tools.text import dose, doses_in_words, level_name, number

SHADE = {LEARNS: "#ffffff", STALLS: "#f0f0f0", DRIFTS: "#dcdcdc", COLLAPSES: "#bdbdbd"}
"""Ground of a cell by its most frequent outcome: told apart in grey."""
MARKS: dict[str, dict[str, Any]] = {
    LEARNS: {"marker": "o", "color": "#0173b2", "markerfacecolor": "#0173b2"},
    STALLS: {"marker": "_", "color": "#333333"},
    DRIFTS: {"marker": "v", "color": "#333333", "markerfacecolor": "white"},
    COLLAPSES: {"marker": "x", "color": "#7a0b0b"},
}


def draw_map(matrix: Matrix, grid: Sequence[Cell], sheet: Sheet) -> Drawing | None:
    """A panel per task and arm that was run; None where the matrix is no map."""
    axes = axes_of(matrix.doses)
    if axes is None or not grid:
        return None
    arms = arms_run(grid)
    if not arms:
        return None
    panels = [(task, arm) for task in matrix.tasks for arm in arms]
    across = min(sheet.across, len(arms))
    down = math.ceil(len(panels) / across)
    width = min(sheet.width, 3.4 * across)
    figure = new_figure(width, down * (0.42 * len(axes.levels) + 0.75) + 0.3)
    edges = frontiers(grid)
    for place, (task, arm) in enumerate(panels):
        panel = figure.add_subplot(down, across, place + 1)
        own = [cell for cell in grid if (cell.task, cell.arm) == (task, arm)]
        _panel(panel, own, [one for one in edges if (one.task, one.arm) == (task, arm)], axes)
        panel.set_title(arm if len(matrix.tasks) == 1 else f"{arm}, {task}")
        if place % across == 0:
            panel.set_yticks(range(len(axes.levels)), [level_name(level) for level in axes.levels])
            panel.set_ylabel(doses_in_words(axes.others))
        if place >= len(panels) - across:
            panel.set_xlabel(doses_in_words([axes.key]))
    handles: list[Any] = [
        Line2D([], [], linestyle="", markersize=4.5, markeredgewidth=1.2, **MARKS[name]) for name in MARKS
    ]
    handles.append(Line2D([], [], color="black", linewidth=2))
    legend_above(figure, handles, [*MARKS, "frontier"])
    return Drawing(
        "map",
        "Where each arm learns, stalls, drifts and collapses",
        f"Every run over the grid of doses: a mark per seed, and the mean accuracy in % ({_split(matrix)}). "
        "Learns, drifts: ends above, below its base by more than two standard errors, paired by problem. "
        "Stalls: neither. Collapses: a collapse that it did not recover from, or a divergence. The frontier "
        "stands behind the largest dose at which, and below which, at most a third of the seeds collapse. "
        "The ground tells the most frequent outcome.",
        figure,
    )


def _split(matrix: Matrix) -> str:
    from grpobench.analysis.summary.headline import headline_of

    found = {headline_of(matrix, task) for task in matrix.tasks}
    return ", ".join(sorted(f"{one.split} split, {one.mode}" for one in found))


def _panel(panel: Axes, own: Sequence[Cell], edges: Sequence[Frontier], grid: Grid) -> None:
    """The cells of an arm, and its frontier."""
    for cell in own:
        x, y = grid.doses.index(cell.dose), grid.levels.index(cell.level)
        known = [outcome for outcome in cell.outcomes if outcome in MARKS]
        if known:
            most = max(MARKS, key=lambda name: (known.count(name), list(MARKS).index(name)))
            panel.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=SHADE[most], edgecolor="none"))
        step = min(0.26, 0.84 / max(1, len(known)))
        for place, outcome in enumerate(known):
            at = x + step * (place - (len(known) - 1) / 2)
            panel.plot(at, y + 0.18, linestyle="", markersize=4, markeredgewidth=1.1, **MARKS[outcome])
        text = number(100 * cell.accuracy.value, 0)
        panel.text(x, y - 0.22, text, ha="center", va="center", fontsize=7)
    for edge in edges:
        y = grid.levels.index(edge.level)
        behind = grid.doses.index(edge.at.dose) + 0.5 if edge.at is not None else -0.5
        ends = [y - 0.5, y + 0.5]
        panel.plot([behind] * 2, ends, color="black", linewidth=2, solid_capstyle="butt", clip_on=False)
    panel.set_xlim(-0.5, len(grid.doses) - 0.5)
    panel.set_ylim(-0.5, len(grid.levels) - 0.5)
    panel.set_xticks(range(len(grid.doses)), [dose(one) for one in grid.doses])
    panel.set_yticks(range(len(grid.levels)), [""] * len(grid.levels))
    panel.tick_params(length=0)
    panel.grid(False)
    for spine in panel.spines.values():
        spine.set_visible(True)
        spine.set_color(BASE_COLOUR)
