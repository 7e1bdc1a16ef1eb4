"""One writer per folder, on one machine or many: a lock file that holds its owner's lease."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import platform
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Literal

from grpobench.runs.tools.process import safe_point
from grpobench.runs.tools.strict import user_seconds
from grpobench.tasks.data import bounded

LEASE_SECONDS = 30.0
"""Default lease: seconds of silence after which it may be taken over."""
BEATS = 6
"""Renewals per lease."""
TRUSTED = 0.5
"""For this share of a lease after a renewal, its owner need not check whether it still has it."""


def now() -> float:
    """Seconds of a clock that also runs while the machine sleeps, if the system has one."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


@dataclass(eq=False)
class HeldLease:
    """A lease that this process has taken."""

    path: Path
    token: str
    seconds: float
    lost: bool = False
    renewed: float = field(default_factory=now)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def beat(self) -> None:
        """Renew the lease, or note that it is lost. Raises OSError if the storage does not answer."""
        with self.guard:
            began = now()
            if not self.lost:
                self.lost = not self.renew()
                self.renewed = began

    def renew(self) -> bool:
        """Rewrite the counter of the lease; False if another process has it by now."""
        try:
            with guarded(self.path, "r+") as file:
                current = parse(file_text(self.path))
                if current is None or current.token != self.token:
                    return False
                text = dataclasses.replace(current, beat=current.beat + 1).text()
                os.pwrite(file.fileno(), text.encode(), 0)
        except FileNotFoundError:  # The folder was deleted during the run.
            return False
        return True


class Keeper:
    """The leases of this process and the thread that renews them."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start without leases, as in a forked child: it owns none of its parent's leases and threads."""
        self.leases: dict[str, HeldLease] = {}
        self.altered = threading.Condition()
        self.thread: threading.Thread | None = None

    def keep(self, lease: HeldLease) -> None:
        """Renew a lease until it is forgotten."""
        with self.altered:
            self.leases[os.path.abspath(lease.path)] = lease
            if self.thread is None:
                self.thread = threading.Thread(target=self.renew, name="leases", daemon=True)
                self.thread.start()
            self.altered.notify()

    def forget(self, path: Path) -> str:
        """Stop renewing a lease. Returns its token; empty if this process does not hold it."""
        with self.altered:
            lease = self.leases.pop(os.path.abspath(path), None)
        if lease is None:
            return ""
        with lease.guard:  # Wait for a renewal that has begun.
            return lease.token

    def lost(self, path: Path) -> bool:
        """Whether another process has taken a lease of this process. The file is checked again if the thread
        had no chance to renew the lease in time."""
        lease = self.leases.get(os.path.abspath(path))
        if lease is None:
            return False
        if now() - lease.renewed > TRUSTED * lease.seconds:
            lease.beat()
        return lease.lost

    def renew(self) -> None:
        """The thread."""
        while True:
            with self.altered:
                shortest = min((lease.seconds for lease in self.leases.values()), default=None)
                self.altered.wait(None if shortest is None else shortest / BEATS)
                leases = list(self.leases.values())
            for lease in leases:
                # The storage may answer again before the lease expires.
                with contextlib.suppress(OSError, bounded.FileError):
                    lease.beat()


KEEPER: Final = Keeper()
os.register_at_fork(after_in_child=KEEPER.begin)


SECONDS = "GRPOBENCH_LEASE"
"""Environment variable for the seconds of this process's leases; the default is 30."""
HOST = "GRPOBENCH_HOST"
"""Environment variable for the machine's name in locks; the default is its host name."""
LOOK = 0.25
"""Seconds between two checks of another process's lease."""
MOST_UNSEEN = 4 * LOOK
"""Maximum seconds of silence that one check can add: a process that was asleep itself has not observed the
other one."""

Liveness = Literal["free", "live", "unsure"]


class FolderError(Exception):
    """A run folder cannot be used; the message names the file and the remedy."""


class LeaseLost(FolderError):
    """Another process writes to the folder by now, because this one was silent for too long."""


@dataclass(frozen=True)
class Owner:
    """A process."""

    pid: int
    host: str
    boot: str
    start: str
    space: str = ""
    """The pid namespace: pids of other containers mean nothing inside a container."""

    @classmethod
    def me(cls) -> Owner:
        return cls(os.getpid(), host(), boot(), start(os.getpid()), space())

    def here(self) -> bool:
        """Whether this system can tell if the process lives."""
        return (self.host, self.boot, self.space or space()) == (host(), boot(), space())


