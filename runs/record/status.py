"""How a run stands: status.json in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from grpobench.analysis.logs import sums
from grpobench.runs.tools import files
from grpobench.runs.tools.json_lines import read_json

State = Literal["running", "finished", "diverged", "collapsed", "crashed", "preempted"]
RESULTS: tuple[State, ...] = ("finished", "diverged", "collapsed")
"""Ends of a run that are its result. `collapsed`: an event of the recipe's `stop_on` ended it."""

NEEDED = ("run.toml", "metrics.jsonl", "eval.jsonl", "final/")
"""What of a result must be there; rollouts and what else can be made from logs may be thrown away."""


def status(path: Path) -> dict[str, Any]:
    """The content of a run folder's status.json; empty when there is none."""
    found = read_json(path / "status.json")
    return found if isinstance(found, dict) else {}


def settled(path: Path) -> bool:
    """Whether the run has a result: it finished, diverged or collapsed."""
    return status(path).get("state") in RESULTS


def result_damage(path: Path) -> list[str]:
    """What of a run's result is gone or cannot be what was written, each with its remedy. Sizes are looked
    at, content is not; it is proved where it is read."""
    told = status(path)
    try:
        kept = sums.kept(path)
    except ValueError as error:
        return [f"{error}"]
    if not told.get("state") and kept and (path / "status.json").exists():
        found = [f"{path / 'status.json'}: damaged, and the run had a result; restore it"]
    elif not settled(path):
        return []
    else:
        found = sums.absent(path, {name: one for name, one in kept.items() if name.startswith(NEEDED)})
    return [f"{one}, or delete {path} to run it again" for one in found]


def mark(path: Path, state: State, why: str) -> None:
    """Record the end of a run whose own process could not; a result that it had come to stays."""
    if settled(path):
        return
    entry = {"step": 0, "attempt": 0} | status(path) | {"state": state, "why": why}
    files.write_atomic(path / "status.json", json.dumps(entry).encode())
