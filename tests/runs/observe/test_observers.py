"""Callbacks hear what a run writes, and whatever they do changes nothing of it."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from helpers.whole_runs import configure, rows, run, run_until_stopped, timeless

from grpobench.runs.observe import observers
from grpobench.runs.runfolder import provenance
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import EvaluateConfig, RunConfig, TrainConfig
from grpobench.runs.settings.observe import Observe
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.arithmetic import Arithmetic

MINE = '''
import json, os, signal, time

class Keeper:
    """Writes down what it is told."""
    def __init__(self, path):
        self.file = open(path, "a", buffering=1)
    def write(self, *told):
        self.file.write(json.dumps(told) + "\\n")
    def begin(self, config, folder, done):
        self.write("begin", config, str(folder), done)
    def step(self, row):
        self.write("step", row)
    def evaluation(self, step, split, summary):
        self.write("evaluation", step, split, summary)
    def end(self, state, why):
        self.write("end", state, why)

class OnlySteps:
    def step(self, row):
        print("heard", row["step"])

class Raises:
    def __init__(self, where):
        self.where = where
        self.told("making")
    def told(self, what):
        if what == self.where:
            raise ValueError("no more of " + what)
    def begin(self, config, folder, done): self.told("begin")
    def step(self, row): self.told("step")
    def evaluation(self, step, split, summary): self.told("evaluation")
    def end(self, state, why): self.told("end")

class Hangs:
    def step(self, row):
        while True:
            try: time.sleep(3600)
            except BaseException: pass

class Dies:
    def step(self, row): os.kill(os.getpid(), signal.SIGKILL)

class Leaves:
    def step(self, row): os._exit(0)
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A recipe's folder with callbacks in it."""
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    return folder


def observed(policy: str, mine: Path, *callbacks: Observe, **sections: Any) -> RunConfig:
    quick = {
        "train": TrainConfig(steps=3, prompts_per_step=2, group_size=2, learning_rate={"policy": 1e-3}),
        "evaluate": EvaluateConfig(every=2, problems=2, samples=1, test_problems=1),
    }
    return configure(policy, observe=callbacks, beside=str(mine), **{**quick, **sections})


def keeper(path: Path) -> Observe:
    return Observe("mine:Keeper", {"path": str(path)})


def heard(path: Path) -> list[Any]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def callbacks_failed(path: Path) -> list[dict[str, str]]:
    attempt = json.loads((path / "provenance.json").read_text())["attempts"][-1]
    return list(attempt.get("callbacks_failed", []))


def failures(path: Path) -> dict[str, str]:
    return {failed["name"]: failed["why"] for failed in callbacks_failed(path)}


def test_it_hears_every_row_and_evaluation_in_order(policy: str, mine: Path, tmp_path: Path) -> None:
    config = observed(policy, mine, keeper(tmp_path / "told"))
    written = run(config, tmp_path / "run")
    messages = heard(tmp_path / "told")
    as_written = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert messages[0] == ["begin", as_written, str(tmp_path / "run"), 0]
    assert [row for kind, *fields in messages for row in fields if kind == "step"] == written
    order = [
        (kind, fields[0] if kind == "evaluation" else fields[0]["step"]) for kind, *fields in messages[1:-1]
    ]
    evaluated = [("evaluation", 0)] * 2 + [("step", 0), ("step", 1), ("evaluation", 2), ("step", 2)]
    assert order == [*evaluated, ("evaluation", 3), ("evaluation", 3), ("step", 3)]
    for _, step, split, summary in (message for message in messages if message[0] == "evaluation"):
        row = written[step]
        assert summary and all(row[name] == value for name, value in summary.items())
        assert all(f"/{split}/" in name for name in summary)
    assert messages[-1] == ["end", "finished", ""]
    assert failures(tmp_path / "run") == {}


TROUBLE = [
    *(
        (
            Observe("mine:Raises", {"where": where}),
            f"{doing}: mine.py:29 Raises.told raised ValueError: no more of {where}",
        )
        for where, doing in (
            ("making", "as it was made"),
            ("begin", "in begin"),
            ("step", "in step"),
            ("evaluation", "in evaluation"),
            ("end", "in end"),
        )
    ),
    (Observe("mine:Hangs", {}, seconds=0.5), "it did not end in time"),
    (Observe("mine:Dies", {}), "its process was killed by SIGKILL"),
    (Observe("mine:Leaves", {}), "its process exited with 0"),
    (Observe("mine:Absent", {}), "has no 'Absent'"),
]


