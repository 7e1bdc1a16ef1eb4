"""The experiment launcher: one run's end never ends another's, and a stopped experiment resumes where
it was."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import stand_ins
from helpers.experiments import HEAD, launch, printed, recipe, recorder, states_by_arm
from helpers.whole_runs import rows

from grpobench.analysis.runfolder import checksums
from grpobench.runs.experiment.display import INTERVAL, Display
from grpobench.runs.experiment.experiment import exit_code
from grpobench.runs.experiment.launcher import MOST_AGAIN
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.runfolder.folder import FolderError
from grpobench.runs.runfolder.logs import status
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.tools import lock, machine, process
from grpobench.runs.tools.process import death
from grpobench.runs.tools.progress import Timing, duration, time_left
from grpobench.runs.train.progress import Progress


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch, warm: None) -> None:
    stand_ins.register(monkeypatch)
    monkeypatch.setattr("grpobench.runs.experiment.launcher.PAUSES", (0.0,) * 3)


def test_a_slow_precision_is_noted_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "measure_slowdown", lambda precision: 8.0)
    head = '[model]\nname = "nano"\ndtype = "bfloat16"\n'
    _, output = launch(recipe(tmp_path, "fine", head=head), tmp_path)
    assert output.startswith("note: a product of matrices in bfloat16 takes 8 times as long")


def test_runs_that_fail_leave_the_others_alone_and_only_they_run_again(tmp_path: Path) -> None:
    parsed_recipe = recipe(tmp_path, "fine1", "raise", "kill", "diverge", "forget", "fine2")
    outcome, output = launch(parsed_recipe, tmp_path)
    assert states_by_arm(outcome) == {
        "fine1": "finished",
        "raise": "crashed",
        "kill": "crashed",
        "diverge": "diverged",
        "forget": "crashed",
        "fine2": "finished",
    }
    assert outcome.code == 70
    run_lines = [line for line in output.splitlines() if line.startswith("[")]
    lost = [line for line in output.splitlines() if line.startswith("kill-sums-s0: its worker process was ")]
    assert len(lost) == MOST_AGAIN and all(line.endswith("; resuming from step 1 in 0 s") for line in lost)
    assert len(run_lines) == 6  # one line per finished run, not per step
    folder = tmp_path / "m"
    assert "it went wrong" in (folder / "raise-sums-s0" / "crash.txt").read_text()
    why = status(folder / "raise-sums-s0")["why"]  # a stand-in is others' code, whose line comes first
    assert re.fullmatch(r"stand_ins\.py:\d+ execute raised ArithmeticError: it went wrong", why)
    assert "SIGKILL" in status(folder / "kill-sums-s0")["why"]
    assert status(folder / "diverge-sums-s0")["state"] == "diverged"
    assert (folder / "fine1-sums-s0" / "log.txt").read_text() == "running fine1\n"
    described = json.loads((folder / "experiment.json").read_text())
    assert described["arms"][:2] == ["fine1", "raise"] and checksums.SEAL in described
    assert not checksums.broken(described)

    (folder / "mended").touch()
    outcome, output = launch(parsed_recipe, tmp_path)
    assert outcome.code == 0
    assert set(states_by_arm(outcome).values()) == {"finished", "diverged"}
    assert "3 of 6 runs already have a result" in output
    attempts = {run.config.arm: status(run.path)["attempt"] for run in outcome.runs}
    assert attempts == {"fine1": 1, "raise": 2, "kill": 2 + MOST_AGAIN, "diverge": 1, "forget": 2, "fine2": 1}
    # The resumed run's log is that of a run that was never killed.
    fine = (folder / "fine1-sums-s0" / "metrics.jsonl").read_bytes()
    assert (folder / "kill-sums-s0" / "metrics.jsonl").read_bytes() == fine
    weights = [(folder / f"{arm}-sums-s0/final/policy.safetensors").read_bytes() for arm in ("fine1", "kill")]
    assert weights[0] == weights[1]
    # With every run done nothing starts at all.
    began = time.monotonic()
    assert launch(parsed_recipe, tmp_path)[0].code == 0
    assert time.monotonic() - began < 1


def test_full_disk_ends_the_experiment_with_70_within_five_seconds(tmp_path: Path) -> None:
    parsed_recipe = recipe(tmp_path, "full", "stuck", steps=500)
    outcome, _ = launch(parsed_recipe, tmp_path)
    assert outcome.code == 70
    assert states_by_arm(outcome)["full"] == "disk full"
    seconds = {run.config.arm: run.seconds for run in outcome.runs}
    assert seconds["stuck"] - seconds["full"] < 5


def test_folder_in_use_or_changed_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    parsed_recipe = recipe(tmp_path, "fine")
    owned = tmp_path / "m" / "fine-sums-s0"
    owned.mkdir(parents=True)
    from grpobench.runs.tools.lock import Lock

    Lock(owned).take()
    with pytest.raises(FolderError, match=f"in use by process {os.getpid()}"):
        launch(parsed_recipe, tmp_path)
    Lock(owned).release()
    Lock(tmp_path / "m").take()
    with pytest.raises(FolderError, match="m is in use"):
        launch(parsed_recipe, tmp_path)
    Lock(tmp_path / "m").release()
    assert launch(parsed_recipe, tmp_path)[0].code == 0
    with pytest.raises(FolderError, match=r"train\.steps: 3 -> 2"):
        launch(recipe(tmp_path, "fine", steps=2), tmp_path)
    outcome, _ = launch(recipe(tmp_path, "fine", steps=2), tmp_path, allow_change=True)
    assert [row["step"] for row in rows(outcome.runs[0].path)] == [1, 2]
    assert [row["step"] for row in rows(tmp_path / "m/earlier/fine-sums-s0.1")] == [1, 2, 3]


def test_an_experiment_of_which_more_steps_are_asked_goes_on(tmp_path: Path) -> None:
    head = "[checkpoint]\nfinal = true\n"
    assert launch(recipe(tmp_path, "fine", head=head), tmp_path)[0].code == 0
    outcome, _ = launch(recipe(tmp_path, "fine", steps=5, head=head), tmp_path)
    (only,) = outcome.runs
    assert only.state == "finished" and [row["step"] for row in rows(only.path)] == [1, 2, 3, 4, 5]
    assert status(only.path)["attempt"] == 2
    assert (
        "1 of 1 runs already have a result"
        in launch(recipe(tmp_path, "fine", steps=5, head=head), tmp_path)[1]
    )


class Vmstat:
    """Of a machine that has killed one more process for its memory each time that it is asked."""

    def __init__(self) -> None:
        self.killed = itertools.count()

    def read_text(self) -> str:
        return f"pgfault 9000\noom_kill {next(self.killed)}\n"


def test_runs_on_failing_machine_resume_while_their_checkpoints_advance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "VMSTAT", Vmstat())
    parsed_recipe = recipe(tmp_path, "kill-often", "storage", "raise", "fine", steps=6)
    outcome, output = launch(parsed_recipe, tmp_path)
    assert states_by_arm(outcome) == {
        "kill-often": "finished",
        "storage": "finished",
        "raise": "crashed",
        "fine": "finished",
    }
    attempts = {run.config.arm: status(run.path)["attempt"] for run in outcome.runs}
    # killed after each of its six checkpoints, more often than a run may fail that comes no further
    assert attempts == {"kill-often": 7, "storage": 2, "raise": 1, "fine": 1}
    assert "storage-sums-s0: OSError: [Errno 5] Input/output error; resuming from step 1" in output
    assert f"killed by SIGKILL ({process.STARVED}); resuming from step 5" in output
    logs = {(run.path / "metrics.jsonl").read_bytes() for run in outcome.runs if run.state == "finished"}
    assert len(logs) == 1


def test_worker_told_to_stop_costs_neither_its_run_nor_the_next(tmp_path: Path) -> None:
    """As a guard of memory or a user tells a process of whose launcher he knows nothing."""
    outcome, output = launch(recipe(tmp_path, "terminate", "fine"), tmp_path, workers=1)
    assert outcome.code == 0 and states_by_arm(outcome) == {"terminate": "finished", "fine": "finished"}
    attempts = {run.config.arm: status(run.path)["attempt"] for run in outcome.runs}
    assert attempts == {"terminate": 2, "fine": 1}
    assert "its worker process was told to stop (SIGTERM); resuming from step 1" in output


def test_a_run_that_breaks_its_process_breaks_no_other(tmp_path: Path) -> None:
    parsed_recipe = recipe(tmp_path, "sticky", "fine1", "fine2")
    outcome, _ = launch(parsed_recipe, tmp_path, workers=1)
    assert states_by_arm(outcome) == {"sticky": "crashed", "fine1": "finished", "fine2": "finished"}
    assert status(tmp_path / "m" / "sticky-sums-s0")["why"].endswith(
        "RuntimeError: the device was broken by sticky"
    )


def test_a_crashed_process_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpobench.runs.experiment.pool.GRACE_RETIRED", 0.5)
    outcome, _ = launch(recipe(tmp_path, "linger", "fine"), tmp_path, workers=1)
    assert states_by_arm(outcome) == {"linger": "crashed", "fine": "finished"}


def listed(folder: Path, *lines: str) -> Recipe:
    """One run of three steps on problems from a file."""
    (folder / "data.txt").write_text("".join(f"{line}\n" for line in lines))
    path = folder / "m.toml"
    path.write_text(
        f'name = "m"\ntasks = [{{ name = "listed", settings = {{ path = "{folder / "data.txt"}" }} }}]\n'
        '[train]\nsteps = 3\n[[arm]]\nalgorithm = "plain"\nname = "fine"\n'
    )
    return read_recipe(str(path))


DATA = ("train 1+1 2", "train 1+2 3", "validation 2+2 4", "test 3+3 6", "test 3+4 7")


EDITS = [
    (1, "train 1+2 4", "train", "1 of 2 train problems differ, such as train-1"),
    (2, "validation 2+3 4", "validation", "1 of 1 validation problems differ, such as validation-2"),
    (4, "test 3+4 8", "test", "1 of 2 test problems differ, such as test-4"),
]


def test_changed_data_are_refused_by_name_and_rerun_only_when_asked(
    tmp_path: Path,
) -> None:
    outcome, _ = launch(listed(tmp_path, *DATA), tmp_path)
    assert states_by_arm(outcome) == {"fine": "finished"}
    for index, line, split, which in EDITS:
        assert "1 of 1 runs already have a result" in launch(listed(tmp_path, *DATA), tmp_path)[1]
        edited = listed(tmp_path, *DATA[:index], line, *DATA[index + 1 :])
        with pytest.raises(FolderError, match=rf"{split} problems: \w{{12}} -> \w{{12}}") as caught:
            launch(edited, tmp_path)
        assert which in str(caught.value) and "--allow-change" in str(caught.value)
        assert status(outcome.runs[0].path)["attempt"] == 1
    outcome, _ = launch(edited, tmp_path, allow_change=True)
    assert states_by_arm(outcome) == {"fine": "finished"} and status(outcome.runs[0].path)["attempt"] == 2
    assert launch(edited, tmp_path)[0].code == 0
    assert status(outcome.runs[0].path)["attempt"] == 2


MINE = """
from dataclasses import dataclass
from grpobench.algorithms.grpo import GRPO
from .helper import factor

