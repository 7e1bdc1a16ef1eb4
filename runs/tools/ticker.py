"""One line on standard error that says what is going on."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text

from grpobench.analysis.tools.visible import visible


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
    """Prints a line now and then, for whoever reads what no terminal shows."""

    INTERVAL = 10.0
    """Seconds between two lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last = -math.inf

    def begin(self) -> None:
        """The next line is printed in any case."""
        self.last = -math.inf

    def tell(self, text: str) -> None:
        now = time.monotonic()
        if now - self.last >= self.INTERVAL:
            self.last = now
            self.console.print(Text(visible(text)), soft_wrap=True)


class Ticker:
    """Says on standard error what is going on: in a terminal one line that changes, elsewhere a line now and
    then."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.status = console.status("") if console.is_terminal else None
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
