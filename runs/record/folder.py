"""The folder of one run: configuration, origin, logs, rollouts, checkpoints and final weights.

Everything is written so that a kill at any moment leaves a folder that can be resumed: rows in one write,
checkpoints aside and renamed. The order of use::

    with RunFolder.open(path, config) as folder:
        checkpoint = folder.latest()                         # None: start from the beginning
        folder.rewind(checkpoint.step if checkpoint else 0)  # before the first row is logged
        folder.log(row); folder.evaluations(rows); folder.rollouts(step, rows)
        folder.save(step, tensors, state)
        folder.keep_final("model", weights); folder.finish("finished")
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import zstandard

from grpobench.runs.record import origin, pins
from grpobench.runs.record.status import State, mark, settled, status
from grpobench.runs.settings import others, stored
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools import files
from grpobench.runs.tools.json_lines import line, read_json, size
from grpobench.runs.tools.lock import FolderError, Lock

__all__ = ["Checkpoint", "FolderError", "RunFolder", "mark", "settled", "status"]

LOGS = ("metrics.jsonl", "eval.jsonl")
EVENTS = "events.jsonl"
DETECTORS = "analysis/detect"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    step: int
    path: Path
    state: Any
    """The JSON that was saved."""

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.path.glob("*.safetensors"))

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors saved under `name`, on the CPU."""
        from safetensors.torch import load_file

        return load_file(self.path / f"{name}.safetensors")


