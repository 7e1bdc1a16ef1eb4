"""What is said of a model that cannot be used."""

from __future__ import annotations

from grpobench.tasks.data.errors import DataError


class ModelError(DataError):
    """A model that cannot be used; the message names the remedy."""


class NoRoom(Exception):
    """Memory does not hold what cannot be split any further; the message says what, and what to lower."""


USUAL = "give a folder with config.json, weights and tokenizer files, or a hub id that this machine can reach"


def told(error: Exception) -> str:
    """An error of a reader of files, in one line."""
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first[0] if first else 'no reason given'}"
