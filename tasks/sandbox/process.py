"""The CPython tiers: bubblewrap, and a plain subprocess for users who ask for it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import marshal
import math
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from grpobench.tasks.sandbox import inside, wire
from grpobench.tasks.sandbox.filter import seccomp_filter
from grpobench.tasks.sandbox.protocol import PATIENCE, Execution, Job, Limits, Sandbox, Tier
from grpobench.tasks.sandbox.transcript import read

START: Final = 5.0
"""Seconds until a sandbox must be ready to run a program."""
SHORTEST: Final = 0.01
"""Seconds between two checks whether the time is up."""
BOOTSTRAP: Final = "import sys,marshal;j=marshal.loads(sys.stdin.buffer.read());exec(j['code']);main(j)"
PYTHON: Final = ("-s", "-S", "-P", "-B", "-c", BOOTSTRAP)
"""No site packages, no user folder, only the standard library on the path."""
ENVIRONMENT: Final = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
"""The complete environment of a program. The fixed hash seed gives sets of text one order in every run."""
LARGEST_FILE: Final = 8 * 2**20
"""Maximum bytes of a file that a program writes, in a tier that lets it write any."""
MOST_SIGNALS: Final = 64
"""Maximum timers of a program, and of signals pending for it: the kernel keeps memory for each."""

ESCAPE: Final = """
import os, socket, resource, threading
def tried(attempt):
    try:
        return attempt() is not False
    except BaseException:
        return False
def escape():
    return [name for name, attempt in {
        "read a file of the host": lambda: open("/etc/passwd").read(),
        "list processes": lambda: os.listdir("/proc"),
        "write a file": lambda: os.open("/tmp", os.O_TMPFILE | os.O_RDWR),
        "start a process": lambda: os.fork() or os._exit(0),
        "start a thread": lambda: threading.Thread(target=int).start(),
        "open a socket": lambda: socket.socket(),
        "see its parent": lambda: os.getppid() != 0,
        "raise a limit": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
        "change a device": lambda: os.utime("/dev/null"),
        "see the host's name": lambda: os.uname().nodename != "sandbox",
        "take a gigabyte": lambda: bytearray(2**30),
        "see the environment": lambda: set(os.environ) - {"PYTHONHASHSEED", "LC_ALL", "PWD"} != set(),
    }.items() if tried(attempt)]
"""


def absent(tier: Tier) -> str:
    if tier == "unsafe":
        return "" if os.name == "posix" else "needs a POSIX system"
    if sys.platform != "linux":
        return f"bubblewrap runs on Linux only, not on {platform.system()}"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    if seccomp_filter() is None:
        return f"no list of system calls for {platform.machine()}"
    return ""


class ProcessSandbox(Sandbox):
    """One process per program, limited by its processor time."""

    tier: Tier
    apart: ClassVar[bool]
    """Whether the started process is not the program's own, and out of its reach."""

    def __init__(self, limits: Limits, workers: int = 0) -> None:
        super().__init__(limits, workers)
        self.rules = {
            "RLIMIT_CPU": math.ceil(2 * limits.seconds) + 1,  # in case nobody checks any more
            "RLIMIT_FSIZE": LARGEST_FILE,
            "RLIMIT_NOFILE": 32,
            "RLIMIT_CORE": 0,
            "RLIMIT_NPROC": 1,
        }
        if sys.platform == "linux":
            self.rules |= {
                "RLIMIT_AS": limits.megabytes * 2**20,
                "RLIMIT_MEMLOCK": 0,
                "RLIMIT_MSGQUEUE": 0,
                "RLIMIT_SIGPENDING": MOST_SIGNALS,
            }

    @abstractmethod
    def command(self) -> contextlib.AbstractContextManager[tuple[list[str], tuple[int, ...]]]:
        """The command that starts an interpreter, and the descriptors that it needs."""

    def once(self, job: Job) -> tuple[Execution, bool]:
        blob = marshal.dumps(
            {
                "code": code_inside(),
                "program": job.program,
                "calls": job.calls,
                "limits": self.rules,
                "largest": wire.LARGEST,
                "deepest": wire.DEEPEST,
            }
        )
        try:
            with self.command() as (command, descriptors):
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    env=ENVIRONMENT,
                    pass_fds=descriptors,
                    start_new_session=True,
                )
        except OSError as error:
            return Execution("infra_error", detail=f"{command[0]}: {error}"[:200]), True
        return Conversation(process, blob, self.limits, self.apart).judge(len(job.calls))


@functools.cache
def code_inside() -> Any:
    """The compiled code of `inside.py`."""
    source = inspect.getsource(inside)
    return compile(source, "inside.py", "exec", dont_inherit=True)


