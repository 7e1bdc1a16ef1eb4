"""Algorithms that stand for all where each takes long: `make test` has these, `make test-long` all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

CORE = ("chord", "dpo", "flowrl", "gkd", "grpo", "gspo", "opd", "otb", "ppo", "rredcot", "sdpo", "spo")
"""Algorithms that differ in their roles, in the shape of their terms, or in what else they read."""


def core(
    cases: Iterable[tuple[str, Any]], never_slow: Callable[[str], bool] = lambda name: False
) -> list[Any]:
    """Parameters of a test by name; those that begin with no name of `CORE` are slow, but for
    `never_slow` ones."""
    return [
        pytest.param(
            case,
            id=name,
            marks=[] if never_slow(name) or re.split("[ -]", name)[0] in CORE else [pytest.mark.slow],
        )
        for name, case in cases
    ]
