"""Lettered options: how a prompt lists them, and how the letter of an answer is read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache

LETTERS = "ABC"
"""The letters of tasks with three options."""
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def listed(options: Sequence[str]) -> str:
    """One option per line, each after its letter."""
    return "\n".join(f"{letter}. {option}" for letter, option in zip(ALPHABET, options, strict=False))


def answers(count: int) -> tuple[str, ...]:
    """Possible answers to `count` options after ``Answer:``."""
    return tuple(f" {letter}" for letter in ALPHABET[:count])


def letter(completion: str, count: int) -> str | None:
    """The letter at the start of the completion, if it is alone: ``B``, ``B.`` or ``(B)``, but not the
    article of ``A woman``."""
    found = _pattern(count).match(completion.lstrip())
    return found.group(1) if found else None


def order(identity: str, count: int) -> list[int]:
    """An order of `count` options that depends only on a name; over many names all orders are equally
    frequent."""
    return sorted(range(count), key=lambda option: hashlib.sha256(f"{identity}/{option}".encode()).digest())


@cache
def _pattern(count: int) -> re.Pattern[str]:
    return re.compile(rf"\(?([{ALPHABET[:count]}])(?:[).](?!\w)|[ \t]*(?:\n|$))")
