"""A real file system of some MiB, which is full as soon as somebody fills it.

It is a tmpfs, or a btrfs with a quota, in a mount namespace of a forked process, so that nobody else sees it
and nothing has to be unmounted. As another user than root the process has a user namespace of its own too,
and no quota.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpobench.runs.experiment.worker import Ended, RunJob
from grpobench.runs.experiment.worker import run as work
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.files import FULL
from grpobench.runs.train.progress import Progress
from helpers.warm import FORKING, begin_server
from helpers.whole_runs import rows, timeless

NEW_MOUNTS, NEW_USERS, PRIVATE, RECURSIVE = 0x00020000, 0x10000000, 1 << 18, 1 << 14
SIZE = 8 * 2**20
QUOTA = 16 * 2**20
"""Of a btrfs, whose own trees count as well."""
IMAGE = 128 * 2**20


def on_small_disk(
    disk: Path, mount: Callable[[Path], None], story: Callable[..., Any], *arguments: Any
) -> Any:
    """What `story(disk, *arguments)` returns in a process for which `disk` is such a file system, `small`
    or `limited`. Skips the test where the system does not allow one."""
    begin_server()
    ours, theirs = FORKING.Pipe()
    disk.mkdir()
    child = FORKING.Process(target=begin, args=(disk, mount, story, arguments, theirs))
    child.start()
    theirs.close()
    try:
        status, answer = ours.recv()
    finally:
        child.join()
    if status == "skip":
        pytest.skip(f"no file system of one's own here: {answer}")
    assert status == "done", answer
    return answer


def begin(
    disk: Path,
    mount: Callable[[Path], None],
    story: Callable[..., Any],
    arguments: tuple[Any, ...],
    connection: Any,
) -> None:
    try:
        alone()
        mount(disk)
    except (OSError, subprocess.CalledProcessError) as error:
        connection.send(("skip", str(error)))
        return
    try:
        connection.send(("done", story(disk, *arguments)))
    except BaseException:
        connection.send(("failed", traceback.format_exc()))


def call(name: str, *arguments: Any) -> None:
    """Of the C library. Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def alone() -> None:
    """Have mounts of one's own. Raises OSError where that is not allowed."""
    user, group = os.getuid(), os.getgid()
    call("unshare", NEW_MOUNTS | (NEW_USERS if user else 0))
    if user:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {user} 1"),
            ("gid_map", f"0 {group} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(text)
    call("mount", b"none", b"/", None, PRIVATE | RECURSIVE, None)


def small(disk: Path) -> None:
    """A file system that is small. Raises OSError where that is not allowed."""
    call("mount", b"tmpfs", bytes(disk), b"tmpfs", 0, f"size={SIZE}".encode())


def limited(disk: Path) -> None:
    """One with room, of which a quota allows little. Raises OSError or CalledProcessError where that cannot
    be: it takes root, a loop device and btrfs-progs."""
    image = disk.with_name(f"{disk.name}.img")
    with image.open("wb") as file:
        file.truncate(IMAGE)

    def do(*words: str | Path) -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    do("mkfs.btrfs", "-q", image)
    do("mount", "-o", "loop", image, disk)
    do("btrfs", "subvolume", "create", disk / "allowed")
    do("btrfs", "quota", "enable", disk)
    do("btrfs", "qgroup", "limit", str(QUOTA), disk / "allowed")
    do("mount", "--bind", disk / "allowed", disk)


def fill(disk: Path, leave: int) -> None:
    """Leave so many bytes of the file system free."""
    ballast = disk / "ballast"
    room = write_ballast(ballast, math.inf)
    if leave:
        ballast.unlink()
        os.sync()  # a quota counts what was given back when that is on the disk
        write_ballast(ballast, room - leave)


def write_ballast(ballast: Path, room: float) -> int:
    """Write as many bytes, or as there is room for; how many."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.tell() + 2**16 <= room and file.write(bytes(2**16)):
                pass
        except OSError as error:
            assert error.errno in FULL
        return file.tell()


class Filler:
    """A launcher that fills the disk when a step begins."""

    def __init__(self, disk: Path, step: int, leave: int) -> None:
        self.disk, self.step, self.leave = disk, step, leave
        self.since = 0.0

    def report(self, progress: Progress) -> None:
        if progress.step == self.step - 1 and progress.phase == "sampling" and not self.since:
            fill(self.disk, self.leave)
            self.since = time.monotonic()

    def stop(self) -> bool:
        return False


def carry(config: RunConfig, path: Path, launcher: Any) -> Ended:
    from grpobench.runs.train.execute import execute

    return work(RunJob(config, path, False), execute, launcher, 1, lambda _: None)


def outcome(path: Path) -> list[Any]:
    """What must not depend on a disk that was full."""
    files = [path / name for name in ("eval.jsonl", "events.jsonl", "final/policy.safetensors")]
    return [[timeless(row) for row in rows(path)], *(file.read_bytes() for file in files)]


def filled(disk: Path, config: RunConfig, leave: int) -> dict[str, Any]:
    """A run whose disk is filled as its fourth step begins, and which is started again when there is
    space."""
    idle = Filler(disk, 0, 0)
    assert carry(config, disk / "whole", idle).fate == "finished"
    undisturbed = outcome(disk / "whole")
    launcher = Filler(disk, 4, leave)
    first = carry(config, disk / "run", launcher)
    seconds = time.monotonic() - launcher.since
    logged_lines = [
        (name, text) for name in ("metrics.jsonl", "eval.jsonl") for text in lines(disk / "run" / name)
    ]
    (disk / "ballast").unlink()
    os.sync()
    with RunFolder.open(disk / "run", config) as folder:
        checkpoint = folder.latest()
        loaded = checkpoint.step if checkpoint and checkpoint.tensors("policy") else None
    last = carry(config, disk / "run", idle)
    hidden = [path.name for path in (disk / "run").rglob(".*")]
    same = outcome(disk / "run") == undisturbed
    return {
        "first": first,
        "seconds": seconds,
        "torn": [name for name, text in logged_lines if not whole_row(text)],
        "rows": len(logged_lines),
        "loaded": loaded,
        "last": last,
        "same": same,
        "left": hidden,
    }


def lines(path: Path) -> list[str]:
    text = path.read_text()
    return text.split("\n")[:-1] + ([text.rpartition("\n")[2]] if not text.endswith("\n") else [])


def whole_row(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
