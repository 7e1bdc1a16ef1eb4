"""Processes: safe points in long work, what a child process inherits, where its output goes, how it ended."""

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

CALLBACK: ContextVar[Callable[[], None]] = ContextVar("asked", default=lambda: None)


@contextlib.contextmanager
def asking(ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask` at every safe point inside this context. Safe points are frequent, so `ask` should check the
    clock first."""
    before = CALLBACK.set(ask)
    try:
        yield
    finally:
        CALLBACK.reset(before)


def safe_point() -> None:
    """A safe point: everything since the work began may be thrown away here.

    Here long work may be interrupted, and it shows that it is still making progress. Whoever is responsible
    for the work sets what a safe point calls (`asking`); that function may raise to interrupt the work.
    Otherwise, and in threads, a safe point does nothing."""
    CALLBACK.get()()


STARTING = threading.Lock()
"""Held while `__main__` is hidden, because all threads share it."""


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send the output of this process and its libraries, C code included, to a file."""
    sys.stdout.flush()  # what is buffered belongs to the old output
    sys.stderr.flush()
    original_outputs = os.dup(1), os.dup(2)
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
        for target, copy in enumerate(original_outputs, start=1):
            os.dup2(copy, target)
            os.close(copy)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the launcher dies (Linux). On other systems the closed pipe ends
    it."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # The launcher died before the call.
        os._exit(1)


def death(code: int | None, starved: bool = False) -> str:
    """How a process ended, in words. `starved`: the system killed processes for lack of memory meanwhile."""
    if code is None or code >= 0:
        return f"exited with {code}"
    name = signal.Signals(-code).name
    if name != "SIGKILL":
        return f"was killed by {name}"
    return f"was killed by {name} ({STARVED if starved else 'out of memory, or killed by hand'})"


STARVED = (
    "the machine ran out of memory and the system killed a process: use fewer --workers, or lower "
    "train.micro_batch_tokens and sampler.max_batch_size"
)
VMSTAT = Path("/proc/vmstat")


def starvations() -> int:
    """How many processes this machine has killed for lack of memory since it started, containers with a limit
    included; 0 if the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in VMSTAT.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.removeprefix("oom_kill "))
    return 0


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Environment variables for the processes that are started inside this context."""
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
    """Processes started inside this context block Ctrl-C until they are ready to handle it."""
    resource_tracker.ensure_running()  # which unblocks it here when it is begun
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Processes spawned inside this context do not import the user's program. By default a spawned process
    first imports its parent's `__main__`, so a script without ``if __name__ == "__main__"`` would start again
    in each. Nothing sent to these processes may be defined in `__main__`."""
    with STARTING:
        main_variables = vars(sys.modules["__main__"])
        saved_variables: dict[str, Any] = {
            name: main_variables[name] for name in ("__file__", "__spec__") if name in main_variables
        }
        main_variables.pop("__file__", None)
        main_variables["__spec__"] = None
        try:
            yield
        finally:
            del main_variables["__spec__"]
            main_variables.update(saved_variables)
