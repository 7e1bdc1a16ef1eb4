"""The heartbeat of the leases that this process holds: one thread renews them all.

One writer per folder, on one machine or many: a lock file that is a lease of its owner.

On the owner's own machine the system says whether it lives: it is known by host, boot, pid and the start time
of its process, so that a reused pid is not taken for it. Elsewhere only its heartbeat does: a thread rewrites
a counter in the file some times in the seconds that the lease states. Who waits compares what the file says
with what it said before, on its own clock, since those of two hosts may differ by hours. A lease that has
said the same for as long as it states is taken over; one that changes is not. The owner of a lease that was
taken over while it was stopped finds its token gone and writes no more (`Lock.demand`).

`flock` only guards the moment in which the file is read and rewritten: a lock held through it would be
inherited by forked children and outlive the owner. A folder that several hosts write to must be on storage
where flock holds among them (NFS 4, CephFS, Lustre mounted with ``flock``).
"""

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

LEASE_SECONDS = 30.0
"""Silence after which a lease is taken over, unless told."""
BEATS = 6
"""Renewals within the seconds of a lease."""
TRUSTED = 0.5
"""Share of a lease's seconds after a renewal in which its owner need not ask whether it still has it."""


def now() -> float:
    """Seconds that go on while the machine sleeps, where the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


@dataclass(eq=False)
class HeldLease:
    """A lease that this process has taken."""

    path: Path
    token: str
    seconds: float
    renew: Callable[[HeldLease], bool]
    """Renews it; False where it is another's by now. Raises OSError where the storage does not answer."""
    lost: bool = False
    renewed: float = field(default_factory=now)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def beat(self) -> None:
        with self.guard:
            began = now()
            if not self.lost:
                self.lost = not self.renew(self)
                self.renewed = began


class Keeper:
    """The leases of this process and the thread that renews them."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """With none, as a forked child is: it owns nothing of its parent's and has none of its threads."""
        self.kept: dict[str, HeldLease] = {}
        self.altered = threading.Condition()
        self.thread: threading.Thread | None = None

    def keep(self, kept: HeldLease) -> None:
        """Renew a lease until it is forgotten."""
        with self.altered:
            self.kept[os.path.abspath(kept.path)] = kept
            if self.thread is None:
                self.thread = threading.Thread(target=self.renew, name="leases", daemon=True)
                self.thread.start()
            self.altered.notify()

    def forget(self, path: Path) -> str:
        """Renew a lease no more. Returns its token; empty where this process has none."""
        with self.altered:
            kept = self.kept.pop(os.path.abspath(path), None)
        if kept is None:
            return ""
        with kept.guard:  # A beat that has begun is over.
            return kept.token

    def lost(self, path: Path) -> bool:
        """Whether a lease that this process took is another's by now. It is asked again where the thread had
        no chance to renew it in time."""
        kept = self.kept.get(os.path.abspath(path))
        if kept is None:
            return False
        if now() - kept.renewed > TRUSTED * kept.seconds:
            kept.beat()
        return kept.lost

    def renew(self) -> None:
        """The thread."""
        while True:
            with self.altered:
                shortest = min((kept.seconds for kept in self.kept.values()), default=None)
                self.altered.wait(None if shortest is None else shortest / BEATS)
                held = list(self.kept.values())
            for kept in held:
                with contextlib.suppress(OSError):  # The storage may answer again before the lease is over.
                    kept.beat()


KEEPER: Final = Keeper()
os.register_at_fork(after_in_child=KEEPER.begin)


SECONDS = "GRPOBENCH_LEASE"
"""Variable for the seconds of the leases that a process takes; 30 without it."""
HOST = "GRPOBENCH_HOST"
"""Variable for the name that a machine signs with; its host name without it."""
LOOK = 0.25
"""Seconds between two looks at another's lease."""
MOST_UNSEEN = 4 * LOOK
"""Silence that counts between two looks: whoever was asleep itself has not seen the other be silent."""

Standing = Literal["free", "live", "unsure"]


class FolderError(Exception):
    """A run folder cannot be used; the message names the file and the remedy."""


class LeaseLost(FolderError):
    """The folder has another writer by now, since this process was silent for too long."""


