"""The filter of system calls, on both architectures: its numbers, and what it says to each call."""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpobench.tasks.sandbox import filter as sandbox_filter
from grpobench.tasks.sandbox.filter import ARCHITECTURES, IDLE, MACHINES, NEWEST, ONLY, REFUSED, assemble

HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
ALLOWED = {  # name: numbers on x86-64 and ARM64, of what every program needs
    "read": (0, 63),
    "write": (1, 64),
    "mmap": (9, 222),
    "openat": (257, 56),
    "execve": (59, 221),
    "exit_group": (231, 94),
    "futex": (202, 98),
    "getrandom": (318, 278),
    "prlimit64": (302, 261),
    "newfstatat": (262, 79),
}

LEAKS = {  # name: numbers, of what looks harmless and tells of the machine or reaches into another process
    "syslog": (103, 116),
    "sysfs": (139, None),
    "ustat": (136, None),
    "lookup_dcookie": (212, 18),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "get_mempolicy": (239, 236),
    "membarrier": (324, 283),
    "landlock_create_ruleset": (444, 444),
    "kcmp": (312, 272),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}


def says(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel would make of it: an interpreter of the four instructions that the filter uses."""
    packed_call = struct.pack("<iIQ6Q", number, architecture, 0, *(arguments + (0,) * 6)[:6])
    word, at = 0, 0
    instructions = list(struct.iter_unpack("=HBBI", program))
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x20:
            (word,) = struct.unpack_from("<I", packed_call, value)
        elif code == 0x15:
            at += if_true if word == value else if_false
        elif code == 0x25:
            at += if_true if word > value else if_false
        else:
            assert code == 0x06
            return value


def each(machine: str) -> Iterator[tuple[str, int, int]]:
    """Name, number and answer of every call that is not simply let through."""
    for numbers, answer in ((REFUSED, 0x50000 | errno.EPERM), (IDLE, 0x50000)):
        for name, pair in numbers.items():
            number = pair[MACHINES.index(machine)]
            if number is not None:
                yield name, number, answer


@pytest.mark.parametrize("machine", MACHINES)
def test_filter_refuses_what_is_listed_and_nothing_else(machine: str) -> None:
    program, architecture = assemble(machine), ARCHITECTURES[machine]
    listed = {number: answer for _, number, answer in each(machine)}
    choice = {numbers[MACHINES.index(machine)] for numbers in ONLY}
    for number in range(NEWEST + 1):
        if number not in choice:
            assert says(program, architecture, number) == listed.get(number, 0x7FFF0000), number
    for name, numbers in ALLOWED.items():
        assert says(program, architecture, numbers[MACHINES.index(machine)]) == 0x7FFF0000, name
    for later in (NEWEST + 1, 452, 0x40000000 + 90, 0x7FFFFFFF, -1):
        assert says(program, architecture, later) == 0x50000 | errno.ENOSYS
    for other in set(ARCHITECTURES.values()) - {architecture} | {0x40000003}:
        assert says(program, other, ALLOWED["read"][0]) == 0x80000000


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", LEAKS)
def test_calls_that_tell_of_the_machine_are_refused(name: str, machine: str) -> None:
    number = LEAKS[name][MACHINES.index(machine)]
    if number is not None:
        assert says(assemble(machine), ARCHITECTURES[machine], number) == 0x50000 | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_filter_reads_the_one_argument_that_matters(machine: str) -> None:
    program, architecture, machine_index = assemble(machine), ARCHITECTURES[machine], MACHINES.index(machine)
    fcntl, ioctl, socketpair = (sandbox_filter.FCNTL, sandbox_filter.IOCTL, sandbox_filter.SOCKETPAIR)
    cases = [
        # numbers, arguments, whether it is let through
        (fcntl, (3, 1), True),  # F_GETFD
        (fcntl, (3, 1024), False),  # F_SETLEASE
        (fcntl, (3, 1026), False),  # F_NOTIFY
        (fcntl, (3, 6), False),  # F_SETLK
        (fcntl, (1, 1024), False),  # the descriptor is not what is asked about
        (fcntl, (3, 1024 + 2**32), False),  # the kernel reads 32 bits
        (fcntl, (3, 1030), True),  # F_DUPFD_CLOEXEC
        (ioctl, (0, 0x5412), False),  # TIOCSTI
        (ioctl, (0, 0x5401), True),  # TCGETS
        (socketpair, (1, 1), True),  # AF_UNIX
        (socketpair, (30, 5), False),  # AF_TIPC
        (sandbox_filter.MADVISE, (4096, 4096, 4), True),  # MADV_DONTNEED
        (sandbox_filter.MADVISE, (4, 4, 21), False),  # MADV_PAGEOUT
        (sandbox_filter.PRCTL, (1, 0), False),  # PR_SET_PDEATHSIG
        (sandbox_filter.PRCTL, (4, 0), False),  # PR_SET_DUMPABLE
        (sandbox_filter.PRCTL, (15, 0), True),  # PR_SET_NAME
    ]
    for numbers, arguments, through in cases:
        number = numbers[machine_index]
        assert number is not None
        answer = 0x7FFF0000 if through else 0x50000 | errno.EPERM
        assert says(program, architecture, number, arguments) == answer, (numbers, arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernel(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    defines = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    number_by_name = {name: int(number) for name, number in defines}
    machine_index = MACHINES.index(machine)
    for name, numbers in {**REFUSED, **IDLE}.items():
        assert number_by_name.get(name) == numbers[machine_index], name
    for name in ("fcntl", "ioctl", "socketpair", "madvise", "prctl"):
        assert number_by_name[name] == getattr(sandbox_filter, name.upper())[machine_index]
