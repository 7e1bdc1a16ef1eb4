"""The wall clock jumps: nothing that waits or measures follows it, and rows are ordered by step.

Setting the machine's own clock would move it for everybody, so Python's is moved; that nothing else asks for
the time of day is read off the code.
"""

from __future__ import annotations

import ast
import itertools
import time
from pathlib import Path

import pytest
from helpers.whole_runs import configure, rows, run, timeless

from grpobench.runs.tools import lock
from grpobench.runs.tools.lock import FolderError, Lock

ROOMS = Path(__file__).parents[3]
HOUR = 3600.0
ASKED = {
    "runs/matrix/standing.py": "the age of a log, for people",
    "runs/tools/lock.py": "the age of a lease elsewhere, for people; taking it over goes by counting",
    "runs/observe/trackers/mlflow.py": "what a tracker shows",
    "runs/observe/trackers/tensorboard.py": "what a tracker shows",
}
"""Where code asks for seconds of the day, and why a jump does no harm there."""


def test_nothing_else_asks_for_the_time_of_day() -> None:
    found = set()
    for path in (path for room in ("runs", "tasks", "algorithms") for path in (ROOMS / room).rglob("*.py")):
        text = path.read_text()
        if "time.time" in text or "datetime" in text or "from time import" in text:
            names = {
                ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)
            }
            if names & {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"}:
                found.add(path.relative_to(ROOMS).as_posix())
            assert "from time import" not in text
    assert found == ASKED.keys()


def test_a_run_under_a_clock_that_jumps_is_the_same_run(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(configure(policy), tmp_path / "whole")
    jumps, wall = itertools.cycle([0.0, HOUR, -HOUR]), time.time
    monkeypatch.setattr(time, "time", lambda: wall() + next(jumps))
    found = run(configure(policy), tmp_path / "jumping")
    assert [*map(timeless, found)] == [*map(timeless, whole)]
    assert [row["step"] for row in rows(tmp_path / "jumping")] == [0, 1, 2, 3]
    took = [value for row in found for name, value in row.items() if name.startswith("time/")]
    assert took and all(0 <= value < HOUR for value in took)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_lease_outlives_a_jump_of_its_owners_clock(
    jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(lock.SECONDS, "1")
    first, wall = Lock(tmp_path), time.time
    first.take()
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    time.sleep(1.2)
    with pytest.raises(FolderError, match="in use by process"):
        Lock(tmp_path).take()
    first.demand()
    first.release()
