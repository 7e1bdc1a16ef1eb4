"""Safe points: places inside long work where it may be given up, and where it shows that it goes on.

Whoever answers for the work names what is asked there, which may raise to give it up. Elsewhere, and in
threads, a safe point does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar


def nothing() -> None:
    """Nobody asks anything."""


ASKED: ContextVar[Callable[[], None]] = ContextVar("asked", default=nothing)


@contextlib.contextmanager
def asking(ask: Callable[[], None]) -> Iterator[None]:
    """Within, `ask` is called at every safe point; often, so that it should look at the clock first."""
    before = ASKED.set(ask)
    try:
        yield
    finally:
        ASKED.reset(before)


def safe_point() -> None:
    """A place where what was done since the work began can be thrown away."""
    ASKED.get()()
