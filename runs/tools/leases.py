"""The heartbeat of the leases that this process holds: one thread renews them all."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SECONDS = 30.0
"""Silence after which a lease is taken over, unless told."""
BEATS = 6
"""Renewals within the seconds of a lease."""
TRUSTED = 0.5
"""Share of a lease's seconds after a renewal in which its owner need not ask whether it still has it."""


def now() -> float:
    """Seconds that go on while the machine sleeps, where the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


@dataclass(eq=False)
class Kept:
    """A lease that this process has taken."""

    path: Path
    token: str
    seconds: float
    renew: Callable[[Kept], bool]
    """Renews it; False where it is another's by now. Raises OSError where the storage does not answer."""
    lost: bool = False
    renewed: float = field(default_factory=now)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def beat(self) -> None:
        with self.guard:
            began = now()
            if not self.lost:
                self.lost = not self.renew(self)
                self.renewed = began


class Keeper:
    """The leases of this process and the thread that renews them."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """With none, as a forked child is: it owns nothing of its parent's and has none of its threads."""
        self.kept: dict[str, Kept] = {}
        self.altered = threading.Condition()
        self.thread: threading.Thread | None = None

    def keep(self, kept: Kept) -> None:
        """Renew a lease until it is forgotten."""
        with self.altered:
            self.kept[os.path.abspath(kept.path)] = kept
            if self.thread is None:
                self.thread = threading.Thread(target=self.renew, name="leases", daemon=True)
                self.thread.start()
            self.altered.notify()

    def forget(self, path: Path) -> str:
        """Renew a lease no more. Returns its token; empty where this process has none."""
        with self.altered:
            kept = self.kept.pop(os.path.abspath(path), None)
        if kept is None:
            return ""
        with kept.guard:  # A beat that has begun is over.
            return kept.token

    def lost(self, path: Path) -> bool:
        """Whether a lease that this process took is another's by now. It is asked again where the thread had
        no chance to renew it in time."""
        kept = self.kept.get(os.path.abspath(path))
        if kept is None:
            return False
        if now() - kept.renewed > TRUSTED * kept.seconds:
            kept.beat()
        return kept.lost

    def renew(self) -> None:
        """The thread."""
        while True:
            with self.altered:
                shortest = min((kept.seconds for kept in self.kept.values()), default=None)
                self.altered.wait(None if shortest is None else shortest / BEATS)
                held = list(self.kept.values())
            for kept in held:
                with contextlib.suppress(OSError):  # The storage may answer again before the lease is over.
                    kept.beat()


KEEPER: Final = Keeper()
os.register_at_fork(after_in_child=KEEPER.begin)
