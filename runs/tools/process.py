"""Safe points: places inside long work where it may be given up, and where it shows that it goes on.

Whoever answers for the work names what is asked there, which may raise to give it up. Elsewhere, and in
threads, a safe point does nothing.

What a process inherits, where its output goes, and how it ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any


def nothing() -> None:
    """Nobody asks anything."""


CALLBACK: ContextVar[Callable[[], None]] = ContextVar("asked", default=nothing)


@contextlib.contextmanager
def asking(ask: Callable[[], None]) -> Iterator[None]:
    """Within, `ask` is called at every safe point; often, so that it should look at the clock first."""
    before = CALLBACK.set(ask)
    try:
        yield
    finally:
        CALLBACK.reset(before)


def safe_point() -> None:
    """A place where what was done since the work began can be thrown away."""
    CALLBACK.get()()


STARTING = threading.Lock()
"""Held while `__main__` is hidden, which all threads share."""


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send what this process and its libraries print, C code included, to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        for target, copy in enumerate(kept, start=1):
            os.dup2(copy, target)
            os.close(copy)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the launcher dies (Linux); elsewhere the closed pipe tells."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # It died before the call.
        os._exit(1)


def death(code: int | None, starved: bool = False) -> str:
    """How a process ended, in words. `starved`: the system killed some for their memory meanwhile."""
    if code is None or code >= 0:
        return f"exited with {code}"
    name = signal.Signals(-code).name
    if name != "SIGKILL":
        return f"was killed by {name}"
    return f"was killed by {name} ({STARVED if starved else 'out of memory, or killed by hand'})"


STARVED = (
    "memory gave out, and the system killed a process meanwhile: take fewer --workers, or lower "
    "train.micro_batch_tokens and sampler.max_batch_size"
)
VMSTAT = Path("/proc/vmstat")


def starvations() -> int:
    """How many processes this machine has killed for their memory since it started, those of containers with
    a limit included; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in VMSTAT.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.removeprefix("oom_kill "))
    return 0


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Environment variables for the processes that start inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes that are started inside keep a Ctrl-C for themselves until they unblock it, as soon as they
    know what to do with it."""
    resource_tracker.ensure_running()  # which unblocks it here when it is begun
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Processes that are spawned inside do not import the user's program.

    A spawned process otherwise imports its parent's `__main__` before it does what it was started for: a
    script without ``if __name__ == "__main__"`` would begin anew in each. Nothing that they are sent may
    then be defined in `__main__`.
    """
    with STARTING:
        known = vars(sys.modules["__main__"])
        kept: dict[str, Any] = {name: known[name] for name in ("__file__", "__spec__") if name in known}
        known.pop("__file__", None)
        known["__spec__"] = None
        try:
            yield
        finally:
            del known["__spec__"]
            known.update(kept)