class UnsafeSandbox(ProcessSandbox):
    """A plain subprocess with limits on its resources. It can read, write and reach everything that you
    can."""

    tier: Tier = "unsafe"
    apart = False

    @contextlib.contextmanager
    def command(self) -> Iterator[tuple[list[str], tuple[int, ...]]]:
        yield [sys.executable, *PYTHON], ()


class BubblewrapSandbox(ProcessSandbox):
    """Own namespaces, a file system with only the standard library, no privileges, one process."""

    tier: Tier = "bubblewrap"
    apart = True

    def __init__(self, limits: Limits, workers: int = 0) -> None:
        super().__init__(limits, workers)
        self.fixed = [shutil.which("bwrap") or "bwrap", *walls(installation())]
        self.filter = seccomp_filter() or b""

    @contextlib.contextmanager
    def command(self) -> Iterator[tuple[list[str], tuple[int, ...]]]:
        reading, writing = os.pipe()
        try:
            os.write(writing, self.filter)  # It fits into the pipe.
        finally:
            os.close(writing)
        try:
            interpreter = [installation().executable, *PYTHON]
            yield [*self.fixed, "--seccomp", str(reading), *interpreter], (reading,)
        finally:
            os.close(reading)


@dataclass(frozen=True)
class Installation:
    """The files that CPython needs to run, without any installed package."""

    executable: str
    library: str
    """Folder of the standard library."""
    objects: tuple[str, ...]
    """Shared objects that the interpreter and the extension modules of the standard library load."""


UNNEEDED: Final = ("_tkinter", "_curses", "_curses_panel", "readline", "nis", "_dbm", "_gdbm")
"""Extension modules without their shared objects, which would be many."""


@functools.cache
def installation() -> Installation:
    """The files of the interpreter that runs this."""
    executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    library = sysconfig.get_path("stdlib")
    modules = Path(sysconfig.get_config_var("DESTSHARED") or f"{library}/lib-dynload").glob("*.so")
    module_files = [str(path) for path in modules if path.name.partition(".")[0] not in UNNEEDED]
    listed = subprocess.run(
        ["ldd", executable, *module_files], capture_output=True, text=True, check=False, timeout=60
    )
    objects = dict[str, None]()
    for line in listed.stdout.splitlines():
        # "name => /path (address)" or, for the loader, "/path (address)"; a heading ends in a colon
        location = line.partition("=>")[2].strip() or line.strip()
        path = location.partition(" (")[0]
        if " (" in location and path.startswith("/") and os.path.exists(path):
            objects[path] = None
    return Installation(executable, library, tuple(objects))


