"""When Python looks for objects that only refer to each other."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Within it, not at all: for what makes very many objects and drops none, which each search would go
    through once more."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextlib.contextmanager
def old_left_out() -> Iterator[None]:
    """Within it, only among what is made there: for what makes and drops objects beside much that stays.
    A program that has set objects aside itself keeps them there: nothing is added to them or taken back."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
