"""Run a matrix: many runs over persistent worker processes, with progress, resume and orderly stop."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from rich.console import Console

from grpobench.runs.matrix.run import Place, Run
from grpobench.runs.matrix.worker import EXECUTE, QUIT, STOP, Ended, Job, Ready, serve
from grpobench.runs.record import pins
from grpobench.runs.record.folder import FolderError, changed, refusal
from grpobench.runs.record.status import mark, settled, status
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools import files, machine
from grpobench.runs.tools.json_lines import read_json
from grpobench.runs.tools.lock import Lock
from grpobench.runs.tools.process import death, environment, without_main
from grpobench.runs.train.progress import Progress

POLL = 0.25
"""Seconds between looks at signals and at the display."""
GRACE = 25.0
"""Seconds that workers get to save a checkpoint; the launcher itself must be gone after 30."""
GRACE_FULL = 2.0
"""The same when the disk is full, where nothing can be saved and 5 seconds are promised."""
GRACE_RETIRED = 5.0
"""Seconds that a worker whose run crashed gets to go by itself."""
MOST_FAILED_STARTS = 3

CODES: Mapping[Place, int] = {"disk full": 70, "preempted": 75, "crashed": 70, "refused": 2}
"""Exit codes of runs that gave no result, the gravest first."""


@dataclass
class Worker:
    """A worker process and what it is doing."""

    process: multiprocessing.process.BaseProcess
    connection: Connection
    place: int = 0
    """Which of the workers it is, from 0; one that takes over from another has its place."""
    ready: bool = False
    run: Run | None = None
    retired: float | None = None
    """When it was told to go, on the monotonic clock: after a crash the device may not be sound for it."""


@dataclass(frozen=True)
class Outcome:
    """How a matrix ended: the exit code, and every run by its place."""

    folder: Path
    code: int
    runs: tuple[Run, ...]
    workers: int = 1
    seconds: float = math.nan
    """From the start of the workers to the end of the last; NaN where nothing was left to do."""

    def named(self, place: Place) -> list[Run]:
        return [run for run in self.runs if run.place == place]


def run_matrix(
    recipe: Recipe,
    out: Path,
    workers: int | None = None,
    *,
    allow_change: bool = False,
    execute: str = EXECUTE,
    console: Console | None = None,
) -> Outcome:
    """Execute every run of a recipe that has no result yet, in `out`/<matrix>.

    `workers` overrides the recipe; 0 means one per GPU, and one per core without one. `execute` is the dotted
    name of the function that does a run (tests put a stand-in there). Raises `FolderError` before anything
    starts when another launcher owns the folder or a run's configuration has changed.
    """
    folder = files.writable(out / recipe.name, "--out")
    lock = Lock(folder)
    lock.take()
    try:
        runs = [Run(config, folder / config.folder) for config in recipe.runs()]
        survey(runs, allow_change)
        write_matrix(folder, recipe)
        count = workers or recipe.head.workers or machine.places()
        launcher = Launcher(runs, count, allow_change, execute, console or Console())
        seconds = launcher.launch()
    finally:
        lock.release()
    return Outcome(folder, exit_code(runs, recipe.head.fail_on_divergence), tuple(runs), count, seconds)


def survey(runs: Sequence[Run], allow_change: bool) -> None:
    """Find the runs that have a result. Raises `FolderError` for one that is owned, or whose settings or
    data are others by now."""
    faults = []
    today = pins.Today()
    for run in runs:
        owner = Lock(run.path).owner()
        changes = changed(run.path, run.config)
        if not owner and not changes:
            changes = remade(run, today)
        if owner:
            faults.append(f"{run.path} is in use by process {owner.pid} on {owner.host}")
        elif changes and not allow_change:
            faults.append(refusal(run.path, changes))
        elif settled(run.path) and not changes:
            found = status(run.path)
            run.place, run.why = found["state"], found["why"]
    if faults:
        more = f"\nand {len(faults) - 3} more runs" if len(faults) > 3 else ""
        raise FolderError("\n".join(faults[:3]) + more)


def remade(run: Run, today: pins.Today) -> list[str]:
    """What a run with a result or a checkpoint was made from that is another thing now."""
    origin = read_json(run.path / "origin.json") or {}
    kept = settled(run.path) or any(run.path.glob("checkpoints/step-*"))
    if not (kept and origin.get("pins")):
        return []
    changes = pins.differences(origin["pins"], today.of(run.config))
    return [*changes, *pins.explain(run.path, origin, run.config, today)] if changes else []


def write_matrix(folder: Path, recipe: Recipe) -> None:
    """matrix.json: this recipe's runs, and those that earlier starts left here or had planned for the same
    arms (other seeds): a run whose folder is gone stays planned, and shows as missing."""
    configs = recipe.runs()
    table: dict[str, Any] = {
        "name": recipe.name,
        "summary": recipe.summary,
        "runs": [config.folder for config in configs],
        "seeds": sorted({config.seed for config in configs}),
        "arms": list(dict.fromkeys(config.arm for config in configs)),
        "tasks": list(dict.fromkeys(config.task.name for config in configs)),
        "recipe": recipe.text,
        "sets": list(recipe.sets),
        "over": list(recipe.over),
        "doses": {arm: dataclasses.asdict(dose) for arm, dose in recipe.doses.items()},
        "margin": recipe.head.margin,
    }
    before = read_json(folder / "matrix.json") or {}
    stems = {config.folder.rpartition("-s")[0] for config in configs}
    earlier = [
        name
        for name in before.get("runs", [])
        if (folder / name / "run.toml").exists() or name.rpartition("-s")[0] in stems
    ]
    table["runs"] = list(dict.fromkeys([*table["runs"], *earlier]))
    if set(earlier) - {config.folder for config in configs}:
        for key in ("seeds", "arms", "tasks"):
            table[key] = list(dict.fromkeys([*table[key], *before.get(key, [])]))
        table["doses"] = before.get("doses", {}) | table["doses"]
    files.write_atomic(folder / "matrix.json", json.dumps(table, indent=1).encode())


def exit_code(runs: Sequence[Run], fail_on_divergence: bool) -> int:
    """The exit code of a matrix."""
    places = {run.place for run in runs}
    for place, code in CODES.items():
        if place in places:
            return code
    if places & {"waiting", "running"}:
        return 75
    return 3 if fail_on_divergence and places & {"diverged", "collapsed"} else 0


@dataclass
class Launcher:
    """Hands runs to workers until none is left or it is told to stop."""

    runs: list[Run]
    count: int
    allow_change: bool
    execute: str
    console: Console
    workers: list[Worker] = field(default_factory=list)
    signals: int = 0
    """Signals received so far."""
    failed_starts: int = 0
    stopping_since: float | None = None
    grace: float = GRACE

    def launch(self) -> float:
        """Returns the seconds that it took; NaN where there was nothing to do."""
        from grpobench.runs.matrix.display import Display

        began = time.monotonic()
        queue = [run for run in self.runs if run.place == "waiting"]
        nothing = not queue
        queue.sort(key=lambda run: -run.cost)
        with self.listen(), Display(self.console, self.runs, self.count) as display:
            try:
                for _ in range(min(self.count, len(queue))):
                    self.hire()
                while self.busy(queue):
                    self.step(queue, display.ended)
                    display.refresh()
            finally:
                self.dismiss()
        return math.nan if nothing else time.monotonic() - began

    def busy(self, queue: Sequence[Run]) -> bool:
        working = any(worker.run for worker in self.workers)
        return working or (bool(queue) and self.stopping_since is None)

    def step(self, queue: list[Run], ended: Any) -> None:
        """Assign, wait a moment for news, act on it."""
        self.mind_signals()
        for worker in self.workers:
            if worker.retired is not None and time.monotonic() - worker.retired > GRACE_RETIRED:
                worker.process.kill()
        if self.stopping_since is None:
            for worker in self.workers:
                if worker.ready and not worker.run and worker.retired is None and queue:
                    self.assign(worker, queue.pop(0))
        sources: dict[Any, Worker] = {worker.connection: worker for worker in self.workers}
        sources |= {worker.process.sentinel: worker for worker in self.workers}
        news = {id(sources[source]): sources[source] for source in wait(list(sources), POLL)}
        for worker in news.values():
            self.hear(worker, queue, ended)

    def assign(self, worker: Worker, run: Run) -> None:
        run.place, run.began = "running", time.monotonic()
        worker.run = run
        with contextlib.suppress(OSError):  # A dead worker is found by its sentinel.
            worker.connection.send(Job(run.config, run.path, self.allow_change))

    def hear(self, worker: Worker, queue: Sequence[Run], ended: Any) -> None:
        """Read what a worker has sent; then see whether it still lives."""
        alive = worker.process.is_alive()  # Asked first: what it sent before its death is still read.
        try:
            while worker.connection.poll():
                self.take(worker, worker.connection.recv(), ended)
        except (EOFError, OSError):
            worker.process.join(1)
            alive = False
        if not alive:
            self.bury(worker, queue, ended)

    def take(self, worker: Worker, message: Any, ended: Any) -> None:
        if isinstance(message, Ready):
            worker.ready, self.failed_starts = True, 0
        elif isinstance(message, Progress) and worker.run:
            worker.run.heard(message)
        elif isinstance(message, Ended) and worker.run:
            run, worker.run = worker.run, None
            self.end(run, message.fate, message.why, ended)
            if message.fate == "crashed":
                self.retire(worker)

    def retire(self, worker: Worker) -> None:
        """Send a worker home whose run crashed: what broke the run may break all that follow in the same
        process. `bury` hires a fresh one when it has gone."""
        worker.retired = time.monotonic()
        with contextlib.suppress(OSError):
            worker.connection.send(QUIT)

    def end(self, run: Run, place: Place, why: str, ended: Any) -> None:
        run.place, run.why = place, why
        run.seconds = time.monotonic() - run.began
        if place == "disk full" and self.stopping_since is None:
            self.stop(GRACE_FULL)
        ended(run)

    def bury(self, worker: Worker, queue: Sequence[Run], ended: Any) -> None:
        """A worker died: its run crashed (or was stopped), and a fresh worker takes its place."""
        self.workers.remove(worker)
        worker.process.join()
        worker.connection.close()
        why = f"its worker process {death(worker.process.exitcode)}"
        if not worker.ready:
            self.failed_starts += 1
        if worker.run and self.stopping_since is None:
            record(worker.run, "crashed", why)
            self.end(worker.run, "crashed", why, ended)
        elif worker.run:
            record(worker.run, "preempted", why)
            self.end(worker.run, "preempted", why, ended)
        if self.failed_starts >= MOST_FAILED_STARTS:
            raise RuntimeError(
                f"worker processes die while they start: the last one {death(worker.process.exitcode)}"
            )
        if queue and self.stopping_since is None:
            self.hire()

    def hire(self) -> None:
        """Start a worker in the first free place."""
        taken = {worker.place for worker in self.workers}
        place = next(number for number in itertools.count() if number not in taken)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = machine.threads(self.count)
        process = context.Process(target=serve, args=(theirs, self.execute, threads, os.getpid()))
        with environment(**machine.environment(self.count, place)), without_main():
            process.start()
        theirs.close()
        self.workers.append(Worker(process, ours, place))

    # Stopping

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Count SIGTERM and SIGINT instead of dying of them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def count(number: int, frame: FrameType | None) -> None:
            self.signals += 1 if number == signal.SIGINT or self.signals == 0 else 0

        before = {number: signal.signal(number, count) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def mind_signals(self) -> None:
        """First signal: ask the workers to stop. Second Ctrl-C, or no time left: kill them."""
        if self.signals and self.stopping_since is None:
            self.console.print("stopping: runs save a checkpoint (Ctrl-C again kills them)")
            self.stop(GRACE)
        late = self.stopping_since is not None and time.monotonic() - self.stopping_since > self.grace
        if self.signals > 1 or late:
            for worker in self.workers:
                worker.process.kill()

    def stop(self, grace: float) -> None:
        self.stopping_since, self.grace = time.monotonic(), grace
        for worker in self.workers:
            with contextlib.suppress(OSError):
                worker.connection.send(STOP if worker.run else QUIT)

    def dismiss(self) -> None:
        """Send idle workers home and leave no process behind."""
        for worker in self.workers:
            with contextlib.suppress(OSError):
                worker.connection.send(QUIT)
        deadline = time.monotonic() + 2
        for worker in self.workers:
            if worker.ready:
                worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()
            worker.connection.close()
        self.workers.clear()


def record(run: Run, place: Literal["crashed", "preempted"], why: str) -> None:
    """Write the end of a run whose worker could not."""
    if run.path.exists() and not Lock(run.path).owner():
        with contextlib.suppress(OSError):
            mark(run.path, place, why)
