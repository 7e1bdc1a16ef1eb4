"""What commands print, and the exit codes that they end with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TextIO, TypeVar

from grpobench.analysis.tools.text import json_text, visible

DONE, BAD_INPUT, INFRASTRUCTURE, PREEMPTED = 0, 2, 70, 75


def say(text: object, file: TextIO | None = None, flush: bool = False) -> None:
    """Print, with nothing in it that a terminal would obey: names, answers and errors may be of others."""
    print(visible(str(text)), file=file, flush=flush)


def warn(message: str) -> None:
    say(f"grpobench: {message}", file=sys.stderr)


def complain(message: str, code: int) -> int:
    warn(message)
    return code


def warn_of_precision(dtype: str | None) -> None:
    """Warn on stderr if models compute on this processor, and are slow there in this precision."""
    from grpobench.runs.tools.machine import slow_precisions

    for text in slow_precisions([dtype or "float32"]):
        say(f"note: {text}; omit --dtype", file=sys.stderr, flush=True)


class PrintableCheck(Protocol):
    """What a check found."""

    def row(self) -> Mapping[str, Any]: ...


C = TypeVar("C", bound=PrintableCheck)


def say_each(
    begin: Callable[[Callable[[str], None]], Iterator[C]], lines: Callable[[C], list[str]], in_json: bool
) -> list[C]:
    """Print each check as soon as it is known, and in a terminal what goes on meanwhile; `in_json` all at the
    end. `begin` gets what shows a text, and returns the checks."""
    from grpobench.runs.tools.progress import Ticker

    ticker, checked = Ticker(), []
    shows = in_json or ticker.status  # the lines of the text say enough where there is no terminal
    checks = begin(ticker.tell if shows else lambda text: None)
    while True:
        with ticker:  # not while lines are printed, which it would take for its own
            check = next(checks, None)
        if check is None:
            break
        checked.append(check)
        if not in_json:
            say("\n".join(lines(check)), flush=True)
    if in_json:
        say(as_json([check.row() for check in checked]))
    return checked


def as_json(value: Any) -> str:
    return json_text(json.dumps(value, indent=1, ensure_ascii=False))
