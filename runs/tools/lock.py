"""One writer per folder: a lock file that names its owner and outlives no dead one.

The owner is known by host, boot, pid and the start time of the process, so that a reused pid is not taken
for the owner. `flock` only guards the moment in which the file is read and rewritten: a lock held through it
would be inherited by forked children and outlive the owner.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path


class FolderError(Exception):
    """A run folder cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True)
class Owner:
    """A process."""

    pid: int
    host: str
    boot: str
    start: str

    @classmethod
    def me(cls) -> Owner:
        return cls(os.getpid(), platform.node(), boot(), start(os.getpid()))

    def alive(self) -> bool:
        """Whether the process may still run. A process on another host counts as alive."""
        if self.host != platform.node():
            return True
        return self.boot == boot() and bool(self.start) and start(self.pid) == self.start


@functools.cache
def boot() -> str:
    """What changes when the machine restarts; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start(pid: int) -> str:
    """When a process started, in the system's own words; empty when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        state, *rest = stat[stat.rindex(")") + 2 :].split()
        return "" if state in "ZX" else rest[18]  # A zombie writes nothing any more.
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return ""
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()


class Lock:
    """The lock of a folder. `take` it before anything in the folder is read or written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"

    def take(self) -> Owner | None:
        """Become the owner. Returns the dead owner that was found, if any.

        Raises `FolderError` that names a living owner, this process among them.
        """
        with self.path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            found = parse(file_text(self.path))
            if found is not None and found.alive():
                elsewhere = found.host != platform.node()
                remedy = f"; if it is gone, delete {self.path}" if elsewhere else ""
                raise FolderError(
                    f"{self.path.parent} is in use by process {found.pid} on {found.host}{remedy}"
                )
            replace(file.fileno(), json.dumps(dataclasses.asdict(Owner.me())))
        return found

    def release(self) -> None:
        """Give the folder back, if this process owns it."""
        if not self.path.exists():
            return
        with self.path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if parse(file_text(self.path)) == Owner.me():
                replace(file.fileno(), "")

    def owner(self) -> Owner | None:
        """The living owner, if there is one."""
        found = parse(file_text(self.path))
        return found if found is not None and found.alive() else None


def file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def parse(text: str) -> Owner | None:
    """The owner that a lock file names; None for an empty or torn one."""
    try:
        return Owner(**json.loads(text))
    except (ValueError, TypeError):
        return None


def replace(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.write(descriptor, text.encode())
    os.fsync(descriptor)
