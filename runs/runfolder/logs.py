"""The status of a run (status.json) and its logs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from grpobench.analysis.runfolder import checksums, formats
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import read_provenance, read_status
from grpobench.runs.runfolder.rows import last_rows
from grpobench.runs.tools import files
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.files import line, read_json, size
from grpobench.runs.tools.lock import FolderError
from grpobench.tasks.data import bounded

State = Literal["running", "finished", "diverged", "collapsed", "crashed", "preempted"]
RESULTS: tuple[State, ...] = ("finished", "diverged", "collapsed")
"""States that count as a result. `collapsed`: an event of the recipe's `stop_on` ended the run."""

WEIGHTS = "final/"
NEEDED = ("run.toml", "metrics.jsonl", "eval.jsonl", WEIGHTS)
"""Files that a result needs. Rollouts, and whatever can be made from logs, may be deleted."""
NUMBERS = ("step", "attempt")


def status(path: Path) -> dict[str, Any]:
    """The content of a run folder's status.json, without steps and attempts that are not numbers; empty if
    there is none."""
    content = read_json(path / "status.json")
    if not isinstance(content, dict):
        return {}
    return {key: value for key, value in content.items() if key not in NUMBERS or isinstance(value, int)}


def settled(path: Path) -> bool:
    """Whether the run has a result: it finished, diverged or collapsed."""
    return status(path).get("state") in RESULTS


def result_damage(path: Path, weights: bool = True) -> list[str]:
    """Missing or damaged files of a run's result, each with its remedy. Without `weights` those may have been
    deleted, or have stayed on another machine."""
    return [f"{fault}, or delete {path} to run it again" for fault in result_faults(path, weights)]


def result_faults(path: Path, weights: bool = True) -> list[str]:
    """`result_damage` without the remedy to run again. It checks the sizes of logs and weights; their content
    is checked when it is read."""
    had = settled(path) or (path / checksums.SUMS_FILE).exists()
    if not had:
        return []
    try:
        read_status(path)
        recorded_sums = checksums.read_sums(path)
        if not settled(path):
            return []
        provenance = read_provenance(path)
        if not recorded_sums and not provenance.get("imported") and (lack := missing_end(path)):
            return [lack]
    except (LogError, ValueError) as error:
        return [str(error)]
    needed = {name: sums for name, sums in recorded_sums.items() if name.startswith(NEEDED)}
    gone = {name for name in needed if name.startswith(WEIGHTS) and not (path / name).exists()}
    return checksums.absent(
        path, {name: sums for name, sums in needed.items() if weights or name not in gone}
    )


def missing_end(path: Path) -> str:
    """What a run that says `finished` lacks of its end, by the settings in its run.toml: the row of its last
    step in metrics.jsonl, with the evaluations that are due there. Empty if it lacks nothing. Sums prove
    more, but the first versions wrote none. Raises ValueError if run.toml is damaged."""
    if status(path).get("state") != "finished" or not (path / "run.toml").exists():
        return ""
    config = formats.current_settings(bounded.read_toml(path / "run.toml"))
    steps, evaluate = config.get("train", {}).get("steps"), config.get("evaluate", {})
    if not isinstance(steps, int):
        return ""
    last = (last_rows(path / "metrics.jsonl") or [{}])[-1]
    lacking = []
    if (step := last.get("step", 0)) != steps:
        lacking.append(f"its log ends at step {step} of {steps}")
    elif evaluate.get("samples") or evaluate.get("greedy"):
        for split, key in (("validation", "problems"), ("test", "test_problems")):
            if evaluate.get(key) and not any(name.startswith(f"eval/{split}/") for name in last):
                lacking.append(
                    f"its log has no evaluation of {evaluate[key]} {split} problems at step {steps}"
                )
    if not lacking:
        return ""
    return (
        f"{path / 'status.json'}: says `finished`, but {' and '.join(lacking)}; restore metrics.jsonl, or "
        "write `running` as the state to resume the run"
    )