@dataclass(frozen=True)
class Lease:
    """The content of a lock file."""

    owner: Owner
    token: str = ""
    """Identifies this acquisition of the lock. Empty in files of older versions, which have no heartbeat."""
    beat: int = 0
    seconds: float = 0.0
    """Seconds of silence after which others may take the lease over."""

    def text(self) -> str:
        """The text has the same length at every renewal, so that it is rewritten in place and nobody reads an
        empty file."""
        fields = {"token": self.token, "beat": f"{self.beat:010d}", "lease": self.seconds}
        return json.dumps(dataclasses.asdict(self.owner) | fields)

    def liveness(self) -> Liveness:
        """Whether the owner lives, as far as one check can tell."""
        owner = self.owner
        if owner.here():
            return "live" if owner.start and start(owner.pid) == owner.start else "free"
        if not self.token:  # A lock from before heartbeats: only a restart of its host is certain.
            return "free" if owner.host == host() else "live"
        return "unsure"

    def describe_owner(self, folder: Path) -> str:
        """Who has the folder, with a remedy, for error messages."""
        text = f"{folder} is in use by process {self.owner.pid} on {self.owner.host}"
        if self.owner.here():
            return text
        if not self.token:
            return f"{text}; if it is gone, delete {folder / 'lock'}"
        when = f"{self.seconds:g} s after its last sign of life"
        return f"{text}; if it is gone, the same command takes over {when}"


def host() -> str:
    return os.environ.get(HOST) or platform.node()


@functools.cache
def boot() -> str:
    """An id that changes when the machine restarts; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@functools.cache
def space() -> str:
    """This process's pid namespace; empty if the system has none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def start(pid: int) -> str:
    """When a process started, in the system's own words; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        state, *fields = stat[stat.rindex(")") + 2 :].split()
        return "" if state in "ZX" else fields[18]  # A zombie no longer writes.
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return ""
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()


def lease_seconds() -> float:
    """Seconds of the leases that this process takes. Raises ConfigError if the user's value is not a
    number."""
    return max(0.1, user_seconds(SECONDS, LEASE_SECONDS))


class Sight:
    """The observations of one lock file by one process, on its own clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text: str | None = None
        self.silent = 0.0
        """Seconds for which the file has not changed, as far as it was checked."""
        self.moved = False
        self.looked = time.monotonic()

    def look(self) -> Liveness:
        text, now = file_text(self.path), time.monotonic()
        if text == self.text:
            self.silent += min(now - self.looked, MOST_UNSEEN)
        else:
            self.moved, self.silent = self.text is not None, 0.0
        self.text, self.looked = text, now
        lease = parse(text)
        liveness: Liveness = lease.liveness() if lease else "free"
        if liveness != "unsure" or lease is None:
            return liveness
        if self.silent >= lease.seconds:
            return "free"
        return "live" if self.moved else "unsure"

    @property
    def lease(self) -> Lease | None:
        return parse(self.text or "")