@dataclass(frozen=True)
class Owner:
    """A process."""

    pid: int
    host: str
    boot: str
    start: str
    space: str = ""
    """The pid namespace: within a container the pids of its neighbors mean nothing."""

    @classmethod
    def me(cls) -> Owner:
        return cls(os.getpid(), host(), boot(), start(os.getpid()), space())

    def here(self) -> bool:
        """Whether this system can say if the process lives."""
        return (self.host, self.boot, self.space or space()) == (host(), boot(), space())


@dataclass(frozen=True)
class Lease:
    """What a lock file says."""

    owner: Owner
    token: str = ""
    """Of this taking of the lock. Empty in what an older version wrote, which has no heartbeat."""
    beat: int = 0
    seconds: float = 0.0
    """Silence after which others may take it over."""

    def text(self) -> str:
        """As long at every beat, so that it is rewritten in place and nobody reads an empty file."""
        told = {"token": self.token, "beat": f"{self.beat:010d}", "lease": self.seconds}
        return json.dumps(dataclasses.asdict(self.owner) | told)

    def standing(self) -> Standing:
        """What one look tells."""
        owner = self.owner
        if owner.here():
            return "live" if owner.start and start(owner.pid) == owner.start else "free"
        if not self.token:  # From before there were heartbeats: only a restart of its host is certain.
            return "free" if owner.host == host() else "live"
        return "unsure"

    def describe_owner(self, folder: Path) -> str:
        """Who has the folder, for whoever wants it."""
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
    """What changes when the machine restarts; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@functools.cache
def space() -> str:
    """This process's pid namespace; empty where the system has none."""
    try:
        return os.readlink("/proc/self/ns/pid")
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


def lease_seconds() -> float:
    """Of leases that this process takes. Raises ConfigError where the user's is no number."""
    return max(0.1, user_seconds(SECONDS, LEASE_SECONDS))


