"""Run a function on many arguments in worker processes that can be killed one by one."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpobench.tasks.task import Outcome
from grpobench.tasks.workers.keeper import (
    MEMORY_BYTES,
    PROGRAM,
    RECYCLE,
    TRIES,
    Ending,
    WorkerLimits,
)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


OUTCOMES: Mapping[Ending, Outcome] = {
    "done": "graded",
    "raised": "crash",
    "timeout": "timeout",
    "crash": "crash",
    "infra_error": "infra_error",
}
"""What a job's ending means for the answer that it grades."""
CPU_SECONDS = 3.0
WALL_PER_CPU = 3.0
"""A busy host must not change an outcome, so the wall limit is this many times the CPU limit."""
START_SECONDS = 120.0
STOP_SECONDS = 5.0
"""A keeper that has not ended its workers and itself by then is killed."""
SLACK_SECONDS = 30.0
"""A keeper that sends nothing for this long after a question's own limit is stuck."""
INHERITED_ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "MPLCONFIGDIR",
)


@dataclass(frozen=True)
class Reply:
    """The result for one argument. `timeout`, `crash` (for example out of memory) and `raised` are caused by
    the argument. With `infra_error` the function never ran to its end: no process could be started, or it was
    killed from outside repeatedly."""

    ending: Ending
    value: Any = None
    """The function's result, as JSON returns it; the error's text if it raised, or if the workers could not
    be started."""


def worker_slots() -> int:
    """How many workers this process may keep busy: its usable cores, or fewer where OMP_NUM_THREADS allots it
    fewer, as the worker processes of a matrix are."""
    share = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores(), int(share))) if share.isdigit() else cores()


class Pool:
    """Workers for one function; started at the first question, stopped with this process.

    `factory` is ``module:name`` of a function that imports what is needed and returns the function to run; it
    is called with `settings`. Arguments, results and settings are JSON. `workers` 0 means `worker_slots()`.
    Safe to use from several threads, one `map` at a time, and from a forked copy of this process, which gets
    its own keeper. `memory`, `file` and `questions` are those of `WorkerLimits`.
    """

    def __init__(
        self,
        factory: str,
        cpu_seconds: float = CPU_SECONDS,
        memory: int = MEMORY_BYTES,
        workers: int = 0,
        *,
        file: int = 0,
        questions: int = RECYCLE,
        start_seconds: float = START_SECONDS,
        settings: Sequence[Any] = (),
    ) -> None:
        self.factory, self.cpu_seconds, self.workers = factory, cpu_seconds, workers
        self.limits, self.settings = WorkerLimits(memory, file, questions), settings
        self.start_seconds = start_seconds
        self._lock = threading.Lock()
        self._keeper: _Keeper | None = None
        self._keys = itertools.count()
        self._fault = ""
        """Why no keeper could be started."""
        _pools.add(self)

    def map(
        self,
        arguments: Sequence[Any],
        cpu_seconds: float = 0.0,
        wall_seconds: float = 0.0,
        shards: Sequence[int] = (),
    ) -> list[Reply]:
        """The function's result for every argument, in order. Limits hold for each argument alone; 0 uses the
        pool's CPU limit and, for the wall, `WALL_PER_CPU` times the CPU limit. Arguments with equal `shards`
        go to the same worker, as long as it lives; by default any worker takes any argument."""
        cpu = cpu_seconds or self.cpu_seconds
        wall = wall_seconds or WALL_PER_CPU * cpu
        replies: dict[int, Reply] = {}
        with self._lock:
            for _ in range(TRIES):
                pending = {next(self._keys): i for i in range(len(arguments)) if i not in replies}
                keeper = self._alive() if pending else None
                if keeper is None:
                    break
                try:
                    questions = {k: (arguments[i], shards[i] if shards else None) for k, i in pending.items()}
                    for key, reply in keeper.ask(questions, cpu, wall):
                        replies[pending[key]] = reply
                except _Lost:
                    self._drop()
                except (
                    BaseException
                ):  # For example after Ctrl-C: open questions must not answer the next call.
                    self._drop()
                    raise
        return [replies.get(i, Reply("infra_error", self._fault or None)) for i in range(len(arguments))]

    def close(self) -> None:
        """Stop the keeper and its workers; the next question starts new ones."""
        with self._lock:
            self._drop()

    @property
    def keeper(self) -> int | None:
        """Process id of the keeper, if there is one."""
        keeper = self._keeper
        return keeper.process.pid if keeper is not None and keeper.owner == os.getpid() else None

    def _alive(self) -> _Keeper | None:
        if self._keeper is not None and self._keeper.owner != os.getpid():
            self._keeper = None  # This process is a fork: the keeper belongs to its parent.
        if self._keeper is None:
            workers = self.workers or worker_slots()
            started = _Keeper.start(self.factory, self.settings, workers, self.limits, self.start_seconds)
            self._keeper, self._fault = (None, started) if isinstance(started, str) else (started, "")
        return self._keeper

    def _drop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper.owner == os.getpid():
            keeper.stop()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool._drop()


class _Lost(Exception):
    """The keeper died or does not answer."""


@dataclass
class _Keeper:
    """The parent's end of a keeper."""

    process: subprocess.Popen[bytes]
    owner: int
    lines: queue.SimpleQueue[bytes] = field(default_factory=queue.SimpleQueue)
    """Lines of the keeper; an empty line marks the end."""

    @classmethod
    def start(
        cls, factory: str, settings: Sequence[Any], workers: int, limits: WorkerLimits, seconds: float
    ) -> _Keeper | str:
        """A keeper that is ready, or why there is none."""
        environment = {name: os.environ[name] for name in INHERITED_ENVIRONMENT if name in os.environ}
        # The order of sets depends on hashes, which can affect what a function computes.
        environment |= {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "MPLBACKEND": "Agg",
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM, factory, json.dumps([settings, workers, limits])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # The trainer handles Ctrl-C.
        )
        keeper = cls(process, os.getpid())
        threading.Thread(target=keeper.listen, daemon=True).start()
        fault = f"its workers were not ready within {seconds:.0f} s"
        with contextlib.suppress(queue.Empty):
            first_line = keeper.lines.get(timeout=seconds).decode().strip()
            if first_line == "ready":
                return keeper
            fault = first_line or "its workers ended while they started"
        keeper.stop()
        return fault

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def ask(
        self, arguments: Mapping[int, tuple[Any, int | None]], cpu: float, wall: float
    ) -> Iterator[tuple[int, Reply]]:
        """Yield key and reply as they come; `arguments` have their shards with them. Raises _Lost if the
        keeper is gone or stuck."""
        assert self.process.stdin is not None
        try:
            for key, (argument, shard) in arguments.items():
                self.process.stdin.write(json.dumps([key, cpu, wall, argument, shard]).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise _Lost from None
        waiting = set(arguments)
        while waiting:
            try:
                line = self.lines.get(timeout=wall + SLACK_SECONDS)
            except queue.Empty:
                raise _Lost from None
            if not line.endswith(b"\n"):
                raise _Lost
            key, ending, value = json.loads(line)
            if key in waiting:
                waiting.remove(key)
                yield key, Reply(ending, value)

    def stop(self) -> None:
        self.process.terminate()  # It kills its workers with everything that they started.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):  # questions that it never took
            assert self.process.stdin is not None
            self.process.stdin.close()
