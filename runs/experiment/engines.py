"""Where the runs of an experiment are executed, and the engine for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grpobench.runs.experiment.executor import RunExecutor
from grpobench.runs.experiment.pool import RunPool
from grpobench.runs.experiment.worker import On
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools import machine
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.workers.pool import cores


@dataclass(frozen=True)
class Where:
    """The options of the command line on where runs are executed."""

    on: On = "local"
    address: str = ""
    """Address of a Ray cluster; without it Ray starts on this machine."""
    gpus_per_run: float | None = None
    """GPUs per run; with a fraction, runs share a GPU. None: one GPU if there are any."""
    cpus_per_run: int | None = None
    """Threads of a run on Ray or Slurm. None: OMP_NUM_THREADS, else 1."""
    job: tuple[str, ...] = ()
    """``K=V``: parameters of submitit's executor."""

    def __post_init__(self) -> None:
        """Raises ConfigError for options that do not fit together."""
        wrong = []
        if self.address and self.on != "ray":
            wrong.append("--address: belongs to --on ray")
        if self.job and self.on not in ("slurm", "submitit-local"):
            wrong.append("--job: belongs to --on slurm")
        if self.cpus_per_run is not None and self.on == "local":
            wrong.append(
                "--cpus-per-run: belongs to --on ray or slurm; here set --workers or OMP_NUM_THREADS"
            )
        gpus = self.gpus_per_run
        if gpus is not None and (not math.isfinite(gpus) or gpus <= 0 or (gpus > 1 and gpus % 1)):
            wrong.append(f"--gpus-per-run {gpus:g}: must be a fraction up to 1, or a whole number")
        if gpus is not None and gpus % 1 and self.on in ("slurm", "submitit-local"):
            wrong.append(
                f"--gpus-per-run {gpus:g}: Slurm gives whole GPUs to a job; use --on ray for fractions"
            )
        if wrong:
            raise ConfigError(wrong)


HERE = Where()


def with_devices(where: Where, configs: Iterable[RunConfig]) -> Where:
    """The options with as many GPUs per run as the runs have devices. Raises ConfigError for fewer."""
    most = max((config.train.devices for config in configs), default=1)
    if most == 1:
        return where
    if where.gpus_per_run is not None and where.gpus_per_run < most:
        option = f"--gpus-per-run {where.gpus_per_run:g}"
        raise ConfigError([f"{option}: train.devices is {most}; leave it away, or set it to {most}"])
    return where if where.gpus_per_run else dataclasses.replace(where, gpus_per_run=float(most))


def engine(where: Where, folder: Path, workers: int, execute: str, allow_change: bool) -> RunExecutor:
    """Create the engine; `workers` of 0 means as many as there is room for. `folder` is the experiment's,
    whose lock this process holds. Raises ConfigError if the engine's package is not installed or no run fits.
    """
    if where.on == "local":
        room = machine.count_worker_slots(where.gpus_per_run)
        if not room:
            raise ConfigError(
                [f"--gpus-per-run {where.gpus_per_run:g}: this machine has {len(machine.list_gpus())}"]
            )
        return RunPool(workers or room, execute, allow_change, where.gpus_per_run)
    cpus, gpus = where.cpus_per_run or machine.count_threads_per_worker(cores()), where.gpus_per_run
    if where.on == "ray":
        from grpobench.runs.experiment.on_ray import RayEngine

        return RayEngine(folder, workers, execute, allow_change, address=where.address, cpus=cpus, gpus=gpus)
    from grpobench.runs.experiment.on_slurm import SlurmEngine

    cluster = "slurm" if where.on == "slurm" else "local"
    arguments = (folder, workers, execute, allow_change)
    return SlurmEngine(*arguments, cluster=cluster, cpus=cpus, gpus=gpus, parameters=where.job)
