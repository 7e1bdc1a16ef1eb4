"""`grpobench status`: what another shell is told of runs, from their files alone."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments import printed, recorder
from helpers.logs import rows
from helpers.shell import command

from grpobench.runs import cli
from grpobench.runs.experiment import run_status
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.runfolder.rows import last_rows
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.lock import Lock, Owner

NAMES = ("grpo-sums-s0", "grpo-sums-s1", "grpo-sums-s2", "rloo-sums-s0")


def make(folder: Path, state: str, log: str, steps: int = 10, **fields: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(f"[train]\nsteps = {steps}\n")
    (folder / "status.json").write_text(json.dumps({"state": state, "why": "", "step": 0, **fields}))
    (folder / "metrics.jsonl").write_text(log)
    return folder


def write_lock(folder: Path, process: int | None = None) -> None:
    """Have a process own a folder, as its lock file says; by default this one."""
    owner = Owner.me() if process is None else dataclasses.replace(Owner.me(), pid=process, start="0")
    (folder / "lock").write_text(json.dumps(dataclasses.asdict(owner)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An experiment of four runs: one finished, one at work, one whose process is gone, one that has
    not begun."""
    folder = tmp_path / "m"
    make(folder / NAMES[0], "finished", rows(10, 4.0))
    write_lock(make(folder / NAMES[1], "running", rows(6, 2.0) + '{"step": 7, "time/wa'))
    write_lock(make(folder / NAMES[2], "running", rows(3, 2.0)), process=1)
    (folder / "experiment.json").write_text(json.dumps({"runs": NAMES}))
    write_lock(folder)
    return folder


def test_command_tells_state_progress_time_left_and_owner_without_torch(root: Path) -> None:
    done = command("status", str(root), "--json", folder=root)
    assert done.returncode == 0 and done.stderr == ""
    (overview,) = json.loads(done.stdout)  # LOADED would break the JSON
    runs = {run["run"]: run for run in overview["runs"]}
    assert list(runs) == list(NAMES)
    assert [run["state"] for run in runs.values()] == ["finished", "running", "interrupted", "waiting"]
    assert overview["counts"] == {"finished": 1, "running": 1, "interrupted": 1, "waiting": 1}
    assert overview["launcher"] == {"process": os.getpid(), "host": os.uname().nodename}
    at_work = runs[NAMES[1]]
    assert (at_work["step"], at_work["steps"], at_work["process"]) == (6, 10, os.getpid())
    assert (at_work["reward"], at_work["tokens_per_second"]) == (0.6, 100.0)  # 100 tokens in 1 s of a step
    assert at_work["seconds_left"] == 8.0  # four steps of 2 s
    assert runs[NAMES[2]]["process"] is None and "resumes it" in runs[NAMES[2]]["why"]
    assert runs[NAMES[3]]["steps"] is None and runs[NAMES[3]]["reward"] is None
    # Runs of grpo last 10 × 4, 10 × 2 and 10 × 2 s: 26.7 on average, which the interrupted one is taken for,
    # and so is the one of rloo, which has no kin. One works at a time.
    assert overview["seconds_left"] == pytest.approx(8 + 80 / 3 + 80 / 3)


def test_the_table_names_every_run_and_why_it_stopped(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(root / "extra-sums-s0", "crashed", rows(1, 2.0), why="MemoryError: too much\nsecond line")
    (root / "lock").unlink()
    assert cli.main(["status", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[0].split()) == "run state step reward tokens/s left last row process"
    assert [line.split()[0] for line in lines[1:6]] == [*NAMES, "extra-sums-s0"]
    assert lines[2].split()[1:6] == ["running", "6/10", "0.600", "100", "8"]
    assert "extra-sums-s0: MemoryError: too much" in lines
    assert lines[-1].startswith(
        f"{root}: 5 runs: 1 crashed, 1 finished, 1 interrupted, 1 running, 1 waiting; no"
    )


def test_rows_of_an_earlier_attempt_do_not_set_the_pace(tmp_path: Path) -> None:
    """The clock of an attempt begins at 0: what it wrote is where the clock rises."""
    resumed = rows(4, 50.0) + "".join(
        json.dumps({"step": step, "time/wall": 3.0 * step - 10}) + "\n" for step in (5, 6, 7)
    )
    write_lock(make(tmp_path / "run", "running", resumed))
    assert run_status.run_status(tmp_path / "run").seconds_left == 9.0  # three steps of 3 s
    write_lock(make(tmp_path / "fresh", "running", rows(0, 1.0)))
    assert math.isnan(run_status.run_status(tmp_path / "fresh").seconds_left)


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    write_lock(make(tmp_path / "run", "running", rows(4000, 1.0), steps=5000))
    status_of_run = run_status.run_status(tmp_path / "run")
    assert (status_of_run.step, status_of_run.seconds_left) == (4000, 1000.0)
    assert len(last_rows(tmp_path / "run" / "metrics.jsonl")) < 2000


def test_run_folder_and_experiments_folder_are_shown_and_others_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", str(root / NAMES[1]), "--json"]) == 0
    (overview,) = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in overview["runs"]] == [NAMES[1]] and overview["launcher"]
    assert cli.main(["status", str(root.parent), "--json"]) == 0
    assert [len(overview["runs"]) for overview in json.loads(capsys.readouterr().out)] == [4]
    (root.parent / "empty").mkdir()
    for folder, message in (("empty", "contains no run"), ("nowhere", "no such folder")):
        assert cli.main(["status", str(root.parent / folder)]) == 2
        assert message in capsys.readouterr().err
    assert cli.main(["status", str(root), "--json", "--watch"]) == 2
    assert "choose one of them" in capsys.readouterr().err


def test_watching_ends_with_the_launcher_and_shows_how_it_ended(root: Path) -> None:
    console = recorder()
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            Lock(root).release()

    run_status.watch(root, console, wait)
    shown = printed(console)
    assert waited == [30.0, 30.0] and shown.count("4 runs:") == 3
    assert shown.splitlines()[-1].endswith("no launcher is running")


def test_watching_is_ended_by_ctrl_c_without_an_error(root: Path) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    run_status.watch(root, recorder(), interrupt)


def test_a_run_with_a_critic_or_longer_answers_is_known_to_take_longer(tmp_path: Path) -> None:
    """So that it does not begin last, with every other worker idle."""
    costs = {
        (config.arm, config.task.name): ExperimentRun(config, tmp_path).cost
        for config in read_recipe("quickstart").runs()
    }
    arms = ("grpo", "gspo", "dpo")
    assert all(costs["ppo", "arithmetic"] > 1.5 * costs[arm, "arithmetic"] for arm in arms)
    assert all(costs[arm, "arithmetic"] > costs[arm, "nanobias"] for arm in ("ppo", *arms))
    twice = read_recipe("quickstart", ["train.epochs=2"]).runs()[0]
    assert costs["grpo", "arithmetic"] < ExperimentRun(twice, tmp_path).cost < 2 * costs["grpo", "arithmetic"]
