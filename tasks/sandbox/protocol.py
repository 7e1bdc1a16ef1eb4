"""What every tier of the sandbox is: programs go in, the values of their calls come out as text."""

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
    """What running one program gave: the values of its calls (only when `outcome` is "pass")."""

    outcome: ExecutionOutcome
    wire: tuple[str, ...] = ()
    """The values as `wire.py` has them, which anybody inside may have written. `judging.py` reads
    and compares them at a bounded cost."""
    detail: str = ""
    seconds: float = 0.0
    """Processor time that it took, where that decides whether it is tried again."""

    @property
    def brief(self) -> bool:
        """Whether reading and comparing the values takes no time to speak of, whatever they are."""
        return sum(map(len, self.wire)) <= BRIEF

    @functools.cached_property
    def values(self) -> tuple[Any, ...]:
        """The values themselves, read in this process. Raises ValueError where the text stands for none."""
        return read_values(self.wire)


@dataclass(frozen=True)
class Job:
    """Define `program`, then evaluate each call expression in order."""

    program: str
    calls: tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    seconds: float = 3.0
    """Processor time. A program that waits instead is stopped after `PATIENCE` times as long."""
    megabytes: int = 512
    """Address space (of Monty: heap)."""


PATIENCE = 3


BRIEF = 4000
"""Characters of values on the wire that are read and compared where they are, in hundredths of a second."""


class Sandbox(ABC):
    """What every tier is, and what they share: retries, and as many jobs at once as there are cores."""

    tier: Tier
    attempts = 3
    longest = 200_000
    """Characters of a program; anything longer is not run."""

    def __init__(self, limits: Limits, workers: int = 0) -> None:
        self.limits = limits
        self.workers = workers or cores()
        self.threads: ThreadPoolExecutor | None = None
        atexit.register(self.close)

    @abstractmethod
    def once(self, job: Job) -> tuple[Execution, bool]:
        """Run a job one time. The second says that something other than the program may have ended it (a
        worker was killed, say): it is then run again, and what the last attempt gives stands."""

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
        """Run many, several at once; in the order given."""
        if len(jobs) < 2 or self.workers < 2:
            return [self.run(job.program, job.calls) for job in jobs]
        if self.threads is None:
            self.threads = ThreadPoolExecutor(self.workers, "sandbox")
        return list(self.threads.map(lambda job: self.run(job.program, job.calls), jobs))
