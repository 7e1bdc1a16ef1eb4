"""System calls that a program in bubblewrap does without, as a filter that bwrap hands to the kernel.

The walls are bubblewrap's namespaces. This closes what they and the limits on resources leave open: processes
and threads (a limit on their number does not bind root), memory that a limit on address space does not count
(shared segments, memory files, message queues), sockets that no namespace covers (vsock), tracing.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from collections.abc import Mapping
from typing import Final

DENIED: Final[Mapping[str, Mapping[str, int]]] = {
    # name: number, from the kernel's tables of system calls
    "x86_64": {
        "shmget": 29,
        "socket": 41,
        "clone": 56,
        "fork": 57,
        "vfork": 58,
        "semget": 64,
        "msgget": 68,
        "ptrace": 101,
        "mq_open": 240,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "perf_event_open": 298,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "memfd_create": 319,
        "bpf": 321,
        "userfaultfd": 323,
        "io_uring_setup": 425,
        "clone3": 435,
        "memfd_secret": 447,
    },
    "aarch64": {
        "ptrace": 117,
        "mq_open": 180,
        "msgget": 186,
        "semget": 190,
        "shmget": 194,
        "socket": 198,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "clone": 220,
        "perf_event_open": 241,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "memfd_create": 279,
        "bpf": 280,
        "userfaultfd": 282,
        "io_uring_setup": 425,
        "clone3": 435,
        "memfd_secret": 447,
    },
}
ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH of <linux/audit.h>."""
X32: Final = 0x40000000
"""Bit of the numbers of x86_64's second table."""

# Instructions of <linux/filter.h>: load a word of seccomp_data, jump if equal or greater, return.
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER_AT, ARCHITECTURE_AT = 0, 4
KILL, REFUSE, ALLOW = 0x80000000, 0x00050000 | errno.EPERM, 0x7FFF0000


@functools.cache
def seccomp_filter() -> bytes | None:
    """A program of struct sock_filter that refuses `DENIED` and allows the rest; None on other machines.

    Calls by another architecture's numbers kill the process: their numbers mean something else.
    """
    machine = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine())
    if machine not in DENIED or struct.calcsize("P") != 8:
        return None
    numbers = sorted(DENIED[machine].values())
    program = [
        _instruction(LOAD, 0, 0, ARCHITECTURE_AT),
        _instruction(EQUAL, 1, 0, ARCHITECTURES[machine]),
        _instruction(RETURN, 0, 0, KILL),
        _instruction(LOAD, 0, 0, NUMBER_AT),
        _instruction(AT_LEAST, len(numbers) + 1, 0, X32),
        # each jumps to the last instruction, over the numbers behind it and the one that allows
        *(_instruction(EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)),
        _instruction(RETURN, 0, 0, ALLOW),
        _instruction(RETURN, 0, 0, REFUSE),
    ]
    return b"".join(program)


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
