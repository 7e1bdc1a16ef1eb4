"""The metrics of runs (metrics.jsonl) in columns."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpobench.analysis.runfolder import formats
from grpobench.analysis.runfolder.files import LogError, read_lines

LAST_STEP = 2**53
"""From this step on, floats cannot represent every step."""
PLAIN = frozenset((int, float))
"""The usual types of numbers in a row, which need no further check."""


@dataclass(frozen=True)
class MetricRows:
    """The rows of a run, by rising step. As dictionaries they would need ten times the memory."""

    steps: NDArray[np.int64]
    """(rows,)"""
    lengths: NDArray[np.int64]
    """(rows,): how many metrics each row has."""
    names: tuple[str, ...]
    codes: NDArray[np.int32]
    """(metrics of all rows,): positions in `names`, row after row."""
    values: NDArray[np.float64]
    """(metrics of all rows,)"""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, float]]) -> MetricRows:
        """Rows with their `step`."""
        names = [name for row in rows for name in row if name != "step"]
        code_of = {name: code for code, name in enumerate(dict.fromkeys(names))}
        return cls(
            np.array([int(row["step"]) for row in rows], dtype=np.int64),
            np.array([len(row) - 1 for row in rows], dtype=np.int64),
            tuple(map(sys.intern, code_of)),
            np.fromiter(map(code_of.__getitem__, names), dtype=np.int32, count=len(names)),
            np.array([value for row in rows for name, value in row.items() if name != "step"], np.float64),
        )


NO_ROWS = MetricRows.of([])


def read_metrics(path: Path, expected_sum: str) -> tuple[MetricRows, int, int]:
    """The rows of metrics.jsonl, number of cut lines, number of rewritten rows. A row with a step that was
    logged before replaces that row and all rows after it. Raises LogError for a damaged line."""
    lines, cut = read_lines(path, expected_sum)
    rows: list[dict[str, float]] = []
    rewritten = 0
    for number, row in lines:
        plain = PLAIN.issuperset(map(type, row.values()))
        values = row if plain else {name: number_of(value, path, number, name) for name, value in row.items()}
        if not formats.OLD_METRICS.keys().isdisjoint(values):
            values = formats.renamed(values, formats.OLD_METRICS)
        step = values.get("step", math.nan)
        if not 0 <= step < LAST_STEP or step != int(step):
            logged_step = row.get("step")
            raise LogError(
                f"{path}, line {number}: `step` must be a whole number from 0; found {logged_step!r}"
            )
        while rows and rows[-1]["step"] >= step:
            rows.pop()
            rewritten += 1
        rows.append(values)
    try:
        return MetricRows.of(rows), cut, rewritten
    except OverflowError:
        _demand_finite(path, lines)
        raise


def metrics_frame(of_runs: Sequence[tuple[tuple[str, str, int], MetricRows]]) -> pd.DataFrame:
    """Long: arm, task, seed, step, metric, value. Whole columns are built at once, because a thousand runs
    have millions of rows."""
    all_rows = [rows for _, rows in of_runs]
    names = sorted({name for rows in all_rows for name in rows.names})
    code_of = {name: code for code, name in enumerate(names)}
    counts = [len(rows.codes) for rows in all_rows]

    def repeated(position: int, kind: Any) -> Any:
        return np.repeat(np.array([run[position] for run, _ in of_runs], dtype=kind), counts)

    def joined(arrays: Sequence[NDArray[Any]], kind: Any) -> Any:
        return np.concatenate([np.empty(0, dtype=kind), *arrays])

    codes = [np.array([code_of[name] for name in rows.names], np.int32)[rows.codes] for rows in all_rows]
    return pd.DataFrame(
        {
            "arm": repeated(0, object),
            "task": repeated(1, object),
            "seed": repeated(2, np.int64),
            "step": joined([np.repeat(rows.steps, rows.lengths) for rows in all_rows], np.int64),
            "metric": pd.Categorical.from_codes(joined(codes, np.int32), categories=names),  # compare fast
            "value": joined([rows.values for rows in all_rows], np.float64),
        }
    )


def number_of(value: Any, path: Path, line: int, name: str) -> float:
    """A number of a log as a float; NaN for null. Raises LogError for anything else."""
    if value is None:
        return math.nan
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            raise LogError(f"{path}, line {line}: `{name}` is too large for a number") from None
    raise LogError(f"{path}, line {line}: `{name}` must be a number or null; found {value!r}")


def _demand_finite(path: Path, lines: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Raise LogError for an integer that is too large for a float."""
    for number, row in lines:
        for name, value in row.items():
            if isinstance(value, int) and abs(value) > sys.float_info.max:
                raise LogError(f"{path}, line {number}: `{name}` is too large for a number") from None
