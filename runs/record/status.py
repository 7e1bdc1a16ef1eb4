"""How a run stands: status.json in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from grpobench.analysis.logs import sums
from grpobench.analysis.logs.files import LogError
from grpobench.analysis.logs.state import read_origin, read_status
from grpobench.runs.tools import files
from grpobench.runs.tools.json_lines import read_json

State = Literal["running", "finished", "diverged", "collapsed", "crashed", "preempted"]
RESULTS: tuple[State, ...] = ("finished", "diverged", "collapsed")
"""Ends of a run that are its result. `collapsed`: an event of the recipe's `stop_on` ended it."""

NEEDED = ("run.toml", "metrics.jsonl", "eval.jsonl", "final/")
"""What of a result must be there; rollouts and what else can be made from logs may be thrown away."""
NUMBERS = ("step", "attempt")


def status(path: Path) -> dict[str, Any]:
    """The content of a run folder's status.json, without what is no number of a step or an attempt; empty
    when there is none."""
    found = read_json(path / "status.json")
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if key not in NUMBERS or isinstance(value, int)}


def settled(path: Path) -> bool:
    """Whether the run has a result: it finished, diverged or collapsed."""
    return status(path).get("state") in RESULTS


def result_damage(path: Path) -> list[str]:
    """What of a run's result is gone or cannot be what was written, each with its remedy."""
    return [f"{one}, or delete {path} to run it again" for one in result_faults(path)]


def result_faults(path: Path) -> list[str]:
    """`result_damage` for those who have another remedy than to run it again. Of logs and weights sizes are
    looked at, content is not; it is proved where it is read."""
    had = settled(path) or (path / sums.KEPT).exists()
    if not had:
        return []
    try:
        read_status(path)
        kept = sums.kept(path)
        if not settled(path):
            return []
        read_origin(path)
    except (LogError, ValueError) as error:
        return [str(error)]
    return sums.absent(path, {name: one for name, one in kept.items() if name.startswith(NEEDED)})


def mark(path: Path, state: State, why: str) -> None:
    """Record the end of a run whose own process could not; a result that it had come to stays."""
    if settled(path):
        return
    entry = {"step": 0, "attempt": 0} | status(path) | {"state": state, "why": why}
    files.write_atomic(path / "status.json", json.dumps(entry).encode())
