"""Peak memory of this process, since the run began."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch


def reset_peak_memory() -> None:
    """Start measuring anew, so that a worker's earlier runs do not count."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_gb() -> float:
    """Highest memory in GiB: allocated on the GPU where there is one, else resident in this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 2**20
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
