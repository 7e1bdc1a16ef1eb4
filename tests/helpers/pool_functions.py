"""What the pool's workers do in its tests. The keeper imports this module by name."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def stubborn() -> None:
    """Ends for no exception and no signal that Python can catch."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue


def odd_jobs() -> Callable[[Any], Any]:
    def slow_once(path: str) -> int:
        """Sleeps where the file is not there yet, and makes it."""
        if not os.path.exists(path):
            os.mkdir(path)
            time.sleep(30)
        return os.getpid()

    jobs: dict[str, Callable[[Any], Any]] = {
        "echo": lambda value: value,
        "sleep": time.sleep,
        "stubborn": lambda _: stubborn(),
        "c code": lambda _: len(str(9 ** (9**8))),
        "eat": lambda _: len(bytearray(3 * 1024**3)),
        "exit": os._exit,
        "leave": sys.exit,
        "kill me": lambda _: os.kill(os.getpid(), signal.SIGKILL),
        "abort": lambda _: os.abort(),
        "divide": lambda value: 1 / value,
        "set": lambda _: {1},
        "print": lambda text: [print(text), os.write(1, text.encode()), text][-1],
        "pid": lambda _: os.getpid(),
        "parent": lambda _: os.getppid(),
        "environment": lambda _: dict(os.environ),
        "write": lambda path: Path(path).write_text("x"),
        "slow once": slow_once,
    }
    return lambda argument: jobs[argument[0]](argument[1])


def large_import() -> Callable[[Any], Any]:
    """As a CUDA build of torch: three gigabytes are mapped, of which nothing is used. The function takes as
    many bytes as it is told to."""
    mapping = mmap.mmap(-1, 3 * 1024**3)

    def taking(count: int) -> int:
        return len(bytearray(count)) + 0 * len(mapping)

    return taking