@dataclass(frozen=True)
class Mine(GRPO):
    name = "mine"
"""


def test_a_result_of_code_that_was_edited_is_refused_and_made_anew_only_when_asked(
    tmp_path: Path,
) -> None:
    """Also where the edited file is one that the plugin imports; another file beside them is no code."""
    for name, text in (("mine", MINE), ("helper", "factor = 1"), ("other", "")):
        (tmp_path / f"{name}.py").write_text(text)
    arms = '[[arm]]\nalgorithm = "plain"\n[[arm]]\nalgorithm = "mine:Mine"\n'
    (tmp_path / "m.toml").write_text(f"{HEAD}[train]\nsteps = 1\n{arms}")

    def again(**options: Any) -> dict[str, int]:
        outcome, _ = launch(read_recipe(str(tmp_path / "m.toml")), tmp_path, **options)
        assert outcome.code == 0
        return {run.config.arm: status(run.path)["attempt"] for run in outcome.runs}

    assert again() == {"plain": 1, "mine": 1}
    (tmp_path / "other.py").write_text("edited = True")
    assert again() == {"plain": 1, "mine": 1}
    (tmp_path / "helper.py").write_text("factor = 2")
    with pytest.raises(FolderError) as caught:
        again()
    refusal = str(caught.value)
    assert refusal.startswith(
        f"{tmp_path / 'm' / 'mine-sums-s0'} was made with other settings, data or code:"
    )
    assert (
        re.search(r"beside the recipe: helper\.py: \w{12} -> \w{12}\n", refusal)
        and "--allow-change" in refusal
    )
    assert "mine.py" not in refusal and "plain" not in refusal
    assert again(allow_change=True) == {"plain": 1, "mine": 2}
    assert (tmp_path / "m" / "earlier" / "mine-sums-s0.1" / "metrics.jsonl").exists()
    assert again() == {"plain": 1, "mine": 2}


LAUNCH = """
import sys, pytest
from pathlib import Path
from helpers import stand_ins
if __name__ == "__main__":
    import grpobench.algorithms, grpobench.tasks
    grpobench.algorithms.ALGORITHMS, grpobench.tasks.TASKS = stand_ins.ALGORITHMS, stand_ins.TASKS
    from grpobench.runs.experiment.experiment import run_experiment
    from grpobench.runs.settings.recipe import read_recipe
    folder = Path(sys.argv[1])
    given = read_recipe(str(folder / "m.toml"))
    sys.exit(run_experiment(given, folder, execute="helpers.stand_ins.execute", allow_change=True).code)
