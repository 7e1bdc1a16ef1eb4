"""status.json and origin.json of a run folder, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpobench.analysis.logs import sums
from grpobench.analysis.logs.files import LogError, read_json

STATES = ("running", "finished", "diverged", "collapsed", "crashed", "preempted")
"""What a status.json can say of a run."""


def read_status(run: Path) -> dict[str, Any]:
    """status.json; empty where there is none. Raises LogError for a damaged one, and where the run had come
    to a result, which sums.json shows, and nothing says to which."""
    path = run / "status.json"
    had = (run / sums.KEPT).exists()
    if not path.exists():
        if had:
            raise LogError(f"{path}: is missing; the run had a result: restore the file")
        return {}
    status = read_json(path, "the run had a result: restore the file" if had else "restore the file")
    for name in ("step", "attempt"):
        if not isinstance(status.get(name, 0), int):
            raise LogError(
                f"{path}: `{name}` must be a whole number; found {status[name]!r}; restore the file"
            )
    if had and status.get("state") not in STATES:
        told = f"`state` is {status['state']!r}" if "state" in status else "holds no `state`"
        raise LogError(f"{path}: {told}; the run had a result: restore the file")
    return status


def read_origin(run: Path) -> dict[str, Any]:
    """origin.json; empty where there is none. Raises LogError for a damaged one."""
    path = run / "origin.json"
    if not path.exists():
        return {}
    origin = read_json(path)
    attempts = origin.get("attempts", [])
    whole = isinstance(attempts, list) and all(isinstance(one, dict) for one in attempts)
    if not whole or not all(isinstance(origin.get(name, {}), dict) for name in ("pins", "imported")):
        raise LogError(f"{path}: is no origin of a run; restore the file")
    return origin
