"""The process that makes a trial: what it says, and that code without end does not keep it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grpobench.runs.experiment import trial
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import read_recipe

CODE = """
import os, time

def well(completions, **columns):
    print("heard by nobody")
    return [0.0] * len(completions)

def endless(completions, **columns):
    while True:
        time.sleep(0.01)

def gone(completions, **columns):
    os._exit(3)

def wrong(completions, **columns):
    return "nothing"
"""
RECIPE = """
tasks = [{ name = "arithmetic", settings = { train = 16, validation = 4, test = 4 } }]
[model]
name = "nano"
[train]
steps = 2
prompts_per_step = 2
group_size = 2
[evaluate]
problems = 0
test_problems = 0
"""


def run(folder: Path, reward: str) -> RunConfig:
    arm = f'[[arm]]\nname = "{reward}"\nalgorithm = "grpo"\nreward.kind = "sum"\n'
    (folder / "study.toml").write_text(f'{RECIPE}{arm}reward.weights = {{ "mine:{reward}" = 1.0 }}\n')
    return read_recipe(str(folder / "study.toml")).runs()[0]


@pytest.fixture
def mine(tmp_path: Path, warm: None) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def test_each_trial_is_told_and_output_is_not(mine: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trials = trial.carry_out([run(mine, "well"), run(mine, "wrong"), run(mine, "well")])
    assert [bool(tried.fault) for tried in trials] == [False, True, False]
    assert trials[1].fault.startswith("mine.py:15 the reward mine:wrong returned 'nothing' of type str")
    assert "FunctionError" in trials[1].traceback and not any(tried.skipped for tried in trials)
    assert "heard by nobody" not in "".join(capfd.readouterr())


def test_code_that_does_not_return_is_given_up_by_its_line(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SECONDS", 1.0)
    first, second = trial.carry_out([run(mine, "endless"), run(mine, "well")])
    assert first.fault == "mine.py:8 endless did not return in 1 s" and "time.sleep" in first.traceback
    assert (second.fault, second.skipped) == ("", "the process that tries it has ended")


def test_a_process_that_dies_is_no_fault_of_the_code(mine: Path) -> None:
    (only,) = trial.carry_out([run(mine, "gone")])
    assert (only.fault, only.skipped) == ("", "the process that tries it has ended")


@pytest.mark.slow
def test_the_program_stops_before_its_first_run(tmp_path: Path) -> None:
    """As a user starts it: a process that spawns another."""
    (tmp_path / "mine.py").write_text(CODE)
    run(tmp_path, "wrong")
    command = [sys.executable, "-m", "grpobench", "run", "study.toml", "--workers", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stdout == "trial of the recipe's own code: arm wrong on arithmetic\n"
    first, fault, remedy = done.stderr.splitlines()
    assert first.endswith("the trial before the first run found 1 fault, and nothing was started:")
    assert fault.startswith(
        "  mine.py:15 the reward mine:wrong returned 'nothing' of type str; return a list"
    )
    assert remedy.startswith("tracebacks are in ")
    assert [path.name for path in (tmp_path / "results" / "study").iterdir()] == ["lock"]
