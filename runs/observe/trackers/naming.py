"""A run's name in a tracker, and which of its steps the tracker has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpobench.runs.tools import files
from grpobench.runs.tools.files import read_json

NO_SETTINGS = ("observe", "beside")
"""Keys of run.toml that are not sent to a tracker."""


def identity(folder: Path) -> str:
    """An id that all attempts that continue a run share: the attempt that began it. A run that begins again
    at step 0 is another run."""
    attempts = (read_json(folder / "provenance.json") or {}).get("attempts") or []
    began = [attempt["id"] for attempt in attempts if attempt.get("resumed_at", 0) == 0]
    if not began:
        raise ValueError(f"{folder / 'provenance.json'} names no attempt that began the run")
    return str(began[-1])[:16]


def parameters(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """run.toml as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if not prefix and key in NO_SETTINGS:
            continue
        if isinstance(value, Mapping) and value:
            found |= parameters(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row, without its step."""
    return {
        name: float(value)
        for name, value in row.items()
        if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


class LastLogged:
    """The last step of a run that was sent to a tracker, kept beside the run for the next attempt. That
    attempt repeats the steps after its checkpoint with the same numbers, and the tracker would have them
    twice."""

    def __init__(self, folder: Path, tracker: str) -> None:
        self.path = folder / "callbacks" / f"{tracker}.json"
        self.run = identity(folder)
        kept = read_json(self.path) or {}
        self.step = int(kept["step"]) if kept.get("run") == self.run else -1

    def news(self, row: Mapping[str, Any]) -> bool:
        """Whether the tracker lacks the row's step."""
        return int(row["step"]) > self.step

    def keep(self, row: Mapping[str, Any]) -> None:
        self.step = int(row["step"])
        self.path.parent.mkdir(exist_ok=True)
        content = json.dumps({"run": self.run, "step": self.step})
        files.write_atomic(self.path, content.encode(), durable=False)
