"""What a source has of one run, before anything is renamed; and what is wrong with the source."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpobench.analysis.tools.text import listed
from grpobench.runs.runfolder.logs import State
from grpobench.tasks.data.tables import DataError

LAST_STEP = 2**53
"""From here on steps are no exact numbers, and no report reads them."""
DEEPEST = 100
"""How deep objects may stand in each other."""


@dataclass(frozen=True)
class Fault:
    """Something in a source that could not be imported; the rest was."""

    path: Path
    line: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.path}{'' if self.line is None else f', line {self.line}'}: {self.what}"


@dataclass
class Log:
    """One run under its writer's names. A reader fills it."""

    path: Path
    """The file or folder that it was read from."""
    format: str
    """The reader: trl, verl, openrlhf, wandb, tensorboard, csv or jsonl."""
    library: str = ""
    """The library that wrote it, where the format or the log tells; else empty."""
    writer: str = ""
    """What wrote it, with its version, where that is known: `trl 1.16.0`."""
    name: str = ""
    """What the log calls the run; empty where it does not."""
    group: str = ""
    identity: str = ""
    """What its writer knows the run by, if anything; files with the same are parts of one run."""
    started: float = 0.0
    """Seconds since 1970 at which this part began; 0 where the log does not tell."""
    seed: int | None = None
    task: str = ""
    planned: int | None = None
    """Updates that the run was to make, where the log tells."""
    state: State = "finished"
    why: str = ""
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    """By step, the numbers of the step by their writer's names; NaN and infinity as they are."""
    settings: dict[str, Any] = field(default_factory=dict)
    rollouts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """By step, rows as a rollouts file has them."""
    answers: list[dict[str, Any]] = field(default_factory=list)
    """Rows as eval.jsonl has them."""
    files: list[Path] = field(default_factory=list)
    """All that was read."""
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader of the report should know, and is no damage."""
    twice: Counter[str] = field(default_factory=Counter)
    """By name, how many numbers of a step were told again with another value."""

    def add(self, step: int, values: Mapping[str, float], where: str = "") -> None:
        """More numbers of a step. A step behind the last one is that of a run which was resumed from a
        checkpoint: what followed it was thrown away there, and is here."""
        last = next(reversed(self.rows), -1)
        if step < last:
            gone = [known for known in self.rows if known >= step]
            for known in gone:
                del self.rows[known]
            after = f" at {where}" if where else ""
            self.notes.append(
                f"the step goes back from {last} to {step}{after}: {len(gone)} rows were written again"
            )
        self.put(step, values)

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step beside those that it has. The last counts where two are told, but NaN replaces
        none."""
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
        """The numbers among some values; what is too large or too deep for one is noted."""
        faulty: list[str] = []
        found = numbers(values, faulty=faulty)
        for what in faulty:
            self.fault(file or self.path, line, f"{what}; it is left out")
        return found

    def repeated(self) -> list[str]:
        """A note on numbers that were told twice, if any were."""
        if not self.twice:
            return []
        each = listed([f"{name} ({count})" for name, count in self.twice.items()], 8)
        what = "numbers stand twice at their step with different values, of which the last counts"
        return [f"{what}: {each}; {self.twice.total()} in all"]

    def go_on(self, later: Log) -> None:
        """Take up a later part of the same run, which counts where both tell something."""
        for step, values in later.rows.items():
            self.add(step, values, str(later.path))
        for name in ("writer", "name", "group", "task", "planned", "seed", "state", "why"):
            if (told := getattr(later, name)) not in ("", None) or name == "why":
                setattr(self, name, told)
        self.settings |= later.settings
        self.rollouts |= later.rollouts
        self.answers += later.answers
        self.files += later.files
        self.faults += later.faults
        self.notes += later.notes
        self.twice += later.twice

    def fault(self, path: Path, line: int | None, what: str) -> None:
        """Note what was left out, and why."""
        self.faults.append(Fault(path, line, what))


def numbers(
    values: Mapping[str, Any], prefix: str = "", faulty: list[str] | None = None, depth: int = 1
) -> dict[str, float]:
    """The numbers among some values by name, nested ones as ``outer/inner``; truths, texts and lists are no
    numbers. What is beyond all numbers, or nested too deep, is left out and said in `faulty`."""
    found: dict[str, float] = {}
    faulty = [] if faulty is None else faulty
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                found[f"{prefix}{name}"] = float(value)
            except OverflowError:
                faulty.append(f"`{prefix}{name}` is beyond all numbers")
        elif isinstance(value, Mapping):
            if depth < DEEPEST:
                found |= numbers(value, f"{prefix}{name}/", faulty, depth + 1)
            else:
                faulty.append(f"`{prefix[:40]}…` is nested more than {DEEPEST} deep")
    return found


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for what is none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def demand(log: Log) -> Log:
    """The log. Raises DataError for one without a row of numbers."""
    if not any(log.rows.values()):
        first = f"; {log.faults[0]}" if log.faults else ""
        raise DataError(f"{log.path}: holds no row of numbers{first}")
    return log


def whole(value: Any) -> int | None:
    """A step as a whole number from 0 and below `LAST_STEP`; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < LAST_STEP and value == int(value) else None