def walls(python: Installation) -> list[str]:
    """Options of bwrap. Everything is read-only: bwrap only limits the size of contents, so in a writable
    file system a program could fill the memory with the kernel's records of empty files. The two devices are
    the host's, as with bwrap's ``--dev``, which would also add terminals; the filter refuses calls that could
    change them."""
    options = [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--hostname",
        "sandbox",
        "--die-with-parent",
        "--as-pid-1",
        "--new-session",
        "--cap-drop",
        "ALL",
    ]
    for path in (python.executable, python.library, *python.objects):
        options += ["--ro-bind", path, path]
    options += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for name in (
        "site-packages",
        "dist-packages",
        "test",
    ):  # Installed packages may contain a task's answers.
        if os.path.isdir(f"{python.library}/{name}"):
            options += ["--tmpfs", f"{python.library}/{name}", "--remount-ro", f"{python.library}/{name}"]
    for device in ("/dev/null", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    options += ["--dir", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"]
    for name, value in ENVIRONMENT.items():
        options += ["--setenv", name, value]
    return options


class Conversation:
    """Sends a job to a process, reads its answer, and says how it ended.

    The process is stopped when it has used its processor seconds, or after `PATIENCE` times as many by the
    clock, without the time that it waited for a processor. So its verdict does not depend on how busy the
    machine is.
    """

    def __init__(self, process: subprocess.Popen[bytes], blob: bytes, limits: Limits, apart: bool) -> None:
        self.process, self.blob, self.limits, self.apart = process, blob, limits, apart
        self.answer = bytearray()
        self.complaint = bytearray()
        self.began = time.monotonic()
        self.look = self.began + START
        """When to check next whether the time is up."""
        self.ready = False
        self.late = self.flooded = False
        self.status = 0
        self.seconds = 0.0
        """Processor time of the process and its children."""

    def judge(self, calls: int) -> tuple[Execution, bool]:
        """The execution, and whether it should be tried again."""
        try:
            self.talk()
        except BaseException:  # for example Ctrl-C
            self.kill()
            raise
        finally:
            self.end()
        returned = min(self.answer.count(b"\nvalue "), calls - 1) if calls else None
        if self.late and self.ready:
            return Execution("timeout", returned=returned), False
        if self.flooded:
            return Execution("output_limit", returned=returned), False
        execution = read(bytes(self.answer), calls)
        if execution is not None and self.status == 0:
            return execution, False
        if self.ready and self.seconds >= self.limits.seconds:
            detail = f"{self.seconds:.1f} processor seconds"
            return Execution("timeout", detail=detail, returned=returned), False
        if not self.answer.startswith(b"ready\n") or (self.apart and self.status < 0):
            # It never started, or the sandbox itself was killed, which nothing inside can do.
            complaint = self.complaint.decode(errors="replace").strip()
            return Execution("infra_error", detail=f"status {self.status}: {complaint}"[:200]), True
        # A process may have been killed because the machine is short of memory, or by its own limits. If that
        # happens repeatedly, or if it used its time up, it is the program's own doing.
        number = abs(self.status) if self.status < 0 else self.status - 128
        killed = number in (signal.SIGKILL, signal.SIGXCPU)
        detail = f"ended with status {self.status}"
        return Execution("error", (), detail, self.seconds, returned), killed

    def talk(self) -> None:
        """Read until the process has closed its output, is late, or has written too much."""
        poll, unsent = select.poll(), memoryview(self.blob)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        inward = self.process.stdin.fileno()
        os.set_blocking(inward, False)
        poll.register(inward, select.POLLOUT)
        sinks = {self.process.stdout.fileno(): self.answer, self.process.stderr.fileno(): self.complaint}
        for descriptor in sinks:
            poll.register(descriptor, select.POLLIN)
        while sinks and not self.flooded:
            ready = poll.poll(1000 * max(0.0, self.look - time.monotonic()) + 1)
            for descriptor, _ in ready:
                if descriptor == inward:
                    unsent = unsent[_write(inward, unsent) :]
                    if not unsent:
                        poll.unregister(inward)
                        self.process.stdin.close()
                    continue
                output = os.read(descriptor, 65536)
                sinks[descriptor].extend(output)
                self.flooded = len(sinks[descriptor]) > 2 * wire.LARGEST
                if not output:
                    poll.unregister(descriptor)
                    del sinks[descriptor]
            if not self.ready and self.answer:
                self.ready = True
                self.look = time.monotonic() + self.limits.seconds
            if time.monotonic() >= self.look and self.is_late():
                self.late = True
                return

    def is_late(self) -> bool:
        """Whether the time is up; if not, `look` is the earliest time when it can be."""
        ran, waited = usage(self.process.pid)
        self.seconds = max(self.seconds, ran)
        idle = time.monotonic() - self.began - ran - waited
        if self.ready:
            left = min(self.limits.seconds - ran, PATIENCE * self.limits.seconds - ran - idle)
        else:
            left = START - ran - idle
        self.look = time.monotonic() + max(left, SHORTEST)
        return left <= 0

    def end(self) -> None:
        """Kill the process if its time is up, reap it, and kill everything that it started."""
        process = self.process
        if self.late or self.flooded:
            self.kill()
        while True:
            pid, status, spent = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.0005)
            if not (self.late or self.flooded) and time.monotonic() >= self.look and self.is_late():
                self.late = True
                self.kill()
        self.status = process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds = max(self.seconds, spent.ru_utime + spent.ru_stime)
        for file in (process.stdin, process.stdout, process.stderr):
            if file:
                with contextlib.suppress(OSError):
                    file.close()

    def kill(self) -> None:
        """Kill the process and its session. Bubblewrap's child, which ends its whole namespace, has another
        session and is killed too, in case a program manages not to die with its parent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGSTOP)  # so that it does not free a child's process id
            for child in children(self.process.pid) if self.apart else []:
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _write(descriptor: int, unsent: memoryview) -> int:
    """Number of bytes written; all of them if nobody reads any more."""
    try:
        return os.write(descriptor, unsent)
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(unsent)


def usage(pid: int) -> tuple[float, float]:
    """Seconds that a process and its children ran, and that they waited for a processor. Both are 0 if the
    kernel does not say (everywhere but on Linux). A limit on processor time is not enough: the kernel counts
    whole ticks, which on a busy machine makes it up to twice the real time."""
    try:
        ran, waited = (int(part) / 1e9 for part in Path(f"/proc/{pid}/schedstat").read_text().split()[:2])
    except (OSError, ValueError):
        return 0.0, 0.0
    for child in children(pid):
        below = usage(child)
        ran, waited = ran + below[0], waited + below[1]
    return ran, waited


def children(pid: int) -> list[int]:
    """Process ids of the children of a process with one thread; empty if the kernel does not say."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []
