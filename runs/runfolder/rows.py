"""The last rows of a run's metrics.jsonl, which another process may be writing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpobench.tasks.data import bounded

END = 128 * 1024
"""Bytes at the end of metrics.jsonl that are read: about thirty rows."""


def last_rows(path: Path) -> list[dict[str, Any]]:
    """The last rows of a log that another process may be writing; incomplete rows are left out."""
    try:
        with bounded.open_file(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - END))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    complete_lines = lines[
        1 if size > END else 0 : -1
    ]  # The first line may be cut, and the last one may be incomplete.
    rows = []
    for text in complete_lines:
        with contextlib.suppress(ValueError):  # a damaged line, which the report names
            row = bounded.parse_json(text)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
    return rows


def token_rate(rows: Sequence[Mapping[str, Any]]) -> float:
    """Tokens per second of the last step; NaN if unknown."""
    if len(rows) < 2:
        return math.nan
    before, last = (number_in(row, "cost/generated_tokens", 0.0) for row in rows[-2:])
    seconds = number_in(rows[-1], "time/step")
    return (last - before) / seconds if seconds else math.nan


def number_in(row: Mapping[str, Any], name: str, otherwise: float = math.nan) -> float:
    number = row.get(name)
    return float(number) if isinstance(number, (int, float)) else otherwise
