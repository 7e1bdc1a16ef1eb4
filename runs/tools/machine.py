"""The share of this machine that each worker process of an experiment may use, and peak memory."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from grpobench.tasks.workers.pool import cores

VISIBLE = "CUDA_VISIBLE_DEVICES"
SIGNS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of GPU drivers: NVIDIA's, AMD's, and that of Windows below Linux."""
SPIN, SPINS = "GOMP_SPINCOUNT", "1000"
"""How often torch's threads look for each other before they sleep. They hold the core while they look, by
default for milliseconds: with one other busy program that made a step 20 times slower."""
ASK = "import torch; print(torch.cuda.device_count())"
ASK_MEMORY = (
    "import torch; print(min(torch.cuda.get_device_properties(i).total_memory "
    "for i in range(torch.cuda.device_count())))"
)


def threads(workers: int) -> int:
    """Threads of each of so many workers: the user's OMP_NUM_THREADS, or else an equal share of the cores."""
    requested = (
        os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    )  # "4,2" means four threads, and two within each.
    return int(requested) if requested.isdigit() and int(requested) else max(1, cores() // workers)


def devices() -> list[str]:
    """The GPUs that torch sees, named as in CUDA_VISIBLE_DEVICES; empty without any. A separate process
    looks, because a process that has touched CUDA holds memory on the device and cannot be limited to another
    one."""
    count = visible_gpus()
    device_names = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return (device_names or [str(number) for number in range(count)])[:count]


def visible_gpus() -> int:
    """The number of GPUs that torch sees."""
    if os.environ.get(VISIBLE) in ("", "-1") or not any(Path(sign).exists() for sign in SIGNS):
        return 0
    return _gpus_listed(os.environ.get(VISIBLE))


@functools.cache
def _gpus_listed(visible: str | None) -> int:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=False)
    output = done.stdout.strip()
    return int(output) if output.isdigit() else 0


def gpu_memory() -> int | None:
    """Bytes of memory of the smallest GPU that torch sees; None without any. A separate process looks, as in
    `devices`."""
    return _gpu_memory(os.environ.get(VISIBLE)) if visible_gpus() else None


@functools.cache
def _gpu_memory(visible: str | None) -> int | None:
    done = subprocess.run([sys.executable, "-c", ASK_MEMORY], capture_output=True, text=True, check=False)
    output = done.stdout.strip()
    return int(output) if output.isdigit() else None


def worker_slots(gpus_per_run: float | None = None) -> int:
    """How many workers this machine has room for. With GPUs: one per GPU, or more or fewer by `gpus_per_run`.
    Without: one per core, or one for so many cores."""
    gpu_count = len(devices())
    if not gpu_count and gpus_per_run and gpus_per_run > 1:
        return max(1, int(cores() // gpus_per_run))
    if not gpu_count or not gpus_per_run:
        return gpu_count or cores()
    return int(gpu_count / gpus_per_run + 1e-9) if gpus_per_run < 1 else int(gpu_count // gpus_per_run)


def environment(workers: int, slot: int, gpus_per_run: float | None = None) -> Mapping[str, str]:
    """Variables for a worker process, set before it imports anything. `slot` is which of the workers it is,
    from 0: each has a GPU of its own, or as many as `gpus_per_run`; one is shared where that is a fraction,
    or there are more workers than GPUs."""
    count = str(threads(workers))
    variables = {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, SPIN: os.environ.get(SPIN, SPINS)}
    if gpus := devices():
        each = max(1, int(gpus_per_run or 1))
        variables[VISIBLE] = ",".join(gpus[(slot * each + number) % len(gpus)] for number in range(each))
    return variables


def release_memory() -> None:
    """Free what nothing uses: objects that know each other, such as the frames of a traceback, and memory of
    the GPU that torch keeps for later."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def reset_peak_memory() -> None:
    """Reset the peak, so that a worker's earlier runs do not count."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_gb() -> float:
    """Peak memory in GiB: allocated on the GPU if there is one, else resident in this process."""
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


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free now: of the GPU, else of this machine; None if the system does not say."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return None
