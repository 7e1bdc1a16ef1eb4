"""Runs as submitit's jobs, its local ones and those of a real Slurm where its programs are installed: the
results are those of the pool, a job that is warned saves and is queued again, one that dies is handed in
again."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import mini_slurm
from helpers.same_runs import begin, results, unresponsive_and_halted, write

from grpobench.runs.runfolder.logs import status

submitit = pytest.importorskip("submitit", reason="submitit is not installed; make test-launchers brings it")
pytestmark = [pytest.mark.launchers, pytest.mark.slow]
real = pytest.mark.skipif(bool(mini_slurm.why_not()), reason=mini_slurm.why_not())


def attempts(run: Path) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = json.loads((run / "provenance.json").read_text())["attempts"]
    return recorded


def behind_a_checkpoint(run: Path, child: Any) -> int:
    """Wait until a run has a checkpoint; its process."""
    deadline = time.monotonic() + 400
    while not (status(run).get("state") == "running" and status(run)["step"]):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return int(attempts(run)[-1]["pid"])


def test_eight_jobs_match_pool_though_one_is_warned_and_one_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = write(tmp_path, 2, 12, "grpo", "rloo")
    child = begin(recipe, tmp_path / "jobs", 2, "submitit-local")
    experiment = tmp_path / "jobs" / "m"
    warned, killed = experiment / "grpo-arithmetic-s0", experiment / "rloo-arithmetic-s0"
    pid = behind_a_checkpoint(warned, child)
    os.kill(pid, signal.SIGUSR2)  # what Slurm sends before it takes a node away
    doomed = behind_a_checkpoint(killed, child)
    os.kill(doomed, signal.SIGKILL)
    output = child.communicate(timeout=1200)[0]
    assert child.returncode == 0, output
    # The same job came back by itself: nobody handed it in again.
    assert len(attempts(warned)) == 2 and attempts(warned)[1]["resumed_at"] >= status(warned)["attempt"] - 1
    assert warned.name not in [
        line.split(":")[0] for line in output.splitlines() if "again from step" in line
    ]
    assert len(attempts(killed)) == 2 and f"{killed.name}: its job" in output
    assert not psutil.pid_exists(doomed)
    alone = begin(recipe, tmp_path / "local", 2, "local")
    assert alone.communicate(timeout=1200) and alone.returncode == 0
    expected = results(tmp_path / "local")
    assert len(expected) == 8 and all(state == "finished" for state, _, _ in expected.values())
    assert results(tmp_path / "jobs") == expected


def test_jobs_of_killed_launcher_save_and_end_and_next_launcher_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = write(tmp_path, 1, 60, "grpo")
    child = begin(recipe, tmp_path, 2, "submitit-local")
    run = tmp_path / "m" / "grpo-arithmetic-s0"
    pid = behind_a_checkpoint(run, child)
    child.kill()
    child.wait()
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert status(run)["state"] in ("preempted", "finished")
    again = begin(recipe, tmp_path, 2, "submitit-local")
    output = again.communicate(timeout=600)[0]
    assert again.returncode == 0, output
    assert status(run)["state"] == "finished"


def test_jobs_that_hang_or_are_halted_are_handed_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    unresponsive_and_halted(tmp_path, "submitit-local")


def test_what_submitit_does_not_know_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpobench.runs.experiment.engines import Where, engine
    from grpobench.runs.tools.lock import Lock
    from grpobench.runs.tools.strict import ConfigError

    Lock(tmp_path).take()
    for parameter, message in (
        ("partitoin=gpu", "partitoin"),
        ("partition", "--job partition: write --job NAME=VALUE"),
    ):
        with pytest.raises(ConfigError, match=message):
            engine(Where("submitit-local", job=(parameter,)), tmp_path, 1, "no.matter", False)
    monkeypatch.setenv("PATH", str(tmp_path))  # as where no Slurm is installed
    with pytest.raises(ConfigError, match="srun"):
        engine(Where("slurm"), tmp_path, 1, "no.matter", False)
    assert not (tmp_path / ".launch").exists()
    Lock(tmp_path).release()


def job_of(run: Path) -> str:
    """The job in which a run is being executed, as Slurm names it."""
    environ = Path(f"/proc/{attempts(run)[-1]['pid']}/environ").read_text()
    variables = dict(part.partition("=")[::2] for part in environ.split("\0"))
    if "SLURM_ARRAY_JOB_ID" in variables:
        return f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"
    return variables["SLURM_JOB_ID"]


def wait_for(run: Path, count: int, child: Any) -> None:
    """Wait until a run is at work in its attempt of this number."""
    deadline = time.monotonic() + 300
    while not (status(run).get("state") == "running" and len(attempts(run)) == count):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


@real
def test_real_slurm_jobs_match_pool_though_they_and_their_node_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is warned, as before preemption; one's process is killed; then the node goes down under both."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = write(tmp_path, 1, 60, "grpo", "rloo")
    with mini_slurm.cluster(tmp_path / "slurm") as node:
        child = begin(recipe, tmp_path / "jobs", 2, "slurm")
        experiment = tmp_path / "jobs" / "m"
        warned, killed = experiment / "grpo-arithmetic-s0", experiment / "rloo-arithmetic-s0"
        os.kill(behind_a_checkpoint(warned, child), signal.SIGUSR2)
        doomed = behind_a_checkpoint(killed, child)
        os.kill(doomed, signal.SIGKILL)
        wait_for(warned, 2, child)
        mini_slurm.fail(node)
        output = child.communicate(timeout=1200)[0]
        assert child.returncode == 0, output
        assert len(attempts(warned)) >= 3 and len(attempts(killed)) >= 2
        assert f"{killed.name}: its job" in output and "ended as FAILED" in output
        assert "sacct" not in output
        assert mini_slurm.idle(30)
    alone = begin(recipe, tmp_path / "local", 2, "local")
    assert alone.communicate(timeout=1200) and alone.returncode == 0
    expected = results(tmp_path / "local")
    assert len(expected) == 4 and all(state == "finished" for state, _, _ in expected.values())
    assert results(tmp_path / "jobs") == expected


@real
def test_a_job_that_its_user_cancels_is_not_handed_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saves a checkpoint, and the next start goes on from there."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = write(tmp_path, 1, 60, "grpo")
    run, other = (tmp_path / "m" / f"grpo-{task}-s0" for task in ("arithmetic", "nanobias"))
    with mini_slurm.cluster(tmp_path / "slurm"):
        child = begin(recipe, tmp_path, 2, "slurm")
        behind_a_checkpoint(run, child)
        mini_slurm.tell("scancel", job_of(run))
        output = child.communicate(timeout=600)[0]
        assert child.returncode == 75 and "scancel" in output, output
        assert status(run)["state"] == "preempted" and status(other)["state"] == "finished"
        again = begin(recipe, tmp_path, 2, "slurm")
        output = again.communicate(timeout=600)[0]
        assert again.returncode == 0, output
    assert status(run)["state"] == "finished" and len(attempts(run)) == 2
