"""Tables of arms against each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.statistics.comparison import ALPHA, Comparison
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.power import POWER
from grpobench.analysis.summary.comparisons import aggregate_tasks
from grpobench.analysis.tables.table import Table
from grpobench.analysis.tools.text import NONE, interval, number, p_value, percent, points, two

INTERVALS = (
    "it takes the differences as normal and its pair as the only one. The test does neither, and below the "
    "seeds needed it can never reject, so an interval may leave 0 out beside an unresolved difference."
)
"""Why an interval and a verdict may disagree, said wherever both are shown."""


def comparisons_table(compared: Sequence[Comparison]) -> Table:
    """Every pair of arms on every task: the difference and what the test says."""
    rows = [
        [
            pair.task,
            f"{pair.first} − {pair.second}",
            points(pair.effect),
            interval(pair.low, pair.high, points),
            p_value(pair.p),
            p_value(pair.p_holm),
            _detectable(pair),
            number(pair.improvement, 2),
            pair.text,
            pair.needs,
        ]
        for pair in compared
    ]
    header = [
        "task",
        "pair",
        "difference",
        "95% interval",
        "p",
        "Holm p",
        "MDE",
        "P(1st wins)",
        "verdict",
        "why",
    ]
    note = (
        "Differences in points of final accuracy, taken inside each seed. p: exact two-sided sign-flip "
        "permutation test over n seeds, whose smallest value is 2/2ⁿ (.25 for three seeds); Holm over the "
        f"pairs of a task. Interval: t over seeds; {INTERVALS} MDE: smallest effect that these seeds find "
        f"in {POWER:.0%} of repetitions, for this very test at the smallest level that Holm asks "
        f"of a pair, {ALPHA:.0%} over the pairs of the task{_levels(compared)}, simulated for normal "
        "differences with the SD observed; in brackets, at the ends of that SD's 95% interval, which few "
        "seeds leave wide. None: so few seeds find no effect, however large. P(1st wins): share of "
        "pairs of runs in which the first arm's is better, ties ½."
    )
    frame = pd.DataFrame([asdict(pair) | {"text": pair.text} for pair in compared])
    return Table("comparisons", "Head to head", header, rows, frame, wide=2, note=note)


def _detectable(pair: Comparison) -> str:
    """The smallest effect that can be found, in points, and how well it is known."""
    if len(pair.seeds) < seeds_needed(ALPHA, pair.pairs):
        return "none"
    if math.isnan(pair.detectable):
        return NONE
    low, high = (number(100 * value, 1) for value in (pair.detectable_low, pair.detectable_high))
    return f"{number(100 * pair.detectable, 1)} ({low} to {high})"


def _levels(compared: Sequence[Comparison]) -> str:
    """The levels of a single pair: (.0083 for 6 pairs)."""
    counts = sorted({pair.pairs for pair in compared})
    told = [f"{ALPHA / n:.2g} for {n} pair{'s' * (n > 1)}" for n in counts]
    return f" ({', '.join(told)})" if told else ""


def aggregate_tables(matrix: Matrix, runs: pd.DataFrame) -> list[Table]:
    """Interquartile means and the probability of improvement over all tasks; none for one task or one arm."""
    if len(matrix.tasks) < 2 or len(matrix.arms) < 2:
        return []
    result = aggregate_tasks(matrix, runs)
    most = max(Counter(zip(runs["arm"], runs["task"], strict=True)).values())
    note = (
        "Interquartile mean over all runs × tasks with a stratified bootstrap interval: seeds are "
        "resampled inside a task, bootstrap seed 0."
    )
    note += (lacking := _lacking(matrix, runs))
    if most < 5:
        note += f" With {most} seeds a task has only {most**most} different resamples: a rough interval."
    first = Table(
        "aggregate",
        "All tasks together",
        ["arm", "interquartile mean (%)", "95% interval"],
        [[arm, percent(e.value), interval(e.low, e.high)] for arm, e in result.interquartile.items()],
        pd.DataFrame([{"arm": arm} | asdict(e) for arm, e in result.interquartile.items()]),
        text_columns=1,
        note=note,
    )
    rows = [
        [f"{a} over {b}", number(e.value, 2), interval(e.low, e.high, two)] for a, b, e in result.improvement
    ]
    frame = pd.DataFrame([{"first": a, "second": b} | asdict(e) for a, b, e in result.improvement])
    header = ["pair", "probability of improvement", "95% interval"]
    meaning = (
        "Probability that a run of the first arm is better than a run of the second, mean over tasks, "
        "ties ½; bootstrap interval. It says how often, not how much, and is no verdict."
    )
    meaning += lacking
    title = "Probability of improvement"
    return [first, Table("improvement", title, header, rows, frame, text_columns=1, note=meaning)]


def _lacking(matrix: Matrix, runs: pd.DataFrame) -> str:
    """What is left out of means over all tasks, in sentences; empty where nothing is."""
    counted = runs.dropna(subset=["counted"])
    there = set(zip(counted["task"], counted["arm"], strict=True))
    tasks = [task for task in matrix.tasks if any((task, arm) not in there for arm in matrix.arms)]
    late, told = len(runs) - len(counted), ""
    if late:
        told += f" Left out: {late} run{'s' * (late > 1)} without a result."
    if tasks:
        told += f" Left out whole, for want of a result of some arm: {', '.join(tasks)}."
    return told
