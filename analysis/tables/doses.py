"""Tables of a map: the whole grid, and how far each arm goes without a collapse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from grpobench.analysis.summary.doses import CHANCE, OUTCOMES, Axes, Cell, Frontier, frontiers
from grpobench.analysis.tables.table import Table
from grpobench.analysis.tools.text import NONE, dose, doses_in_words, interval, level_name, number, percent

LETTERS = {name: name[0].upper() for name in OUTCOMES[:-1]}
NOTE = (
    "Mean accuracy in %, and a letter for every seed: L learns, D drifts (ends above, below its base by more "
    "than two standard errors, paired by problem), S stalls, C collapses. A run stopped for its collapse "
    "counts with the accuracy that it had then, one that diverged with 0."
)
FRONTIER = (
    "Frontier: the largest dose at which, and below which, at most a third of the seeds collapse; its chance "
    "of collapse with the exact 95 % interval (Clopper–Pearson), how many seeds learned there (ended above "
    "their base), and the mean accuracy there. A dose without a collapse may still teach nothing. From, to: "
    "doses between which the largest dose lies up to which two thirds of the seeds do not collapse, without "
    "an assumption on how seeds differ, and the coverage of that interval, which few seeds leave below 95 %. "
    "Best: the dose with the highest mean accuracy."
)


def map_table(axes: Axes, grid: Sequence[Cell]) -> Table:
    """A row per task, arm and level of the other doses; a column per dose."""
    frame = pd.DataFrame(
        [
            {
                "task": cell.task,
                "arm": cell.arm,
                **dict(zip(axes.others, cell.level, strict=True)),
                axes.key: cell.dose,
                "runs": cell.known,
                "collapsed": cell.collapsed,
                "chance_low": cell.chance[0],
                "chance_high": cell.chance[1],
                "accuracy": cell.accuracy.value,
                "low": cell.accuracy.low,
                "high": cell.accuracy.high,
                **{name: cell.outcomes.count(name) for name in OUTCOMES},
            }
            for cell in grid
        ]
    )
    rows: dict[tuple[str, str, str], dict[object, str]] = {}
    for cell in grid:
        letters = "".join(LETTERS.get(outcome, "?") for outcome in cell.outcomes)
        own = rows.setdefault((cell.task, cell.arm, level_name(cell.level)), {})
        own[cell.dose] = f"{percent(cell.accuracy.value)} {letters}"
    header = ["task", "arm", doses_in_words(axes.others) or "others", *map(dose, axes.doses)]
    lines = [[*names, *(own.get(one, NONE) for one in axes.doses)] for names, own in rows.items()]
    title = f"The map: outcome and accuracy by {doses_in_words([axes.key])}"
    return Table("map", title, header, lines, frame, note=NOTE)


def frontier_table(axes: Axes, grid: Sequence[Cell]) -> Table:
    """A row per task, arm and level of the other doses."""
    found = frontiers(grid)
    frame = pd.DataFrame(
        [
            {
                "task": one.task,
                "arm": one.arm,
                **dict(zip(axes.others, one.level, strict=True)),
                "frontier": one.at.dose if one.at else None,
                "beyond_the_grid": one.beyond,
                "low": one.low,
                "high": one.high,
                "coverage": one.coverage,
                "collapsed": one.at.collapsed if one.at else None,
                "learned": one.at.learned if one.at else None,
                "runs": one.at.known if one.at else None,
                "accuracy": one.at.accuracy.value if one.at else None,
                "best": one.best.dose if one.best else None,
                "best_accuracy": one.best.accuracy.value if one.best else None,
                "chance": CHANCE,
            }
            for one in found
        ]
    )
    header = ["task", "arm", doses_in_words(axes.others) or "others"]
    header += [
        "frontier",
        "from",
        "to",
        "coverage",
        "collapsed",
        "chance (%)",
        "learned",
        "accuracy",
        "best",
        "accuracy there",
    ]
    return Table(
        "frontier",
        "How far each arm goes without a collapse, and whether it learned there",
        header,
        [_row(one, axes.doses[-1]) for one in found],
        frame,
        note=FRONTIER,
    )


def _row(one: Frontier, largest: Any) -> list[str]:
    at, best = one.at, one.best
    below = "below the grid" if one.measured else NONE
    largest_kept = below if at is None else f"{'≥ ' * one.beyond}{dose(at.dose)}"
    return [
        *(one.task, one.arm, level_name(one.level), largest_kept),
        *(
            _no_end(one) if end is None else f"{'≥ ' * (end == largest)}{dose(end)}"
            for end in (one.low, one.high)
        ),
        percent(one.coverage),
        NONE if at is None else f"{at.collapsed} of {at.known}",
        NONE if at is None else interval(*at.chance, lambda share: number(100 * share, 0)),
        NONE if at is None else f"{at.learned} of {at.known}",
        NONE if at is None else percent(at.accuracy.value),
        NONE if best is None else dose(best.dose),
        NONE if best is None else percent(best.accuracy.value),
    ]


def _no_end(one: Frontier) -> str:
    """What stands for an end that is no dose: of an interval that no seed gives, nothing is known."""
    return NONE if math.isnan(one.coverage) else "below the grid"
