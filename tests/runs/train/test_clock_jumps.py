"""The wall clock jumps: nothing that waits or measures follows it, and rows are ordered by step.

Setting the machine's own clock would move it for everybody. So that of a launcher and its workers is moved, C
code included, where there is a C compiler, and Python's everywhere; that nothing else asks for the time of
day is read off the code.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import torture
from helpers.whole_runs import configure, rows, run, timeless

from grpobench.runs.experiment import watchdog
from grpobench.runs.tools import lock
from grpobench.runs.tools.lock import FolderError, Lock

ROOMS = Path(__file__).parents[3]
HOUR = 3600.0
COMPILER = shutil.which("cc")
ASKED = {
    "runs/experiment/run_status.py": "the age of a log, for people",
    "runs/tools/lock.py": "the age of a lease elsewhere, for people; taking it over goes by counting",
    "runs/observe/trackers.py": "what a tracker shows",
    "runs/handover/publishing/contribute.py": "the date of a contributed set, give or take a day",
}
"""Where code asks for seconds of the day, and why a jump does no harm there."""


def test_nothing_else_asks_for_the_time_of_day() -> None:
    files_with_clock = set()
    for path in (path for room in ("runs", "tasks", "algorithms") for path in (ROOMS / room).rglob("*.py")):
        text = path.read_text()
        if "time.time" in text or "datetime" in text or "from time import" in text:
            names = {
                ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)
            }
            if names & {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"}:
                files_with_clock.add(path.relative_to(ROOMS).as_posix())
            assert "from time import" not in text
    assert files_with_clock == ASKED.keys()


def test_a_run_under_a_clock_that_jumps_is_the_same_run(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = run(configure(policy), tmp_path / "whole")
    jumps, wall = itertools.cycle([0.0, HOUR, -HOUR]), time.time
    monkeypatch.setattr(time, "time", lambda: wall() + next(jumps))
    jumping_rows = run(configure(policy), tmp_path / "jumping")
    assert [*map(timeless, jumping_rows)] == [*map(timeless, undisturbed)]
    assert [row["step"] for row in rows(tmp_path / "jumping")] == [0, 1, 2, 3]
    took = [value for row in jumping_rows for name, value in row.items() if name.startswith("time/")]
    assert took and all(0 <= value < HOUR for value in took)


def test_a_lease_outlives_a_jump_of_its_owners_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lock.SECONDS, "1")
    first, wall, jumps = Lock(tmp_path), time.time, itertools.cycle([HOUR, -HOUR])
    first.take()
    monkeypatch.setattr(time, "time", lambda: wall() + next(jumps))
    time.sleep(1.2)
    with pytest.raises(FolderError, match="in use by process"):
        Lock(tmp_path).take()
    first.demand()
    first.release()


@contextlib.contextmanager
def jumping(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that are started within have a clock that is an hour ahead, an hour behind and right again,
    in turn."""
    library, clock, over = folder / "clock.so", folder / "clock", threading.Event()
    source = Path(torture.__file__).with_name("clock.c")
    command = [str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"the C compiler makes no library here: {made.stderr.strip()[-200:]}")
    clock.write_bytes(struct.pack("q", 0))

    def jump() -> None:
        with clock.open("r+b", buffering=0) as file:
            for ahead in itertools.cycle([HOUR, -HOUR, 0]):
                os.pwrite(file.fileno(), struct.pack("q", int(ahead)), 0)
                if over.wait(0.3):
                    return

    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("JUMPING_CLOCK", str(clock))
        thread = threading.Thread(target=jump)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@pytest.mark.slow
@pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="no C compiler for a clock that jumps"
)
def test_an_experiment_under_a_system_clock_that_jumps_is_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launcher, worker, leases that beat six times a second, and a patience of seconds."""
    monkeypatch.setenv(lock.SECONDS, "1")
    monkeypatch.setenv(watchdog.VARIABLE, "60")
    for name in ("whole", "jumping"):
        torture.prepare(tmp_path / name, "grpo")
    assert torture.start(tmp_path / "whole", 1) == 0
    look = "import time; print([[time.time(), time.monotonic(), time.sleep(0.1)][:2] for _ in range(15)])"
    with jumping(tmp_path, monkeypatch):
        clock_readings = json.loads(subprocess.check_output([sys.executable, "-c", look]))
        assert torture.start(tmp_path / "jumping", 1) == 0
    days, ours = zip(*clock_readings, strict=True)
    assert max(days) - min(days) > 1.9 * HOUR and ours[-1] - ours[0] < 60  # one jumped, the other did not
    undisturbed, jumped = torture.outcome(tmp_path / "whole"), torture.outcome(tmp_path / "jumping")
    assert torture.learned(undisturbed) and jumped == undisturbed
    output = (tmp_path / "jumping" / "output.txt").read_text()
    assert "finished  step 6/6" in output and "again from" not in output
    logged = rows(torture.run_of(tmp_path / "jumping"))
    took = [value for row in logged for name, value in row.items() if name.startswith("time/")]
    assert took and all(0 <= value < HOUR for value in took)
