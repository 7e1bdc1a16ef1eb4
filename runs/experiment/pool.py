"""The engine of one machine: persistent worker processes, each with its share of cores or its GPU."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from grpobench.runs.experiment.executor import Lost, News
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.worker import QUIT, STOP, Ended, Ready, RunJob, serve
from grpobench.runs.tools import machine
from grpobench.runs.tools.process import death, environment, starvations, without_interrupts, without_main
from grpobench.runs.train.progress import Progress

GRACE_RETIRED = 5.0
"""Seconds in which a worker whose run crashed must exit by itself."""
MOST_FAILED_STARTS = 3
REST = 1.0
"""Seconds without a new start after a failed one."""


@dataclass
class PoolWorker:
    """A worker process and its current task."""

    process: multiprocessing.process.BaseProcess
    connection: Connection
    slot: int = 0
    """Index of the worker, from 0; a replacement takes the index of its predecessor."""
    ready: bool = False
    run: ExperimentRun | None = None
    retired: float | None = None
    """When it was told to exit, on the monotonic clock. After a crash the device may be unsound for it."""
    starvations: int = field(default_factory=starvations)
    """How many processes the machine had killed for lack of memory before this one began its run."""


class RunPool:
    """At most `workers` processes, started when there is work for them."""

    queues = False

    def __init__(
        self, workers: int, execute: str, allow_change: bool = False, gpus_per_run: float | None = None
    ) -> None:
        self.workers = workers
        self.execute = execute
        self.allow_change = allow_change
        self.gpus_per_run = gpus_per_run
        self.crew: list[PoolWorker] = []
        self.failed_starts = 0
        self.rests_until = 0.0
        """On the monotonic clock. What killed a worker while it started may be over by then."""
        self.stopped = False

    def start(self, queue: Sequence[ExperimentRun]) -> list[ExperimentRun]:
        working = sum(worker.run is not None for worker in self.crew)
        crew_size = min(self.workers, working + len(queue))
        while len(self.crew) < crew_size and time.monotonic() >= self.rests_until:
            self.start_worker()
        unstarted = list(queue)
        begun = []
        for worker in self.crew:
            if worker.ready and not worker.run and worker.retired is None and unstarted:
                begun.append(unstarted.pop(0))
                self.assign(worker, begun[-1])
        return begun

    def news(self, seconds: float) -> list[News]:
        for worker in self.crew:
            if worker.retired is not None and time.monotonic() - worker.retired > GRACE_RETIRED:
                worker.process.kill()
        sources: dict[Any, PoolWorker] = {worker.connection: worker for worker in self.crew}
        sources |= {worker.process.sentinel: worker for worker in self.crew}
        heard = {id(sources[source]): sources[source] for source in wait(list(sources), seconds)}
        return [news for worker in heard.values() for news in self.read_messages(worker)]

    def read_messages(self, worker: PoolWorker) -> list[News]:
        """Read what a worker has sent, then check whether it is alive."""
        alive = (
            worker.process.is_alive()
        )  # Checked first, so that messages from before its death are still read.
        messages: list[News] = []
        try:
            while worker.connection.poll():
                messages += self.take(worker, worker.connection.recv())
        except (EOFError, OSError):
            worker.process.join(1)
            alive = False
        return messages if alive else [*messages, *self.handle_death(worker)]

    def take(self, worker: PoolWorker, message: Any) -> list[News]:
        if isinstance(message, Ready):
            worker.ready, self.failed_starts = True, 0
        elif isinstance(message, Progress) and worker.run:
            return [(worker.run, message)]
        elif isinstance(message, Ended) and worker.run:
            run, worker.run = worker.run, None
            if message.fate == "preempted" and not self.stopped:
                worker.retired = time.monotonic()  # It exits by itself.
                return [(run, Lost("its worker process was told to stop (SIGTERM)"))]
            if message.fate == "crashed":
                self.retire(worker)
            return [(run, message)]
        return []

    def assign(self, worker: PoolWorker, run: ExperimentRun) -> None:
        worker.run, worker.starvations = run, starvations()
        with contextlib.suppress(OSError):  # Its sentinel reports a dead worker.
            patience = (
                GRACE_RETIRED + 1 if run.attempts else 0.0
            )  # A worker that is exiting may still hold the lock.
            worker.connection.send(RunJob(run.config, run.path, self.allow_change, patience))

    def retire(self, worker: PoolWorker) -> None:
        """Dismiss a worker whose run crashed, because the cause may also break later runs in the same
        process. `start` replaces it once it has exited."""
        worker.retired = time.monotonic()
        with contextlib.suppress(OSError):
            worker.connection.send(QUIT)

    def handle_death(self, worker: PoolWorker) -> list[News]:
        """A worker died, and its run with it."""
        self.crew.remove(worker)
        worker.process.join()
        worker.connection.close()
        why = death(worker.process.exitcode, starvations() > worker.starvations)
        if not worker.ready:
            self.failed_starts += 1
            self.rests_until = time.monotonic() + REST
        at_work = any(other.run for other in self.crew)
        if self.failed_starts >= MOST_FAILED_STARTS and not self.stopped and not at_work:
            raise RuntimeError(f"worker processes die while they start: the last one {why}")
        killed = (worker.process.exitcode or 0) < 0
        return [(worker.run, Lost(f"its worker process {why}", machine=killed))] if worker.run else []

    def start_worker(self) -> None:
        """Start a worker in the first free slot."""
        taken = {worker.slot for worker in self.crew}
        slot = next(number for number in itertools.count() if number not in taken)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = machine.count_threads_per_worker(self.workers)
        process = context.Process(target=serve, args=(theirs, self.execute, threads, os.getpid()))
        variables = machine.make_worker_environment(self.workers, slot, self.gpus_per_run)
        with environment(**variables), without_main(), without_interrupts():
            process.start()
        theirs.close()  # a copy left open here would hide the end of the connection when the worker dies
        self.crew.append(PoolWorker(process, ours, slot))

    def abandon(self, run: ExperimentRun) -> None:
        for worker in self.crew:
            if worker.run is run:
                worker.process.kill()

    def stop(self) -> None:
        self.stopped = True
        for worker in self.crew:
            with contextlib.suppress(OSError):
                worker.connection.send(STOP if worker.run else QUIT)

    def kill(self) -> None:
        for worker in self.crew:
            worker.process.kill()

    def close(self) -> None:
        """Dismiss idle workers and leave no process behind."""
        for worker in self.crew:
            with contextlib.suppress(OSError):
                worker.connection.send(QUIT)
        deadline = time.monotonic() + 2
        for worker in self.crew:
            if worker.ready:
                worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()
            worker.connection.close()
        self.crew.clear()
