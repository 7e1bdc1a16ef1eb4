"""Leases between hosts: a living owner is never taken over, a dead one is, and nobody writes twice.

The hosts are processes of this machine that sign with another name, so that nobody may look at their pids.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from helpers.folders import CONFIG

from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.tools import lock
from grpobench.runs.tools.lock import FolderError, LeaseLost, Lock, Owner, living
from grpobench.runs.train.prepare.warmstart import alone

SECONDS = 1.0
"""Of the leases here, which are renewed six times in them."""
WRITER = """
import sys, time, pathlib
from grpobench.runs.tools.lock import LeaseLost, Lock
folder = pathlib.Path(sys.argv[1])
mine = Lock(folder)
mine.take()
print("mine", flush=True)
try:
    while True:
        mine.demand()
        with (folder / "rows").open("a") as rows:
            rows.write("row\\n")
        time.sleep(0.01)
except LeaseLost as error:
    print(error, flush=True)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process on another host that owns `tmp_path` and writes rows there."""
    around = {**os.environ, lock.HOST: "far", lock.SECONDS: str(SECONDS)}
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], env=around, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "mine\n"
    yield child
    child.kill()
    child.wait()


def test_an_owner_elsewhere_is_named_within_a_second(
    tmp_path: Path, elsewhere: subprocess.Popen[str]
) -> None:
    began = time.monotonic()
    with pytest.raises(
        FolderError, match=f"in use by process {elsewhere.pid} on far; if it is gone"
    ) as refusal:
        Lock(tmp_path).take()
    assert time.monotonic() - began < 1
    assert "takes over 1 s after its last sign of life" in str(refusal.value)
    assert list(living([tmp_path, tmp_path / "other"])) == [tmp_path]


def test_a_living_owner_is_never_taken_over_whatever_the_clocks_say(
    tmp_path: Path, elsewhere: subprocess.Popen[str]
) -> None:
    messages: list[str] = []
    mine = Lock(tmp_path)
    mine.age = lambda: 1e9  # type: ignore[method-assign]  # a storage that dates everything thirty years back
    with pytest.raises(FolderError, match="on far"):
        mine.take(patience=3 * SECONDS, say=messages.append)
    assert len(messages) == 1 and messages[0].endswith("waiting to see whether it lives")
    assert elsewhere.poll() is None


def test_a_dead_owner_is_taken_over_when_its_lease_is_over_and_not_before(
    tmp_path: Path, elsewhere: subprocess.Popen[str]
) -> None:
    elsewhere.kill()
    elsewhere.wait()
    began = time.monotonic()
    with pytest.raises(FolderError, match="on far"):  # it may live, and nobody asked to wait
        Lock(tmp_path).take()
    os.utime(tmp_path / "lock", (2**32, 2**32))  # dated far ahead by its host's clock
    replaced_owner = Lock(tmp_path).take(patience=10 * SECONDS)
    assert replaced_owner is not None and (replaced_owner.host, replaced_owner.pid) == ("far", elsewhere.pid)
    assert SECONDS < time.monotonic() - began < 5 * SECONDS
    assert Lock(tmp_path).owner() == Owner.me()
    Lock(tmp_path).release()
    assert Lock(tmp_path).owner() is None and lock.file_text(tmp_path / "lock") == ""


def test_dead_owners_of_many_folders_are_watched_together(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(20)]
    for folder in folders:
        folder.mkdir()
        gone = lock.Lease(Owner(1, "far", "b", "1"), f"token {folder.name}", 7, SECONDS)
        (folder / "lock").write_text(gone.text())
        os.utime(folder / "lock", (0, 0))
    began, messages = time.monotonic(), list[str]()
    assert living(folders, messages.append) == {}
    assert SECONDS <= time.monotonic() - began < 3 * SECONDS and len(messages) == 1


def test_an_owner_that_was_stopped_writes_no_more_once_it_was_taken_over(
    tmp_path: Path, elsewhere: subprocess.Popen[str]
) -> None:
    deadline = time.monotonic() + 30
    while not ((tmp_path / "rows").exists() and (tmp_path / "rows").read_text()):  # it is past its first row
        assert time.monotonic() < deadline
        time.sleep(0.01)
    elsewhere.send_signal(signal.SIGSTOP)
    mine = Lock(tmp_path)
    assert mine.take(patience=10 * SECONDS) is not None
    written = (tmp_path / "rows").read_text()
    text = lock.parse(lock.file_text(mine.path))
    elsewhere.send_signal(signal.SIGCONT)
    assert elsewhere.stdout is not None
    last = elsewhere.stdout.readline()
    assert f"process {os.getpid()} on {lock.host()} has taken it over" in last
    assert (tmp_path / "rows").read_text() == written
    mine.demand()  # it is still mine
    after = lock.parse(lock.file_text(mine.path))
    assert text is not None and after is not None and after.token == text.token
    mine.release()


def test_a_row_in_flight_of_who_was_taken_over_lands_in_no_log(tmp_path: Path) -> None:
    """On NFS a write may reach the server after its writer's lease was over."""
    with RunFolder.open(tmp_path, CONFIG) as run:
        run.rewind(0)
        run.log({"step": 1})
        run.evaluations([{"step": 1}])
    late = [os.open(tmp_path / name, os.O_WRONLY | os.O_APPEND) for name in ("metrics.jsonl", "eval.jsonl")]
    (tmp_path / "lock").write_text(lock.Lease(Owner(1, "far", "b", "1"), "token", 7, SECONDS).text())
    os.utime(tmp_path / "lock", (0, 0))
    with RunFolder.open(tmp_path, CONFIG, patience=10 * SECONDS) as run:
        for descriptor in late:
            os.write(descriptor, b'{"step": 2}\n')
            os.close(descriptor)
        assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'
        assert (tmp_path / "eval.jsonl").read_bytes() == b'{"step": 1}\n'
        run.rewind(0)


