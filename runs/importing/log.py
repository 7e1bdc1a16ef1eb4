"""What a source has of one run, before anything is renamed; and what is wrong with the source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpobench.runs.record.status import State


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

    place: Path
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
        self.rows.setdefault(step, {}).update(values)

    def go_on(self, later: Log) -> None:
        """Take up a later part of the same run, which counts where both tell something."""
        for step, values in later.rows.items():
            self.add(step, values, str(later.place))
        for name in ("writer", "name", "group", "task", "planned", "seed", "state", "why"):
            if (told := getattr(later, name)) not in ("", None) or name == "why":
                setattr(self, name, told)
        self.settings |= later.settings
        self.rollouts |= later.rollouts
        self.answers += later.answers
        self.files += later.files
        self.faults += later.faults
        self.notes += later.notes

    def fault(self, path: Path, line: int | None, what: str) -> None:
        """Note what was left out, and why."""
        self.faults.append(Fault(path, line, what))


def numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers among some values by name, nested ones as ``outer/inner``; truths, texts and lists are no
    numbers."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{prefix}{name}"] = float(value)
        elif isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}/")
    return found


def whole(value: Any) -> int | None:
    """A step as a whole number from 0; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) and value >= 0 and value == int(value) else None
