"""Both ends of the connection between a launcher and a run on another host: files on storage that both
see."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.worker import ENDS, Ended, RunJob, run
from grpobench.runs.runfolder.folder import grows
from grpobench.runs.runfolder.logs import settled, status
from grpobench.runs.tools import lock
from grpobench.runs.tools.files import write_atomic
from grpobench.runs.tools.lock import Sight
from grpobench.runs.tools.machine import DEFAULT_SPINS, SPIN_COUNT
from grpobench.runs.train.progress import Progress
from grpobench.tasks.data import bounded

FOLDER = ".launch"
LOOK = 1.0
"""Seconds between two checks of the other end's files."""
PATIENCE = 3
"""Leases for which a run waits for the lock of its folder: an earlier attempt may be about to exit."""


@dataclass(frozen=True)
class Parcel:
    """A job as it travels to another process, with everything that process needs to execute it."""

    job: RunJob
    execute: str
    threads: int
    board: Path
    token: str
    """Seconds of the launcher's lease."""


class Board:
    """The launcher's end."""

    def __init__(self, experiment: Path, execute: str, threads: int, allow_change: bool) -> None:
        """The launcher's end. This process holds the lock of `experiment`. Files of earlier launchers are
        removed."""
        lease = lock.parse(lock.file_text(experiment / "lock"))
        assert lease is not None
        self.token, self.execute, self.threads = lease.token, execute, threads
        self.allow_change = allow_change
        shutil.rmtree(experiment / FOLDER, ignore_errors=True)
        self.path = experiment.absolute() / FOLDER / self.token
        self.path.mkdir(parents=True)
        self.last_modified: dict[str, int] = {}
        self.looked = 0.0

    def parcel(self, run: ExperimentRun) -> bytes:
        """Prepare a run for another process."""
        patience = PATIENCE * lock.lease_seconds()
        job = RunJob(run.config, run.path.absolute(), self.allow_change, patience)
        return pickle.dumps(Parcel(job, self.execute, self.threads, self.path, self.token))

    def heard(self, runs: Iterable[ExperimentRun]) -> list[tuple[ExperimentRun, Progress]]:
        """Messages of the runs since the last check, which was a second ago or longer."""
        if time.monotonic() - self.looked < LOOK:
            return []
        self.looked = time.monotonic()
        return [news for run in runs for news in self.read(run)]

    def read(self, run: ExperimentRun) -> list[tuple[ExperimentRun, Progress]]:
        """Messages of one run since the last check."""
        path = self.path / f"{run.name}.json"
        with contextlib.suppress(FileNotFoundError, ValueError):
            changed = path.stat().st_mtime_ns
            if self.last_modified.get(run.name) != changed:
                self.last_modified[run.name] = changed
                return [(run, Progress(**bounded.read_object(path)))]
        return []

    def last(self, run: ExperimentRun) -> list[tuple[ExperimentRun, Progress]]:
        """The last message of a run that has ended."""
        messages = self.read(run)
        self.last_modified.pop(run.name, None)
        (self.path / f"{run.name}.json").unlink(missing_ok=True)
        return messages

    def stop(self) -> None:
        (self.path / "stop").touch()

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # An engine may have left logs of lost jobs.
            self.path.parent.rmdir()


class Post:
    """The run's end.

    A run reports its progress about once a second and checks as often whether it should stop. It also stops,
    with a checkpoint, when the launcher's lease has expired: no run continues without a launcher."""

    def __init__(self, parcel: Parcel) -> None:
        self.progress_path = parcel.board / f"{parcel.job.path.name}.json"
        self.wish = parcel.board / "stop"
        self.launcher = Sight(parcel.job.path.parent / "lock")
        self.token = parcel.token
        self.stopping = False
        self.reported = self.looked = -LOOK

    def report(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self.reported >= LOOK or progress.pressing:
            self.reported = now
            with contextlib.suppress(OSError):
                write_atomic(self.progress_path, json.dumps(asdict(progress)).encode(), durable=False)

    def stop(self) -> bool:
        now = time.monotonic()
        if not self.stopping and now - self.looked >= LOOK:
            self.looked = now
            self.stopping = self.wish.exists() or self.abandoned()
        return self.stopping

    def abandoned(self) -> bool:
        """Whether the launcher is gone."""
        lock_state = self.launcher.look()
        lease = self.launcher.lease
        return lock_state == "free" or lease is None or lease.token != self.token


def carry_out(packed: bytes, listen: Callable[[Post], None] = lambda _: None) -> Ended:
    """Execute a run that was sent. `listen` gets the run's end of the connection, to stop the run in other
    ways."""
    import torch

    parcel: Parcel = pickle.loads(packed)
    path, config = parcel.job.path, parcel.job.config
    if settled(path) and not parcel.job.allow_change and not grows(path, config):
        recorded_status = status(path)  # by an attempt that was believed lost
        return Ended(ENDS.get(recorded_status["state"], "finished"), recorded_status["why"])
    post = Post(parcel)
    listen(post)
    if post.stop():
        return Ended("preempted", "")
    module, _, name = parcel.execute.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    return run(parcel.job, function, post, parcel.threads, torch.set_num_threads)


def extend_search(search: tuple[str, ...]) -> None:
    """Make modules importable as they are for the launcher; spawned processes inherit this by themselves."""
    sys.path.extend(path for path in search if path not in sys.path)


def surroundings(threads: int) -> dict[str, str]:
    """Variables for a remote process before it imports anything: its threads, and variables that the command
    line has set. The host name in its lock is its own."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("GRPOBENCH_")}
    variables.pop(lock.HOST, None)
    count = str(threads)
    return {
        **variables,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        SPIN_COUNT: os.environ.get(SPIN_COUNT, DEFAULT_SPINS),
    }