def test_what_it_raises_and_how_it_hangs_changes_no_number(
    policy: str, mine: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """All kinds of trouble at once, beside a callback that is well: the same run as without any."""
    alone = run(observed(policy, mine), tmp_path / "alone")
    message_file, path = tmp_path / "told", tmp_path / "run"
    troubles = [trouble for trouble, _ in TROUBLE]
    logged_rows = run(observed(policy, mine, *troubles, keeper(message_file)), path)
    assert [timeless(row) for row in logged_rows] == [timeless(row) for row in alone]
    ours, theirs = (folder / "final" / "policy.safetensors" for folder in (path, tmp_path / "alone"))
    assert ours.read_bytes() == theirs.read_bytes()
    noted = [(failed["name"], failed["why"]) for failed in callbacks_failed(path)]
    assert sorted(name for name, _ in noted) == sorted(trouble.name for trouble in troubles)
    for trouble, why in TROUBLE:
        assert any(name == trouble.name and why in text for name, text in noted), (why, noted)
    assert capfd.readouterr().err.count(" is dropped: ") == len(TROUBLE)
    messages = heard(message_file)
    assert [fields[0] for kind, *fields in messages if kind == "step"] == logged_rows
    assert messages[-1] == ["end", "finished", ""]


def test_one_that_lags_behind_is_dropped(
    policy: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "MOST_LEFT", 2)
    slow = Observe("mine:Hangs", {}, seconds=600)
    train = TrainConfig(steps=60, prompts_per_step=1, group_size=2)
    none = EvaluateConfig(every=0, problems=0, test_problems=0)
    began = time.monotonic()
    logged_rows = run(observed(policy, mine, slow, train=train, evaluate=none), tmp_path / "run")
    assert len(logged_rows) == 61 and time.monotonic() - began < 300
    assert failures(tmp_path / "run") == {"mine:Hangs": "it is 2 messages behind"}


def test_missing_methods_are_not_called_and_prints_join_those_of_the_run(
    policy: str, mine: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(observed(policy, mine, Observe("mine:OnlySteps", {})), tmp_path / "run")
    assert failures(tmp_path / "run") == {}
    assert capfd.readouterr().out.split() == ["heard", "0", "heard", "1", "heard", "2", "heard", "3"]


def test_a_run_told_to_stop_says_so_and_the_next_attempt_what_is_done(
    policy: str, mine: Path, tmp_path: Path
) -> None:
    config = observed(policy, mine, keeper(tmp_path / "told"))
    run_until_stopped(config, tmp_path / "run", 1)
    assert heard(tmp_path / "told")[-1] == ["end", "preempted", "told to stop"]
    written = run(config, tmp_path / "run")
    messages = heard(tmp_path / "told")
    assert [fields[2] for kind, *fields in messages if kind == "begin"] == [0, 1]
    assert [fields[0] for kind, *fields in messages if kind == "step"] == written


def test_a_crash_is_told_and_stays_the_runs_error(
    policy: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ArithmeticError("it went wrong")

    monkeypatch.setattr("grpobench.runs.train.trainer.Trainer.step", broken)
    with pytest.raises(ArithmeticError):
        run(observed(policy, mine, keeper(tmp_path / "told")), tmp_path / "run")
    assert heard(tmp_path / "told")[-1] == ["end", "crashed", "ArithmeticError: it went wrong"]


def test_it_hears_of_a_run_that_was_killed_and_leaves_no_process(
    policy: str, mine: Path, tmp_path: Path
) -> None:
    """The run's process is killed without a word, beside a callback that hangs."""
    hanging = Observe("mine:Hangs", {}, seconds=0.5)
    train = TrainConfig(steps=10_000, prompts_per_step=1, group_size=2)
    config = observed(policy, mine, keeper(tmp_path / "told"), hanging, train=train)
    (tmp_path / "run.toml").write_text(stored.dump(dataclasses.replace(config, task=Arithmetic())))
    script = (
        "import sys; from pathlib import Path\n"
        "from grpobench.runs.runfolder.folder import RunFolder\n"
        "from grpobench.runs.settings.stored import load\n"
        "from grpobench.runs.train.execute import execute\n"
        "config = load(Path(sys.argv[1]).read_text())\n"
        "with RunFolder.open(Path(sys.argv[2]), config) as folder:\n"
        "    execute(config, folder, lambda _: None, lambda: False)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run.toml"), str(tmp_path / "run")]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait(lambda: (tmp_path / "told").exists() and len(heard(tmp_path / "told")) > 4)
    theirs = children(child.pid)
    assert len(theirs) == 2
    child.send_signal(signal.SIGKILL)
    child.wait()
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in theirs))
    assert heard(tmp_path / "told")[-1] == ["end", "crashed", "the run's process is gone"]


