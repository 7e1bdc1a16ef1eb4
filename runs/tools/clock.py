"""Seconds by phase of a step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Seconds by phase of the current step. A phase inside another counts as the inner one only."""

    def __init__(self) -> None:
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
        now = time.perf_counter()
        if self.open:
            self.seconds[self.open[-1]] = self.seconds.get(self.open[-1], 0.0) + now - self.since
        self.since = now
