"""Run a function on many arguments in processes that can be killed one by one.

`Pool` starts one child, the keeper, which is this module run as a program. The keeper imports what the
function needs, once, and forks workers. A worker that hangs, eats memory or dies is replaced by a fork of
milliseconds, not by another import of seconds, so that a hung question costs its own limit and next to
nothing more. The kernel measures CPU time, also inside C code; the keeper measures wall time, on the
monotonic clock.

Parent and keeper exchange JSON lines: ``[key, CPU seconds, wall seconds, argument]`` one way, ``[key, ending,
value]`` the other. The keeper ends with its input, and its workers with it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import itertools
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from grpobench.tasks.workers.processors import cores

Ending = Literal["done", "raised", "timeout", "crash", "infra_error"]

CPU_SECONDS = 3.0
WALL_PER_CPU = 3.0
"""A busy host must not change an outcome: the wall limit is this many times the CPU limit."""
MEMORY_BYTES = 2 * 1024**3
START_SECONDS = 120.0
TRIES = 3
"""A question whose worker or keeper was killed from outside is asked this often before it counts as lost."""
RECYCLE = 500
"""Questions after which a worker is replaced, so that nothing that they leave behind adds up."""
SLACK_SECONDS = 30.0
"""A keeper that says nothing for this long beyond a question's own limit is stuck."""
KEPT_ENVIRONMENT = (
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
    """What became of one argument.

    `timeout`, `crash` (out of memory, for one) and `raised` are the argument's doing. With `infra_error` the
    function never had its say: no process could be started, or it was killed from outside again and again.
    """

    ending: Ending
    value: Any = None
    """What the function returned, as JSON gives it back; the error's text where it raised, or where the
    workers could not be started."""


def places() -> int:
    """How many workers this process may keep busy: its usable cores, or fewer where OMP_NUM_THREADS allots it
    fewer, as the worker processes of a matrix are."""
    share = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores(), int(share))) if share.isdigit() else cores()


class Pool:
    """Workers for one function; started at the first question, stopped with this process.

    `factory` is ``module:name`` of a function without arguments that imports what is needed and returns the
    function to run. Arguments and results are JSON. `workers` 0 means `places()`. Safe to use from several
    threads, one `map` at a time, and from a forked copy of this process, which gets a keeper of its own.
    """

    def __init__(
        self, factory: str, cpu_seconds: float = CPU_SECONDS, memory: int = MEMORY_BYTES, workers: int = 0
    ) -> None:
        self.factory, self.cpu_seconds, self.memory, self.workers = factory, cpu_seconds, memory, workers
        self._lock = threading.Lock()
        self._keeper: _Keeper | None = None
        self._keys = itertools.count()
        self._fault = ""
        """Why no keeper could be started."""
        _pools.add(self)

    def map(
        self, arguments: Sequence[Any], cpu_seconds: float = 0.0, wall_seconds: float = 0.0
    ) -> list[Reply]:
        """The function of every argument, in order. Limits hold for each argument alone; 0 takes the pool's
        CPU limit and, for the wall, `WALL_PER_CPU` times the CPU limit."""
        cpu = cpu_seconds or self.cpu_seconds
        wall = wall_seconds or WALL_PER_CPU * cpu
        replies: dict[int, Reply] = {}
        with self._lock:
            for _ in range(TRIES):
                rest = {next(self._keys): i for i in range(len(arguments)) if i not in replies}
                keeper = self._alive() if rest else None
                if keeper is None:
                    break
                try:
                    for key, reply in keeper.ask({k: arguments[i] for k, i in rest.items()}, cpu, wall):
                        replies[rest[key]] = reply
                except _Lost:
                    self._drop()
                except BaseException:  # Ctrl-C, for one: what is under way must not answer the next call
                    self._drop()
                    raise
        return [replies.get(i, Reply("infra_error", self._fault or None)) for i in range(len(arguments))]

    def close(self) -> None:
        """Stop the keeper and its workers; the next question starts them anew."""
        with self._lock:
            self._drop()

    @property
    def keeper(self) -> int | None:
        """Process id of the keeper, if there is one; also the id of the process group of all workers."""
        keeper = self._keeper
        return keeper.process.pid if keeper is not None and keeper.owner == os.getpid() else None

    def _alive(self) -> _Keeper | None:
        if self._keeper is not None and self._keeper.owner != os.getpid():
            self._keeper = None  # this process is a fork: the keeper belongs to its parent
        if self._keeper is None:
            started = _Keeper.start(self.factory, self.workers or places(), self.memory)
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
    """What the keeper wrote; an empty line marks its end."""

    @classmethod
    def start(cls, factory: str, workers: int, memory: int) -> _Keeper | str:
        """A keeper that is ready, or why there is none."""
        kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
        # Sets are walked in the order of their hashes, which can reach what a function makes.
        kept |= {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "MPLBACKEND": "Agg",
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, factory, str(workers), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept,
            start_new_session=True,  # Ctrl-C is the trainer's business
        )
        keeper = cls(process, os.getpid())
        threading.Thread(target=keeper.listen, daemon=True).start()
        fault = f"its workers were not ready within {START_SECONDS:.0f} s"
        with contextlib.suppress(queue.Empty):
            said = keeper.lines.get(timeout=START_SECONDS).decode().strip()
            if said == "ready":
                return keeper
            fault = said or "its workers ended while they started"
        keeper.stop()
        return fault

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def ask(self, arguments: Mapping[int, Any], cpu: float, wall: float) -> Iterator[tuple[int, Reply]]:
        """Yield key and reply as they come. Raises _Lost when the keeper is gone or stuck."""
        assert self.process.stdin is not None
        try:
            for key, argument in arguments.items():
                self.process.stdin.write(json.dumps([key, cpu, wall, argument]).encode() + b"\n")
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
        with contextlib.suppress(
            OSError
        ):  # the group outlives a keeper that was killed, while a worker lives
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):  # questions that it never took
            assert self.process.stdin is not None
            self.process.stdin.close()


