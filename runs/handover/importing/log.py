"""The log of one run under its original names, and what is wrong with its source."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from grpobench.analysis.tools.text import listed
from grpobench.runs.runfolder.logs import State
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

LAST_STEP = 2**53
"""Larger steps are not exact numbers, and no report reads them."""
HEAD = 2**20
"""Bytes of a file that are read to recognize its format."""
DEEPEST = 100
"""Maximum nesting of objects."""


@dataclass(frozen=True)
class ImportFault:
    """Something in a source that could not be imported."""

    path: Path
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.path}{'' if self.line is None else f', line {self.line}'}: {self.message}"


@dataclass
class Log:
    """One run under its original metric names. A reader fills it."""

    path: Path
    """The file or folder that it was read from."""
    format: str
    """The reader: a library whose own log it is, or wandb, tensorboard, csv or jsonl."""
    library: str = ""
    """The library that wrote it, if format or log say so; else empty."""
    writer: str = ""
    """The writing program with its version, if known: `trl 1.16.0`."""
    name: str = ""
    """The run's name in the log; empty if it has none."""
    group: str = ""
    identity: str = ""
    """The id of the run, if it has one; files with the same id are parts of one run."""
    started: float = 0.0
    """Seconds since 1970 at which this part began; 0 if the log does not say."""
    seed: int | None = None
    task: str = ""
    planned: int | None = None
    """Planned updates, if the log says."""
    state: State = "finished"
    why: str = ""
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    """By step, the numbers under their original names; NaN and infinity stay."""
    settings: dict[str, Any] = field(default_factory=dict)
    rollouts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """By step, rows as in a rollouts file."""
    answers: list[dict[str, Any]] = field(default_factory=list)
    """Rows as in eval.jsonl."""
    files: list[Path] = field(default_factory=list)
    """All files that were read."""
    faults: list[ImportFault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes for the reader of the report that are not damage."""
    mapped: dict[str, str] = field(default_factory=dict)
    """Our names by theirs, where the source is known to have them; --map counts before."""
    twice: Counter[str] = field(default_factory=Counter)
    """By name, how many numbers of a step were logged again with another value."""

    def add(self, step: int, values: Mapping[str, float], where: str = "") -> None:
        """Add numbers of a step. If the step goes back and a number is one that it or a later step has, the
        run was resumed from a checkpoint; the rows from that step on were discarded there and are discarded
        here. Otherwise another process of the run, such as its evaluation, was late."""
        last = next(reversed(self.rows), -1)
        again = list(takewhile(lambda logged_step: logged_step >= step, reversed(self.rows)))
        if step < last and any(not values.keys().isdisjoint(self.rows[logged_step]) for logged_step in again):
            for logged_step in again:
                del self.rows[logged_step]
            after = f" at {where}" if where else ""
            self.notes.append(
                f"the step goes back from {last} to {step}{after}: {len(again)} rows are replaced"
            )
        late = step < next(reversed(self.rows), -1) and step not in self.rows
        self.put(step, values)
        if late:
            self.rows = dict(sorted(self.rows.items()))

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Add numbers to a step. If a number is logged twice the last one counts, but NaN replaces none."""
        row = self.rows.setdefault(step, {})
        for name, value in values.items():
            before = row.get(name, math.nan)
            if math.isnan(value) and name in row:
                continue
            if not math.isnan(before) and before != value:
                self.twice[name] += 1
            row[name] = value

    def numbers(
        self, values: Mapping[str, Any], line: int | None = None, file: Path | None = None
    ) -> dict[str, float]:
        """The numbers among some values; a note is added for those that are too large or nested too deep."""
        faulty: list[str] = []
        number_by_name = numbers(values, faulty=faulty)
        for message in faulty:
            self.fault(file or self.path, line, f"{message}; it is left out")
        return number_by_name

    def repeated(self) -> list[str]:
        """Add a note on numbers that were logged twice, if any were."""
        if not self.twice:
            return []
        each = listed([f"{name} ({count})" for name, count in self.twice.items()], 8)
        warning = "numbers were logged twice for their step with different values; the last one counts"
        return [f"{warning}: {each}; {self.twice.total()} in all"]

    def go_on(self, later: Log) -> None:
        """Append a later part of the same run, which wins if both have a number."""
        for step, values in later.rows.items():
            self.add(step, values, str(later.path))
        for name in ("writer", "name", "group", "task", "planned", "seed", "state", "why"):
            if (later_value := getattr(later, name)) not in ("", None) or name == "why":
                setattr(self, name, later_value)
        self.settings |= later.settings
        self.rollouts |= later.rollouts
        self.answers += later.answers
        self.files += later.files
        self.faults += later.faults
        self.notes += later.notes
        self.twice += later.twice

    def fault(self, path: Path, line: int | None, message: str) -> None:
        """Note what was left out, and why."""
        self.faults.append(ImportFault(path, line, message))


def numbers(
    values: Mapping[str, Any], prefix: str = "", faulty: list[str] | None = None, depth: int = 1
) -> dict[str, float]:
    """The numbers among some values by name, nested ones as ``outer/inner``; booleans, texts and lists are
    not numbers. Numbers that are too large, or nested too deep, are left out and listed in `faulty`."""
    number_by_name: dict[str, float] = {}
    faulty = [] if faulty is None else faulty
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number_by_name[f"{prefix}{name}"] = float(value)
            except OverflowError:
                faulty.append(f"`{prefix}{name}` is too large for a number")
        elif isinstance(value, Mapping):
            if depth < DEEPEST:
                number_by_name |= numbers(value, f"{prefix}{name}/", faulty, depth + 1)
            else:
                faulty.append(f"`{prefix[:40]}…` is nested more than {DEEPEST} levels deep")
    return number_by_name


def head(file: Path) -> bytes:
    """The first `HEAD` bytes of a file, in UTF-8 without a byte-order mark."""
    return bounded.as_utf8(bounded.head(file, HEAD))


def text_of(file: Path) -> str:
    """The text of a file, with every line end as a newline; bytes that are no text become U+FFFD."""
    return bounded.read_text(file, bounded.max_bytes(), "replace")


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError if it is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def demand(log: Log) -> Log:
    """Return the log. Raises DataError if it has no row of numbers."""
    if not any(log.rows.values()):
        first = f"; {log.faults[0]}" if log.faults else ""
        raise DataError(f"{log.path}: no row has a number{first}")
    return log


def as_step(value: Any) -> int | None:
    """A step as an integer from 0 and below `LAST_STEP`; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < LAST_STEP and value == int(value) else None