def mark(path: Path, state: State, why: str) -> None:
    """Record the end of a run whose own process could not. An existing result stays."""
    if settled(path):
        return
    entry = {"step": 0, "attempt": 0} | status(path) | {"state": state, "why": why}
    files.write_atomic(path / "status.json", json.dumps(entry).encode())


FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class LogFile:
    """One log, which is opened for writing with its first row.

    Rows appear whole or not at all. A file next to the log holds checksums of its lines. A row is written
    before its checksum, and checksums are cut before rows. So whenever a kill comes, a log has at least as
    many lines as checksums, and `open` adds the missing ones."""

    def __init__(self, path: Path, demand: Callable[[], None] = lambda: None) -> None:
        """`demand` raises if another process owns the folder by now."""
        self.path, self.demand = path, demand
        self.side = path.with_name(path.name + checksums.SIDE)
        self.descriptors: tuple[int, int] | None = None
        self.chain: Any = None
        """The checksum of the log as it is now, if it is known."""

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
        """Descriptors of the log and of its checksums, after adding missing checksums. Raises FolderError if
        they disagree."""
        content = self.content()
        if content[-1:] not in (b"", b"\n"):
            raise FolderError(f"{self.path} ends in an incomplete row; delete what follows the last newline")
        if mismatch := checksums.check(content, self.marks()).problem:
            raise FolderError(f"{self.path}: {mismatch}; delete {self.path.parent} to start over")
        if (marks := checksums.marks_of(content)) != self.marks():
            files.write_atomic(self.side, marks, durable=False)
        self.chain = hashlib.sha256(content)
        self.descriptors = os.open(self.path, FLAGS, 0o644), os.open(self.side, FLAGS, 0o644)
        return self.descriptors

    def content(self) -> bytes:
        return bounded.read_bytes(self.path) if self.path.exists() else b""

    def marks(self) -> bytes:
        return bounded.read_bytes(self.side) if self.side.exists() else b""

    def fault(self, content: bytes) -> str:
        """What the checksums say against the beginning of the log; empty if nothing is wrong."""
        lines = self.marks().splitlines(keepends=True)
        checked = checksums.check(content, b"".join(lines[: content.count(b"\n")]))
        return f"{self.path}, line {checked.line}: {checked.problem}" if checked.line else ""

    def state(self) -> dict[str, Any]:
        """Length and checksum of the log as it is now."""
        if self.chain is None:
            self.chain = hashlib.sha256(self.content())
        return {"bytes": size(self.path), "sha256": self.chain.hexdigest()}

    def sync(self) -> None:
        """Make the checksums as durable as the rows."""
        if self.descriptors:
            files.sync_data(self.descriptors[1])

    def damage(self, state: Mapping[str, Any]) -> str:
        """What is wrong with the part of the log that a checkpoint relies on; `state` is what the checkpoint
        recorded. Empty if nothing is wrong, or if an older version left no checksum."""
        length = state["bytes"]
        if size(self.path) < length:
            return f"{self.path} has {size(self.path)} bytes, the checkpoint needs {length}: rows were lost"
        if not self.path.exists():
            return ""
        content = self.content()[:length]
        if not state.get("sha256"):
            return self.fault(content)
        if hashlib.sha256(content).hexdigest() == state["sha256"]:
            return ""
        return (
            self.fault(content)
            or f"{self.path} was changed since it was written; the checksums do not say in which line"
        )

    def renew(self) -> None:
        """Copy the rows to new files. A remote owner that was taken over may still have a row on its way to
        the storage; that row then goes to the old file, which no longer has a name."""
        for path in (self.side, self.path):
            if path.exists():
                files.write_atomic(path, bounded.read_bytes(path))

    def cut(self, length: int) -> None:
        """Truncate to `length` bytes, and keep the rest in an orphan file. The checksums are written anew."""
        self.close()
        self.demand()
        if size(self.path) < length:
            raise FolderError(
                f"{self.path} holds {size(self.path)} bytes, but the checkpoint needs {length}: rows were "
                f"lost; delete {self.path.parent} to start over"
            )
        content = self.content()
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
