"""A map: what became of every run over a grid of doses, and the largest dose without a collapse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from grpobench.analysis.logs.matrix import Dose, Matrix
from grpobench.analysis.statistics.intervals import Estimate, seed_mean, standard_error
from grpobench.analysis.statistics.quantile import exact_share, quantile_ranks
from grpobench.analysis.summary.accuracy import graded

LEARNS, STALLS, DRIFTS, COLLAPSES, NONE = "learns", "stalls", "drifts", "collapses", "no result"
OUTCOMES = (LEARNS, STALLS, DRIFTS, COLLAPSES, NONE)
ERRORS = 2.0
"""Standard errors of the paired difference from the base, beyond which a run learnt or drifted."""
CHANCE = 1 / 3
"""Most of the seeds that may collapse at a dose of the frontier, and at every smaller one."""
KEYS = ["arm", "task", "seed"]


@dataclass(frozen=True)
class Axes:
    """The grid: the first key with its values ascending, and the other keys with each of their
    combinations."""

    key: str
    doses: tuple[Any, ...]
    others: tuple[str, ...]
    levels: tuple[tuple[Any, ...], ...]
    arms: tuple[str, ...]
    """The recipe's."""


def axes_of(doses: Mapping[str, Dose]) -> Axes | None:
    """The grid of a matrix by its arms' doses; None where it has none, and is no map."""
    if not doses:
        return None
    first = next(iter(doses.values()))
    key, *others = first.values
    found = dict.fromkeys(own.values[key] for own in doses.values())
    ordered = sorted(found) if all(isinstance(one, int | float) for one in found) else list(found)
    levels = dict.fromkeys(tuple(own.values[other] for other in others) for own in doses.values())
    arms = dict.fromkeys(own.arm for own in doses.values())
    return Axes(key, tuple(ordered), tuple(others), tuple(levels), tuple(arms))


