"""A side of the comparison in a process of its own, and the pipe to it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

from grpobench.runs.bench.cases import Case
from grpobench.runs.bench.floor import Floor
from grpobench.runs.bench.sides import FLOOR, SIDES, STEP, Failed, Message, Ready, Step, serve
from grpobench.runs.tools.process import environment
from grpobench.runs.tools.strict import ConfigError


class Side(Protocol):
    """What the comparison needs of a side."""

    ready: Ready

    def step(self) -> Step: ...

    def floor(self) -> Floor: ...


Start = Callable[[str, Case], contextlib.AbstractContextManager[Side]]


class Process:
    """A side in a process of its own."""

    def __init__(self, name: str, connection: Connection, process: Any) -> None:
        self.name, self.connection, self.process = name, connection, process
        first = self.receive()
        assert isinstance(first, Ready)
        self.ready = first

    def step(self) -> Step:
        self.connection.send(STEP)
        step = self.receive()
        assert isinstance(step, Step)
        return step

    def floor(self) -> Floor:
        """What the products of a step take at least, by our side's model; it makes no steps afterwards."""
        self.connection.send(FLOOR)
        floor = self.receive()
        assert isinstance(floor, Floor)
        return floor

    def receive(self) -> Message:
        """The side's next message. Raises ConfigError for the user's mistake, ChildProcessError when the
        side cannot go on."""
        try:
            message: Message | Failed = self.connection.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            why = (
                f"signal {-code}; if that is 9, memory may have run out" if code < 0 else f"exit code {code}"
            )
            raise ChildProcessError(f"the process of {self.name} died ({why})") from None
        if isinstance(message, Failed):
            if message.mistake:
                raise ConfigError([message.why])
            raise ChildProcessError(f"{self.name} failed:\n{message.why}")
        return message


@contextlib.contextmanager
def process(name: str, case: Case) -> Iterator[Process]:
    """Start a side and wait until its model is loaded; end its process afterwards."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=serve, args=(there, SIDES[name], case, os.getpid()))
    with environment(OMP_NUM_THREADS=str(case.threads), MKL_NUM_THREADS=str(case.threads)):
        child.start()
    there.close()
    try:
        yield Process(name, here, child)
    finally:
        here.close()
        child.join(5)
        child.kill()
        child.join()