def test_a_lease_is_renewed_by_its_thread_and_lost_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(lock.SECONDS, "0.3")
    mine = Lock(tmp_path)
    mine.take()
    size = mine.path.stat().st_size
    first = lock.parse(lock.file_text(mine.path))
    deadline = time.monotonic() + 10
    while (now := lock.parse(lock.file_text(mine.path))) and first and now.beat < first.beat + 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert mine.path.stat().st_size == size  # rewritten in place: no reader finds it empty
    mine.path.unlink()
    with pytest.raises(LeaseLost, match="its lock is gone"):
        while time.monotonic() < deadline:
            mine.demand()
            time.sleep(0.01)


def test_a_forked_child_owns_nothing(tmp_path: Path) -> None:
    mine = Lock(tmp_path)
    mine.take()
    child = os.fork()
    if not child:
        mine.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert Lock(tmp_path).owner() == Owner.me()
    mine.release()


@pytest.mark.parametrize("locked", [lock.guarded, alone])
def test_a_child_forked_within_a_lock_keeps_nobody_waiting(
    locked: Callable[[Path], AbstractContextManager[Any]], tmp_path: Path
) -> None:
    """As it may come while the thread of the leases renews one: the child has the locked file open, too."""
    with locked(tmp_path / "x"):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        for path in tmp_path.iterdir():
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_host_with_the_same_name_and_another_boot_is_another_host(tmp_path: Path) -> None:
    """Every second laptop is called localhost."""
    namesake = lock.Lease(Owner(os.getpid(), lock.host(), "other", "1"), "token", 0, 30.0)
    (tmp_path / "lock").write_text(namesake.text())
    with pytest.raises(FolderError, match="if it is gone"):
        Lock(tmp_path).take()
    assert json.loads(lock.file_text(tmp_path / "lock"))["token"] == "token"