class RunFolder:
    """One run's folder, locked for this process until `close`."""

    def __init__(self, path: Path, config: RunConfig, allow_change: bool) -> None:
        """Use `open`."""
        self.path = path
        self.config = config
        self.allow_change = allow_change
        self.attempt = 1
        self.threads = 1
        """Threads that every attempt of this run computes with, since sums depend on them."""
        self.step = 0
        self.state: State = "running"
        self.why = ""
        self.lock = Lock(path)
        self.origin: dict[str, Any] = {"attempts": [], "pins": {}}
        self.descriptors: dict[str, int] = {}

    @classmethod
    def open(
        cls,
        path: Path,
        config: RunConfig,
        *,
        allow_change: bool = False,
        threads: int = 1,
        patience: float = 0.0,
    ) -> RunFolder:
        """Create or reopen the folder of a run and lock it.

        Raises `FolderError` when a living process owns it after `patience` seconds, or when the
        configuration, or (behind a checkpoint) code or versions differ from the last attempt's and
        `allow_change` is False.
        """
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path, config, allow_change)
        folder.lock.take(patience)
        try:
            folder.begin(threads)
        except BaseException:
            folder.lock.release()
            raise
        return folder

    def begin(self, threads: int) -> None:
        """Compare with the last attempt, then record this one. A run that has a result and is run again
        because a change is allowed begins anew."""
        ended = settled(self.path)
        for stray in self.path.glob("checkpoints/.*"):
            shutil.rmtree(stray)
        known = read_json(self.path / "origin.json")
        self.origin = known if isinstance(known, dict) else self.origin
        attempts = self.origin["attempts"]
        self.threads = attempts[0]["threads"] if attempts else threads
        self.attempt = len(attempts) + 1
        theirs = [found.cls for found in others.others(self.config).values()]
        parts = (self.config.algorithm, self.config.task, *theirs)
        code = origin.code("runs/train/execute.py", *parts)
        if self.config.stop_on:
            code |= origin.room(DETECTORS)  # They decide how many steps the run has.
        about = origin.attempt(self.attempt, self.threads, code, origin.packages(*theirs))
        now = {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **about}
        changes = changed(self.path, self.config)
        if attempts and self.steps():
            changes += origin.code_differences(attempts[-1], about)
        self.refuse(changes)
        self.write_status("")  # First: a result never stands beside settings that did not make it.
        if ended and self.allow_change:
            shutil.rmtree(self.path / "checkpoints", ignore_errors=True)  # Those of a diverged run.
        if not self.steps():
            self.origin["pins"] = {}  # Of an attempt of which nothing is left.
        self.origin["attempts"] = [*attempts, now | ({"changes": changes} if changes else {})]
        files.write_atomic(self.path / "run.toml", stored.dump(self.config).encode())
        self.write_origin()

    def refuse(self, changes: list[str]) -> None:
        if changes and not self.allow_change:
            raise FolderError(refusal(self.path, changes))

    def write_origin(self) -> None:
        self.lock.demand()
        text = json.dumps(self.origin, indent=1, default=str)
        files.write_atomic(self.path / "origin.json", text.encode())

    def write_status(self, why: str, durable: bool = True) -> None:
        self.lock.demand()
        status = {"state": self.state, "why": why, "step": self.step, "attempt": self.attempt}
        files.write_atomic(self.path / "status.json", json.dumps(status).encode(), durable)

    def note(self, **facts: Any) -> None:
        """Record facts about this attempt in origin.json, such as where the model was found."""
        self.origin["attempts"][-1] |= facts
        self.write_origin()

    def pin(self, values: Mapping[str, str]) -> None:
        """Record what must stay the same over attempts, such as the hash of the training problems.

        Raises `FolderError` when one differs from the value that the checkpoints were made with.
        """
        if self.steps() and (changes := pins.differences(self.origin["pins"], values)):
            self.refuse(changes)
            self.origin["attempts"][-1].setdefault("changes", []).extend(changes)
        self.origin["pins"] |= values
        self.write_origin()

    def problems(self, digests: pins.Digests) -> None:
        """Keep what tells this run's problems from others'."""
        files.write_atomic(self.path / pins.PROBLEMS, pins.pack(digests), durable=False)

    # Logs

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one row to metrics.jsonl, durably. Numbers that are not finite become null."""
        self.append("metrics.jsonl", [row])
        self.step = int(row.get("step", self.step))

    def evaluations(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to eval.jsonl, all of them or none."""
        self.append("eval.jsonl", rows)

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        data = b"".join(line(row) for row in rows)
        if name not in self.descriptors:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self.descriptors[name] = os.open(self.path / name, flags, 0o644)
        if data:
            self.lock.demand()
            files.append(self.descriptors[name], data)

    def events(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write events.jsonl anew: what the logs show until now."""
        files.write_atomic(self.path / EVENTS, b"".join(line(row) for row in rows), durable=False)

    def rollouts(self, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write the rollouts of a step, one JSON row each. Not synced: a resumed run writes them again."""
        folder = self.path / "rollouts"
        folder.mkdir(exist_ok=True)
        packed = zstandard.ZstdCompressor().compress(b"".join(line(row) for row in rows))
        files.write_atomic(folder / f"step-{step}.jsonl.zst", packed, durable=False)
        return folder / f"step-{step}.jsonl.zst"

    # Checkpoints

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        names = [path.name.removeprefix("step-") for path in self.path.glob("checkpoints/step-*")]
        return sorted(int(name) for name in names if name.isdigit())

    def place(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step}"

    def save(self, step: int, tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Any) -> Path:
        """Write a checkpoint: NAME.safetensors per entry of `tensors`, and `state` as JSON.

        It appears whole or not at all; then all but the newest `checkpoint.keep` are removed.
        """
        final = self.place(step)
        aside = final.with_name(f".step-{step}.{os.getpid()}")
        aside.mkdir(parents=True)
        try:
            for name, entries in tensors.items():
                write_tensors(aside / f"{name}.safetensors", entries)
            (aside / "state.json").write_text(json.dumps(state), encoding="utf-8")
            self.write_manifest(aside, step)
            files.sync_folder(aside)
            self.lock.demand()
            if final.exists():  # A damaged one that the run has come back to.
                shutil.rmtree(final)
            aside.rename(final)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        files.sync_folder(final.parent)
        for old in self.steps()[: -self.config.checkpoint.keep]:
            shutil.rmtree(self.place(old))
        self.step = step
        self.write_status("", durable=False)
        return final

    def write_manifest(self, folder: Path, step: int) -> None:
        """Sizes and hashes of the files, and how long the logs are at this step. Written last."""
        listed = {}
        for path in sorted(folder.iterdir()):
            files.sync_file(path)
            listed[path.name] = {"bytes": path.stat().st_size, "sha256": files.sha256(path)}
        logs = {name: size(self.path / name) for name in LOGS}
        manifest = {"step": step, "attempt": self.attempt, "files": listed, "logs": logs}
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        files.sync_file(folder / "manifest.json")

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None when none was ever saved.

        Warns about every damaged one that it passes over. Raises `FolderError` when all are damaged.
        """
        damaged = []
        for step in reversed(self.steps()):
            path = self.place(step)
            why = damage(path)
            if not why:
                state = json.loads((path / "state.json").read_text(encoding="utf-8"))
                return Checkpoint(step, path, state)
            damaged.append(f"{path}: {why}")
            warnings.warn(f"damaged checkpoint passed over: {damaged[-1]}", stacklevel=2)
        if damaged:
            raise FolderError(
                f"every checkpoint is damaged ({'; '.join(damaged)}); delete {self.path} to start over"
            )
        return None

    def rewind(self, step: int) -> None:
        """Put logs, rollouts and checkpoints back to where they were when `step` was saved.

        What the logs hold beyond it moves to metrics.orphan-K.jsonl and eval.orphan-K.jsonl. Without a
        checkpoint of that step (0, the beginning) the logs become empty. origin.json keeps the step, from
        which what this attempt changed has effect.
        """
        manifest = read_json(self.place(step) / "manifest.json") or {"logs": {}}
        for name in LOGS:
            self.cut(name, manifest["logs"].get(name, 0))
        for path in self.path.glob("rollouts/step-*.jsonl.zst"):
            if int(path.name.removeprefix("step-").removesuffix(".jsonl.zst")) > step:
                path.unlink()
        for later in self.steps():
            if later > step:
                shutil.rmtree(self.place(later))
        self.step = step
        self.note(resumed_at=step)

    def cut(self, name: str, length: int) -> None:
        """Truncate a log to `length` bytes, keeping what follows in an orphan file."""
        path = self.path / name
        if size(path) < length:
            raise FolderError(
                f"{path} holds {size(path)} bytes and the checkpoint counts on {length}: rows were lost; "
                f"delete {self.path} to start over"
            )
        if size(path) == length:
            return
        with path.open("r+b") as file:
            file.seek(length)
            tail = file.read()
            number = 1
            while (orphan := path.with_name(f"{path.stem}.orphan-{number}.jsonl")).exists():
                number += 1
            files.write_atomic(orphan, tail)
            file.truncate(length)
            os.fsync(file.fileno())

    # The end

    def keep_final(self, name: str, tensors: Mapping[str, torch.Tensor]) -> Path:
        """Write final/NAME.safetensors; with it `finish` drops the checkpoints."""
        folder = self.path / "final"
        folder.mkdir(exist_ok=True)
        aside, path = folder / f".{name}.{os.getpid()}", folder / f"{name}.safetensors"
        try:
            write_tensors(aside, tensors)
            files.sync_file(aside)
            self.lock.demand()
            aside.rename(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        files.sync_folder(folder)
        return path

    def finish(self, state: State, why: str = "") -> None:
        """Record how the attempt ended. A run with final weights needs its checkpoints no more."""
        self.state, self.why = state, why
        self.write_status(why)
        if state in ("finished", "collapsed") and any(self.path.glob("final/*.safetensors")):
            shutil.rmtree(self.path / "checkpoints", ignore_errors=True)

    def close(self) -> None:
        """Close the logs and give up the lock."""
        for descriptor in self.descriptors.values():
            os.close(descriptor)
        self.descriptors.clear()
        self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError) if error else contextlib.nullcontext():
            self.close()


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """A safetensors file. Tensors that share memory (tied weights) are written once per name."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        entry = tensor.detach().cpu().contiguous()
        address = entry.untyped_storage().data_ptr()
        apart[name] = entry.clone() if address in seen else entry
        seen.add(address)
    try:
        save_file(apart, path)
    except SafetensorError as error:  # It hides the error number.
        full = "os error 28" in str(error) or "No space" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error), str(path)) from error


