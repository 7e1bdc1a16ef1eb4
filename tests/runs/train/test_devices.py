"""Runs on several devices: processes of a CPU over gloo stand for GPUs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from grpobench.algorithms import ALGORITHMS
from helpers.ranked import Result, gradients, in_ranks
from helpers.toys import distance, norm

NAMES = sorted(ALGORITHMS)


@cache
def of_ranks(size: int, architecture: str, kind: str) -> list[dict[str, Result]]:
    """What every rank found, for all algorithms; those of a single process come from one, too."""
    return in_ranks(size, gradients, NAMES, architecture, kind, True)


@pytest.mark.parametrize(
    ("size", "architecture", "kind"),
    [
        (2, "llama", "ragged"),
        pytest.param(4, "llama", "ragged", marks=pytest.mark.slow),
        pytest.param(4, "qwen3_moe", "equal", marks=pytest.mark.slow),
        pytest.param(4, "llama", "single", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_metrics_of_several_ranks_are_those_of_one(
    size: int, architecture: str, kind: str, name: str
) -> None:
    (alone,) = (one[name] for one in of_ranks(1, architecture, kind))
    for gradient, metrics in (one[name] for one in of_ranks(size, architecture, kind)):
        # float64 on both sides: only the order of sums differs.
        assert distance(gradient, alone[0]) < 1e-9 or norm(alone[0]) < 1e-12
        assert metrics == pytest.approx(alone[1], rel=1e-9, abs=1e-9, nan_ok=True)
