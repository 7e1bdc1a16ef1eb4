"""A Slurm of one node, for tests as root: a real controller and a real daemon, which keep no accounts."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
CONFIG = """
ClusterName=grpobench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=30
SchedulerParameters=sched_min_interval=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP PreemptMode=REQUEUE
"""


def why_not() -> str:
    """What this machine lacks for a Slurm of its own; empty where it lacks nothing."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurmctld, slurmd and slurm-client)"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


def tell(*words: str) -> str:
    """What a command of Slurm's prints."""
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout


def fail(node: str) -> None:
    """Let a node fail with its jobs, and come back."""
    tell("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    time.sleep(5)  # Its daemon may have told that it is there again.
    subprocess.run(
        ["scontrol", "update", f"nodename={node}", "state=resume"], check=False, capture_output=True
    )


def idle(seconds: float) -> bool:
    """Whether no job is left, within so many seconds."""
    deadline = time.monotonic() + seconds
    while left := tell("squeue", "--noheader"):
        if time.monotonic() > deadline:
            return not left
        time.sleep(0.2)
    return True


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The node's name, while SLURM_CONF leads every command to this Slurm."""
    host, ports = socket.gethostname(), free_ports(2)
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    memory = psutil.virtual_memory().total // 2**20 // 2
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, ports=ports, folder=folder, memory=memory))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        daemons = [
            subprocess.Popen([name, "-D"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for name in ("slurmctld", "slurmd")
        ]
        try:
            deadline = time.monotonic() + 60
            while (
                "idle"
                not in subprocess.run(["sinfo", "-h"], check=False, capture_output=True, text=True).stdout
            ):
                assert time.monotonic() < deadline, (folder / "d.log").read_text()[-2000:]
                time.sleep(0.2)
            yield host
        finally:
            subprocess.run(["scancel", "--me"], check=False, timeout=30)
            idle(30)  # Processes of jobs outlive their daemons.
            for daemon in reversed(daemons):
                daemon.kill()
                daemon.wait()
