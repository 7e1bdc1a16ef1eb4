"""The worker processes that this machine has room for, their cores and GPUs, and the memory in use."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from grpobench.tasks.workers.pool import cores

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
DRIVER_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of GPU drivers: NVIDIA, AMD, and WSL. Without any of them torch cannot see a GPU."""
SPIN_COUNT, DEFAULT_SPINS = "GOMP_SPINCOUNT", "1000"
"""How many times a thread of torch checks for work before it sleeps. A checking thread occupies its core, by
libgomp's default for milliseconds. With another busy program on the machine, that made a step 20 times
slower."""
COUNT_CODE = "import torch; print(torch.cuda.device_count())"
SLOW = 2.0
"""From this many times float32's time on, a precision is too slow on a processor."""
TOKENS, WIDTH, INNER = 256, 576, 1536
"""Shapes of a product in SmolLM2-135M: tokens, and both sides of a weight of its feed-forward layers."""
SMALLEST_MEMORY_CODE = (
    "import torch; print(min(torch.cuda.get_device_properties(i).total_memory "
    "for i in range(torch.cuda.device_count())))"
)


def count_worker_slots(gpus_per_run: float | None = None) -> int:
    """The number of runs that this machine can execute at once.

    With GPUs: one run per GPU, or one per `gpus_per_run` GPUs, which may be a fraction; 0 if `gpus_per_run`
    exceeds the number of GPUs. Without GPUs: one run per core, or one per `gpus_per_run` cores, at least 1.
    """
    gpu_count = len(list_gpus())
    if not gpu_count and gpus_per_run and gpus_per_run > 1:
        return max(1, int(cores() // gpus_per_run))
    if not gpu_count or not gpus_per_run:
        return gpu_count or cores()
    # 1e-9: a fraction such as 0.1 is not exact.
    return int(gpu_count / gpus_per_run + 1e-9) if gpus_per_run < 1 else int(gpu_count // gpus_per_run)


def make_worker_environment(workers: int, slot: int, gpus_per_run: float | None = None) -> Mapping[str, str]:
    """Environment variables of one worker process. They must be set before it imports torch.

    Each worker gets its own GPU, or `gpus_per_run` of them. Workers share a GPU if `gpus_per_run` is a
    fraction or if there are more workers than GPUs.

    Args:
        workers: the number of workers on this machine.
        slot: the number of this worker, from 0.
    """
    count = str(count_threads_per_worker(workers))
    variables = {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        SPIN_COUNT: os.environ.get(SPIN_COUNT, DEFAULT_SPINS),
    }
    if gpus := list_gpus():
        each = max(1, int(gpus_per_run or 1))
        variables[VISIBLE_GPUS] = ",".join(gpus[(slot * each + number) % len(gpus)] for number in range(each))
    return variables


def count_threads_per_worker(workers: int) -> int:
    """The user's OMP_NUM_THREADS, or else an equal share of the cores, at least 1."""
    # "4,2" means four threads, and two within each.
    requested = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(requested) if requested.isdigit() and int(requested) else max(1, cores() // workers)


def list_gpus() -> list[str]:
    """The GPUs that torch sees, as CUDA_VISIBLE_DEVICES names them; empty without any."""
    count = count_gpus()
    gpu_names = [name.strip() for name in os.environ.get(VISIBLE_GPUS, "").split(",") if name.strip()]
    return (gpu_names or [str(number) for number in range(count)])[:count]


def count_gpus() -> int:
    """The number of GPUs that torch sees."""
    if os.environ.get(VISIBLE_GPUS) in ("", "-1") or not any(Path(file).exists() for file in DRIVER_FILES):
        return 0
    return _print_number(COUNT_CODE, os.environ.get(VISIBLE_GPUS)) or 0


def read_smallest_gpu_memory() -> int | None:
    """The total memory, in bytes, of the smallest GPU that torch sees; None without any."""
    return _print_number(SMALLEST_MEMORY_CODE, os.environ.get(VISIBLE_GPUS)) if count_gpus() else None


@functools.cache
def _print_number(code: str, visible_gpus: str | None) -> int | None:
    """The number that `code` prints in a new process; None if it prints anything else.

    A new process, because one that has touched CUDA holds memory on the GPU and can no longer be limited to
    another GPU. `visible_gpus` is CUDA_VISIBLE_DEVICES, which the process inherits: a key of the cache.
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    output = done.stdout.strip()
    return int(output) if output.isdigit() else None


@functools.cache
def measure_slowdown(precision: str) -> float:
    """The time that this processor takes to multiply matrices in `precision`, divided by that in float32.

    A processor without instructions for bfloat16 converts each number, which takes several times as long.
    The measurement takes less than a second.
    """

    def seconds(dtype: torch.dtype) -> float:
        tokens, weight = torch.ones(TOKENS, WIDTH, dtype=dtype), torch.ones(INNER, WIDTH, dtype=dtype)
        times = []
        for _ in range(4):  # The first includes the choice of a kernel, and another program may delay one.
            start = time.perf_counter()
            tokens @ weight.T
            times.append(time.perf_counter() - start)
        return min(times)

    return seconds(getattr(torch, precision)) / seconds(torch.float32)


def slow_precisions(precisions: Iterable[str]) -> list[str]:
    """A sentence for each precision that is slow on this processor; none on a machine with a GPU."""
    if count_gpus():
        return []
    return [
        f"a product of matrices in {precision} takes {measure_slowdown(precision):.0f} times as long on this "
        "processor as in float32"
        for precision in dict.fromkeys(precisions)
        if precision != "float32" and measure_slowdown(precision) >= SLOW
    ]


def release_memory() -> None:
    """Free unused memory: reference cycles, such as the frames of a traceback, and torch's cache of GPU
    memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def reset_peak_memory() -> None:
    """Reset what `read_peak_memory_gb` returns, so that earlier runs of the process do not count."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)


def read_peak_memory_gb() -> float:
    """Peak memory of this process in GiB: allocated on the GPU if there is one, else resident."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 2**20  # from KiB
    import resource

    # In bytes on macOS, in KiB elsewhere.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


def read_free_memory(device: torch.device) -> int | None:
    """Free memory in bytes, of the GPU if `device` is one, else of this machine; None if unknown."""
    if device.type == "cuda":
        # torch reuses what it has reserved, although the driver counts it as used.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return None
