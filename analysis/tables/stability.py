"""Tables of stability: how each arm's runs fared, and which arm's last longer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

import pandas as pd

from grpobench.analysis.detect.registry import Findings
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.stability import outlasting, sentence, stability
from grpobench.analysis.tables.table import Table
from grpobench.analysis.tools.text import NONE, number, p_value, percent, points

NOTE = (
    "A collapse is a fall of validation accuracy or of the training reward that the run did not recover "
    "from, an event that its recipe stopped it for, or a divergence; docs/stability.md has every rule. At: "
    "median step at which they began. Surviving: Kaplan–Meier share at the end of training, runs without one "
    "censored at their last step. Spikes: gradient norms beyond the bound of the start, per 100 "
    "updates. Drawdown: best minus last validation accuracy in points, and spread: standard deviation of the "
    "final accuracies over seeds in points. Late slope: points of validation accuracy per 100 updates over "
    "the last third of the evaluations. What the machinery did is told apart and counts for no algorithm."
)


def stability_table(matrix: Matrix, findings: Mapping[str, Findings], runs: pd.DataFrame) -> Table:
    """A row per task and arm."""
    frame = stability(matrix, findings, runs)
    found = frame.to_dict("records")
    if len(frame):
        frame["sentence"] = [sentence(row) for row in found]
    rows = [
        [
            row["task"],
            row["arm"],
            f"{row['collapsed']} of {row['runs']}",
            number(row["first"], 0),
            str(row["recovered"]),
            percent(row["surviving"]),
            number(row["spikes"], 1),
            number(100 * row["drawdown"], 1),
            number(100 * row["spread"], 1),
            points(row["late_slope"]),
            "; ".join(filter(None, [row["events"], row["infrastructure"] and machinery(row)])) or NONE,
            sentence(row),
        ]
        for row in found
    ]
    header = ["task", "arm", "collapsed", "at", "recovered", "surviving (%)", "spikes", "drawdown"]
    header += ["spread", "late slope", "events", "in words"]
    title, said = "How steadily each arm trained", "The same in words"
    return Table("stability", title, header, rows, frame, wide=2, note=NOTE, said=said)


def machinery(row: Mapping[str, object]) -> str:
    """What is told apart."""
    return f"the machinery: {row['infrastructure']}"


def survival_table(matrix: Matrix, findings: Mapping[str, Findings]) -> Table:
    """A row per pair of arms, on tasks on which a run collapsed."""
    pairs = outlasting(matrix, findings)
    frame = pd.DataFrame([asdict(pair) for pair in pairs])
    rows = [
        [
            pair.task,
            f"{pair.first}, {pair.second}",
            f"{pair.collapsed[0]} of {pair.runs[0]}",
            f"{pair.collapsed[1]} of {pair.runs[1]}",
            NONE if math.isnan(pair.p) else p_value(pair.p),
            p_value(pair.p_holm),
        ]
        for pair in pairs
    ]
    note = (
        "Log-rank test of the steps at which runs collapsed, two-sided, by permutation of all runs over the "
        "two arms: exact for few runs, which the asymptotic test is not. Holm: corrected for the pairs of "
        "the task."
    )
    header = ["task", "arms", "collapsed, first", "collapsed, second", "p", "p (Holm)"]
    return Table("survival", "Which arm's runs last longer", header, rows, frame, note=note)
