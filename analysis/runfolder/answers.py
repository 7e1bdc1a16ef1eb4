"""The evaluated answers of runs (eval.jsonl) in columns."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpobench.analysis.runfolder.files import LogError, read_lines
from grpobench.analysis.runfolder.metric_rows import LAST_STEP, PLAIN, number_of

Answers: TypeAlias = Mapping[str, NDArray[Any]]
"""The answers of a run by column, all of the same length; empty without answers."""
IDENTITY = ("step", "split", "mode", "problem", "sample")
NEEDED = frozenset((*IDENTITY, "scores"))
identity = itemgetter(*IDENTITY)


def read_answers(path: Path, expected_sum: str) -> tuple[Answers, int, int]:
    """The answers of eval.jsonl, number of cut lines, number of rewritten rows. An answer that was logged
    before replaces the earlier one. Raises LogError for a damaged line."""
    lines, cut = read_lines(path, expected_sum)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, row in lines:
        if not row.keys() >= NEEDED or not isinstance(row["scores"], dict):
            absent = [key for key in (*IDENTITY, "scores") if key not in row]
            problem = f"no `{absent[0]}`" if absent else "`scores` must be an object"
            raise LogError(f"{path}, line {number}: {problem}; mend or delete the line")
        _demand_identity(row, path, number)
        for name, score in row["scores"].items():
            if name == "correct" or type(score) not in PLAIN:
                _demand_score(number_of(score, path, number, f"scores.{name}"), path, number, name)
        rows[identity(row)] = row
    return _columns([*rows.values()]), cut, len(lines) - len(rows)


def answers_frame(of_runs: Sequence[tuple[tuple[str, str, int], Answers]]) -> pd.DataFrame:
    """One row per answer: arm, task and seed, then the columns of all runs; NaN where a run lacks one."""
    counts = [len(next(iter(answers.values()), ())) for _, answers in of_runs]
    if not sum(counts):
        return pd.DataFrame(columns=["arm", "task", "seed", *IDENTITY])
    columns: dict[str, Any] = {
        name: np.repeat(np.array([run[position] for run, _ in of_runs], dtype=kind), counts)
        for position, (name, kind) in enumerate((("arm", object), ("task", object), ("seed", np.int64)))
    }
    names = dict.fromkeys(name for _, answers in of_runs for name in answers)
    for name in sorted(names, key=_group):
        parts = [
            answers.get(name, np.full(count, math.nan))
            for count, (_, answers) in zip(counts, of_runs, strict=True)
            if count
        ]
        columns[name] = _joined(parts)
    return pd.DataFrame(columns)


def _demand_identity(row: Mapping[str, Any], path: Path, line: int) -> None:
    """The step must be a whole number, and no part of an answer's identity a list or an object."""
    step = row["step"]
    if type(step) not in PLAIN or not 0 <= step < LAST_STEP or step != int(step):
        raise LogError(
            f"{path}, line {line}: `step` must be a whole number from 0; found {step!r}; mend or delete the "
            "line"
        )
    for name in IDENTITY:
        if isinstance(row[name], list | dict):
            raise LogError(f"{path}, line {line}: `{name}` must be text or a number; mend or delete the line")


def _demand_score(score: float, path: Path, line: int, name: str) -> None:
    """`correct` must be a share; other scores may have any value. NaN, an ungraded answer, is allowed."""
    if name == "correct" and (score < 0 or score > 1):
        raise LogError(
            f"{path}, line {line}: the score `correct` must be from 0 to 1; found {score:g}; mend the task's "
            "verifier and evaluate again"
        )


def _columns(rows: Sequence[Mapping[str, Any]]) -> Answers:
    """Rows in columns, which need a fraction of the memory: a report has millions of rows. Scores are
    `score/NAME`, traits `trait/NAME`."""
    parts: tuple[tuple[str, list[Mapping[str, Any]]], ...] = (
        ("", [*rows]),
        ("score/", [row["scores"] for row in rows]),
        ("trait/", [row.get("traits") or {} for row in rows]),
    )
    columns: dict[str, NDArray[Any]] = {}
    for prefix, tables in parts:
        kinds = dict.fromkeys(map(tuple, tables))  # many rows share few sets of keys
        for name in dict.fromkeys(name for kind in kinds for name in kind):
            if prefix or name not in ("scores", "traits"):
                columns[f"{prefix}{name}"] = _column([table.get(name, math.nan) for table in tables])
    return columns


def _column(values: Sequence[Any]) -> NDArray[Any]:
    """Numbers of one type as numbers, all else as objects; equal texts are one object."""
    kinds = {*map(type, values)}
    if kinds <= {float} or kinds <= {bool}:
        return np.array(values)
    if kinds <= {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            pass
    column = np.empty(len(values), dtype=object)
    column[:] = [sys.intern(value) if type(value) is str else value for value in values]
    return column


def _joined(parts: Sequence[NDArray[Any]]) -> Any:
    """Columns of several runs as one: numbers as numbers, texts as objects, and for all else the type that
    pandas infers from the values."""
    kinds = {part.dtype.kind for part in parts}
    if kinds <= {"i", "f"} or kinds == {"b"}:
        return np.concatenate(parts)
    return pd.Series([value for part in parts for value in part.tolist()])


def _group(name: str) -> int:
    """Scores come after what every answer has, and traits last."""
    return 1 if name.startswith("score/") else 2 if name.startswith("trait/") else 0
