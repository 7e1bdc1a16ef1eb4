"""A run that says nothing any more is taken to hang: where it was is written down, it is killed, and it goes
on from its checkpoint. What is only slow to be heard of is left alone."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import stand_ins
from helpers.experiments import Engine, launch, launched, recipe, states_by_arm
from helpers.whole_runs import rows

from grpobench.runs.experiment import launcher, watchdog
from grpobench.runs.experiment.executor import Lost, News
from grpobench.runs.experiment.launcher import MOST_AGAIN
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.run_status import run_status
from grpobench.runs.experiment.worker import Ended
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools import lock
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.train.progress import Progress

CONFIG = read_recipe("quickstart", ["tasks=arithmetic", "arms=grpo"]).configs[0]
SAID = Progress(3, 9, 0.5, 10.0, "sampling")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.register(monkeypatch)
    monkeypatch.setattr(launcher, "PAUSES", (0.0,) * 3)


class Mute(Engine):
    """Its runs say something once, and then nothing until they are given up; after `looks` without anything
    they end."""

    def __init__(self, queues: bool = False, says: bool = True, looks: float = math.inf) -> None:
        super().__init__()
        self.queues, self.says, self.looks = queues, says, looks
        self.coming: list[News] = []

    def start(self, queue: Sequence[ExperimentRun]) -> list[ExperimentRun]:
        started = super().start(queue)
        self.coming += [(run, SAID) for run in started if self.says]
        return started

    def news(self, seconds: float) -> list[News]:
        time.sleep(0.01)
        self.looks -= 1
        messages, self.coming = self.coming, []
        return messages or ([(self.begun[-1], Ended("finished", ""))] if self.looks < 0 else [])

    def abandon(self, run: ExperimentRun) -> None:
        self.coming.append((run, Lost("its worker was killed")))


def launch_one(tmp_path: Path, engine: Mute, patience: float) -> tuple[ExperimentRun, str]:
    run = ExperimentRun(CONFIG, tmp_path / CONFIG.folder)
    run.path.mkdir()
    return run, launched([run], engine, patience=patience)


def test_always_hanging_run_gets_as_many_attempts_as_failing_machine(tmp_path: Path) -> None:
    engine = Mute()
    run, printed = launch_one(tmp_path, engine, patience=0.05)
    assert run.state == "crashed" and len(engine.begun) == MOST_AGAIN + 1
    assert "unresponsive: no report for" in run.why and "in `sampling`" in run.why
    assert printed.count("resuming from step 0") == MOST_AGAIN
    assert watchdog.NO_STACK in (run.path / "unresponsive-0.txt").read_text()


@pytest.mark.parametrize(
    ("engine", "patience"),
    [
        (Mute(looks=20), math.inf),
        (Mute(queues=True, says=False, looks=20), 0.05),  # a job that waits for its turn
    ],
)
def test_who_may_be_silent_is_left_alone(engine: Mute, patience: float, tmp_path: Path) -> None:
    run, _ = launch_one(tmp_path, engine, patience)
    assert run.state == "finished" and len(engine.begun) == 1 and not [*run.path.glob("unresponsive-*")]


def test_time_in_which_the_launcher_itself_was_away_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suspended for an hour between two looks, it has not listened for that hour."""
    engine = Mute(looks=2)
    plain = engine.news

    def late(seconds: float) -> list[News]:
        passed[0] += 3600.0
        return plain(seconds)

    passed, real = [0.0], time.monotonic
    monkeypatch.setattr(engine, "news", late)
    monkeypatch.setattr(launcher.time, "monotonic", lambda: real() + passed[0])
    run, _ = launch_one(tmp_path, engine, patience=1800.0)
    assert run.state == "finished" and len(engine.begun) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="calls the C library by its name")
def test_workers_that_hang_in_c_or_are_halted_are_replaced(
    warm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(watchdog.VARIABLE, "4")
    outcome, printed = launch(recipe(tmp_path, "hang", "halt"), tmp_path)
    assert states_by_arm(outcome) == {"hang": "finished", "halt": "finished"}
    for run in outcome.runs:
        assert [row["step"] for row in rows(run.path)] == [1, 2, 3]
    hang, halt = (
        (tmp_path / "m" / f"{arm}-sums-s0" / "unresponsive-1.txt").read_text() for arm in ("hang", "halt")
    )
    assert all(re.match(r"unresponsive: no report for \d+ s in `training`\n", text) for text in (hang, halt))
    assert "Thread 0x" in hang and "stand_ins.py" in hang and "in execute" in hang
    assert watchdog.NO_STACK not in hang and watchdog.NO_STACK in halt
    assert printed.count("resuming from step 1") == 2 and "its stack is in" in printed


def test_status_says_of_a_run_at_work_which_attempt_unresponsive(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"state": "running", "why": "", "step": 2, "attempt": 3}')
    for attempt, why in (
        (1, "unresponsive: no report for 31:00 in `sampling`"),
        (2, "unresponsive: no report for 1:00:00"),
    ):
        (tmp_path / f"unresponsive-{attempt}.txt").write_text(f"{why}\n\nTimeout\n")
    assert run_status(tmp_path).why.endswith(
        "attempt 2 unresponsive: no report for 1:00:00 (unresponsive-2.txt)"
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 1800.0), (" 90 ", 90.0), ("0", math.inf), ("-1", math.inf)]
)
def test_patience_is_the_users(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(watchdog.VARIABLE, text)
    assert watchdog.patience() == seconds


@pytest.mark.parametrize("variable", [watchdog.VARIABLE, lock.SECONDS])
@pytest.mark.parametrize("text", ["30m", "nan"])
def test_seconds_that_are_none_are_refused_before_anything_is_written(
    variable: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError, match=f"{variable}: must be a number of seconds"):
        launch(recipe(tmp_path, "fine"), tmp_path)
    assert not list(tmp_path.rglob("m/*.toml")) and not list(tmp_path.rglob("fine*"))
