"""How a run stands: status.json in its folder.

The logs of a run: rows that appear whole or not at all, and beside each log the sums over its lines.

A row is written before its sum, and sums are cut before rows, so that whatever moment a kill comes at, a log
has at least as many lines as sums; `Log.open` adds those that are missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from grpobench.analysis.runfolder import checksums
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import read_provenance, read_status
from grpobench.runs.tools import files
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.files import line, read_json, size
from grpobench.runs.tools.lock import FolderError

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
    had = settled(path) or (path / checksums.SUMS_FILE).exists()
    if not had:
        return []
    try:
        read_status(path)
        kept = checksums.read_sums(path)
        if not settled(path):
            return []
        read_provenance(path)
    except (LogError, ValueError) as error:
        return [str(error)]
    return checksums.absent(path, {name: one for name, one in kept.items() if name.startswith(NEEDED)})


def mark(path: Path, state: State, why: str) -> None:
    """Record the end of a run whose own process could not; a result that it had come to stays."""
    if settled(path):
        return
    entry = {"step": 0, "attempt": 0} | status(path) | {"state": state, "why": why}
    files.write_atomic(path / "status.json", json.dumps(entry).encode())


FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Log:
    """One log, opened for writing with its first row."""

    def __init__(self, path: Path, demand: Callable[[], None] = lambda: None) -> None:
        """`demand` raises where the folder is another's by now."""
        self.path, self.demand = path, demand
        self.side = path.with_name(path.name + checksums.SIDE)
        self.descriptors: tuple[int, int] | None = None
        self.chain: Any = None
        """The sum over the log as it is now, while that is known."""

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows durably, all of them or none."""
        lines = [line(row) for row in rows]
        log, side = self.descriptors or self.open()
        if not lines:
            return
        self.demand()
        point("log")
        files.append(log, b"".join(lines))
        point("log-row")
        marks = []
        for text in lines:
            self.chain.update(text)
            marks.append(self.chain.hexdigest()[: checksums.MARK].encode() + b"\n")
        files.append(side, b"".join(marks), durable=False)

    def open(self) -> tuple[int, int]:
        """Descriptors of the log and of its sums, which then are as long as the log. Raises FolderError where
        they do not agree."""
        content = self.path.read_bytes() if self.path.exists() else b""
        if content[-1:] not in (b"", b"\n"):
            raise FolderError(f"{self.path} ends in half a row; delete what follows its last line end")
        if found := checksums.check(content, self.marks()).what:
            raise FolderError(f"{self.path}: {found}; delete {self.path.parent} to start over")
        if (marks := checksums.marks_of(content)) != self.marks():
            files.write_atomic(self.side, marks, durable=False)
        self.chain = hashlib.sha256(content)
        self.descriptors = os.open(self.path, FLAGS, 0o644), os.open(self.side, FLAGS, 0o644)
        return self.descriptors

    def marks(self) -> bytes:
        return self.side.read_bytes() if self.side.exists() else b""

    def fault(self, content: bytes) -> str:
        """What the sums say against the beginning of the log; empty where they say nothing."""
        lines = self.marks().splitlines(keepends=True)
        found = checksums.check(content, b"".join(lines[: content.count(b"\n")]))
        return f"{self.path}, line {found.line}: {found.what}" if found.line else ""

    def state(self) -> dict[str, Any]:
        """Length and sum of the log as it is now."""
        if self.chain is None:
            self.chain = hashlib.sha256(self.path.read_bytes() if self.path.exists() else b"")
        return {"bytes": size(self.path), "sha256": self.chain.hexdigest()}

    def sync(self) -> None:
        """Make the sums as durable as the rows are."""
        if self.descriptors:
            files.sync_data(self.descriptors[1])

    def damage(self, told: Mapping[str, Any]) -> str:
        """What is wrong with the part of the log that a checkpoint counts on, which had then the `state` that
        is told; empty where nothing is, or where an older version told no sum and left none beside the
        log."""
        length = told["bytes"]
        if size(self.path) < length:
            return f"{self.path} holds {size(self.path)} bytes and {length} are counted on: rows were lost"
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            content = file.read(length)
        if not told.get("sha256"):
            return self.fault(content)
        if hashlib.sha256(content).hexdigest() == told["sha256"]:
            return ""
        return self.fault(content) or f"{self.path} is not what was written; no line can be told"

    def renew(self) -> None:
        """The same rows in new files. A row that an owner elsewhere was writing when it was taken over may
        reach the storage later: it then goes to the old file, which has no name any more."""
        for path in (self.side, self.path):
            if path.exists():
                files.write_atomic(path, path.read_bytes())

    def cut(self, length: int) -> None:
        """Truncate to `length` bytes, keeping what follows in an orphan file; the sums are made anew."""
        self.close()
        self.demand()
        if size(self.path) < length:
            raise FolderError(
                f"{self.path} holds {size(self.path)} bytes and the checkpoint counts on {length}: rows were "
                f"lost; delete {self.path.parent} to start over"
            )
        content = self.path.read_bytes() if self.path.exists() else b""
        marks = checksums.marks_of(content[:length])
        if marks != self.marks():
            files.write_atomic(self.side, marks, durable=False)
        self.chain = hashlib.sha256(content[:length])
        if len(content) == length:
            return
        number = 1
        while (orphan := self.path.with_name(f"{self.path.stem}.orphan-{number}.jsonl")).exists():
            number += 1
        files.write_atomic(orphan, content[length:])
        point("rewind")
        self.demand()
        with self.path.open("r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())

    def close(self) -> None:
        for descriptor in self.descriptors or ():
            os.close(descriptor)
        self.descriptors = None
