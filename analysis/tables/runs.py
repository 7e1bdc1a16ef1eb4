"""The table of every run, with the state that it ended in."""

from __future__ import annotations

from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.tables.table import Table
from grpobench.analysis.tools.text import NONE


def runs_table(matrix: Matrix) -> Table:
    """A row per run, whatever became of it."""
    frame = matrix.statuses
    rows = [
        [r["arm"], r["task"], str(r["seed"]), r["state"], str(r["step"]), str(r["attempt"]), r["why"] or NONE]
        for r in frame.to_dict("records")
    ]
    header = ["arm", "task", "seed", "state", "step", "attempt", "why"]
    return Table("runs", "Every run", header, rows, frame, text_columns=4, wide=1)
