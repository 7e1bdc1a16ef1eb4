"""Runs that are told to stop at a chosen look of theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpobench.runs.runfolder import checkpoints
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.train.execute import execute
from grpobench.runs.train.progress import SAVING, Preempted, Progress
from helpers.whole_runs import rows, timeless

NEVER = 10**9


class Told:
    """The launcher's end: tells a run to stop at the `count`-th look within a phase behind a step."""

    def __init__(self, step: int = 0, phase: str = "", count: int = NEVER) -> None:
        self.where, self.left = (step, phase), count
        self.now = (0, "")
        self.heard: list[Progress] = []

    def report(self, progress: Progress) -> None:
        self.now = (progress.step, progress.phase)
        self.heard.append(progress)

    def stop(self) -> bool:
        if self.now[0] == self.where[0] and self.now[1].startswith(self.where[1]):
            self.left -= 1
        return self.left <= 0


def carry(config: RunConfig, path: Path, listener: Told | None = None) -> dict[str, Any]:
    """Execute in a folder; what must not depend on interruptions."""
    listener = listener or Told()
    with RunFolder.open(path, config) as folder:
        execute(config, folder, listener.report, listener.stop)
    files = ("eval.jsonl", "events.jsonl", "final/policy.safetensors")
    contents = {name: (path / name).read_bytes() for name in files}
    return contents | {"metrics": json.dumps([timeless(row) for row in rows(path)])}


def stopped(config: RunConfig, path: Path, listener: Told) -> list[int]:
    """A run that is told to stop; the steps of its checkpoints. Of each that it writes it says so first."""
    before = checkpoints.steps(path)
    with pytest.raises(Preempted):
        carry(config, path, listener)
    steps = checkpoints.steps(path)
    announced = {progress.step for progress in listener.heard if progress.phase == SAVING}
    assert {*steps} - {*before} <= announced
    return steps
