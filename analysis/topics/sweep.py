"""The map of a sweep: which runs learn, stall, drift or collapse, and how far arms go without a collapse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import legend_above, new_figure
from grpobench.analysis.figures.style import BASE_COLOR, NOTE_SIZE, Sheet
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import RUN_KEYS, Experiment, SweepPoint
from grpobench.analysis.statistics.intervals import Estimate, seed_mean, standard_error
from grpobench.analysis.tools.text import (
    NONE,
    interval,
    level_name,
    number,
    percent,
    sweep_value,
    sweep_values_in_words,
)
from grpobench.analysis.topics.accuracy import answers_at_ends, headline_of
from grpobench.analysis.topics.captions import counted, problems_in_words


@dataclass(frozen=True)
class QuantileRanks:
    """Two ranks (indices from 0) of n ascending values, between which a quantile lies."""

    low: int
    high: int
    coverage: float
    """A lower bound of the probability that it does, for independent values."""


def quantile_ranks(n: int, share: float, level: float = 0.95) -> QuantileRanks:
    """The closest two order statistics of n values that hold the `share` quantile with at least `level`
    probability; the smallest and the largest where no two do. The number of values below the quantile is
    binomial, so P(x_(i) ≤ q ≤ x_(j)) ≥ Σ_{k=i}^{j−1} C(n, k) share^k (1 − share)^(n−k), i and j counted from
    1 (David and Nagaraja, Order Statistics, section 7.1). Raises ValueError for no values."""
    if n < 1 or not 0 < share < 1:
        raise ValueError(f"quantile_ranks: needs n >= 1 and 0 < share < 1; got {n} and {share}")
    from scipy import stats  # the import takes a second, and only maps need it

    below = stats.binom(n, share)
    pairs = [
        QuantileRanks(i - 1, j - 1, float(below.cdf(j - 1) - below.cdf(i - 1)))
        for i in range(1, n + 1)
        for j in range(i, n + 1)
    ]
    enough = [pair for pair in pairs if pair.coverage >= level]
    if not enough:
        return pairs[n - 1]
    return min(enough, key=lambda pair: (pair.high - pair.low, -pair.coverage))


def exact_share(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper–Pearson interval of a share; (NaN, NaN) for n = 0."""
    if n == 0:
        return math.nan, math.nan
    from scipy import stats

    interval = stats.binomtest(count, n).proportion_ci(level, method="exact")
    return float(interval.low), float(interval.high)


# Outcomes, cells and frontiers

LEARNS, STALLS, DRIFTS, COLLAPSES, NO_RESULT = "learns", "stalls", "drifts", "collapses", "no result"
OUTCOMES = (LEARNS, STALLS, DRIFTS, COLLAPSES, NO_RESULT)
ERRORS = 2.0
"""A run learned or drifted if it differs from its base by more than this many paired standard errors."""
CHANCE = 1 / 3
"""Largest share of seeds that may collapse at the frontier and at every smaller sweep value."""


@dataclass(frozen=True)
class SweepAxes:
    """The grid: the first key with its values ascending, and the other keys with each of their
    combinations."""

    key: str
    sweep_values: tuple[Any, ...]
    others: tuple[str, ...]
    levels: tuple[tuple[Any, ...], ...]
    arms: tuple[str, ...]
    """The arms of the recipe."""

    @property
    def is_dose(self) -> bool:
        """Whether the values of the first key have an order that means something: numbers, but no seeds."""
        return not self.key.endswith("seed") and all(
            isinstance(level, int | float) and not isinstance(level, bool) for level in self.sweep_values
        )


def axes_of(sweep_values: Mapping[str, SweepPoint]) -> SweepAxes | None:
    """The grid of an experiment from the sweep values of its arms; None where it is not a map."""
    if not sweep_values:
        return None
    first = next(iter(sweep_values.values()))
    key, *others = first.values
    distinct = dict.fromkeys(point.values[key] for point in sweep_values.values())
    ordered = (
        sorted(distinct)
        if all(isinstance(point_value, int | float) for point_value in distinct)
        else list(distinct)
    )
    levels = dict.fromkeys(tuple(point.values[other] for other in others) for point in sweep_values.values())
    arms = dict.fromkeys(point.arm for point in sweep_values.values())
    return SweepAxes(key, tuple(ordered), tuple(others), tuple(levels), tuple(arms))


