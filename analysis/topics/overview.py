"""All arms on all tasks in one table: final accuracy, gain, its verdict, and which arms are told apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.comparison import Comparison
from grpobench.analysis.statistics.marks import letter_marks
from grpobench.analysis.statistics.verdicts import TURNED, Verdict, no_difference
from grpobench.analysis.tools.text import NONE, interval, percent, points
from grpobench.analysis.topics.accuracy import accuracies

SIGNS: Mapping[Verdict, str] = {"better": ">", "worse": "<", "equivalent": "≈", "unresolved": "?"}
"""Verdict on an arm -> its sign before the arm that it was compared with."""


@dataclass(frozen=True)
class OverviewCell:
    """One arm on one task. Accuracies are means over seeds, as shares."""

    task: str
    arm: str
    base: float
    final: float
    gain: float
    verdict: str
    """The arm after training compared with before; empty where nothing was compared."""
    mark: str
    """Letters, or the verdict against the one arm that all are compared with; empty without comparisons."""
    collapsed: int
    """Runs that collapsed."""
    failed: int
    """Runs that diverged, which count as 0."""
    waiting: int
    """Runs without a result."""

    @property
    def runs_text(self) -> str:
        """What is unusual about the runs: ``2 collapsed, 1 without result``; empty where nothing is."""
        counts = (
            (self.collapsed, "collapsed"),
            (self.failed, "diverged"),
            (self.waiting, "without result"),
        )
        return ", ".join(f"{count} {state_words}" for count, state_words in counts if count)

    @property
    def final_text(self) -> str:
        """The final accuracy in percent."""
        return percent(self.final)

    @property
    def gain_text(self) -> str:
        """The gain in points; empty where it is unknown."""
        return "" if math.isnan(self.gain) else points(self.gain)

    @property
    def text(self) -> str:
        """The cell as printed: ``66.6 (+27.5 better) a``."""
        verdict = SIGNS["equivalent"] if self.verdict == "equivalent" else self.verdict
        gain = " ".join(filter(None, (self.gain_text, verdict)))
        return " ".join(
            filter(None, (self.final_text, f"({gain})" if gain else "", self.mark, self.runs_text))
        )


@dataclass(frozen=True)
class Overview:
    """The cells by (arm, task); a cell without runs is missing."""

    arms: Sequence[str]
    tasks: Sequence[str]
    cells: Mapping[tuple[str, str], OverviewCell]
    against: str
    """The arm with which all others are compared; empty where every pair is, and where none is."""
    margin: float

    @property
    def key(self) -> str:
        """What the marks mean."""
        if self.against:
            return (
                f"> {self.against}: better, < {self.against}: worse, ≈ {self.against}: "
                f"{no_difference(self.margin)}, ? {self.against}: unresolved."
            )
        if any(cell.mark for cell in self.cells.values()):
            return "Arms that share a letter are not told apart on that task; the best has the letter a."
        return ""


def make_overview(
    experiment: Experiment,
    runs: pd.DataFrame,
    against_base: Sequence[Comparison],
    compared: Sequence[Comparison],
) -> Overview:
    """The overview from the rows of `finals`, the comparisons with the base, and those of arms."""
    rows = accuracies(experiment, runs).to_dict("records")
    gains = {(pair.first, pair.task): pair.verdict for pair in against_base}
    against, marks = _marks(experiment, rows, compared)
    cells = {}
    for row in rows:
        key = (row["arm"], row["task"])
        numbers = {name: row[name] for name in ("base", "final", "gain", "collapsed", "failed", "waiting")}
        verdict = gains.get(key, "") if not math.isnan(row["gain"]) else ""
        cells[key] = OverviewCell(
            task=row["task"], arm=row["arm"], verdict=verdict, mark=marks.get(key, ""), **numbers
        )
    return Overview(experiment.arms, experiment.tasks, cells, against, experiment.margin)


def _marks(
    experiment: Experiment, rows: Sequence[Mapping[str, object]], compared: Sequence[Comparison]
) -> tuple[str, dict[tuple[str, str], str]]:
    """The arm with which all are compared (empty if every pair is compared), and a mark by (arm, task)."""
    final = {(str(row["arm"]), str(row["task"])): float(str(row["final"])) for row in rows}
    marks: dict[tuple[str, str], str] = {}
    by_task = {task: [pair for pair in compared if pair.task == task] for task in experiment.tasks}
    shared = set.intersection(*({pair.first, pair.second} for pair in compared)) if compared else set()
    control = experiment.control if experiment.control in shared else ""
    complete = all(
        len(pairs) == len([*combinations({arm for pair in pairs for arm in (pair.first, pair.second)}, 2)])
        for pairs in by_task.values()
    )
    if control or not complete:
        against = control or next((arm for arm in experiment.arms if arm in shared), "")
        for pair in compared if against else ():
            arm, verdict = (
                (pair.second, TURNED.get(pair.verdict, pair.verdict))
                if pair.first == against
                else (pair.first, pair.verdict)
            )
            marks[arm, pair.task] = f"{SIGNS[verdict]} {against}"
        return against, marks
    for task, pairs in by_task.items():
        names = [arm for arm in experiment.arms if any(arm in (pair.first, pair.second) for pair in pairs)]
        ordered = sorted(names, key=lambda arm: -_finite(final.get((arm, task), math.nan)))
        apart = [(pair.first, pair.second) for pair in pairs if pair.verdict in ("better", "worse")]
        letters = letter_marks(ordered, apart)
        known_marks = {
            arm: mark for arm, mark in letters.items() if not math.isnan(final.get((arm, task), math.nan))
        }
        marks |= {(arm, task): mark for arm, mark in known_marks.items()}
    return "", marks


def _finite(value: float) -> float:
    return -1.0 if math.isnan(value) else value


def overview_table(overview: Overview) -> PrintedTable:
    """One row per arm and one column per task."""
    rows = [
        [arm, *(cell.text if (cell := overview.cells.get((arm, task))) else NONE for task in overview.tasks)]
        for arm in overview.arms
    ]
    frame = pd.DataFrame([asdict(cell) for cell in overview.cells.values()])
    note = (
        "Final accuracy in percent, mean over seeds; in brackets the gain over the accuracy before training "
        f"in points and its verdict (≈: {no_difference(overview.margin)}). {overview.key}"
    )
    header = ["arm", *overview.tasks]
    return PrintedTable(
        "overview", "All arms on all tasks", header, rows, frame, 1, len(overview.tasks), note=note
    )


# Differences to one arm


def find_reference(overview: Overview, task: str) -> str:
    """The arm that the others of a task are shown against: the one with which all are compared, else the one
    with the highest mean accuracy; empty where no arm has a result."""
    finals = {
        cell.arm: cell.final
        for cell in overview.cells.values()
        if cell.task == task and not math.isnan(cell.final)
    }
    return overview.against or max(finals, key=lambda arm: finals[arm], default="")


def differences_table(overview: Overview, compared: Sequence[Comparison]) -> PrintedTable:
    """One row per arm and one column per task: the difference to the reference in points, its 95% interval
    and the verdict. No rows where nothing was compared."""
    references = {task: find_reference(overview, task) for task in overview.tasks}
    pairs = {
        (oriented.first, oriented.task): oriented
        for pair in compared
        for oriented in (pair, pair.turned())
        if oriented.second == references[oriented.task]
    }
    mark = "the control" if overview.against else "the best"
    rows = [
        [
            arm,
            *(
                mark if references[task] == arm else describe_difference(pairs.get((arm, task)))
                for task in overview.tasks
            ),
        ]
        for arm in overview.arms
    ]
    keys = ("task", "first", "second", "effect", "low", "high", "verdict")
    frame = pd.DataFrame([{key: asdict(pair)[key] for key in keys} for pair in pairs.values()])
    to = overview.against or "the best arm"
    note = (
        f"Final accuracy minus that of {to} in points, paired by seed, with the 95% t interval in brackets "
        f"and the verdict (≈: {no_difference(overview.margin)}, ?: unresolved). "
    )
    if not overview.against:
        note += (
            "The best arm is chosen by these results, so it may lead by luck, and differences look larger. "
        )
    note += "The intervals ignore all other pairs; the verdicts are corrected for them."
    header = ["arm", *overview.tasks]
    title = f"Differences to {to}"
    return PrintedTable(
        "differences", title, header, rows if pairs else [], frame, 1, len(overview.tasks), note=note
    )


def describe_difference(pair: Comparison | None) -> str:
    """`−2.1 (−3.4 to −0.8) worse`; a dash where the arms were not compared."""
    if pair is None or not pair.seeds:
        return NONE
    sign = pair.verdict if pair.verdict in ("better", "worse") else SIGNS[pair.verdict]
    bounds = interval(pair.low, pair.high, points)
    return f"{points(pair.effect)} ({bounds}) {sign}"