# What follows runs in the keeper.


@dataclass
class _Question:
    key: int
    cpu: float
    wall: float
    argument: Any
    tries: int = 0


@dataclass
class _Worker:
    pid: int
    line: socket.socket
    question: _Question | None = None
    deadline: float = 0.0
    received: bytearray = field(default_factory=bytearray)
    answered: int = 0


class _Floor:
    """The keeper's loop: hands questions to workers, takes their answers, replaces those that end."""

    def __init__(self, requests: int, replies: int, function: Callable[[Any], Any], places: int, memory: int):
        self.requests, self.replies, self.function = requests, replies, function
        self.places, self.memory = places, memory
        self.waiting: deque[_Question] = deque()
        self.workers: dict[int, _Worker] = {}
        """By the descriptor of their line."""
        self.dying: list[int] = []
        """Killed processes that the kernel may still be busy with: one that holds gigabytes goes slowly."""
        self.partial = b""

    def run(self) -> None:
        while True:
            self.dying = [pid for pid in self.dying if os.waitpid(pid, os.WNOHANG) == (0, 0)]
            self.hand_out()
            deadlines = [worker.deadline for worker in self.workers.values() if worker.question]
            patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            readable, _, _ = select.select([self.requests, *self.workers], [], [], patience)
            for descriptor in readable:
                if descriptor != self.requests:
                    self.hear(self.workers[descriptor])
                elif not self.read():
                    return
            now = time.monotonic()
            for worker in [w for w in self.workers.values() if w.question and w.deadline <= now]:
                self.kill(worker)
                self.answer(worker, "timeout")

    def read(self) -> bool:
        """Take questions in; False at the end of the input."""
        data = os.read(self.requests, 1 << 16)
        *lines, self.partial = (self.partial + data).split(b"\n")
        self.waiting.extend(_Question(*json.loads(line)) for line in lines)
        return bool(data)

    def hand_out(self) -> None:
        idle = [worker for worker in self.workers.values() if worker.question is None]
        while self.waiting and (idle or len(self.workers) < self.places):
            worker = idle.pop() if idle else self.hire()
            question = self.waiting.popleft()
            worker.question, worker.deadline = question, time.monotonic() + question.wall
            message = json.dumps([question.cpu, question.wall, question.argument]).encode() + b"\n"
            try:
                worker.line.sendall(message)
            except OSError:  # it was killed while idle; `hear` finds out
                continue

    def hire(self) -> _Worker:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for descriptor in (self.requests, self.replies, ours.fileno(), *self.workers):
                os.close(descriptor)
            _serve(theirs, self.function, self.memory)
        theirs.close()
        worker = _Worker(pid, ours)
        self.workers[ours.fileno()] = worker
        return worker

    def hear(self, worker: _Worker) -> None:
        try:
            data = worker.line.recv(1 << 16)
        except OSError:
            data = b""
        worker.received += data
        if not data:
            status = self.bury(worker)
            if worker.question is not None:
                self.ended(worker, worker.question, status)
        elif worker.received.endswith(b"\n"):
            ending, value = json.loads(worker.received)
            worker.received.clear()
            self.answer(worker, ending, value)
            worker.question = None
            worker.answered += 1
            if worker.answered >= RECYCLE:
                self.kill(worker)

    def ended(self, worker: _Worker, question: _Question, status: int) -> None:
        """A worker closed its line while a question was open: say why, or have it asked again."""
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        question.tries += 1
        if number in (signal.SIGPROF, signal.SIGXCPU, signal.SIGALRM):
            self.answer(worker, "timeout")
        elif number not in (signal.SIGKILL, signal.SIGTERM):
            self.answer(worker, "crash")
        elif question.tries >= TRIES:
            self.answer(worker, "infra_error")
        else:
            self.waiting.appendleft(question)

    def answer(self, worker: _Worker, ending: Ending, value: Any = None) -> None:
        assert worker.question is not None
        data = json.dumps([worker.question.key, ending, value]).encode() + b"\n"
        while data:
            data = data[os.write(self.replies, data) :]

    def bury(self, worker: _Worker) -> int:
        """The wait status of a worker that has closed its line; one that still lives after that is killed."""
        self.forget(worker)
        for _ in range(1000):  # the line closes a moment before the process is dead
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.001)
        os.kill(worker.pid, signal.SIGKILL)
        return os.waitpid(worker.pid, 0)[1]

    def kill(self, worker: _Worker) -> None:
        self.forget(worker)
        os.kill(worker.pid, signal.SIGKILL)
        self.dying.append(worker.pid)

    def forget(self, worker: _Worker) -> None:
        del self.workers[worker.line.fileno()]
        worker.line.close()