def damage(checkpoint: Path) -> str:
    """What is wrong with a checkpoint; empty when it is whole."""
    manifest = read_json(checkpoint / "manifest.json")
    if not isinstance(manifest, dict) or "files" not in manifest:
        return "manifest.json is missing or torn"
    for name, listed in manifest["files"].items():
        path = checkpoint / name
        if not path.exists():
            return f"{name} is missing"
        if size(path) != listed["bytes"]:
            return f"{name} has {size(path)} bytes instead of {listed['bytes']}"
        if files.sha256(path) != listed["sha256"]:
            return f"the sha256 of {name} differs from the manifest's"
    return ""


def changed(path: Path, config: RunConfig) -> list[str]:
    """How a configuration differs from the one that a run folder was made with. Nothing differs from an
    attempt that came to no step: one that could not find its model, or that ran out of memory in its first
    step, may be corrected."""
    known = path / "run.toml"
    if not known.exists() or not begun(path):
        return []
    return stored.differences(known.read_text(encoding="utf-8"), stored.dump(config))


def begun(path: Path) -> bool:
    """Whether anything of a run is in its folder: a step's row (the first is the base model's), a checkpoint
    or a result."""
    return last_step(path / "metrics.jsonl") > 0 or any(path.glob("checkpoints/step-*")) or settled(path)


def last_step(log: Path) -> int:
    """The step of the last whole row of a log; 0 without one."""
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def refusal(path: Path, changes: list[str]) -> str:
    shown = "".join(f"\n  {change}" for change in changes[:20])
    more = f"\n  and {len(changes) - 20} more" if len(changes) > 20 else ""
    allowed = (
        "replace its result by a run from the beginning with --allow-change (allow_change=True in Python)"
        if settled(path)
        else "resume all the same with --allow-change (allow_change=True in Python), which is recorded"
    )
    return (
        f"{path} was made with other settings, data or code:{shown}{more}\n"
        f"choose another --out or recipe name, or {allowed}"
    )