class Lock:
    """The lock of a folder. Call `take` before reading or writing anything in the folder.

    On the owner's own machine the system says whether the owner is alive. The lock identifies it by host,
    boot, pid and the start time of its process, so that a reused pid is not mistaken for it. On other
    machines only its heartbeat shows that it lives: one thread per process renews all leases by rewriting a
    counter in each file several times per lease. A process that waits compares the file with what it said
    before, by its own clock, since clocks of two hosts may differ by hours. A lease that does not change for
    as long as it states is taken over. If its owner was only stopped, it finds its token gone and writes no
    more (`Lock.demand`).

    `flock` only guards the moment in which the file is read and rewritten: a lock held longer would be
    inherited by forked children and outlive the owner. A folder that several hosts write to must be on
    storage where flock works between them (NFS 4, CephFS, Lustre mounted with ``flock``)."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"

    def take(self, patience: float = 0.0, say: Callable[[str], None] = lambda _: None) -> Owner | None:
        """Become the owner and start the heartbeat. Returns the dead owner that was replaced, if any.

        Raises `FolderError`, which names the living owner (possibly this process), after `patience` seconds.
        A remote owner that may be dead is watched for as long as its lease states; `say` gets a message about
        it.
        """
        sight, began, was_reported = Sight(self.path), time.monotonic(), False
        while True:
            state = sight.look()
            if state == "free":
                taken, replaced_owner = self.seize(sight.text or "")
                if taken:
                    return replaced_owner
                continue
            lease = sight.lease
            assert lease is not None  # An empty file is free.
            over = time.monotonic() - began >= patience
            if over and (state == "live" or (not was_reported and self.age() < lease.seconds)):
                raise FolderError(lease.describe_owner(self.path.parent))
            if not was_reported and state == "unsure":
                was_reported = True
                say(f"{lease.describe_owner(self.path.parent)}; waiting to see whether it lives")
            safe_point()
            time.sleep(LOOK)

    def seize(self, expected: str) -> tuple[bool, Owner | None]:
        """Write this process's lease if the file still holds `text`, which was free; False otherwise. A lock
        taken from another host is read again after a moment: where flock does not work between hosts, another
        process may have done the same."""
        with guarded(self.path) as file:
            if file_text(self.path) != expected:
                return False, None
            before = parse(expected)
            lease = Lease(Owner.me(), uuid.uuid4().hex, 0, lease_seconds())
            replace(file.fileno(), lease.text())
        if before is not None and not before.owner.here():
            time.sleep(LOOK)
            current = parse(file_text(self.path))
            if current is None or current.token != lease.token:
                return False, None
        KEEPER.keep(HeldLease(self.path, lease.token, lease.seconds))
        return True, before.owner if before else None

    def demand(self) -> None:
        """Raise `LeaseLost` if another process has taken over this process's lease. Called before each
        write."""
        if KEEPER.lost(self.path):
            lease = parse(file_text(self.path))
            who = (
                f"process {lease.owner.pid} on {lease.owner.host} has taken it over"
                if lease
                else "its lock is gone"
            )
            raise LeaseLost(f"{self.path.parent}: this process was silent for too long, and {who}")

    def release(self) -> None:
        """Release the folder if this process owns it."""
        token = KEEPER.forget(self.path)
        if not self.path.exists():
            return
        with guarded(self.path) as file:
            current = parse(file_text(self.path))
            if current is not None and current.owner == Owner.me() and current.token in (token, ""):
                try:
                    replace(file.fileno(), "")
                except OSError:  # Over quota, emptying a file may need space (copy on write).
                    self.path.unlink()

    def owner(self) -> Owner | None:
        """The living owner, if there is one, as far as one check can tell. A remote owner counts as living if
        it renewed its lease in time by this host's clock. `take` is more reliable."""
        lease = parse(file_text(self.path))
        if lease is None:
            return None
        liveness = lease.liveness()
        if liveness == "unsure":
            with contextlib.suppress(FileNotFoundError):
                liveness = "live" if time.time() - self.path.stat().st_mtime < lease.seconds else "free"
        return lease.owner if liveness == "live" else None

    def age(self) -> float:
        """Seconds since the file was written, by the clock of its storage, which dates both this file and a
        new one."""
        with tempfile.TemporaryFile(dir=self.path.parent) as file:
            file.write(b".")
            file.flush()
            return os.fstat(file.fileno()).st_mtime - self.path.stat().st_mtime


def living(folders: list[Path], say: Callable[[str], None] = lambda _: None) -> dict[Path, Lease]:
    """The folders that a living process owns. Remote owners that may be dead are watched together."""
    lease_by_folder: dict[Path, Lease] = {}
    unsure: dict[Path, Sight] = {}
    for folder in folders:
        sight = Sight(folder / "lock")
        state = sight.look()
        lease = sight.lease
        if lease and (state == "live" or (state == "unsure" and Lock(folder).age() < lease.seconds)):
            lease_by_folder[folder] = lease
        elif lease and state == "unsure":
            unsure[folder] = sight
    if unsure:
        first = next(iter(unsure.values())).lease
        say(f"{first.describe_owner(next(iter(unsure))) if first else ''}; waiting to see whether it lives")
    while unsure:
        time.sleep(LOOK)
        for folder, sight in list(unsure.items()):
            if (state := sight.look()) != "unsure":
                del unsure[folder]
                if state == "live" and (lease := sight.lease):
                    lease_by_folder[folder] = lease
    return lease_by_folder


@contextlib.contextmanager
def guarded(path: Path, mode: str = "a+") -> Iterator[IO[str]]:
    """The lock file, opened while no other process can read it to rewrite it."""
    with path.open(mode, encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child forked meanwhile has the file open, too


def file_text(path: Path) -> str:
    """Bytes that are not text count as torn."""
    try:
        return bounded.read_text(path, errors="replace")
    except FileNotFoundError:
        return ""


def parse(text: str) -> Lease | None:
    """The lease in a lock file; None for an empty or torn one."""
    try:
        fields = bounded.parse_json(text)
        token, beat, seconds = (
            fields.pop("token", ""),
            int(fields.pop("beat", 0)),
            float(fields.pop("lease", 0.0)),
        )
        return Lease(Owner(**fields), token, beat, seconds)
    except (ValueError, TypeError, AttributeError):
        return None


def replace(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)
    os.fsync(descriptor)
