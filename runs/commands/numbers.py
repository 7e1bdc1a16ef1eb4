"""Whole numbers and lists of seeds as they are written on the command line."""

from __future__ import annotations

import argparse


def whole(text: str) -> int:
    """A positive whole number, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def natural(text: str) -> int:
    """A whole number from 0, for argparse."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return number


def seed_list(text: str) -> list[int]:
    """``0,1,2`` or ``0-4`` or both. Raises `ConfigError`."""
    from grpobench.runs.settings.draft import MOST_SEEDS
    from grpobench.runs.tools.strict import ConfigError

    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ConfigError([f"--seeds {text}: write numbers such as 0,1,2 or 0-4"])
        first, last = int(low), int(high if dash else low)
        if last - first >= MOST_SEEDS - len(found):
            raise ConfigError([f"--seeds {text}: a matrix has at most {MOST_SEEDS:,} seeds"])
        if last < first:
            raise ConfigError(
                [f"--seeds {text}: {part.strip()} holds no number; write the smaller one first"]
            )
        found += range(first, last + 1)
    return found
