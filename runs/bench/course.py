"""What the bench is doing and how long it will still take, on standard error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from grpobench.analysis.tools.visible import visible
from grpobench.runs.tools.ticker import Lines, duration

UNKNOWN: Final = math.nan
Tell = Callable[[str, float], None]
"""Takes what is going on, and how many seconds the case will still take; `UNKNOWN` where nobody can say."""


def quiet(what: str, left: float) -> None:
    """Tells nobody."""


class Course:
    """In a terminal one line with a bar, elsewhere a line when a case begins and now and then."""

    def __init__(self, console: Console, cases: int) -> None:
        self.cases, self.number, self.case = cases, 0, ""
        self.began = time.monotonic()
        self.lines = Lines(console)
        self.bar: Progress | None = None
        if console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self.bar = Progress(*columns, console=console, transient=True, refresh_per_second=2)
            self.line = self.bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar:
            self.bar.stop()

    def begin(self, case: str) -> None:
        """The next case begins."""
        self.number += 1
        self.case, self.began = case, time.monotonic()
        self.lines.begin()

    def tell(self, what: str, left: float) -> None:
        known = math.isfinite(left)
        place = f"{self.case} ({self.number} of {self.cases})" if self.cases > 1 else self.case
        text = f"{place}: {what}" + (f", about {duration(left)} left" if known else "")
        if self.bar:
            done = time.monotonic() - self.began
            description = visible(text).replace("[", r"\[")
            self.bar.update(self.line, description=description, completed=done)
            self.bar.update(self.line, total=done + left if known else None)
        else:
            self.lines.tell(text)
