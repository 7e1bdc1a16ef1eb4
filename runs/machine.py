"""What of this machine each worker process of a matrix may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads(workers: int) -> int:
    """Threads of each of so many workers: what the user's OMP_NUM_THREADS says, else an equal share of the
    cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # "4,2": four, and two within each
    return int(wanted) if wanted.isdigit() and int(wanted) else max(1, cores() // workers)