"""


def start(folder: Path, attempt: int, **around: str) -> subprocess.Popen[bytes]:
    """The launcher as a process of its own, once both runs have a checkpoint of this attempt."""
    script = folder / "launch.py"
    script.write_text(LAUNCH)
    search = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **around}
    child = subprocess.Popen(
        [sys.executable, str(script), str(folder)], env=search, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300  # a busy machine may take long to start three processes
    states = [folder / "m" / f"slow{n}-sums-s0" for n in (1, 2)]
    while not all(status(s).get("attempt") == attempt and status(s)["step"] for s in states):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    return child


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    child_pids = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = entry.read_text()
        except OSError:
            continue
        if int(stat[stat.rindex(")") + 2 :].split()[1]) == pid:
            child_pids.append(int(entry.parent.name))
    return child_pids


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sigterm_saves_and_kill_leaves_no_worker_and_hosts_are_distinct(
    tmp_path: Path,
) -> None:
    arms = "".join(
        f'[[arm]]\nalgorithm = "plain"\nname = "slow{n}"\nsettings.label = "slow"\n' for n in (1, 2)
    )
    (tmp_path / "m.toml").write_text(f"{HEAD}[train]\nsteps = 150\n{arms}")
    child = start(tmp_path, 1)
    workers = children(child.pid)
    child.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert child.wait(30) == 75
    assert time.monotonic() - began < 10
    assert gone(workers)
    for n in (1, 2):
        state = status(tmp_path / "m" / f"slow{n}-sums-s0")
        assert (state["state"], state["attempt"]) == ("preempted", 1)
        assert 0 < state["step"] < 150

    child = start(tmp_path, 2, **{lock.HOST: "far", lock.SECONDS: "2"})
    workers = children(child.pid)
    parsed_recipe = read_recipe(str(tmp_path / "m.toml"))
    began = time.monotonic()
    with pytest.raises(FolderError, match=f"m is in use by process {child.pid} on far"):
        launch(parsed_recipe, tmp_path)
    assert time.monotonic() - began < 1
    child.kill()
    child.wait()
    assert gone(workers)

    (tmp_path / "m" / "mended").touch()
    time.sleep(2)  # before, the second launcher would only say that the first may live
    outcome, output = launch(parsed_recipe, tmp_path, workers=1, allow_change=True)
    assert (
        outcome.code == 0 and output.count("waiting to see whether it lives") == 2
    )  # experiment, then its runs
    assert [row["step"] for row in rows(outcome.runs[0].path)] == list(range(1, 151))


def gone(pids: list[int]) -> bool:
    """Whether all processes end within a few seconds."""
    assert len(pids) >= 2
    deadline = time.monotonic() + 5
    while any(lock.start(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(lock.start(pid) for pid in pids)


def test_a_run_that_collapsed_has_a_result(tmp_path: Path) -> None:
    parsed_recipe = recipe(tmp_path, "collapse")
    for _ in range(2):
        outcome, output = launch(parsed_recipe, tmp_path)
        assert states_by_arm(outcome) == {"collapse": "collapsed"} and outcome.code == 0
    assert "1 of 1 runs already have a result" in output
    (run,) = outcome.runs
    assert run.why == "reward_collapse from step 1" and status(run.path)["attempt"] == 1
    assert not (run.path / "checkpoints").exists()
    assert exit_code(outcome.runs, fail_on_divergence=True) == 3


# Pieces


def fake(state: Any, tmp_path: Path, arm: str = "fine") -> ExperimentRun:
    run = ExperimentRun(recipe(tmp_path, arm).runs()[0], tmp_path / arm)
    run.state = state
    return run


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (("finished", "finished"), 0),
        (("finished", "diverged"), 3),
        (("finished", "collapsed"), 3),
        (("diverged", "refused"), 2),
        (("refused", "crashed"), 70),
        (("crashed", "preempted"), 75),
        (("preempted", "disk full"), 70),
        (("finished", "waiting"), 75),
    ],
)
def test_exit_code_is_that_of_the_gravest_end(ends: tuple[str, str], code: int, tmp_path: Path) -> None:
    runs = [fake(state, tmp_path) for state in ends]
    assert exit_code(runs, fail_on_divergence=True) == code
    assert exit_code(runs, fail_on_divergence=False) == (0 if code == 3 else code)


def test_second_start_with_other_seeds_keeps_first_ones_in_experiment(tmp_path: Path) -> None:
    from grpobench.runs.experiment.experiment import write_experiment

    (tmp_path / "m" / "fine-sums-s0").mkdir(parents=True)
    (tmp_path / "m" / "fine-sums-s0" / "run.toml").touch()
    write_experiment(tmp_path / "m", recipe(tmp_path, "fine", head="seeds = [0]\n"))
    write_experiment(tmp_path / "m", recipe(tmp_path, "fine", head="seeds = [1, 2]\n"))
    table = json.loads((tmp_path / "m" / "experiment.json").read_text())
    assert table["runs"] == ["fine-sums-s1", "fine-sums-s2", "fine-sums-s0"]
    assert table["seeds"] == [1, 2, 0]
    # Seed 1 never ran, and stays planned; an arm that is planned no more and has no run is forgotten.
    write_experiment(tmp_path / "m", recipe(tmp_path, "fine", head="seeds = [2]\n"))
    table = json.loads((tmp_path / "m" / "experiment.json").read_text())
    assert table["runs"] == ["fine-sums-s2", "fine-sums-s1", "fine-sums-s0"]
    write_experiment(tmp_path / "m", recipe(tmp_path, "other", head="seeds = [2]\n"))
    assert json.loads((tmp_path / "m" / "experiment.json").read_text())["runs"] == [
        "other-sums-s2",
        "fine-sums-s0",
    ]


def test_time_left_counts_the_steps_of_this_attempt_alone(tmp_path: Path) -> None:
    run = fake("running", tmp_path)
    assert math.isnan(run.left())
    run.began = time.monotonic() - 10
    run.heard(Progress(20, 40, 0.5, 1000.0, "training"))  # resumed at step 20
    assert math.isnan(run.left())
    run.heard(Progress(30, 40, 0.5, 1000.0, "training"))
    assert run.left() == pytest.approx(10, abs=0.5)


def test_workers_have_the_threads_that_the_user_allots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for variable, expected in (("1", 1), ("3", 3), ("4,2", 4), ("", 2), ("0", 2), ("many", 2)):
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
        assert machine.count_threads_per_worker(workers=2) == expected, variable
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert [machine.count_threads_per_worker(workers) for workers in (1, 2, 3, 8)] == [4, 2, 1, 1]


def test_run_of_a_lone_worker_keeps_to_the_threads_that_the_user_allots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    outcome, _ = launch(recipe(tmp_path, "fine"), tmp_path, workers=1)
    (only,) = outcome.runs
    assert json.loads((only.path / "provenance.json").read_text())["attempts"][0]["threads"] == 3


def test_table_shows_active_runs_when_there_are_too_many(tmp_path: Path) -> None:
    runs = [fake("waiting", tmp_path) for _ in range(100)]
    console = recorder(width=120, height=20)
    display = Display(console, runs, 2)
    runs[70].state = "running"
    runs[70].heard(Progress(3, 40, 0.25, 1234.0, "sampling"))
    console.print(display.table())
    shown = printed(console)
    assert "sampling" in shown and "3/40" in shown and "1,234" in shown and "0.250" in shown
    assert "100 runs: 1 running, 99 waiting" in shown
    assert len(shown.splitlines()) == 3


def test_line_tells_of_all_runs_at_stated_interval_without_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("grpobench.runs.experiment.display.time", SimpleNamespace(monotonic=lambda: clock[0]))
    runs = [fake(state, tmp_path, f"fine{n}") for n, state in enumerate(("finished", "waiting", "waiting"))]
    console = recorder(width=60)
    with Display(console, runs, 1) as display:
        runs[1].state = "running"
        for _ in range(700):  # the launcher looks four times a second: 175 s
            clock[0] += 0.25
            runs[1].began = time.monotonic() - 20
            runs[1].heard(Progress(12 if clock[0] > 1020 else 2, 40, 0.5625, 1646.2, "sampling"))
            display.refresh()
    lines = printed(console).splitlines()
    assert lines[0] == "1 of 3 runs already have a result" and len(lines) == 1 + 175 // INTERVAL == 6
    assert lines[1].startswith("3 runs: 1 finished, 1 running, 1 waiting; 30 s so far, ")
    # ten steps in 20 s, and 28 to go
    run_status = f"{runs[1].name} sampling step 12/40 reward 0.562 1,646 tokens/s 56 s left"
    assert lines[1].split(" | ")[1] == run_status


def test_a_run_goes_on_at_its_own_pace_and_before_its_first_step_is_as_long_as_its_kin() -> None:
    ended = [Timing("grpo", False, length=10.0), Timing("grpo", False, length=20.0)]
    begun = Timing("ppo", True, spent=6.0, left=4.0, length=10.0)
    assert math.isnan(time_left([Timing("ppo", True)], 2)) and math.isnan(time_left(ended, 2))
    assert time_left([*ended, begun], 2) == 4  # nobody shares its work
    # a sibling of those that ended takes 15 s, of which 20 are over; rloo has no kin, all three take 40/3 s
    waiting = [Timing("grpo", True), Timing("grpo", True, spent=20.0), Timing("rloo", True)]
    assert time_left([*ended, begun, *waiting], 2) == pytest.approx((4 + 15 + 0 + 40 / 3) / 2)


def test_durations_and_deaths_in_words() -> None:
    assert [duration(s) for s in (0.4, 59, 60, 3725, math.nan)] == ["0 s", "59 s", "1:00", "1:02:05", ""]
    assert death(-11) == "was killed by SIGSEGV"
    assert death(1) == "exited with 1"
    assert death(-9) == "was killed by SIGKILL (out of memory, or killed by hand)"
