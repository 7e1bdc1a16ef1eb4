"""The figure of stability: which share of each arm's runs has not collapsed, by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from grpobench.analysis.detect.registry import Findings
from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.labels import arm_legend
from grpobench.analysis.figures.panels import grid_of, leftmost
from grpobench.analysis.figures.style import Sheet, look
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.doses import axes_of
from grpobench.analysis.summary.stability import Lasted, lasted
from grpobench.analysis.tools.text import dose


def draw_survival(matrix: Matrix, findings: Mapping[str, Findings], sheet: Sheet) -> Drawing | None:
    """Kaplan–Meier curves of the tasks, and of a map the doses, at which a run collapsed; None where none
    did."""
    arms, every = panels_of(matrix, findings)
    found = {title: own for title, own in every.items() if any(any(one.collapsed) for one in own.values())}
    tasks = list(found)
    if not tasks:
        return None
    figure, grid = grid_of(1, tasks, sheet)
    style = look(arms)
    for (_, task), axes in grid.items():
        end = max(max(own.steps) for own in found[task].values())
        for place, (arm, own) in enumerate(found[task].items()):
            curve = own.curve
            steps = np.concatenate([[0.0], curve.steps, [float(max(end, *own.steps))]])
            shares = np.concatenate([[1.0], curve.shares, [curve.last]])
            shift = 0.006 * (place - (len(found[task]) - 1) / 2)  # curves on each other stay apart
            looks = {"color": style.colour[arm], "linestyle": style.dash[arm], "linewidth": 1.4}
            axes.step(steps, 100 * (shares + shift), where="post", **looks)
            left = [
                step for step, fell in zip(own.steps, own.collapsed, strict=True) if not fell and step < end
            ]
            level = [100 * (share_at(curve.steps, curve.shares, step) + shift) for step in left]
            axes.plot(left, level, "|", color=style.colour[arm], markersize=6)
        axes.set_ylim(-4, 104)
        axes.set_title(task)
        axes.set_xlabel("updates")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if task == leftmost(tasks, task, sheet):
            axes.set_ylabel("runs not collapsed (%)")
    shown = [arm for arm in arms if any(arm in found[task] for task in tasks)]
    arm_legend(figure, shown, style, marker=False)
    return Drawing(
        "survival",
        "How long runs last",
        "Kaplan–Meier share of runs that have not collapsed (a lasting fall of validation accuracy or of the "
        "training reward, an event that the recipe stops for, or a divergence). A tick marks a run whose "
        "logs end before the others' without one. Curves are set apart by a hair where they would "
        "hide each other.",
        figure,
    )


def panels_of(
    matrix: Matrix, findings: Mapping[str, Findings]
) -> tuple[Sequence[str], Mapping[str, Mapping[str, Lasted]]]:
    """The arms, and by the title of a panel how long the runs of each lasted: a panel per task, and in a map,
    whose arms are those of the recipe, per combination of doses."""
    every = lasted(matrix, findings)
    axes = axes_of(matrix.doses)
    found: dict[str, dict[str, Lasted]] = {}
    for (task, arm), own in every.items():
        title, name = task, arm
        if axes is not None:
            where = matrix.doses[arm]
            level = [where.values[key] for key in (*axes.others, axes.key)]
            title = ", ".join([*[task] * (len(matrix.tasks) > 1), *map(dose, level)])
            name = where.arm
        found.setdefault(title, {})[name] = own
    return (axes.arms if axes else matrix.arms), found


def share_at(steps: np.ndarray, shares: np.ndarray, step: int) -> float:
    """The share at a step."""
    before = int(np.searchsorted(steps, step, side="right"))
    return float(shares[before - 1]) if before else 1.0
