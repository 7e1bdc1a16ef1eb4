"""Fail points for tests: places in the code where a process can be made to die, stop or fail as machines
do."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

VARIABLE = "GRPOBENCH_FAULTS"
STRUCK = "struck"
LATER = "~"
"""``kill~50``: 50 ms after the point, wherever the process is by then."""
COUNTS: Counter[str] = Counter()
"""How often this process has reached a point."""


def point(name: str) -> None:
    """A place in the code where a fault may be put. It costs a look at the environment.

    Nothing happens unless `GRPOBENCH_FAULTS` names a folder. Each file in it is a fault named
    ``POINT.COUNT.WHAT``: it says what happens when a process reaches the point for the COUNT-th time. The
    process that removes the file has the fault, so it happens once, however many processes there are. The
    file ``struck`` in that folder lists the faults that happened."""
    if not (folder := os.environ.get(VARIABLE)):
        return
    COUNTS[name] += 1
    for planned in sorted(Path(folder).glob(f"{name}.{COUNTS[name]}.*")):
        try:
            planned.unlink()
        except FileNotFoundError:  # another process has it
            continue
        deed, _, later = planned.name.split(".")[2].partition(LATER)
        with (planned.parent / STRUCK).open("a", encoding="utf-8") as file:
            file.write(f"{planned.name}\n")
        if later:
            threading.Timer(int(later) / 1000, strike, (deed,)).start()
        else:
            strike(deed)


def strike(deed: str) -> None:
    """Raise OSError, or an out-of-memory error of the device."""
    if deed in DEEDS:
        DEEDS[deed]()
    elif deed == "oom":
        import torch

        raise torch.OutOfMemoryError("CUDA out of memory (a fail point)")
    else:
        number = getattr(errno, deed)
        raise OSError(number, os.strerror(number))


def to_launcher(number: int) -> None:
    """Signal the process that spawned this one, if it is still alive."""
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() == parent.pid:
        os.kill(os.getppid(), number)


DEEDS: Mapping[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill-launcher": lambda: to_launcher(signal.SIGKILL),
    "kill-group": lambda: os.killpg(0, signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "terminate-launcher": lambda: to_launcher(signal.SIGTERM),
    "hang": lambda: time.sleep(3600),
}
