"""Garbage collection for programs that make many objects, and a crew of helper processes."""

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

# Garbage collection


@contextlib.contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Turn garbage collection off, for code that makes many objects and drops none. Every collection would
    otherwise search all of them again."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextlib.contextmanager
def exclude_old_objects() -> Iterator[None]:
    """Exclude existing objects from garbage collection, for code that makes and drops objects while many
    others stay. If the program has frozen objects itself, this changes nothing."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# Helper processes

Job = TypeVar("Job")
Result = TypeVar("Result")

MOST = 4
"""Most processes: each needs about 300 MB, and seconds for its imports."""
MOST_JOBS = 255
"""Most jobs, because the number of a job is one byte in a pipe."""
HELPER = """
import signal, sys, json
signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt ends the starter, and so the helper
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
    """This process and its helpers. Call `ask` and then `finish`, and only once.

    It shares the calls of one function among this process and its helpers, and returns the results in the
    order of the calls. Helpers are new interpreters, not forks: a process that trained or sampled has
    threads, and a fork would copy their locks without the threads. Helpers do not import the program that
    started them. Jobs and results pass through unnamed files, and each helper draws job numbers from a pipe.
    When the first process ends, files and pipe vanish, and each helper ends with its current call."""

    def __init__(self, processes: int, module: str) -> None:
        """Start `processes` − 1 helpers, which import `module` at once. There are fewer if the system has no
        room for their files or for another process."""
        self._files = contextlib.ExitStack()
        self._helpers: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        self._asked: Callable[[], list[Any]] = list
        self._read, self._write = os.pipe()
        if processes > 1 and sys.executable:
            with contextlib.suppress(OSError):  # this process does the jobs that helpers do not do
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
        """Let helpers begin with `function(job)` for each job. Function, jobs and results must be picklable.
        Raises ValueError for more than `MOST_JOBS` jobs."""
        if len(jobs) > MOST_JOBS:
            raise ValueError(f"{len(jobs)} jobs; at most {MOST_JOBS}")
        if self._helpers:
            try:
                pickle.dump((function, jobs), self._sent, pickle.HIGHEST_PROTOCOL)
                self._sent.flush()
            except OSError:  # no room for the jobs, so helpers cannot do any
                self._dismiss()
        os.write(self._write, bytes(range(len(jobs))))
        self._close_write()
        self._asked = partial(self._gather, function, jobs)

    def finish(self) -> list[Any]:
        """Do the jobs that helpers have not begun, and return all results in the order of the jobs. Raises
        the error of the first job that fails."""
        return self._asked()

    def _gather(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
        done, failed = _draw_all(self._read, function, jobs)
        for process, made in self._helpers:
            if len(done) + len(failed) == len(jobs):  # helpers drew no jobs
                break
            if process.wait() == 0:
                made.seek(0)
                theirs = pickle.load(made)
                done.update(theirs[0])
                failed |= theirs[1]
        # Repeat failed jobs, and jobs of helpers that died, in order. So errors are raised in this process as
        # without helpers, and the error of the first job is raised, whichever job failed first.
        return [done[number] if number in done else function(job) for number, job in enumerate(jobs)]

    def close(self) -> None:
        """Stop the helpers that are still running, and close the files."""
        self._close_write()
        self._dismiss()
        with contextlib.suppress(OSError):  # the disk is full; the rest is not needed any more
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
    """A crew of `processes` processes (at most `MOST`), including this one. The helpers end with the
    block."""
    made = Crew(min(processes, MOST), module)
    try:
        yield made
    finally:
        made.close()


def help_out(asker: int, tickets: int, sent: int, made: int) -> None:
    """Run a helper: do the jobs that it draws, until there are none or the process `asker` has ended."""
    first = os.read(tickets, 1)
    if not first:  # no jobs are left, or the asking process has ended
        return
    # All helpers share the file's position, so each reads from an explicit offset.
    function, jobs = pickle.loads(os.pread(sent, os.fstat(sent).st_size, 0))
    with exclude_old_objects():
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
    """Do the jobs that this process draws. Returns results by job number, and the numbers of failed jobs."""
    done: dict[int, Result] = {}
    failed: set[int] = set()
    ticket = first or os.read(tickets, 1)
    while ticket and asker in (None, os.getppid()):
        number = ticket[0]
        try:
            done[number] = function(jobs[number])
        except Exception:  # `finish` repeats the job and raises
            failed.add(number)
        ticket = os.read(tickets, 1)
    return done, failed
