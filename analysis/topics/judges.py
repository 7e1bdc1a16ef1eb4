"""What a language model that graded the answers of evaluations says of arms, and what it is worth."""

from __future__ import annotations

import math

import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.measure import MODES
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.intervals import seed_mean
from grpobench.analysis.tools.text import NONE, interval, number, percent, points, two
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.guards import ends_of

SCORE = "judge"
WORTH = ("agreement", "unreadable", "cost")
"""Metrics of an evaluation that say what the judge's verdicts are worth, and what they took."""
COLUMNS = ["task", "arm", "mode", "seed", "before", "after", "correct_before", "correct_after", *WORTH]


def judged_runs(experiment: Experiment) -> pd.DataFrame:
    """One row per run and mode whose answers a judge graded: its score and the verifier's before training and
    at the last evaluation, and `WORTH` at the latter; NaN for what was not logged."""
    rows = []
    for task in experiment.tasks:
        split = headline_of(experiment, task).split
        for mode in MODES:
            prefix = f"eval/{split}/{mode}"
            ends = ends_of(experiment, task, f"{prefix}/{SCORE}")
            correct = ends_of(experiment, task, f"{prefix}/correct")
            worth = [ends_of(experiment, task, f"{prefix}/{SCORE}_{name}") for name in WORTH]
            unknown = (math.nan, math.nan)
            for (arm, seed), run in ends.items():
                last = [metric.get((arm, seed), unknown)[1] for metric in worth]
                rows.append((task, arm, mode, seed, *run, *correct.get((arm, seed), unknown), *last))
    return pd.DataFrame(rows, columns=COLUMNS)


def judges_table(experiment: Experiment) -> PrintedTable:
    """One row per task, arm and mode whose answers a judge graded."""
    frame = judged_runs(experiment)
    rows = []
    for (task, arm, mode), runs in frame.groupby(["task", "arm", "mode"], sort=False):
        change = seed_mean([value for value in runs["after"] - runs["before"] if math.isfinite(value)])
        verified = (runs["correct_after"] - runs["correct_before"]).mean()
        agreement, unreadable = runs["agreement"].mean(), runs["unreadable"].mean()
        rows.append(
            [
                *(task, arm, mode, f"{percent(runs['before'].mean())} → {percent(runs['after'].mean())}"),
                f"{points(change.value)} ({interval(change.low, change.high, points)})",
                points(verified),
                NONE if math.isnan(agreement) else two(agreement),
                percent(unreadable),
                NONE if runs["cost"].isna().all() else number(runs["cost"].sum(), 2),
            ]
        )
    header = ["task", "arm", "mode", "judge", "change", "verifier's change"]
    note = (
        "Mean grade of the judge in percent of the full one before training → at the last evaluation, and "
        "its change in points with a 95 % t interval over seeds; then the change of the verifier's accuracy. "
        "Where both go apart, read the answers. Agreement: Krippendorff's alpha of repeated verdicts; 0 says "
        "that the judge draws lots. Unreadable: verdicts in percent that state no grade. Cost: of the last "
        "evaluations of all seeds, in the currency of `prices`."
    )
    return PrintedTable(
        "judge",
        "Grades of a language model",
        [*header, *WORTH],
        rows,
        frame,
        text_columns=3,
        note=note,
    )