class Sight:
    """What one process has seen of one lock file, by its own clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text: str | None = None
        self.silent = 0.0
        """Seconds for which the file has said the same, as far as it was looked at."""
        self.moved = False
        self.looked = time.monotonic()

    def look(self) -> Standing:
        text, now = file_text(self.path), time.monotonic()
        if text == self.text:
            self.silent += min(now - self.looked, MOST_UNSEEN)
        else:
            self.moved, self.silent = self.text is not None, 0.0
        self.text, self.looked = text, now
        lease = parse(text)
        told: Standing = lease.standing() if lease else "free"
        if told != "unsure" or lease is None:
            return told
        if self.silent >= lease.seconds:
            return "free"
        return "live" if self.moved else "unsure"

    @property
    def lease(self) -> Lease | None:
        return parse(self.text or "")


class Lock:
    """The lock of a folder. `take` it before anything in the folder is read or written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"

    def take(self, patience: float = 0.0, say: Callable[[str], None] = lambda _: None) -> Owner | None:
        """Become the owner, and stay it by a heartbeat. Returns the dead owner that was found, if any.

        Raises `FolderError` that names a living owner, this process among them, once `patience` seconds are
        over. Of an owner elsewhere that may be dead `say` is told, and it is watched for as long as its lease
        states.
        """
        sight, began, told = Sight(self.path), time.monotonic(), False
        while True:
            seen = sight.look()
            if seen == "free":
                taken, found = self.seize(sight.text or "")
                if taken:
                    return found
                continue
            lease = sight.lease
            assert lease is not None  # An empty file is free.
            over = time.monotonic() - began >= patience
            if over and (seen == "live" or (not told and self.age() < lease.seconds)):
                raise FolderError(lease.describe_owner(self.path.parent))
            if not told and seen == "unsure":
                told = True
                say(f"{lease.describe_owner(self.path.parent)}; waiting to see whether it lives")
            safe_point()
            time.sleep(LOOK)

    def seize(self, expected: str) -> tuple[bool, Owner | None]:
        """Write one's own lease over a text that was found to be free; False where it says something else by
        now. What was taken from another host is read again after a moment: where flock does not hold between
        hosts, another may have done the same."""
        with guarded(self.path) as file:
            if file_text(self.path) != expected:
                return False, None
            before = parse(expected)
            lease = Lease(Owner.me(), uuid.uuid4().hex, 0, lease_seconds())
            replace(file.fileno(), lease.text())
        if before is not None and not before.owner.here():
            time.sleep(LOOK)
            found = parse(file_text(self.path))
            if found is None or found.token != lease.token:
                return False, None
        KEEPER.keep(HeldLease(self.path, lease.token, lease.seconds, self.renewed))
        return True, before.owner if before else None

    @staticmethod
    def renewed(kept: HeldLease) -> bool:
        """Rewrite the counter of a lease; False where it is another's by now."""
        try:
            with guarded(kept.path, "r+") as file:
                found = parse(file_text(kept.path))
                if found is None or found.token != kept.token:
                    return False
                text = dataclasses.replace(found, beat=found.beat + 1).text()
                os.pwrite(file.fileno(), text.encode(), 0)
        except FileNotFoundError:  # The folder was deleted under the run.
            return False
        return True

    def demand(self) -> None:
        """Raise `LeaseLost` where another has taken this process's lease over; called before each write."""
        if KEEPER.lost(self.path):
            lease = parse(file_text(self.path))
            who = (
                f"process {lease.owner.pid} on {lease.owner.host} has taken it over"
                if lease
                else "its lock is gone"
            )
            raise LeaseLost(f"{self.path.parent}: this process was silent for too long, and {who}")

    def release(self) -> None:
        """Give the folder back, if this process owns it."""
        token = KEEPER.forget(self.path)
        if not self.path.exists():
            return
        with guarded(self.path) as file:
            found = parse(file_text(self.path))
            if found is not None and found.owner == Owner.me() and found.token in (token, ""):
                try:
                    replace(file.fileno(), "")
                except OSError:  # A quota, where a file that is emptied takes room (copy on write).
                    self.path.unlink()

    def owner(self) -> Owner | None:
        """The living owner, if there is one, as far as one look tells: one elsewhere lives if its lease was
        renewed in time by this host's clock. `take` is surer."""
        lease = parse(file_text(self.path))
        if lease is None:
            return None
        told = lease.standing()
        if told == "unsure":
            with contextlib.suppress(FileNotFoundError):
                told = "live" if time.time() - self.path.stat().st_mtime < lease.seconds else "free"
        return lease.owner if told == "live" else None

    def age(self) -> float:
        """Seconds since the file was written, by the clock of the storage that it is on, which dates both it
        and a file made now."""
        with tempfile.TemporaryFile(dir=self.path.parent) as file:
            file.write(b".")
            file.flush()
            return os.fstat(file.fileno()).st_mtime - self.path.stat().st_mtime


def living(folders: list[Path], say: Callable[[str], None] = lambda _: None) -> dict[Path, Lease]:
    """The folders that a living process owns. Owners elsewhere that may be dead are watched together."""
    found: dict[Path, Lease] = {}
    unsure: dict[Path, Sight] = {}
    for folder in folders:
        sight = Sight(folder / "lock")
        seen = sight.look()
        lease = sight.lease
        if lease and (seen == "live" or (seen == "unsure" and Lock(folder).age() < lease.seconds)):
            found[folder] = lease
        elif lease and seen == "unsure":
            unsure[folder] = sight
    if unsure:
        first = next(iter(unsure.values())).lease
        say(f"{first.describe_owner(next(iter(unsure))) if first else ''}; waiting to see whether it lives")
    while unsure:
        time.sleep(LOOK)
        for folder, sight in list(unsure.items()):
            if (seen := sight.look()) != "unsure":
                del unsure[folder]
                if seen == "live" and (lease := sight.lease):
                    found[folder] = lease
    return found


@contextlib.contextmanager
def guarded(path: Path, mode: str = "a+") -> Iterator[IO[str]]:
    """The lock file, open, while nobody else reads it to rewrite it."""
    with path.open(mode, encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def file_text(path: Path) -> str:
    """Bytes that are no text count as torn."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def parse(text: str) -> Lease | None:
    """What a lock file says; None for an empty or torn one."""
    try:
        told = json.loads(text)
        token, beat, seconds = told.pop("token", ""), int(told.pop("beat", 0)), float(told.pop("lease", 0.0))
        return Lease(Owner(**told), token, beat, seconds)
    except (ValueError, TypeError, AttributeError):
        return None


def replace(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)
    os.fsync(descriptor)
