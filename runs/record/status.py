"""How a run stands: status.json in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from grpobench.runs.tools import files
from grpobench.runs.tools.json_lines import read_json

State = Literal["running", "finished", "diverged", "collapsed", "crashed", "preempted"]
RESULTS: tuple[State, ...] = ("finished", "diverged", "collapsed")
"""Ends of a run that are its result. `collapsed`: an event of the recipe's `stop_on` ended it."""


def status(path: Path) -> dict[str, Any]:
    """The content of a run folder's status.json; empty when there is none."""
    found = read_json(path / "status.json")
    return found if isinstance(found, dict) else {}


def settled(path: Path) -> bool:
    """Whether the run has a result: it finished, diverged or collapsed."""
    return status(path).get("state") in RESULTS


def mark(path: Path, state: State, why: str) -> None:
    """Record the end of a run whose own process could not."""
    entry = {"step": 0, "attempt": 0} | status(path) | {"state": state, "why": why}
    files.write_atomic(path / "status.json", json.dumps(entry).encode())
