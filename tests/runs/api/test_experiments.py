"""Runs from Python: workers never execute the program that starts them, and its failures are told."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import stand_ins
from helpers.experiments import recipe, states_by_arm

import grpobench
from grpobench.runs.api import experiments
from grpobench.runs.experiment.experiment import ExperimentResult, run_experiment
from grpobench.runs.settings import plugins

SCRIPT = """
with open("executed", "a") as file:
    file.write("once more\\n")

import grpobench

results = grpobench.run(
    {
        "name": "tiny",
        "tasks": ["arithmetic"],
        "model": {"name": "nano"},
        "train": {"steps": 1, "prompts_per_step": 2, "group_size": 2},
        "evaluate": {"problems": 4, "test_problems": 4},
        "arm": [{"algorithm": "grpo"}],
    },
    workers=1,
    progress=False,
)
print(results.runs["state"].tolist(), results.report(formats=["json"]))
"""
SPAWNS = """
import multiprocessing, os, sys
from grpobench.runs.tools.process import without_main

before = (__spec__, __file__)
with open("executed", "a") as file:
    file.write("once more\\n")
process = multiprocessing.get_context("spawn").Process(target=os.mkdir, args=("made",))
with without_main():
    process.start()
process.join()
sys.exit(process.exitcode or int(before != (__spec__, __file__)))
"""


def program(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_without_a_guard_is_executed_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    report = Path("results", "tiny", "report")
    assert program(tmp_path, "script.py") == f"['finished'] {report}\n"
    assert (tmp_path / "executed").read_text() == "once more\n"
    assert (tmp_path / report / "report.json").is_file()


def test_a_spawned_process_does_not_import_the_program(tmp_path: Path) -> None:
    (tmp_path / "spawns.py").write_text(SPAWNS)
    program(tmp_path, "-m", "spawns")
    assert (tmp_path / "executed").read_text() == "once more\n"
    assert (tmp_path / "made").is_dir()


def test_file_named_by_recipe_may_not_begin_runs_during_its_import(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('class Mine: ...\nimport grpobench\ngrpobench.run("quickstart")\n')
    with pytest.raises(grpobench.ConfigError) as caught:
        plugins.load("mine:Mine", tmp_path)
    (message,) = caught.value.faults
    assert "mine.py:3: ConfigError" in message and 'below `if __name__ == "__main__":`' in message


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch, warm: None) -> None:
    """Runs of stand-ins that count steps."""
    stand_ins.register(monkeypatch)
    monkeypatch.setattr(
        experiments, "run_experiment", functools.partial(run_experiment, execute="helpers.stand_ins.execute")
    )


def test_crashed_runs_raise_error_naming_them_and_results_of_others(stands: None, tmp_path: Path) -> None:
    three_arms = recipe(tmp_path, "fine", "raise", "diverge")
    with pytest.raises(grpobench.RunError) as caught:
        grpobench.run(three_arms, tmp_path, workers=2, progress=False)
    lines = str(caught.value).splitlines()
    crash = tmp_path / "m" / "raise-sums-s0" / "crash.txt"
    assert lines[0] == "1 of 3 runs failed"  # that one diverged is a result
    assert re.match(r"  raise-sums-s0: crashed: stand_ins\.py:\d+ execute raised ArithmeticError", lines[1])
    assert lines[1].endswith(f"ArithmeticError: it went wrong; see {crash}")
    assert lines[2] == f"  results of the other runs: grpobench.load({str(tmp_path / 'm')!r})"
    assert states_by_arm(caught.value.outcome) == {
        "fine": "finished",
        "raise": "crashed",
        "diverge": "diverged",
    }
    results = grpobench.run(three_arms, tmp_path, workers=2, progress=False, check=False)
    assert results.runs.set_index("arm")["state"].to_dict() == states_by_arm(caught.value.outcome)
    strict = recipe(tmp_path, "diverge", head="fail_on_divergence = true\n")
    with pytest.raises(
        grpobench.RunError, match=r"1 of 1 runs failed\n  diverge-sums-s0: diverged: loss is not"
    ):
        grpobench.run(strict, tmp_path / "other", progress=False)


def test_same_call_only_loads_finished_runs_and_refuses_other_settings(
    stands: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine_recipe = recipe(tmp_path, "fine")
    first = grpobench.run(fine_recipe, tmp_path)
    assert "[1/1]  fine-sums-s0  finished" in capsys.readouterr().out
    again = grpobench.run(fine_recipe, tmp_path)
    assert capsys.readouterr().out == "1 of 1 runs already have a result\n"
    assert again.metrics.equals(first.metrics) and list(first.metrics["reward/mean"]) == [1 / 3, 2 / 3, 1]
    with pytest.raises(grpobench.FolderError, match=r"(?s)train\.steps: 3 -> 2.*allow_change=True in Python"):
        grpobench.run(fine_recipe, tmp_path, set={"train.steps": 2})
    assert capsys.readouterr().out == ""


def test_a_run_that_is_stopped_raises_keyboard_interrupt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(experiments, "run_experiment", lambda *_, **__: ExperimentResult(tmp_path, 75, ()))
    with pytest.raises(KeyboardInterrupt, match="the same call resumes"):
        grpobench.run("quickstart", tmp_path)


def test_a_notebook_is_demanded_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    with pytest.raises(ValueError, match="needs a notebook"):
        grpobench.run("quickstart", progress="notebook")
