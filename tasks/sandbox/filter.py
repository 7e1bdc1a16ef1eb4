"""A filter for the kernel, passed by bwrap, of system calls that a program in bubblewrap does not need."""

from __future__ import annotations

import errno
import functools
import platform
import struct
from collections.abc import Mapping, Sequence
from typing import Final

Numbers = tuple[int | None, int | None]
"""Numbers of a system call on x86-64 and on ARM64, from the kernel's tables; None if there is none."""
REFUSED: Final[Mapping[str, Numbers]] = {
    # processes, threads, namespaces, tracing
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "clone3": (435, 435),
    "execveat": (322, 281),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "seccomp": (317, 277),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    # memory outside of the address space
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # information about the machine and what else runs on it
    "syslog": (103, 116),
    "sysfs": (139, None),
    "ustat": (136, None),
    "lookup_dcookie": (212, 18),
    "get_mempolicy": (239, 236),
    "membarrier": (324, 283),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    # calls for administrators: clocks, modules, swap, the host's name, its power
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "settimeofday": (164, 170),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "vhangup": (153, 58),
    # beyond the machine
    "socket": (41, 198),
    # modes, owners, times and attributes of files
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "mknod": (133, None),
    "mknodat": (259, 33),
    # events, locks and handles of files, and whether they are in memory
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "flock": (73, 32),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "mincore": (27, 232),
    "fadvise64": (221, 223),
    "readahead": (187, 213),
    # mounts
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    # precedence: a program that lowers its own could wait for a processor without limit
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "ioprio_set": (251, 30),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "set_mempolicy_home_node": (450, 450),
}
IDLE: Final[Mapping[str, Numbers]] = {
    "sync": (162, 81),
    "syncfs": (306, 267),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "sync_file_range": (277, 84),
}
"""Calls that succeed and do nothing: a program writes no file, and must not affect the host's."""
NEWEST: Final = 450
"""Last number of the tables above. Later ones, and all of x86-64's second table, do not exist (ENOSYS)."""

# Calls that depend on one argument, of which the kernel reads 32 bits: (position, values)
FCNTL, IOCTL, SOCKETPAIR, MADVISE, PRCTL = (72, 25), (16, 29), (53, 199), (28, 233), (157, 167)
ONLY: Final[Mapping[Numbers, tuple[int, Sequence[int]]]] = {
    # duplicates, flags, F_GETLK, owners and signals, F_DUPFD_CLOEXEC, F_GETPIPE_SZ: not locks,
    # leases, notices and hints, which are the file's, and not the size of a pipe
    FCNTL: (1, (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 15, 16, 1030, 1032)),
    # TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    IOCTL: (1, (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    # AF_UNIX; asking for another can load a kernel module
    SOCKETPAIR: (0, (1,)),
    # what memory allocation and Python's mmap need: not MERGEABLE, COLD, PAGEOUT, COLLAPSE
    MADVISE: (2, (0, 1, 2, 3, 4, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 22, 23)),
    # names of a thread and a mapping, and questions: not whether it dies with its parent or can be looked at
    PRCTL: (0, (2, 3, 15, 16, 21, 23, 30, 39, 0x53564D41)),
}
"""The values with which these calls are allowed; with any other they are refused."""

MACHINES: Final = ("x86_64", "aarch64")
ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH of <linux/audit.h>."""

# Instructions of <linux/filter.h>: load a word of seccomp_data, jump if equal or above, return.
LOAD, EQUAL, ABOVE, RETURN = 0x20, 0x15, 0x25, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
ERROR: Final = 0x00050000
KILL, ALLOW = 0x80000000, 0x7FFF0000
REFUSE, UNKNOWN, SUCCEED = ERROR | errno.EPERM, ERROR | errno.ENOSYS, ERROR


@functools.cache
def seccomp_filter() -> bytes | None:
    """The filter of this machine; None on a machine whose numbers are unknown.

    Isolation comes from bubblewrap's namespaces. The filter closes what they and the limits on resources
    leave open: processes and threads (a limit on their number does not bind root); memory that a limit on
    address space does not count; sockets that no namespace covers (vsock); tracing; and operations on files
    of the host that the program cannot write but may own (as root does): changing modes, owners, times and
    attributes, locking, watching events, dropping them from memory. It also closes queries about the machine
    and calls for administrators. No task's program needs these, and without the filter settings of the host
    would decide.

    `sysinfo`, which reports load, uptime and free memory, stays open, because glibc assumes that it succeeds.
    """
    machine = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine())
    if machine not in MACHINES or struct.calcsize("P") != 8:
        return None
    return assemble(machine)


def assemble(machine: str) -> bytes:
    """A program of struct sock_filter for one of `MACHINES` (both have the low word of an argument first).
    Calls by another architecture's numbers kill the process, because those numbers mean something else."""
    machine_index = MACHINES.index(machine)
    program = [
        _instruction(LOAD, ARCHITECTURE_AT),
        _instruction(EQUAL, ARCHITECTURES[machine], 1, 0),
        _instruction(RETURN, KILL),
        _instruction(LOAD, NUMBER_AT),
        _instruction(ABOVE, NEWEST, 0, 1),
        _instruction(RETURN, UNKNOWN),
        *_one_of([n[machine_index] for n in REFUSED.values()], REFUSE),
        *_one_of([n[machine_index] for n in IDLE.values()], SUCCEED),
    ]
    for numbers, (position, values) in ONLY.items():
        number = numbers[machine_index]
        assert number is not None
        choice = [
            _instruction(LOAD, ARGUMENTS_AT + 8 * position),
            *_one_of(values, ALLOW),
            _instruction(RETURN, REFUSE),
        ]
        program += [_instruction(EQUAL, number, 0, len(choice)), *choice]
    return b"".join([*program, _instruction(RETURN, ALLOW)])


def _one_of(values: Sequence[int | None], then: int) -> list[bytes]:
    """Return `then` if the loaded value is one of the values; otherwise continue after these instructions."""
    sorted_values = sorted({value for value in values if value is not None})
    tests = [
        # The last one skips the return if it does not match; the others jump to the return.
        _instruction(EQUAL, value, len(sorted_values) - 1 - i, int(i == len(sorted_values) - 1))
        for i, value in enumerate(sorted_values)
    ]
    return [*tests, _instruction(RETURN, then)]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
