"""What the launcher makes of what engines tell, with an engine that tells what the test says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.experiments import Engine, launched, printed, recorder

from grpobench.runs.experiment import launcher, pool
from grpobench.runs.experiment.executor import Lost, News
from grpobench.runs.experiment.launcher import MOST_AGAIN, Launcher
from grpobench.runs.experiment.pool import PoolWorker, RunPool
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.worker import Ended
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.runfolder.logs import LogFile, status
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.lock import LeaseLost, Lock
from grpobench.runs.train.progress import SAVING, Progress

CONFIG = read_recipe("quickstart", ["tasks=arithmetic", "arms=grpo"]).configs[0]


class Told(Engine):
    """The next message is what `tell` says of the run that was begun."""

    def __init__(self, tell: Any) -> None:
        super().__init__()
        self.tell, self.stopped = tell, False

    def news(self, seconds: float) -> list[News]:
        return [(run, self.tell(run, len(self.begun))) for run in self.begun[-1:]]

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "PAUSES", (0.0,) * 3)
    monkeypatch.setattr(launcher, "POLL", 0.0)


def say(run: ExperimentRun, state: str, attempt: int) -> None:
    run.path.mkdir(parents=True, exist_ok=True)
    run_record = {"state": state, "why": "", "step": 4, "attempt": attempt}
    (run.path / "status.json").write_text(json.dumps(run_record))


def launch_one(tmp_path: Path, tell: Any, **more: Any) -> tuple[ExperimentRun, Told, str]:
    run, engine = ExperimentRun(CONFIG, tmp_path / CONFIG.folder), Told(tell)
    return run, engine, launched([run], engine, **more)


def test_older_result_does_not_belong_to_attempt_lost_before_it_began(tmp_path: Path) -> None:
    """As where a finished run is to be made again and its worker is killed first."""
    say(ExperimentRun(CONFIG, tmp_path / CONFIG.folder), "finished", 1)
    run, engine, output = launch_one(tmp_path, lambda run, begun: Lost("its worker process was killed"))
    assert run.state == "crashed" and len(engine.begun) == 1 + MOST_AGAIN
    assert f"{1 + MOST_AGAIN} attempts made no progress" in run.why
    assert output.count("resuming from step 0") == MOST_AGAIN


def test_a_result_that_the_lost_attempt_came_to_counts(tmp_path: Path) -> None:
    def tell(run: ExperimentRun, begun: int) -> Lost:
        say(run, "finished", 2)
        return Lost("its worker process was killed")

    say(ExperimentRun(CONFIG, tmp_path / CONFIG.folder), "finished", 1)
    run, engine, _ = launch_one(tmp_path, tell)
    assert run.state == "finished" and len(engine.begun) == 1


def test_a_process_that_ends_by_itself_is_not_tried_again(tmp_path: Path) -> None:
    run, engine, _ = launch_one(tmp_path, lambda run, begun: Lost("it exited with 1", machine=False))
    assert (run.state, run.why, len(engine.begun)) == ("crashed", "it exited with 1", 1)


def test_progress_counts_from_last_attempt_if_checkpoints_were_replaced(tmp_path: Path) -> None:
    def tell(run: ExperimentRun, begun: int) -> Lost | Ended:
        for checkpoint in run.path.glob("checkpoints/step-*"):
            checkpoint.rmdir()
        (run.path / "checkpoints" / f"step-{begun}").mkdir(parents=True)
        return Ended("finished", "") if begun == 9 else Lost("its worker process was killed")

    (tmp_path / CONFIG.folder / "checkpoints" / "step-40").mkdir(parents=True)
    run, engine, _ = launch_one(tmp_path, tell)
    assert run.state == "finished" and len(engine.begun) == 9


def test_a_launcher_whose_experiment_was_taken_over_begins_nothing_more(tmp_path: Path) -> None:
    def demand() -> None:
        raise LeaseLost("another has it")

    run, engine, output = launch_one(tmp_path, lambda run, begun: Ended("finished", ""), demand=demand)
    assert run.state == "waiting" and not engine.begun and engine.stopped
    assert "stopping: another has it" in output


class Stopped(Engine):
    """Of two runs one writes a checkpoint for `looks` looks after it was told to stop, the other does not
    stop."""

    workers = 2

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks, self.ended, self.killed = looks, list[str](), False

    def news(self, seconds: float) -> list[News]:
        if self.killed:
            return [(run, Lost("killed")) for run in self.begun if run.name not in self.ended]
        saving, deaf = self.begun
        self.looks -= 1
        if self.looks == 3:
            return [(deaf, Lost("it was given up"))]
        return [] if self.looks > 0 else [(saving, Ended("preempted", ""))]

    def abandon(self, run: ExperimentRun) -> None:
        self.ended.append(run.name)

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize("full", [False, True])
def test_late_checkpoint_writer_is_waited_for_unless_disk_is_full(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "GRACE", 0.0)
    runs = [
        ExperimentRun(dataclasses.replace(CONFIG, seed=seed), tmp_path / f"run-{seed}") for seed in range(2)
    ]
    ended = [ExperimentRun(CONFIG, tmp_path / "before", state="disk full")] if full else []
    engine, console = Stopped(6), recorder()
    begun = Launcher([*runs, *ended], engine, console)
    begun.signals = 1
    begun.stop(0.0)
    engine.start(runs)
    for run, phase in zip(runs, (SAVING, "training"), strict=True):  # at work when the signal came
        begun.begin(run)
        run.heard(Progress(3, 9, 0.5, 9.0, phase))
    begun.launch()
    output = printed(console)
    assert [run.state for run in runs] == ["preempted", "preempted"]
    if full:
        assert engine.killed and not engine.ended and "still saving" not in output
    else:
        assert engine.ended == ["run-1"] and not engine.killed  # once, and the other never
        assert output.count("still saving: run-0 (Ctrl-C again kills)") == 1


def buried(crew: list[PoolWorker], monkeypatch: pytest.MonkeyPatch) -> RunPool:
    """A pool of two in which a worker has died thrice while it started."""
    worker_pool = RunPool(2, "none")
    worker_pool.crew = crew
    for _ in range(pool.MOST_FAILED_STARTS):
        process: Any = SimpleNamespace(join=lambda: None, exitcode=-9)
        connection: Any = SimpleNamespace(close=lambda: None)
        dead = PoolWorker(process, connection)
        worker_pool.crew.append(dead)
        worker_pool.handle_death(dead)
    return worker_pool


def test_the_arms_of_a_seed_begin_together_the_longest_first(tmp_path: Path) -> None:
    """Begun arm by arm, they would share no load, and times of arms would differ by what else was running."""
    runs = [
        ExperimentRun(config, tmp_path / config.folder)
        for config in read_recipe("quickstart", ["tasks=arithmetic"]).configs
    ]
    engine = Told(lambda run, begun: Ended("finished", ""))
    launched(runs, engine)
    order = [(run.config.seed, run.config.arm) for run in engine.begun]
    arms = len({arm for _, arm in order})
    assert arms > 1 and len(order) == len(runs)
    for start in range(0, len(order), arms):
        together = order[start : start + arms]
        assert len({seed for seed, _ in together}) == 1
        assert together[0][1] == "ppo", "has a critic"


def test_failed_starts_end_no_run_that_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anything: Any = None
    worker_pool = buried([PoolWorker(anything, anything, run=ExperimentRun(CONFIG, tmp_path))], monkeypatch)
    assert len(worker_pool.crew) == 1
    monkeypatch.setattr(worker_pool, "start_worker", lambda: pytest.fail("started at once"))
    assert worker_pool.start([ExperimentRun(CONFIG, tmp_path)]) == []
    with pytest.raises(RuntimeError, match="worker processes die while they start"):
        buried([], monkeypatch)


def test_who_lost_the_lease_changes_nothing_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    folder = RunFolder.open(path, CONFIG)
    folder.log({"step": 1})
    folder.log({"step": 2})

    def lost(self: Lock) -> None:
        raise LeaseLost("another has it")

    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    monkeypatch.setattr(Lock, "demand", lost)
    monkeypatch.setattr(folder.lock, "demand", lambda: lost(folder.lock))
    for log in folder.logs.values():
        log.demand = folder.lock.demand
    for write in (
        lambda: folder.rewind(1),
        lambda: folder.finish("finished"),
        lambda: folder.events([{"kind": "x"}]),
        lambda: folder.rollouts(1, [{"problem": "x"}]),
        lambda: folder.problems({}),
        folder.write_sums,
    ):
        with pytest.raises(LeaseLost):
            write()
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    assert status(path)["state"] == "running"
    monkeypatch.undo()
    folder.close()


def test_a_log_that_cannot_be_closed_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.open(tmp_path / "run", CONFIG)

    def broken(self: LogFile) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LogFile, "close", broken)
    with pytest.raises(OSError, match="Input/output"):
        folder.close()
    assert folder.lock.owner() is None
