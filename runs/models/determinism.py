"""The order in which torch adds: whether two equal runs have equal bits."""

from __future__ import annotations

import os

import torch

CUBLAS, WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""What cuBLAS needs to add in one order whatever else the GPU does: buffers of its own, 32 MiB. Torch reads
it once, at the first product of matrices."""

STRICT = "deterministic"


def deterministic(strictly: bool | None = None) -> None:
    """From here on torch's own operators add in one order, however many threads there are. Library code
    needs it: a mixture with three or more experts per token, for one, reads a state by index once for each.
    Where there is no such operator (some on a GPU), torch warns and takes another; `strictly` it raises, and
    attention has the backward pass whose order is fixed, which torch else takes not everywhere. None leaves
    that as it is."""
    if strictly is None:
        strictly = determinism()["operators"] == STRICT
    os.environ.setdefault(CUBLAS, WORKSPACE)
    torch.use_deterministic_algorithms(True, warn_only=not strictly)
    torch.backends.cudnn.benchmark = False
    # Nothing here reads what it did not write.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def determinism() -> dict[str, str]:
    """What torch is told of the order of sums, as provenance.json keeps it."""
    if not torch.are_deterministic_algorithms_enabled():
        return {"operators": "any"}
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    found = {"operators": "deterministic where there are such" if warns else STRICT}
    return found | ({CUBLAS: os.environ.get(CUBLAS, "")} if torch.cuda.is_available() else {})
