"""Lettered options as a prompt lists them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

LETTERS = "ABC"
"""The letters of tasks with three options."""


ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def listed(options: Sequence[str]) -> str:
    """One option per line, each after its letter."""
    return "\n".join(f"{letter}. {option}" for letter, option in zip(ALPHABET, options, strict=False))


REQUEST = "Answer with a single letter."
"""The line that asks for the letter of an option. A chat model that is not asked may explain its answer until
its tokens run out, and the letter never comes. It names no letters: small models repeat them all."""


def prompt_end(options: Sequence[str]) -> str:
    """The end of a prompt: the options, the request for a letter, and ``Answer:``."""
    return f"{listed(options)}\n{REQUEST}\nAnswer:"


def answers(count: int) -> tuple[str, ...]:
    """Possible answers to `count` options after ``Answer:``."""
    return tuple(f" {letter}" for letter in ALPHABET[:count])


def order(identity: str, count: int) -> list[int]:
    """An order of `count` options that depends only on a name; over many names all orders are equally
    frequent."""
    return sorted(range(count), key=lambda option: hashlib.sha256(f"{identity}/{option}".encode()).digest())
