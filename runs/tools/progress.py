"""Progress: seconds by phase of a step, the time left, and one line on standard error that says both."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from statistics import mean
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
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    minutes, remaining_seconds = divmod(rounded, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remaining_seconds:02}" if hours else f"{minutes}:{remaining_seconds:02}"


@dataclass(frozen=True)
class Timing:
    """What is known of the time of a run."""

    kin: Hashable
    """The same for runs that take about as long, such as those of an arm and a task."""
    is_open: bool
    """Whether it has no result yet."""
    spent: float = 0.0
    """Seconds since it began."""
    left: float = math.nan
    """Seconds that it still takes at its own pace; NaN before its first step."""
    length: float = math.nan
    """Seconds from its begin to its end, as measured or at its own pace."""


def time_left(timings: Iterable[Timing], at_once: int) -> float:
    """Seconds until every open run has ended, with `at_once` of them at a time; NaN if no run has been timed.

    A run goes on at its own pace. Before its first step it is taken to be as long as the runs of its kin on
    average, or else as all runs.
    """
    timings = list(timings)
    timed = [run for run in timings if math.isfinite(run.length)]
    waiting = [run for run in timings if run.is_open]
    if not timed or not waiting:
        return math.nan
    lengths: dict[Hashable, list[float]] = {}
    for run in timed:
        lengths.setdefault(run.kin, []).append(run.length)
    usual, usual_of = mean(run.length for run in timed), {kin: mean(each) for kin, each in lengths.items()}
    seconds = sum(
        run.left if math.isfinite(run.left) else max(usual_of.get(run.kin, usual) - run.spent, 0.0)
        for run in waiting
    )
    return seconds / min(at_once, len(waiting))


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
