"""Garbage collection for programs that make many objects, and a crew of helper processes.

A `Crew` shares the calls of one function among this process and its helpers, and returns the results in the
order of the calls. Helpers are new interpreters, not forks: a process that trained or sampled has threads,
and a fork would copy their locks without the threads. Helpers do not import the program that started them.
Jobs and results pass through unnamed files, and each helper draws job numbers from a pipe. When the first
process ends, files and pipe vanish, and each helper ends with its current call.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import IO, Any, TypeVar


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Within it, not at all: for what makes very many objects and drops none, which each search would go
    through once more."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextlib.contextmanager
def old_left_out() -> Iterator[None]:
    """Within it, only among what is made there: for what makes and drops objects beside much that stays.
    A program that has set objects aside itself keeps them there: nothing is added to them or taken back."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


Job = TypeVar("Job")
Result = TypeVar("Result")

MOST = 4
"""Processes at most: each needs some 300 MB, and seconds to import what it works with."""
MOST_JOBS = 255
"""The number of a job is a byte in a pipe."""
HELPER = """
import signal, sys, json
signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for who started it, and ends it
sys.path[:] = json.loads(sys.argv[1])
import importlib
importlib.import_module(sys.argv[2])
from grpobench.analysis.tools.processes import help_out
help_out(*map(int, sys.argv[3:]))
"""


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Crew:
    """This process and its helpers. `ask` and `finish`, or `share`, which is both, may be called once."""

    def __init__(self, processes: int, module: str) -> None:
        """Start the helpers, all processes but this one; each imports `module` at once. Where the system has
        no room for their files or for another process there are fewer."""
        self._files = contextlib.ExitStack()
        self._helpers: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        self._asked: Callable[[], list[Any]] = list
        self._read, self._write = os.pipe()
        if processes > 1 and sys.executable:
            with contextlib.suppress(OSError):  # this process does what they do not
                self._start(processes - 1, module)

    def _start(self, helpers: int, module: str) -> None:
        self._sent = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        for _ in range(helpers):
            made = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            files = (self._read, self._sent.fileno(), made.fileno())
            path = json.dumps([str(entry) for entry in sys.path])
            command = [sys.executable, "-P", "-c", HELPER, path, module, *map(str, (os.getpid(), *files))]
            helper = subprocess.Popen(
                command, pass_fds=files, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            self._helpers.append((helper, made))

    def ask(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> None:
        """Have helpers begin with `function` of each job. Function, jobs and results must be such as can be
        pickled. Raises ValueError for more than `MOST_JOBS`."""
        if len(jobs) > MOST_JOBS:
            raise ValueError(f"{len(jobs)} jobs; at most {MOST_JOBS}")
        if self._helpers:
            try:
                pickle.dump((function, jobs), self._sent, pickle.HIGHEST_PROTOCOL)
                self._sent.flush()
            except OSError:  # no room for it, so helpers cannot have it
                self._dismiss()
        os.write(self._write, bytes(range(len(jobs))))
        self._close_write()
        self._asked = partial(self._gather, function, jobs)

    def finish(self) -> list[Any]:
        """Do what helpers have not begun: `function` of each job that was asked for, in their order. Raises
        what the function raises, of the first job that fails."""
        return self._asked()

    def share(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
        """Ask, and finish at once."""
        self.ask(function, jobs)
        return self.finish()

    def _gather(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
        done, failed = _draw_all(self._read, function, jobs)
        for process, made in self._helpers:
            if len(done) + len(failed) == len(jobs):  # nobody else drew any
                break
            if process.wait() == 0:
                made.seek(0)
                theirs = pickle.load(made)
                done.update(theirs[0])
                failed |= theirs[1]
        # What failed, and what a helper had that ended otherwise, is done again in order: an error is raised
        # here as if there were no helpers, and it is that of the first job, whichever failed first.
        return [done[number] if number in done else function(job) for number, job in enumerate(jobs)]

    def close(self) -> None:
        """End the helpers that are still at work, and let go of the files."""
        self._close_write()
        self._dismiss()
        with contextlib.suppress(OSError):  # a full disk: what was to be written is of no use any more
            self._files.close()
        os.close(self._read)

    def _dismiss(self) -> None:
        for process, _ in self._helpers:
            process.kill()
            process.wait()
        self._helpers.clear()

    def _close_write(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1


@contextlib.contextmanager
def crew(processes: int, module: str) -> Iterator[Crew]:
    """So many processes, this one included and at most `MOST`, whose helpers are gone afterwards."""
    made = Crew(min(processes, MOST), module)
    try:
        yield made
    finally:
        made.close()


def help_out(asker: int, tickets: int, sent: int, made: int) -> None:
    """What a helper does: the jobs that it draws, until there are none or the process `asker` is gone."""
    first = os.read(tickets, 1)
    if not first:  # nothing is left to do, or who asked is gone
        return
    # The file's position is shared by all helpers, so it is read from a stated one.
    function, jobs = pickle.loads(os.pread(sent, os.fstat(sent).st_size, 0))
    with old_left_out():
        drawn = _draw_all(tickets, function, jobs, first, asker)
    with os.fdopen(made, "wb") as file:
        pickle.dump(drawn, file, pickle.HIGHEST_PROTOCOL)


def _draw_all(
    tickets: int,
    function: Callable[[Job], Result],
    jobs: Sequence[Job],
    first: bytes = b"",
    asker: int | None = None,
) -> tuple[dict[int, Result], set[int]]:
    """Do the jobs that this process draws: results by place, and the places of those that failed."""
    done: dict[int, Result] = {}
    failed: set[int] = set()
    ticket = first or os.read(tickets, 1)
    while ticket and asker in (None, os.getppid()):
        number = ticket[0]
        try:
            done[number] = function(jobs[number])
        except Exception:  # `share` does it again, and raises
            failed.add(number)
        ticket = os.read(tickets, 1)
    return done, failed
