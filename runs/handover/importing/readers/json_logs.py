"""JSON lines that a library's own logger writes: verl's file logger, prime-rl's metrics.jsonl and ms-swift's
logging.jsonl."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpobench.runs.handover.importing.log import Log, as_step, head, parsed
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

BEGINNINGS = {
    "verl": re.compile(rb'\s*\{\s*"step"\s*:\s*\d+\s*,\s*"data"\s*:\s*\{'),
    "prime-rl": re.compile(rb'\s*\{\s*"step"\s*:\s*\d+(?:\.0)?\s*,\s*"time"\s*:\s*\d'),
    "ms-swift": re.compile(rb'[^\n]*"(?:global_step/max_steps|iteration)"\s*:\s*"\d+/\d+"'),
}
"""Library -> what the first line begins with."""
RUN_FILES = {"metrics.jsonl": "prime-rl", "logging.jsonl": "ms-swift"}
"""File in a run's folder -> the library that writes it. What else the folder has belongs to that run."""
SWIFT_STEPS = ("global_step/max_steps", "iteration")
SWIFT_PACE = "train_speed(s/it)"
"""The mean since the start, in every row, so that rows of a step differ."""
OF_PACKING = "time/pack"
"""Only prime-rl's orchestrator logs it."""
OF_BOTH = ("time/step", "time/save_ckpt")
"""Both it and the trainer log these."""


def library_of(file: Path) -> str:
    """The library that wrote a file; empty for any other file."""
    first = head(file)
    return next((library for library, beginning in BEGINNINGS.items() if beginning.match(first)), "")


def is_of_run(file: Path) -> bool:
    """Whether a file is the log that a library puts into the folder of its run."""
    return file.name in RUN_FILES and library_of(file) == RUN_FILES[file.name]


def read(file: Path, library: str) -> Log:
    """The run of a file. Raises DataError if no line has a step."""
    log = Log(file, library, library=library, files=[file])
    for number, line in enumerate(bounded.utf8_lines(file), start=1):
        if not line.strip():
            continue
        try:
            row = parsed(line)
        except ValueError as error:
            log.fault(file, number, f"not JSON ({error}); the line is left out")
            continue
        if isinstance(row, Mapping) and "log_history" in row:  # ms-swift's last line, which sums the run up
            continue
        step, values = step_and_values(row, log) if isinstance(row, Mapping) else (None, None)
        if step is None or not isinstance(values, Mapping):
            log.fault(file, number, f"no step with numbers as {library} writes them; the line is left out")
            continue
        log.add(step, apart(log.numbers(values, number)), f"line {number}")
    if not log.rows:
        raise DataError(f"{file}: no line has a step as {library} writes it")
    if log.planned and max(log.rows) < log.planned:
        log.state, log.why = "preempted", f"the log ends at step {max(log.rows)} of {log.planned}"
    return log


def step_and_values(row: Mapping[str, Any], log: Log) -> tuple[int | None, Any]:
    """The step of a line and what it logs."""
    if log.library == "verl":
        return as_step(row.get("step")), row.get("data")
    if log.library == "prime-rl":
        return as_step(row.get("step")), {name: row[name] for name in row if name not in ("step", "time")}
    done, _, planned = next((str(row[name]) for name in SWIFT_STEPS if name in row), "").partition("/")
    log.planned = as_step(int(planned)) if planned.isdigit() else log.planned
    numbered = {name: row[name] for name in row if name != SWIFT_PACE}
    return as_step(int(done)) if done.isdigit() else None, numbered


def apart(values: dict[str, float]) -> dict[str, float]:
    """Numbers of prime-rl under names that its two processes do not share; all others unchanged."""
    if OF_PACKING not in values:
        return values
    return {f"orchestrator/{name}" if name in OF_BOTH else name: value for name, value in values.items()}
