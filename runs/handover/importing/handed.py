"""Logs of runs that `grpobench hand-over` wrote: arm, task, seed, steps and names of metrics are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from grpobench.runs.handover.importing.log import Log
from grpobench.runs.tools.files import read_json

HAND_OVER = "hand_over"
"""Key of a hand-over's provenance.json."""
RECORD = "provenance.json"
DEEPEST = 4
"""Folders above a log in which the record is looked for."""
KEPT = ("learning_rate", "epoch", "num_tokens")
"""Numbers of several updates of which the last one counts."""


def adopt(path: Path, log: Log) -> None:
    """Give a log what the record of its hand-over says, if it lies in one."""
    handed_run = run_of(path)
    if handed_run is None:
        return
    library, name, run = handed_run
    log.group = f"{run['arm']}-{library}"
    log.task, log.seed, log.name = str(run["task"]), int(run["seed"]), name
    log.planned = int(run["steps"])
    log.mapped = {str(theirs): str(ours) for theirs, ours in run.get("metrics", {}).items()}
    if (updates := int(run.get("updates", 1))) > 1:
        log.rows = by_step(log.rows, updates)
        log.notes.append(f"{updates} updates are a step; numbers are means over them")
    if log.state == "finished" and log.rows and max(log.rows) < log.planned:
        log.state = "preempted"
        log.why = f"the log ends at step {max(log.rows)} of {log.planned}"


def run_of(path: Path) -> tuple[str, str, Mapping[str, Any]] | None:
    """The library, name and record of the run that a log belongs to; None for a log of no hand-over."""
    path = path.resolve()
    for folder in list(path.parents)[:DEEPEST]:
        if not (folder / RECORD).is_file():
            continue
        table = read_json(folder / RECORD)
        record = table.get(HAND_OVER) if isinstance(table, dict) else None
        if not isinstance(record, dict) or not isinstance(record.get("runs"), dict):
            continue
        parts = path.relative_to(folder).parts
        names = [*parts, Path(parts[-1]).stem]  # a folder's name may have dots too
        for name in reversed(names):
            if isinstance(run := record["runs"].get(name), dict):
                return str(record.get("library", "")), name, run
    return None


def by_step(rows: Mapping[int, Mapping[str, float]], updates: int) -> dict[int, dict[str, float]]:
    """Rows per update as rows per step of so many updates."""
    values_by_step: dict[int, dict[str, list[float]]] = {}
    for update, row in sorted(rows.items()):
        values_by_name = values_by_step.setdefault(-(-update // updates), {})
        for name, value in row.items():
            values_by_name.setdefault(name, []).append(value)
    return {
        step: {
            name: values[-1] if name in KEPT or name.startswith("eval/") else fmean(values)
            for name, values in row.items()
        }
        for step, row in values_by_step.items()
    }
