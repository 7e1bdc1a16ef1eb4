"""Progress: seconds by phase of a step, and one line on standard error that says what is going on."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import torch
from rich.console import Console
from rich.text import Text

from grpobench.analysis.tools.text import visible
from grpobench.runs.tools.screen import is_redrawable, print_line


def device_done() -> Callable[[], None]:
    """Waits until the device has finished its work. A GPU accepts work faster than it does it, so without
    this the next phase that needs a number would be charged for earlier ones."""
    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


class Clock:
    """Seconds by phase of the current step. Time in a nested phase counts for the inner one only. `wait`
    returns when the device has finished its work."""

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


def number(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


def duration(seconds: float) -> str:
    """Seconds as 12 s, 3:05 or 1:02:03; empty for NaN."""
    if math.isnan(seconds):
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Lines:
    """Prints a line now and then where there is no terminal."""

    INTERVAL = 10.0
    """Seconds between two lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last = -math.inf

    def begin(self) -> None:
        """Print the next line in any case."""
        self.last = -math.inf

    def tell(self, text: str) -> None:
        now = time.monotonic()
        if now - self.last >= self.INTERVAL:
            self.last = now
            print_line(self.console, text)


class Ticker:
    """Says on standard error what is going on: in a terminal one line that changes, otherwise a line now and
    then."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.status = console.status("") if is_redrawable(console) else None
        self.lines = Lines(console)

    def __enter__(self) -> Self:
        if self.status:
            self.status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.status:
            self.status.stop()

    def tell(self, text: str) -> None:
        if self.status:
            self.status.update(Text(visible(text)))
        else:
            self.lines.tell(text)
