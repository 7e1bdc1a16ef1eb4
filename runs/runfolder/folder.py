"""The folder of one run: configuration, provenance, logs, rollouts, checkpoints and final weights."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import zstandard

from grpobench.analysis.runfolder import checksums, formats
from grpobench.runs.models.token_budgets import RankOutOfMemory
from grpobench.runs.runfolder import checkpoints, extend, fingerprints, provenance, sharded
from grpobench.runs.runfolder.checkpoints import Checkpoint
from grpobench.runs.runfolder.logs import RESULTS, LogFile, State, mark, result_damage, settled, status
from grpobench.runs.settings import others, stored
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools import files
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.files import line, read_json
from grpobench.runs.tools.lock import FolderError, Lock
from grpobench.tasks.data import bounded

__all__ = ["Checkpoint", "FolderError", "RunFolder", "mark", "settled", "status"]

LOGS = ("metrics.jsonl", "eval.jsonl")
EVENTS = "events.jsonl"
DETECTORS = "analysis/detectors"
RESULT_FILES = (
    "run.toml",
    fingerprints.PROBLEMS,
    *LOGS,
    EVENTS,
    "rollouts/step-*.jsonl.zst",
    "completions/*-step-*.jsonl.zst",
    "final/*.safetensors",
)
"""The files of a result. provenance.json has a checksum of its own, since callbacks may end after the run."""
LEFTOVERS = ("checkpoints/.*", "final/.*", ".*.tmp", "rollouts/.*.tmp", "completions/.*.tmp")
"""Temporary names, under which files are written before they are renamed."""
COMPLETION = ("problem", "mode", "sample", "completion")
"""Entries of a row of completions/SPLIT-step-N.jsonl.zst."""
OPTIONAL = {"conversation": "turns", "failed_test": "failed_test"}
"""Further entries that some rows have, by their names in the rows of an evaluation."""


class RunFolder:
    """One run's folder, locked for this process until `close`.

    A kill at any moment leaves a folder that can be resumed: each group of rows is one write, and checkpoints
    are written under another name and then renamed. Use it in this order::

        with RunFolder.open(path, config) as folder:
            checkpoint = folder.latest()                         # None: start from the beginning
            folder.rewind(checkpoint.step if checkpoint else 0)  # before the first row is logged
            folder.log(row); folder.evaluations(rows); folder.rollouts(step, rows)
            folder.save(step, tensors, state)
            folder.keep_final("model", weights); folder.finish("finished")"""

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
        self.provenance: dict[str, Any] = {"attempts": [], "fingerprints": {}}
        self.logs = {name: LogFile(path / name, self.lock.demand) for name in LOGS}
        self.saver = ThreadPoolExecutor(1, "checkpoint")
        self.saving: Future[int] | None = None
        """A checkpoint that is being written in the background; gives its step."""

    @classmethod
    def open(
        cls,
        path: Path,
        config: RunConfig,
        *,
        allow_change: bool = False,
        threads: int = 1,
        patience: float = 0.0,
    ) -> Self:
        """Create or reopen the folder of a run and lock it.

        Raises `FolderError` if a living process still owns it after `patience` seconds. Raises it also if
        `allow_change` is False and the configuration differs from the last attempt's, or if there is a
        checkpoint and code or versions differ.
        """
        if why := formats.refusal(path):
            raise FolderError(why)
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path, config, allow_change)
        before = folder.lock.take(patience)
        try:
            if before is not None and not before.here():
                for log in folder.logs.values():
                    log.renew()
            folder.begin(threads)
        except BaseException:
            folder.lock.release()
            raise
        return folder

    def begin(self, threads: int) -> None:
        """Compare this attempt with the last one and record it.

        A run that has a result is extended if only `train.steps` grew. After any other change, which the
        user must have allowed, it begins anew.
        """
        ended = settled(self.path)
        if damage := result_damage(self.path, self.config.checkpoint.weights):
            raise FolderError("\n".join(damage))
        self.sweep()
        self.provenance = read_provenance(self.path) or self.provenance
        attempts = self.provenance["attempts"]
        self.attempt = len(attempts) + 1
        self.threads = self.choose_threads(threads)
        about = self.describe_attempt()
        changes, grown = settings_changes(self.path, self.config)
        only_grown = bool(grown) and changes in ([], [grown])
        if attempts and (self.steps() or (ended and grown)):
            changes += provenance.code_differences(attempts[-1], about)
        elif attempts and ended:
            changes += provenance.foreign_differences(attempts[-1], about["code"])
        self.refuse(changes)
        attempt = {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **about}
        attempt |= ({"changes": changes} if changes else {}) | ({"grown": grown} if grown else {})
        if ended and only_grown:
            extend.reopen(self.path)
        elif ended:  # The checkpoints go too: those of a diverged run would diverge again.
            attempt["replaces"] = str(extend.set_aside(self.path).relative_to(self.path.parent))
        self.record_attempt(attempt)

    def choose_threads(self, threads: int) -> int:
        """The threads of the first attempt, because sums depend on their number. `threads` if there was no
        attempt, or if the last one crashed and left nothing to continue from."""
        attempts = self.provenance["attempts"]
        crashed = status(self.path).get("state") == "crashed" and not begun(self.path)
        return attempts[0]["threads"] if attempts and not crashed else threads

    def describe_attempt(self) -> dict[str, Any]:
        """Code and package versions of this attempt."""
        parts = others.parts(self.config)
        _, _, *plugins = parts
        code = provenance.code("runs/train/execute.py", *parts)
        if self.config.stop_on:
            code |= provenance.room(DETECTORS)  # The detectors decide how many steps the run has.
        more = provenance.packages(*plugins) | provenance.engine_version(self.config.sampler.kind)
        return provenance.attempt(self.attempt, self.threads, code, more)

    def record_attempt(self, attempt: dict[str, Any]) -> None:
        """Write status.json, run.toml and provenance.json for an attempt that begins."""
        # The status comes first: a result must never stand beside settings that did not produce it.
        self.write_status("")
        point("begin")
        (self.path / checksums.SUMS_FILE).unlink(missing_ok=True)
        if not self.steps():
            self.provenance["fingerprints"] = {}  # They belong to an attempt that left nothing.
        self.provenance["attempts"].append(attempt)
        files.write_atomic(self.path / "run.toml", stored.dump(self.config).encode())
        self.write_provenance()

    def sweep(self) -> None:
        """Remove temporary files that killed processes left. The folder is locked, so no living process is
        writing them."""
        checkpoints.bring_back(self.path)
        for pattern in LEFTOVERS:
            for stray in self.path.glob(pattern):
                files.remove(stray)

    def refuse(self, changes: list[str]) -> None:
        if changes and not self.allow_change:
            raise FolderError(refusal(self.path, changes))

    def write_provenance(self) -> None:
        self.lock.demand()
        content = {formats.KEY: formats.FORMAT, **self.provenance}
        text = json.dumps(checksums.seal(content), indent=1)
        files.write_atomic(self.path / "provenance.json", text.encode())

    def write_status(self, why: str, durable: bool = True) -> None:
        self.lock.demand()
        status = {"state": self.state, "why": why, "step": self.step, "attempt": self.attempt}
        files.write_atomic(self.path / "status.json", json.dumps(status).encode(), durable)

    def note(self, **facts: Any) -> None:
        """Record facts about this attempt in provenance.json, such as where the model came from."""
        self.provenance["attempts"][-1] |= facts
        self.write_provenance()

    def note_out_of_memory(self, error: RankOutOfMemory) -> None:
        """Record in provenance.json with how much less the next attempt is to do."""
        before = self.provenance["attempts"][-1].get("out_of_memory", [])
        self.note(out_of_memory=[*before, error.lowered])

    def lowered(self) -> list[dict[str, Any]]:
        """The token budgets that ran out in earlier attempts since the run last began anew, oldest first."""
        attempts = self.provenance["attempts"]
        began = max((number for number, attempt in enumerate(attempts) if "replaces" in attempt), default=0)
        return [budget for attempt in attempts[began:-1] for budget in attempt.get("out_of_memory", ())]

    def fingerprint(self, values: Mapping[str, str]) -> None:
        """Record values that must stay the same in all attempts, such as the hash of the training problems.

        Raises `FolderError` if one differs from the value that the checkpoints were made with.
        """
        if self.steps() and (changes := fingerprints.differences(self.provenance["fingerprints"], values)):
            self.refuse(changes)
            self.provenance["attempts"][-1].setdefault("changes", []).extend(changes)
        self.provenance["fingerprints"] |= values
        self.write_provenance()

    def problems(self, digests: fingerprints.Digests) -> None:
        """Write the digests of this run's problems."""
        self.lock.demand()
        files.write_atomic(self.path / fingerprints.PROBLEMS, fingerprints.pack(digests), durable=False)

    # Logs

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one row to metrics.jsonl durably. Numbers that are not finite become null."""
        self.logs["metrics.jsonl"].append([row])
        self.step = int(row.get("step", self.step))

    def evaluations(
        self, rows: Iterable[Mapping[str, Any]], prompts: Mapping[str, Any] | None = None
    ) -> None:
        """Append rows to eval.jsonl, all of them or none. Their `completion` and their entries of `OPTIONAL`
        go to a file beside it, with the prompt of `prompts` (by problem) in a problem's first row."""
        logged, stored = [], dict[str, list[dict[str, Any]]]()
        unwritten = dict(prompts or {})
        for row in rows:
            logged.append({key: row[key] for key in row if key != "completion" and key not in OPTIONAL})
            if "completion" in row:
                name = f"{row['split']}-step-{row['step']}"
                text = {key: row[key] for key in COMPLETION}
                text |= {name: row[key] for key, name in OPTIONAL.items() if key in row}
                if (prompt := unwritten.pop(row["problem"], None)) is not None:
                    text["prompt"] = prompt
                stored.setdefault(name, []).append(text)
        for name, texts in stored.items():
            self.pack(f"completions/{name}.jsonl.zst", texts)
        self.logs["eval.jsonl"].append(logged)

    def events(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace events.jsonl by the events so far."""
        self.lock.demand()
        files.write_atomic(self.path / EVENTS, b"".join(line(row) for row in rows), durable=False)

    def rollouts(self, step: int, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write the rollouts of a step, one JSON row each. No sync: a resumed run writes them again."""
        return self.pack(f"rollouts/step-{step}.jsonl.zst", rows)

    def pack(self, name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write rows to a compressed file of this folder."""
        self.lock.demand()
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        packer = zstandard.ZstdCompressor(write_checksum=True)
        files.write_atomic(path, packer.compress(b"".join(line(row) for row in rows)), durable=False)
        return path

    # Checkpoints

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        return checkpoints.steps(self.path)

    def checkpoint_path(self, step: int) -> Path:
        return checkpoints.checkpoint_path(self.path, step)

    def save(self, step: int, tensors: Mapping[str, Mapping[str, torch.Tensor]], state: Any) -> Path:
        """Write a checkpoint: NAME.safetensors per entry of `tensors`, and `state` as JSON.

        It appears whole or not at all; then all but the newest `checkpoint.keep` are removed.
        """
        self.finish_saving()
        checkpoint, logs = self.checkpoint_path(step), self.sync_logs()
        checkpoints.write(checkpoint, tensors, state, step, self.attempt, logs, self.lock.demand)
        self.after_saving(step)
        return checkpoint

    def save_sharded(self, step: int, begin: Callable[[Path], Future[Any]], state: Any) -> None:
        """The same for a checkpoint that several ranks write in the background: `begin` has them do it in a
        folder, and returns what ends when they are done. The run goes on meanwhile, until `finish_saving`."""
        self.finish_saving()
        # All of it before another step changes the logs or what the state holds.
        checkpoint, logs, text = self.checkpoint_path(step), self.sync_logs(), json.dumps(state)

        def finish(aside: Path, written: Future[Any]) -> int:
            with checkpoints.removed_on_failure(aside):
                sharded.await_written(written)
                point("save")
                checkpoints.complete(aside, checkpoint, text, step, self.attempt, logs, self.lock.demand)
            return step

        with checkpoints.temporary_folder(checkpoint) as aside:
            written = begin(aside)
            self.saving = self.saver.submit(finish, aside, written)

    def finish_saving(self, wait: bool = True) -> None:
        """End the checkpoint that is written in the background, if there is one: raise what it has failed of,
        and remove older ones. Unless `wait`, only if all is written."""
        if self.saving is not None and (wait or self.saving.done()):
            saving, self.saving = self.saving, None
            self.after_saving(saving.result())

    def sync_logs(self) -> checkpoints.Logs:
        """The logs as they are now, which the disk has."""
        for log in self.logs.values():
            log.sync()
        return {name: log.state() for name, log in self.logs.items()}

    def after_saving(self, step: int) -> None:
        """A checkpoint is complete: drop older ones, and say so."""
        self.lock.demand()
        for old in self.steps()[: -self.config.checkpoint.keep]:
            files.remove(self.checkpoint_path(old))
        self.step = max(self.step, step)  # One from the background is older than the newest row.
        self.write_status("", durable=False)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole and whose logs are unchanged since it was written; None if none
        was ever saved.

        Warns about every damaged one that it skips. Raises `FolderError` if all are damaged.
        """
        damaged = []
        for step in reversed(self.steps()):
            why = checkpoints.damage(self.checkpoint_path(step))
            if not why:
                checkpoint = checkpoints.read(self.path, step)
                faults = [self.log_damage(name, state) for name, state in checkpoint.logs.items()]
                why = "; ".join(filter(None, faults))
            if not why:
                if foreign := checkpoints.strangers(checkpoint.path):
                    warnings.warn(
                        f"ignored files that do not belong to {checkpoint.path}: {foreign}", stacklevel=2
                    )
                return checkpoint
            damaged.append(f"{self.checkpoint_path(step)}: {why}")
            warnings.warn(f"skipped a damaged checkpoint: {damaged[-1]}", stacklevel=2)
        if damaged:
            raise FolderError(
                f"every checkpoint is damaged ({'; '.join(damaged)}); restore these files, or delete "
                f"{self.path} to start over"
            )
        return None

    def log_damage(self, name: str, state: Mapping[str, Any]) -> str:
        return self.logs[name].damage(state) if name in self.logs else ""

    def rewind(self, step: int) -> None:
        """Put logs, rollouts, completions and checkpoints back to their state when `step` was saved.

        Later rows of the logs move to metrics.orphan-K.jsonl and eval.orphan-K.jsonl. Without a checkpoint of
        that step (0, the beginning) the logs become empty. provenance.json records the step, because changes
        of this attempt take effect from there.
        """
        states = checkpoints.manifest(self.checkpoint_path(step)).get("logs", {})
        for name, log in self.logs.items():
            log.cut(states.get(name, {"bytes": 0})["bytes"])
        self.lock.demand()
        for path in [*self.path.glob("rollouts/step-*"), *self.path.glob("completions/*-step-*")]:
            number = path.name.rpartition("step-")[2].removesuffix(".jsonl.zst")
            if number.isdecimal() and (int(number) > step or not states):
                path.unlink()
        for later in self.steps():
            if later > step:
                files.remove(self.checkpoint_path(later))
        self.step = step
        self.note(resumed_at=step)

    # The end

    def keep_final(self, name: str, tensors: Mapping[str, torch.Tensor]) -> Path:
        """Write final/NAME.safetensors. If there is one, `finish` drops the checkpoints."""
        folder = self.path / "final"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.safetensors"
        aside = files.beside(path)
        try:
            checkpoints.write_tensors(aside, tensors)
            point("final")
            files.sync_file(aside)
            self.lock.demand()
            aside.rename(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        files.sync_folder(folder)
        return path

    def finish(self, state: State, why: str = "") -> None:
        """Record how the attempt ended, and for a result the checksums of its files. A run with final
        weights, or one that is to keep none, no longer needs its checkpoints."""
        self.state, self.why = state, why
        if state in RESULTS:
            self.write_sums()  # first: a status that states a result without them is refused as damaged
            point("finish")
        self.write_status(why)
        point("finished")
        settings = self.config.checkpoint
        if state in RESULTS and (not settings.weights or any(self.path.glob("final/*.safetensors"))):
            extend.keep_state(self.path, self.step if state == "finished" and settings.continues else -1)

    def write_sums(self) -> None:
        """Write sums.json: size and checksum of every file of the result."""
        for log in self.logs.values():
            log.sync()
        paths = [
            path for pattern in RESULT_FILES for path in sorted(self.path.glob(pattern)) if path.is_file()
        ]
        content = files.sums_of(self.path, paths)
        self.lock.demand()  # Hashing the weights may have taken long.
        files.write_atomic(self.path / checksums.SUMS_FILE, content)

    def close(self) -> None:
        """Close the logs and give up the lock, after what is still written in the background: of a run that
        fails, whatever becomes of it."""
        try:
            self.saver.shutdown()
            for log in self.logs.values():
                log.close()
        finally:
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


def read_provenance(path: Path) -> dict[str, Any]:
    """provenance.json of a run folder; empty if there is none.

    Raises `FolderError` for a damaged one, because fingerprints and earlier attempts would be lost with it.
    """
    file = path / "provenance.json"
    if not file.exists():
        return {}
    content = read_json(file)
    attempts = content.get("attempts") if isinstance(content, dict) else None
    if not isinstance(attempts, list) or checksums.broken(content):
        raise FolderError(f"{file}: damaged; restore it, or delete {path} to start over")
    return {key: value for key, value in content.items() if key != checksums.SEAL}


def changed(path: Path, config: RunConfig) -> list[str]:
    """How a configuration differs from the one that a run folder was made with.

    There is no difference from an attempt without a step: if it could not find its model, or ran out of
    memory in its first step, its recipe may be corrected. A larger number of steps is not a difference if
    nothing depends on that number.
    """
    return settings_changes(path, config)[0]


def grows(path: Path, config: RunConfig) -> bool:
    """Whether a run continues after its result."""
    changes, grown = settings_changes(path, config)
    return bool(grown) and settled(path) and changes in ([], [grown])


def settings_changes(path: Path, config: RunConfig) -> tuple[list[str], str]:
    """`changed`, and the change that raises `train.steps`, if there is one. Raises `FolderError` if run.toml
    is damaged."""
    settings_file = path / "run.toml"
    if not settings_file.exists() or not begun(path):
        return [], ""
    try:
        return extend.differences(path, config)
    except (ValueError, RecursionError) as error:
        remedy = f"restore it, or delete {path} to start over"
        raise FolderError(f"{settings_file}: not TOML ({error}); {remedy}") from None


def begun(path: Path) -> bool:
    """Whether the folder has anything that another attempt would continue or replace: a result, a checkpoint,
    or, unless the attempt crashed, the row of a step (the first row is the base model's)."""
    if settled(path) or checkpoints.steps(path):
        return True
    return status(path).get("state") != "crashed" and last_step(path / "metrics.jsonl") > 0


def last_step(log: Path) -> int:
    """The step of the last whole row of a log; 0 without one, and 1 if the row cannot be read, because
    something is there."""
    last = b""
    try:
        for line in bounded.lines(log) if log.exists() else ():
            last = line if line.endswith(b"\n") else last
        return int(bounded.parse_json(last)["step"]) if last else 0
    except (ValueError, TypeError, KeyError):
        return 1


def refusal(path: Path, changes: list[str]) -> str:
    shown = "".join(f"\n  {change}" for change in changes[:20])
    more = f"\n  and {len(changes) - 20} more" if len(changes) > 20 else ""
    allowed = (
        "run it again from the beginning with --allow-change (allow_change=True in Python), which moves the "
        f"result to {path.parent / extend.EARLIER}"
        if settled(path)
        else "resume anyway with --allow-change (allow_change=True in Python), which is recorded"
    )
    more += extend.why_no_growth(path, changes)
    return (
        f"{path} was made with other settings, data or code:{shown}{more}\n"
        f"choose another --out or recipe name, or {allowed}"
    )
