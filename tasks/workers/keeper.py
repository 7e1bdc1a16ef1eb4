"""The keeper of a pool, which is this module run as a program: it hands questions to workers, which it forks,
takes their answers, and replaces those that end.

The keeper imports what the function needs, once. A worker that hangs, eats memory or dies is replaced by a
fork of milliseconds, not by another import of seconds, so that a hung question costs its own limit and next
to nothing more. The kernel measures CPU time, also inside C code; the keeper measures wall time, on the
monotonic clock.

It reads JSON lines ``[key, CPU seconds, wall seconds, argument]`` and writes ``[key, ending, value]``. It
ends with its input, and its workers with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

Ending = Literal["done", "raised", "timeout", "crash", "infra_error"]
PROGRAM = __name__
"""What ``python -m`` runs as a keeper."""
TRIES = 3
"""A question whose worker or keeper was killed from outside is asked this often before it counts as lost."""
RECYCLE = 500
"""Questions after which a worker is replaced, so that nothing that they leave behind adds up."""


@dataclass
class Question:
    key: int
    cpu: float
    wall: float
    argument: Any
    tries: int = 0


@dataclass
class Worker:
    pid: int
    line: socket.socket
    question: Question | None = None
    deadline: float = 0.0
    received: bytearray = field(default_factory=bytearray)
    answered: int = 0


class Floor:
    """The keeper's loop: hands questions to workers, takes their answers, replaces those that end."""

    def __init__(self, requests: int, replies: int, function: Callable[[Any], Any], places: int, memory: int):
        self.requests, self.replies, self.function = requests, replies, function
        self.places, self.memory = places, memory
        self.waiting: deque[Question] = deque()
        self.workers: dict[int, Worker] = {}
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
                    self.read_messages(self.workers[descriptor])
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
        self.waiting.extend(Question(*json.loads(line)) for line in lines)
        return bool(data)

    def hand_out(self) -> None:
        idle = [worker for worker in self.workers.values() if worker.question is None]
        while self.waiting and (idle or len(self.workers) < self.places):
            worker = idle.pop() if idle else self.start_worker()
            question = self.waiting.popleft()
            worker.question, worker.deadline = question, time.monotonic() + question.wall
            message = json.dumps([question.cpu, question.wall, question.argument]).encode() + b"\n"
            try:
                worker.line.sendall(message)
            except OSError:  # it was killed while idle; `hear` finds out
                continue

    def start_worker(self) -> Worker:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for descriptor in (self.requests, self.replies, ours.fileno(), *self.workers):
                os.close(descriptor)
            serve(theirs, self.function, self.memory)
        theirs.close()
        worker = Worker(pid, ours)
        self.workers[ours.fileno()] = worker
        return worker

    def read_messages(self, worker: Worker) -> None:
        try:
            data = worker.line.recv(1 << 16)
        except OSError:
            data = b""
        worker.received += data
        if not data:
            status = self.reap(worker)
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

    def ended(self, worker: Worker, question: Question, status: int) -> None:
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

    def answer(self, worker: Worker, ending: Ending, value: Any = None) -> None:
        assert worker.question is not None
        data = json.dumps([worker.question.key, ending, value]).encode() + b"\n"
        while data:
            data = data[os.write(self.replies, data) :]

    def reap(self, worker: Worker) -> int:
        """The wait status of a worker that has closed its line; one that still lives after that is killed."""
        self.forget(worker)
        for _ in range(1000):  # the line closes a moment before the process is dead
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.001)
        os.kill(worker.pid, signal.SIGKILL)
        return os.waitpid(worker.pid, 0)[1]

    def kill(self, worker: Worker) -> None:
        self.forget(worker)
        os.kill(worker.pid, signal.SIGKILL)
        self.dying.append(worker.pid)

    def forget(self, worker: Worker) -> None:
        del self.workers[worker.line.fileno()]
        worker.line.close()


def serve(line: socket.socket, function: Callable[[Any], Any], memory: int) -> NoReturn:
    """A worker: answers one question after another until its line is closed. Never returns to the keeper."""
    try:
        limit(memory)
        for message in line.makefile("rb"):
            cpu, wall, argument = json.loads(message)
            signal.setitimer(signal.ITIMER_PROF, cpu)
            signal.setitimer(signal.ITIMER_REAL, wall + 1)  # only matters where the keeper was killed
            reply = reply_to(function, argument)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            line.sendall(reply)
    except BaseException:
        os._exit(1)
    os._exit(0)


def limit(memory: int) -> None:
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


def reply_to(function: Callable[[Any], Any], argument: Any) -> bytes:
    """The reply as a line. Out of memory ends the process: what is left of it cannot be trusted."""
    try:
        reply = ["done", function(argument)]
        return json.dumps(reply).encode() + b"\n"
    except MemoryError:
        os._exit(1)
    except BaseException as error:  # SystemExit is an error like any other here
        text = f"{type(error).__name__}: {error}"[:300]
        return json.dumps(["raised", text]).encode() + b"\n"


def keep(factory: str, workers: int, memory: int) -> None:
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
    floor = Floor(requests, replies, function, workers, memory)
    try:
        floor.run()
    finally:
        for worker in list(floor.workers.values()):
            floor.kill(worker)


if __name__ == "__main__":
    keep(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
