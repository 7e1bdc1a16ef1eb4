"""The verdicts of judges in a file that the runs of an experiment share."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpobench.runs.reward.chat import JudgingError
from grpobench.runs.tools import files, lock
from grpobench.tasks.data import bounded

NAME = "judge.jsonl"
"""The file, in the folder that the runs of an experiment share."""
ROW = {"key": str, "judge": str, "by": str, "reply": str, "cut": bool, "tokens": list, "calls": int}
"""Keys of a row: hash of request and repeat, hash of the judge's settings, who asked first, reply, whether a
limit cut it, tokens of prompt and completion, requests with retries."""
Row = Mapping[str, Any]


class VerdictFile:
    """The rows of a file by key, and those that other processes add. Without a path they are in memory alone.

    Each row is one append under a lock, so that a killed process loses none that it had, and the first of two
    rows with one key counts for every process and every later start. Safe to use from several threads."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        self.calls: Counter[str] = Counter()
        """Requests by judge."""
        self.tokens: Counter[str] = Counter()
        """Tokens by judge."""
        self._offset = 0
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read what was added since. Raises JudgingError for a line that is no row."""
        with self._lock:
            self._read()

    def add(self, row: Row) -> Row:
        """Add a row; returns the one of its key that counts."""
        with self._lock:
            if self.path is None:
                return self._take(row)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with lock.guarded(self.path.with_suffix(".lock")):
                self._read()
                if row["key"] in self.rows:
                    return self.rows[row["key"]]
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
                try:
                    # Behind the last whole line: a process that was killed may have begun another.
                    os.ftruncate(descriptor, self._offset)
                    line = files.line(row)
                    files.append(descriptor, line, durable=False)
                finally:
                    os.close(descriptor)
                self._offset += len(line)
            return self._take(row)

    def _read(self) -> None:
        if self.path is None or files.size(self.path) <= self._offset:
            return
        with bounded.open_file(self.path) as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # another process writes it, or was killed
                self._take(parse_row(line, self.path))
                self._offset += len(line)

    def _take(self, row: Row) -> Row:
        if row["key"] not in self.rows:
            self.rows[row["key"]] = row
            self.calls[row["judge"]] += row["calls"]
            self.tokens[row["judge"]] += sum(row["tokens"])
        return self.rows[row["key"]]


def parse_row(line: bytes, path: Path) -> Row:
    try:
        row = bounded.parse_json(line)
        if {name: type(value) for name, value in row.items()} != ROW:
            raise ValueError
        if [type(count) for count in row["tokens"]] != [int, int]:
            raise ValueError
    except (ValueError, AttributeError):
        shown = line[:80].decode(errors="replace")
        raise JudgingError(f"{path}: {shown!r} is no verdict of a judge; remove the line") from None
    return dict(row)


def recorded_rows(path: Path) -> dict[str, Row]:
    """The verdicts of a file that nobody writes, by key; the first of a key counts."""
    rows: dict[str, Row] = {}
    for line in bounded.lines(path):
        if line.strip():
            row = parse_row(line, path)
            rows.setdefault(row["key"], row)
    return rows
