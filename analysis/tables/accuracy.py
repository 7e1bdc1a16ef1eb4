"""Tables of final accuracies, and of the states of the runs that they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from grpobench.analysis.detect.registry import Findings
from grpobench.analysis.logs.frames import by_cell
from grpobench.analysis.logs.matrix import COLLAPSED, FINISHED, Matrix
from grpobench.analysis.summary.accuracy import accuracies, finals
from grpobench.analysis.summary.headline import decoding
from grpobench.analysis.tables.table import Table
from grpobench.analysis.tools.text import MOST_SEEDS, NONE, each_seed, interval, percent, points


def accuracy_table(matrix: Matrix, runs: pd.DataFrame, name: str, title: str, note: str = "") -> Table:
    """Accuracy before and after training, a row per task and arm. `note` stands for the usual one."""
    frame = accuracies(matrix, runs)
    rows, cell = [], by_cell(runs)
    for row in frame.to_dict("records"):
        own = cell(row["arm"], row["task"]).sort_values("seed")
        rows.append(
            [
                row["task"],
                row["arm"],
                percent(row["base"]),
                percent(row["final"]),
                points(row["gain"]),
                interval(row["low"], row["high"]),
                _seeds_text(own),
                percent(row["validation_best"]),
                percent(row["validation_last"]),
            ]
        )
    header = ["task", "arm", "before", "after", "gain", "95% interval", "each seed", "val. best", "val. last"]
    where = " and ".join(
        dict.fromkeys(f"{r['split']} split, {decoding(matrix, r['mode'])}" for r in frame.to_dict("records"))
    )
    if not note:
        note = (
            f"Accuracy in percent ({where}), mean over seeds; interval: t over seeds, none for one seed. A "
            "run that diverged counts as 0, one that collapsed with the accuracy that it ended with. One "
            "that crashed, which says nothing about the algorithm, one "
            "still to come and one without data are left out and keep their comparisons unresolved. "
            "Validation best is the best evaluation during "
            "training, optimistic for that."
        )
    seeds = runs.drop(columns=["split", "mode"])
    return Table(name, title, header, rows, frame.merge(_wide_seeds(seeds), on=["task", "arm"]), note=note)


def _wide_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """One column per seed with its counted accuracy."""
    table = runs.pivot(index=["task", "arm"], columns="seed", values="counted")
    table.columns = [f"seed_{seed}" for seed in table.columns]
    return table.reset_index()


def _seeds_text(own: pd.DataFrame) -> str:
    """The final accuracy of every seed; of many the range, and how many stand how."""
    if len(own) <= MOST_SEEDS:
        return "  ".join(_seed_text(run) for run in own.to_dict("records"))
    standing = own["standing"].value_counts()
    return f"{each_seed(list(own['counted']))} ({', '.join(f'{n} {how}' for how, n in standing.items())})"


def _seed_text(run: Mapping[str, Any]) -> str:
    if run["standing"] == FINISHED:
        return percent(run["final"])
    if run["standing"] == COLLAPSED:
        return f"{percent(run['final'])} (collapsed at {run['collapsed_at']:g})"
    value = NONE if math.isnan(run["counted"]) else percent(run["counted"])
    return f"{value} ({run['standing']})"


def other_mode_tables(
    matrix: Matrix, runs: pd.DataFrame, findings: Mapping[str, Findings] | None = None
) -> list[Table]:
    """The same table for the decoding that the headline does not use."""
    other = "sampled" if (runs["mode"] == "greedy").any() else "greedy"
    if not any(matrix.has(f"eval/{split}/{other}/correct") for split in ("test", "validation")):
        return []
    alternative = finals(matrix, other, findings)
    title = f"Final accuracy, {decoding(matrix, other)}"
    note = "As above; comparisons use the table above only."
    return [accuracy_table(matrix, alternative, f"accuracy_{other}", title, note)]
