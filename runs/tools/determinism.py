"""The order in which torch adds: whether two equal runs have equal bits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

CUBLAS, WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Buffers of its own (32 MiB), which cuBLAS needs to add in one order whatever else the GPU does. Torch takes
the setting once, at the first matrix product."""


STRICT = "deterministic"


def deterministic(strictly: bool | None = None) -> None:
    """From now on torch's own operators add in one order, however many threads there are. Library code needs
    it: for example, a mixture with three or more experts per token indexes a state once for each of them.
    Without such an operator (some on a GPU) torch warns and takes another. With `strictly` it raises instead,
    and attention uses the backward pass with a fixed order. None keeps the current choice."""
    if strictly is None:
        strictly = determinism()["operators"] == STRICT
    os.environ.setdefault(CUBLAS, WORKSPACE)
    torch.use_deterministic_algorithms(True, warn_only=not strictly)
    torch.backends.cudnn.benchmark = False
    # Off, since it costs time: all buffers here are written before they are used.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextlib.contextmanager
def determinism_restored() -> Iterator[None]:
    """Behind it torch chooses its operators as before, also after an error."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)


def determinism() -> dict[str, str]:
    """Torch's settings for the order of sums, as provenance.json keeps them."""
    if not torch.are_deterministic_algorithms_enabled():
        return {"operators": "any"}
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    settings = {"operators": "deterministic where there are such" if warns else STRICT}
    return settings | ({CUBLAS: os.environ.get(CUBLAS, "")} if torch.cuda.is_available() else {})