def classify_runs(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of `finals` with `change` from the base over the same problems, its standard `error`, and
    `outcome`. A run collapses (without recovery, or by diverging), learns or drifts (ends above or below its
    base by more than `ERRORS` standard errors), or stalls (none of these)."""
    merged = runs.merge(_changes(experiment), on=RUN_KEYS, how="left")
    merged["outcome"] = [_outcome(row) for row in merged.to_dict("records")]
    return merged


def _outcome(row: Mapping[str, Any]) -> str:
    if not math.isnan(row["collapsed_at"]):
        return COLLAPSES
    change = row["final"] - row["base"]
    if math.isnan(change):
        return NO_RESULT
    bound = ERRORS * (0.0 if math.isnan(row["error"]) else row["error"])
    return LEARNS if change > bound else DRIFTS if change < -bound else STALLS


def _changes(experiment: Experiment) -> pd.DataFrame:
    """Mean change of each run's answers from its base, paired by problem, with its standard error."""
    frame, rows = answers_at_ends(experiment), []
    for key, run in frame.groupby(RUN_KEYS, sort=False) if len(frame) else ():
        first, last = run["step"].min(), run["step"].max()
        if first == 0 < last:
            scores = run.groupby(["problem", "step"], sort=False)["score/correct"].mean().unstack("step")
            difference = (scores[last] - scores[0]).dropna()
            rows.append((*key, float(difference.mean()), standard_error(difference)))
    return pd.DataFrame(rows, columns=[*RUN_KEYS, "change", "error"])


@dataclass(frozen=True)
class SweepCell:
    """The runs of an arm at one sweep value and level."""

    arm: str
    task: str
    level: tuple[Any, ...]
    sweep_value: Any
    outcomes: tuple[str, ...]
    """The outcome of each seed, in the order of `seeds`."""
    seeds: tuple[int, ...]
    accuracy: Estimate
    """Mean of counted accuracies, with the t interval over seeds cut to 0 and 1."""

    @property
    def finished_runs(self) -> int:
        """Runs with a result."""
        return sum(outcome != NO_RESULT for outcome in self.outcomes)

    @property
    def collapsed(self) -> int:
        """Runs that collapsed."""
        return self.outcomes.count(COLLAPSES)

    @property
    def learned(self) -> int:
        """Runs that ended above their base. A run can avoid a collapse and still learn nothing."""
        return self.outcomes.count(LEARNS)

    @property
    def chance(self) -> tuple[float, float]:
        """Exact 95 % interval of the chance of collapse."""
        return exact_share(self.collapsed, self.finished_runs)


def group_cells(
    sweep_values: Mapping[str, SweepPoint], tasks: Sequence[str], runs: Iterable[Mapping[str, Any]]
) -> list[SweepCell]:
    """Group runs (task, arm, seed, outcome, counted) into cells, by task, arm, level and sweep value."""
    axes = axes_of(sweep_values)
    if axes is None:
        return []
    by_cell: dict[tuple[str, str, tuple[Any, ...], Any], list[Mapping[str, Any]]] = {}
    for run in runs:
        sweep_value = sweep_values[run["arm"]]
        level = tuple(sweep_value.values[other] for other in axes.others)
        by_cell.setdefault((run["task"], sweep_value.arm, level, sweep_value.values[axes.key]), []).append(
            run
        )
    cells_of_grid = itertools.product(tasks, axes.arms, axes.levels, axes.sweep_values)
    return [
        _cell(task, arm, level, sweep_value, sorted(by_cell[task, arm, level, sweep_value], key=_seed))
        for task, arm, level, sweep_value in cells_of_grid
        if (task, arm, level, sweep_value) in by_cell
    ]


def _seed(run: Mapping[str, Any]) -> int:
    return int(run["seed"])


def _cell(
    task: str, arm: str, level: tuple[Any, ...], sweep_value: Any, runs: Sequence[Mapping[str, Any]]
) -> SweepCell:
    counted = [run["counted"] for run in runs if not math.isnan(run["counted"])]
    outcome, seeds = tuple(run["outcome"] for run in runs), tuple(map(_seed, runs))
    mean = seed_mean(counted)
    low, high = (end if math.isnan(end) else min(max(end, 0.0), 1.0) for end in (mean.low, mean.high))
    return SweepCell(arm, task, level, sweep_value, outcome, seeds, Estimate(mean.value, low, high))


def arms_with_results(grid: Sequence[SweepCell]) -> tuple[str, ...]:
    """The arms of the recipe that have a run with a result. Others may be planned or in the summary."""
    return tuple(dict.fromkeys(cell.arm for cell in grid if cell.finished_runs))


@dataclass(frozen=True)
class Frontier:
    """How far an arm goes without a collapse at one level of the other sweep values."""

    arm: str
    task: str
    level: tuple[Any, ...]
    at: SweepCell | None
    """The largest sweep value such that at most `CHANCE` of the seeds collapse there and at every smaller
    value; None if already more collapse at the smallest."""
    low: Any
    high: Any
    """Sweep values between which the frontier lies; None means below the grid."""
    coverage: float
    """Least probability, over seeds, that it lies there."""
    beyond: bool
    """Whether it is the largest sweep value of the grid, so the true frontier may be larger."""
    best: SweepCell | None
    """The sweep value with the highest mean accuracy."""
    measured: bool
    """Whether a run at the smallest sweep value has a result; without one the frontier is unknown."""


def find_frontiers(axes: SweepAxes, grid: Sequence[SweepCell]) -> list[Frontier]:
    """One frontier per task, arm and level; none where the first key is no dose."""
    if not axes.is_dose:
        return []
    rows: dict[tuple[str, str, tuple[Any, ...]], list[SweepCell]] = {}
    for cell in grid:
        rows.setdefault((cell.task, cell.arm, cell.level), []).append(cell)
    return [_frontier(*key, row_cells) for key, row_cells in rows.items()]


def _frontier(task: str, arm: str, level: tuple[Any, ...], row: Sequence[SweepCell]) -> Frontier:
    at = None
    for cell in row:
        if not cell.finished_runs or cell.collapsed > CHANCE * cell.finished_runs + 1e-9:
            break
        at = cell
    reached = tolerances(row)
    low: Any = None
    high: Any = None
    coverage = math.nan
    if reached:
        ranks = quantile_ranks(len(reached), CHANCE)
        ends = (reached[ranks.low], reached[ranks.high])
        low, high = (row[end].sweep_value if end >= 0 else None for end in ends)
        coverage = ranks.coverage
    measured = [cell for cell in row if math.isfinite(cell.accuracy.value)]
    best = max(measured, key=lambda cell: cell.accuracy.value, default=None)
    beyond, has_finished = at is row[-1], row[0].finished_runs > 0
    return Frontier(arm, task, level, at, low, high, coverage, beyond, best, has_finished)


def tolerances(row: Sequence[SweepCell]) -> list[int]:
    """For each seed with a result at every sweep value, the index of the largest sweep value up to which it
    did not collapse, or −1; in ascending order."""
    reached = []
    for seed in dict.fromkeys(seed for cell in row for seed in cell.seeds):
        outcomes_of_seed = [
            dict(zip(cell.seeds, cell.outcomes, strict=True)).get(seed, NO_RESULT) for cell in row
        ]
        if NO_RESULT not in outcomes_of_seed:
            fell = (
                outcomes_of_seed.index(COLLAPSES) if COLLAPSES in outcomes_of_seed else len(outcomes_of_seed)
            )
            reached.append(fell - 1)
    return sorted(reached)


# Tables

LETTERS = {name: name[0].upper() for name in OUTCOMES[:-1]}
NOTE = (
    "Mean accuracy in %, and a letter for every seed. L learns: ends above its base by more than two "
    "standard errors, paired by problem. D drifts: ends below it by as much. S stalls: neither. C collapses. "
    "A run that was stopped for its collapse counts with its last accuracy, and a run that diverged counts "
    "as 0."
)
FRONTIER = (
    "Frontier: the largest sweep value up to which at most a third of the seeds collapse. The next columns "
    "show how many seeds collapsed there, the exact 95 % interval of the chance of a collapse "
    "(Clopper–Pearson), how many seeds learned there (ended above their base), and the mean accuracy there. "
    "Runs without a collapse may still learn nothing. From, to: an interval for the largest sweep value up "
    "to which two thirds of the seeds do not collapse, which assumes nothing about how seeds differ. "
    "Coverage: the probability that it holds, which is below 95 % for few seeds. Best: the sweep value with "
    "the highest mean accuracy."
)


def map_table(axes: SweepAxes, grid: Sequence[SweepCell]) -> PrintedTable:
    """One row per task, arm and level of the other keys; one column per sweep value."""
    frame = pd.DataFrame(
        [
            {
                "task": cell.task,
                "arm": cell.arm,
                **dict(zip(axes.others, cell.level, strict=True)),
                axes.key: cell.sweep_value,
                "runs": cell.finished_runs,
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
        row_cells = rows.setdefault((cell.task, cell.arm, level_name(cell.level)), {})
        row_cells[cell.sweep_value] = f"{percent(cell.accuracy.value)} {letters}"
    header = [
        "task",
        "arm",
        sweep_values_in_words(axes.others) or "others",
        *map(sweep_value, axes.sweep_values),
    ]
    lines = [
        [*names, *(row_cells.get(column_value, NONE) for column_value in axes.sweep_values)]
        for names, row_cells in rows.items()
    ]
    title = f"The map: outcome and accuracy by {sweep_values_in_words([axes.key])}"
    return PrintedTable("map", title, header, lines, frame, note=NOTE)


def frontier_table(axes: SweepAxes, grid: Sequence[SweepCell]) -> PrintedTable | None:
    """One row per task, arm and level of the other keys; None where there is no frontier."""
    edges = find_frontiers(axes, grid)
    if not edges:
        return None
    frame = pd.DataFrame(
        [
            {
                "task": edge.task,
                "arm": edge.arm,
                **dict(zip(axes.others, edge.level, strict=True)),
                "frontier": edge.at.sweep_value if edge.at else None,
                "beyond_the_grid": edge.beyond,
                "low": edge.low,
                "high": edge.high,
                "coverage": edge.coverage,
                "collapsed": edge.at.collapsed if edge.at else None,
                "learned": edge.at.learned if edge.at else None,
                "runs": edge.at.finished_runs if edge.at else None,
                "accuracy": edge.at.accuracy.value if edge.at else None,
                "best": edge.best.sweep_value if edge.best else None,
                "best_accuracy": edge.best.accuracy.value if edge.best else None,
                "chance": CHANCE,
            }
            for edge in edges
        ]
    )
    header = ["task", "arm", sweep_values_in_words(axes.others) or "others"]
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
    return PrintedTable(
        "frontier",
        "How far each arm goes without a collapse, and whether it learned there",
        header,
        [_row(edge, axes.sweep_values[-1]) for edge in edges],
        frame,
        note=FRONTIER,
    )


def _row(frontier: Frontier, largest: Any) -> list[str]:
    at, best = frontier.at, frontier.best
    below = "below the grid" if frontier.measured else NONE
    largest_kept = below if at is None else f"{'≥ ' * frontier.beyond}{sweep_value(at.sweep_value)}"
    return [
        *(frontier.task, frontier.arm, level_name(frontier.level), largest_kept),
        *(
            _no_end(frontier) if end is None else f"{'≥ ' * (end == largest)}{sweep_value(end)}"
            for end in (frontier.low, frontier.high)
        ),
        percent(frontier.coverage),
        NONE if at is None else f"{at.collapsed} of {at.finished_runs}",
        NONE if at is None else interval(*at.chance, lambda share: number(100 * share, 0)),
        NONE if at is None else f"{at.learned} of {at.finished_runs}",
        NONE if at is None else percent(at.accuracy.value),
        NONE if best is None else sweep_value(best.sweep_value),
        NONE if best is None else percent(best.accuracy.value),
    ]


def _no_end(frontier: Frontier) -> str:
    """Text for an end that is not a sweep value; – where no seed gives an interval."""
    return NONE if math.isnan(frontier.coverage) else "below the grid"


# Figure

SHADE = {LEARNS: "#ffffff", STALLS: "#f0f0f0", DRIFTS: "#dcdcdc", COLLAPSES: "#bdbdbd"}
"""Background of a cell by its most frequent outcome; the greys can be told apart."""
MARKS: dict[str, dict[str, Any]] = {
    LEARNS: {"marker": "o", "color": "#0173b2", "markerfacecolor": "#0173b2"},
    STALLS: {"marker": "_", "color": "#333333"},
    DRIFTS: {"marker": "v", "color": "#333333", "markerfacecolor": "white"},
    COLLAPSES: {"marker": "x", "color": "#7a0b0b"},
}


def draw_map(experiment: Experiment, grid: Sequence[SweepCell], sheet: Sheet) -> Drawing | None:
    """One panel per task and arm that was run; None where the experiment is not a map."""
    axes = axes_of(experiment.sweep_values)
    if axes is None or not grid:
        return None
    arms = arms_with_results(grid)
    if not arms:
        return None
    panels = [(task, arm) for task in experiment.tasks for arm in arms]
    across = min(sheet.across, len(arms))
    down = math.ceil(len(panels) / across)
    figure = new_figure(sheet.width, down * (0.42 * len(axes.levels) + 0.75) + 0.3)
    edges = find_frontiers(axes, grid)
    for index, (task, arm) in enumerate(panels):
        panel = figure.add_subplot(down, across, index + 1)
        panel_cells = [cell for cell in grid if (cell.task, cell.arm) == (task, arm)]
        _panel(
            panel,
            panel_cells,
            [frontier for frontier in edges if (frontier.task, frontier.arm) == (task, arm)],
            axes,
        )
        panel.set_title(arm if len(experiment.tasks) == 1 else f"{arm}, {task}")
        if index % across == 0:
            panel.set_yticks(range(len(axes.levels)), [level_name(level) for level in axes.levels])
            panel.set_ylabel(sweep_values_in_words(axes.others))
        if index >= len(panels) - across:
            panel.set_xlabel(sweep_values_in_words([axes.key]))
    handles: list[Any] = [
        Line2D([], [], linestyle="", markersize=4.5, markeredgewidth=1.2, **MARKS[name]) for name in MARKS
    ]
    handles.append(Line2D([], [], color="black", linewidth=2))
    legend_above(figure, handles, [*MARKS, "frontier"])
    seeds = counted([len(cell.outcomes) for cell in grid if cell.finished_runs], "seed")
    splits = {task: headline_of(experiment, task).split for task in experiment.tasks}
    caption = (
        f"Every run over the grid of sweep values: a mark per seed ({seeds} per cell), and the mean accuracy "
        f"in % ({_split(experiment)}; {problems_in_words(experiment, splits)}), without intervals. Learns or "
        "drifts: ends above or below its base by more than two standard errors, paired by problem. Stalls: "
        "neither. Collapses: without recovery, or by diverging. The frontier is drawn after the largest "
        "sweep value up to which at most a third of the seeds collapse. The background shows the most "
        "frequent outcome."
    )
    return Drawing("map", "Where each arm learns, stalls, drifts and collapses", caption, figure)


def _split(experiment: Experiment) -> str:
    headlines = {headline_of(experiment, task) for task in experiment.tasks}
    return ", ".join(sorted(f"{headline.split} split, {headline.mode}" for headline in headlines))


def _panel(panel: Axes, cells: Sequence[SweepCell], edges: Sequence[Frontier], grid: SweepAxes) -> None:
    """The cells of an arm, and its frontier."""
    for cell in cells:
        x, y = grid.sweep_values.index(cell.sweep_value), grid.levels.index(cell.level)
        drawn_outcomes = [outcome for outcome in cell.outcomes if outcome in MARKS]
        if drawn_outcomes:
            most = max(MARKS, key=lambda name: (drawn_outcomes.count(name), list(MARKS).index(name)))
            panel.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=SHADE[most], edgecolor="none"))
        step = min(0.26, 0.84 / max(1, len(drawn_outcomes)))
        for index, outcome in enumerate(drawn_outcomes):
            at = x + step * (index - (len(drawn_outcomes) - 1) / 2)
            panel.plot(at, y + 0.18, linestyle="", markersize=4, markeredgewidth=1.1, **MARKS[outcome])
        text = number(100 * cell.accuracy.value, 0)
        panel.text(x, y - 0.22, text, ha="center", va="center", fontsize=NOTE_SIZE)
    for edge in edges:
        y = grid.levels.index(edge.level)
        behind = grid.sweep_values.index(edge.at.sweep_value) + 0.5 if edge.at is not None else -0.5
        ends = [y - 0.5, y + 0.5]
        panel.plot([behind] * 2, ends, color="black", linewidth=2, solid_capstyle="butt", clip_on=False)
    panel.set_xlim(-0.5, len(grid.sweep_values) - 0.5)
    panel.set_ylim(-0.5, len(grid.levels) - 0.5)
    panel.set_xticks(
        range(len(grid.sweep_values)), [sweep_value(column_value) for column_value in grid.sweep_values]
    )
    panel.set_yticks(range(len(grid.levels)), [""] * len(grid.levels))
    panel.tick_params(length=0)
    panel.grid(False)
    for spine in panel.spines.values():
        spine.set_visible(True)
        spine.set_color(BASE_COLOR)