def wait(until: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.1)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child_pid) for task in tasks for child_pid in task.read_text().split()]


# What is kept of them


def test_their_code_is_noted_by_hash_and_is_no_part_of_the_runs(
    policy: str, mine: Path, tmp_path: Path
) -> None:
    run(observed(policy, mine, Observe("mine:OnlySteps", {})), tmp_path / "run")
    attempt = json.loads((tmp_path / "run" / "provenance.json").read_text())["attempts"][0]
    (noted,) = attempt["callbacks"]
    path = str(mine / "mine.py")
    assert noted == {
        "name": "mine:OnlySteps",
        "reference": "mine:OnlySteps",
        "code": {path: provenance.digest(path)},
    }
    assert path not in attempt["code"] and "runs/train/run_loop.py" in attempt["code"]
    assert not [name for name in attempt["code"] if name.startswith("runs/observe/")]


def test_a_run_goes_on_with_other_callbacks(policy: str, mine: Path, tmp_path: Path) -> None:
    run_until_stopped(observed(policy, mine), tmp_path / "run", 1)
    (mine / "mine.py").write_text(MINE + "\n# another text\n")
    logged_rows = run(observed(policy, mine, keeper(tmp_path / "told")), tmp_path / "run")
    assert (
        [row["step"] for row in logged_rows]
        == [0, 1, 2, 3]
        == [row["step"] for row in rows(tmp_path / "run")]
    )
    with pytest.raises(Exception, match=r"train\.group"):
        train = TrainConfig(steps=3, prompts_per_step=2, group_size=3, learning_rate={"policy": 1e-3})
        RunFolder.open(tmp_path / "run", observed(policy, mine, train=train))


# What a recipe says of them


RECIPE = 'tasks = ["arithmetic"]\n[[arm]]\nalgorithm = "grpo"\n'


def read(folder: Path, line: str, *sets: str) -> RunConfig:
    (folder / "r.toml").write_text(f"{line}\n{RECIPE}")
    return read_recipe(str(folder / "r.toml"), sets).configs[0]


def test_a_recipe_names_them_and_run_toml_keeps_them(mine: Path) -> None:
    config = read(mine, 'observe = ["mine:OnlySteps", { name = "mine:Keeper", path = "x", seconds = 5 }]')
    assert config.observe == (Observe("mine:OnlySteps", {}), Observe("mine:Keeper", {"path": "x"}, 5.0))
    assert config.beside == str(mine)
    assert stored.load(stored.dump(config)) == config
    assert stored.differences(stored.dump(config), stored.dump(read(mine, ""))) == []


def test_set_takes_one_or_a_list(mine: Path) -> None:
    single = (Observe("mine:OnlySteps", {}),)
    assert read(mine, "", "observe=mine:OnlySteps").observe == single
    assert read(mine, 'observe = ["nobody"]', 'observe=["mine:OnlySteps"]').observe == single
    assert read(mine, 'observe = ["mine:OnlySteps"]', "observe=[]").observe == ()
    assert read(mine, 'observe = ["mine:OnlySteps"]', "observe=[]").beside == ""


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'mlflow is not installed: pip install "?.?\.\[mlflow\]'):
        read(mine, 'observe = ["mlflow"]')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('observe = ["mine:Keeper"]', "called with (): missing a required argument: 'path'"),
        ('observe = [{ name = "mine:Keeper", pth = "x" }]', "observe[0]: mine:Keeper takes (path)"),
        ('observe = [{ name = "mine:Keeper", path = 1979-05-27 }]', "observe[0]: TOML cannot hold date"),
        ('observe = ["mine:OnlySteps", "mine:OnlySteps"]', "observe[1]: mine:OnlySteps is listed twice"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(line: str, message: str, mine: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(mine, line)
    assert message in str(caught.value)