def _serve(line: socket.socket, function: Callable[[Any], Any], memory: int) -> NoReturn:
    """A worker: answers one question after another until its line is closed. Never returns to the keeper."""
    try:
        _limit(memory)
        for message in line.makefile("rb"):
            cpu, wall, argument = json.loads(message)
            signal.setitimer(signal.ITIMER_PROF, cpu)
            signal.setitimer(signal.ITIMER_REAL, wall + 1)  # only matters where the keeper was killed
            reply = _run(function, argument)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            line.sendall(reply)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _limit(memory: int) -> None:
    """The timers end the process in the kernel's hands: their signals have no handler."""
    import resource

    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (OSError, ValueError):
            if sys.platform == "linux":  # macOS knows no limit of address space
                raise


def _run(function: Callable[[Any], Any], argument: Any) -> bytes:
    """The reply as a line. Out of memory ends the process: what is left of it cannot be trusted."""
    try:
        reply = ["done", function(argument)]
        return json.dumps(reply).encode() + b"\n"
    except MemoryError:
        os._exit(1)
    except BaseException as error:  # SystemExit is an error like any other here
        text = f"{type(error).__name__}: {error}"[:300]
        return json.dumps(["raised", text]).encode() + b"\n"


def _keep(factory: str, workers: int, memory: int) -> None:
    """The keeper's main function. What libraries print goes nowhere."""
    requests, replies, nowhere = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    module, _, name = factory.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)()
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        os.write(replies, f"{text}\n".encode())
        raise
    gc.collect()
    gc.freeze()  # the workers then share these pages, which a collection would write to
    os.write(replies, b"ready\n")
    floor = _Floor(requests, replies, function, workers, memory)
    try:
        floor.run()
    finally:
        for worker in list(floor.workers.values()):
            floor.kill(worker)


if __name__ == "__main__":
    _keep(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
