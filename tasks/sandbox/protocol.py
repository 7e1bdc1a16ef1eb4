"""The interface of all tiers of the sandbox: programs go in, the values of their calls come out as text."""

from __future__ import annotations

import atexit
import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from grpobench.tasks.sandbox.wire import values as read_values
from grpobench.tasks.workers.pool import cores

ExecutionOutcome = Literal["pass", "error", "syntax", "timeout", "oom", "output_limit", "infra_error"]


Tier = Literal["bubblewrap", "monty", "unsafe"]


Choice = Literal["auto", "bubblewrap", "monty", "unsafe"]


@dataclass(frozen=True)
class Execution:
    """The result of running one program: the values of its calls (only if `outcome` is "pass")."""

    outcome: ExecutionOutcome
    wire: tuple[str, ...] = ()
    """The values in the format of `wire.py`, which anyone inside may have written. `grading/algebra.py` reads
    and compares them at a bounded cost."""
    detail: str = ""
    seconds: float = 0.0
    """Processor time, if that decides whether the program is tried again."""
    returned: int | None = None
    """Calls that returned before the program failed; None where the tier does not know. Anyone inside may
    have written it, so it is for people only."""

    @property
    def brief(self) -> bool:
        """Whether reading and comparing the values takes negligible time, whatever they are."""
        return sum(map(len, self.wire)) <= BRIEF

    @functools.cached_property
    def values(self) -> tuple[Any, ...]:
        """The values themselves, read in this process. Raises ValueError for text that is not a value."""
        return read_values(self.wire)


@dataclass(frozen=True)
class Job:
    """Define `program`, then evaluate each call expression in order."""

    program: str
    calls: tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """Limits of one program."""

    seconds: float = 3.0
    """Processor time. A program that waits instead is stopped after `PATIENCE` times as long."""
    megabytes: int = 512
    """Address space (of Monty: heap)."""


PATIENCE = 3


BRIEF = 4000
"""Maximum characters of values that are read and compared in this process, within hundredths of a second."""


class Sandbox(ABC):
    """Base of all tiers: retries, and as many jobs at once as there are cores."""

    tier: Tier
    attempts = 3
    longest = 200_000
    """Characters of a program; longer ones are not run."""

    def __init__(self, limits: Limits, workers: int = 0) -> None:
        self.limits = limits
        self.workers = workers or cores()
        self.threads: ThreadPoolExecutor | None = None
        atexit.register(self.close)

    @abstractmethod
    def once(self, job: Job) -> tuple[Execution, bool]:
        """Run a job once. The second value says that something other than the program may have ended it
        (for example, a worker was killed). The job is then run again, and the result of the last attempt
        counts."""

    def close(self) -> None:
        atexit.unregister(self.close)
        if self.threads is not None:
            self.threads.shutdown(wait=False, cancel_futures=True)

    def run(self, program: str, calls: Sequence[str]) -> Execution:
        """Run one program. Never raises for any program."""
        if len(program) > self.longest:
            return Execution("output_limit", detail=f"a program of {len(program)} characters")
        job, spent = Job(program, tuple(calls)), 0.0
        for _ in range(self.attempts):
            execution, again = self.once(job)
            spent += execution.seconds
            if not again or spent >= self.limits.seconds:
                break
        return execution

    def run_all(self, jobs: Sequence[Job]) -> list[Execution]:
        """Run many programs in parallel; returns results in the order given."""
        if len(jobs) < 2 or self.workers < 2:
            return [self.run(job.program, job.calls) for job in jobs]
        if self.threads is None:
            self.threads = ThreadPoolExecutor(self.workers, "sandbox")
        return list(self.threads.map(lambda job: self.run(job.program, job.calls), jobs))
