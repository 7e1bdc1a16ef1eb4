"""Seconds by phase of a step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch


def device_done() -> Callable[[], None]:
    """Waits until the device has done what it was given. A GPU takes work faster than it does it, and the
    next phase that needs a number would be charged for the ones before."""
    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


class Clock:
    """Seconds by phase of the current step. A phase inside another counts as the inner one only. `wait`
    returns when what was asked of the device has been done."""

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self.wait = wait
        self.seconds: dict[str, float] = {}
        self.open: list[str] = []
        self.since = time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self._charge()
        self.open.append(phase)
        try:
            yield
        finally:
            self._charge()
            self.open.pop()

    def _charge(self) -> None:
        self.wait()
        now = time.perf_counter()
        if self.open:
            self.seconds[self.open[-1]] = self.seconds.get(self.open[-1], 0.0) + now - self.since
        self.since = now