def outcomes(matrix: Matrix, runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of `finals` with `change` from the base over the same problems, its standard `error`, and
    `outcome`: it collapses (a collapse that it did not recover from, or a divergence), learns or drifts (ends
    above or below its base by more than `ERRORS` standard errors), or stalls."""
    found = runs.merge(_changes(matrix, runs), on=KEYS, how="left")
    found["outcome"] = [_outcome(row) for row in found.to_dict("records")]
    return found


def _outcome(row: Mapping[str, Any]) -> str:
    if not math.isnan(row["collapsed_at"]):
        return COLLAPSES
    change = row["final"] - row["base"]
    if math.isnan(change):
        return NONE
    bound = ERRORS * (0.0 if math.isnan(row["error"]) else row["error"])
    return LEARNS if change > bound else DRIFTS if change < -bound else STALLS


def _changes(matrix: Matrix, runs: pd.DataFrame) -> pd.DataFrame:
    """Mean change of each run's answers from its base, paired by problem, with its standard error."""
    columns = [*KEYS, "change", "error"]
    frame = graded(matrix)
    if frame.empty:
        return pd.DataFrame(columns=columns)
    asked = runs[[*KEYS, "split", "mode"]].rename(columns={"split": "asked_split", "mode": "asked_mode"})
    own = frame.merge(asked, on=KEYS)
    own = own[(own["split"] == own["asked_split"]) & (own["mode"] == own["asked_mode"])]
    rows = []
    for key, run in own.groupby(KEYS, sort=False):
        first, last = run["step"].min(), run["step"].max()
        if first == 0 < last:
            scores = run.groupby(["problem", "step"], sort=False)["score/correct"].mean().unstack("step")
            difference = (scores[last] - scores[0]).dropna()
            rows.append((*key, float(difference.mean()), standard_error(difference)))
    return pd.DataFrame(rows, columns=columns)


@dataclass(frozen=True)
class Cell:
    """The runs of an arm at one dose and level."""

    arm: str
    task: str
    level: tuple[Any, ...]
    dose: Any
    outcomes: tuple[str, ...]
    """Of each seed, in their order."""
    seeds: tuple[int, ...]
    accuracy: Estimate
    """Mean of what counts, with the t interval over seeds within 0 and 1."""

    @property
    def known(self) -> int:
        """Runs with a result."""
        return sum(outcome != NONE for outcome in self.outcomes)

    @property
    def collapsed(self) -> int:
        """Runs that collapsed."""
        return self.outcomes.count(COLLAPSES)

    @property
    def learned(self) -> int:
        """Runs that ended above their base. A run can keep from collapse and learn nothing."""
        return self.outcomes.count(LEARNS)

    @property
    def chance(self) -> tuple[float, float]:
        """Exact 95 % interval of the chance of collapse."""
        return exact_share(self.collapsed, self.known)


def cells(doses: Mapping[str, Dose], tasks: Sequence[str], runs: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """The whole grid from runs (task, arm, seed, outcome, counted), by task, arm, level and dose."""
    axes = axes_of(doses)
    if axes is None:
        return []
    own: dict[tuple[str, str, tuple[Any, ...], Any], list[Mapping[str, Any]]] = {}
    for run in runs:
        dose = doses[run["arm"]]
        level = tuple(dose.values[other] for other in axes.others)
        own.setdefault((run["task"], dose.arm, level, dose.values[axes.key]), []).append(run)
    places = itertools.product(tasks, axes.arms, axes.levels, axes.doses)
    return [
        _cell(task, arm, level, dose, sorted(own[task, arm, level, dose], key=_seed))
        for task, arm, level, dose in places
        if (task, arm, level, dose) in own
    ]


def _seed(run: Mapping[str, Any]) -> int:
    return int(run["seed"])


def _cell(task: str, arm: str, level: tuple[Any, ...], dose: Any, runs: Sequence[Mapping[str, Any]]) -> Cell:
    counted = [run["counted"] for run in runs if not math.isnan(run["counted"])]
    outcome, seeds = tuple(run["outcome"] for run in runs), tuple(map(_seed, runs))
    mean = seed_mean(counted)
    low, high = (end if math.isnan(end) else min(max(end, 0.0), 1.0) for end in (mean.low, mean.high))
    return Cell(arm, task, level, dose, outcome, seeds, Estimate(mean.value, low, high))


def arms_run(grid: Sequence[Cell]) -> tuple[str, ...]:
    """The recipe's arms of which a run has a result: others may be planned, or named by a summary."""
    return tuple(dict.fromkeys(cell.arm for cell in grid if cell.known))


@dataclass(frozen=True)
class Frontier:
    """How far an arm goes without a collapse at one level of the other doses."""

    arm: str
    task: str
    level: tuple[Any, ...]
    at: Cell | None
    """The largest dose at which, and below which, no more than `CHANCE` of the seeds collapse; None: not even
    the smallest is."""
    low: Any
    high: Any
    """Doses between which the frontier lies; None: below the grid."""
    coverage: float
    """With at least which probability, over seeds."""
    beyond: bool
    """Whether it is the largest dose of the grid, so that the true one may be larger."""
    best: Cell | None
    """The dose with the highest mean accuracy."""
    measured: bool
    """Whether a run at the smallest dose has a result: without one nothing is known of a frontier."""


def frontiers(grid: Sequence[Cell]) -> list[Frontier]:
    """By task, arm and level."""
    rows: dict[tuple[str, str, tuple[Any, ...]], list[Cell]] = {}
    for cell in grid:
        rows.setdefault((cell.task, cell.arm, cell.level), []).append(cell)
    return [_frontier(*key, own) for key, own in rows.items()]


def _frontier(task: str, arm: str, level: tuple[Any, ...], row: Sequence[Cell]) -> Frontier:
    at = None
    for cell in row:
        if not cell.known or cell.collapsed > CHANCE * cell.known + 1e-9:
            break
        at = cell
    reached = tolerances(row)
    low: Any = None
    high: Any = None
    coverage = math.nan
    if reached:
        ranks = quantile_ranks(len(reached), CHANCE)
        places = (reached[ranks.low], reached[ranks.high])
        low, high = (row[place].dose if place >= 0 else None for place in places)
        coverage = ranks.coverage
    measured = [cell for cell in row if math.isfinite(cell.accuracy.value)]
    best = max(measured, key=lambda cell: cell.accuracy.value, default=None)
    beyond, known = at is row[-1], row[0].known > 0
    return Frontier(arm, task, level, at, low, high, coverage, beyond, best, known)


def tolerances(row: Sequence[Cell]) -> list[int]:
    """Of each seed that has a result at every dose, ascending: the index of the largest dose at which, and at
    all smaller ones, it did not collapse; −1 for none."""
    found = []
    for seed in dict.fromkeys(seed for cell in row for seed in cell.seeds):
        own = [dict(zip(cell.seeds, cell.outcomes, strict=True)).get(seed, NONE) for cell in row]
        if NONE not in own:
            fell = own.index(COLLAPSES) if COLLAPSES in own else len(own)
            found.append(fell - 1)
    return sorted(found)
