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


class Ticker:
    """Says on standard error what is going on: in a terminal one line that changes, elsewhere a line now and
    then."""

    INTERVAL = 10.0
    """Seconds between two lines where there is no terminal."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.status = self.console.status("") if self.console.is_terminal else None
        self.last = -math.inf

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
        now = time.monotonic()
        if self.status:
            self.status.update(Text(visible(text)))
        elif now - self.last >= self.INTERVAL:
            self.last = now
            self.console.print(Text(visible(text)), soft_wrap=True)
