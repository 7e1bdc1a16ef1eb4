"""Runs on a Ray cluster are those of the local pool, also where nodes die under them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.same_runs import begin, results, unresponsive_and_halted, write

from grpobench.runs.runfolder.logs import status

ray = pytest.importorskip("ray", reason="Ray is not installed; make test-launchers brings it")
pytestmark = [pytest.mark.launchers, pytest.mark.slow]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three nodes, each with a raylet and worker processes of its own, and room for one run each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": quick}
    ray_cluster = Cluster(initialize_head=True, head_node_args=head)
    ray_cluster.others = [ray_cluster.add_node(num_cpus=1) for _ in range(2)]
    yield ray_cluster
    ray_cluster.shutdown()


def kill(cluster: Any, node: Any) -> list[int]:
    """A node dies with all that runs on it, at once. The processes that were killed."""
    raylet = next(iter(node.all_processes["raylet"])).process
    dead = [psutil.Process(raylet.pid), *psutil.Process(raylet.pid).children(recursive=True)]
    for process in dead:
        process.send_signal(signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)
    return [process.pid for process in dead]


def attempts(run: Path) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = json.loads((run / "provenance.json").read_text())["attempts"]
    return recorded


def at_work(experiment: Path) -> dict[int, Path]:
    """Runs behind a checkpoint by the process that executes them."""
    run_by_pid = {}
    for status_file in experiment.glob("*/status.json"):
        run_record = status(status_file.parent)
        if run_record.get("state") == "running" and run_record["step"]:
            run_by_pid[attempts(status_file.parent)[-1]["pid"]] = status_file.parent
    return run_by_pid


def test_experiment_of_24_runs_outlives_two_of_three_nodes_byte_for_byte(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = write(tmp_path, 4, 8, "grpo", "rloo", "dr_grpo")
    child = begin(recipe, tmp_path / "ray", 0, "ray", cluster.address)
    experiment, hit = tmp_path / "ray" / "m", dict[str, int]()
    for node in cluster.others:
        raylet_pid = next(iter(node.all_processes["raylet"])).process.pid
        deadline = time.monotonic() + 400
        while True:
            assert child.poll() is None and time.monotonic() < deadline
            below = {process.pid for process in psutil.Process(raylet_pid).children(recursive=True)}
            if struck := {pid: run for pid, run in at_work(experiment).items() if pid in below}:
                break
            time.sleep(0.02)
        dead = kill(cluster, node)
        hit |= {run.name: pid for pid, run in struck.items() if pid in dead}
    output = child.communicate(timeout=1200)[0]
    assert child.returncode == 0, output
    assert hit and "its Ray worker is gone" in output
    for name, pid in hit.items():
        recorded = attempts(experiment / name)
        if status(experiment / name)["attempt"] > 1:  # else it had ended in the moment before
            assert recorded[0]["pid"] == pid != recorded[1]["pid"] and recorded[1]["resumed_at"] > 0
    assert any(status(experiment / name)["attempt"] > 1 for name in hit)
    assert not (experiment / ".launch").exists()
    alone = begin(recipe, tmp_path / "local", 2, "local")
    assert alone.communicate(timeout=1200) and alone.returncode == 0
    expected = results(tmp_path / "local")
    assert len(expected) == 24 and all(state == "finished" for state, _, _ in expected.values())
    assert results(tmp_path / "ray") == expected


def test_runs_are_stopped_through_folder_and_resume_by_same_command(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = write(tmp_path, 1, 400, "grpo")
    child = begin(recipe, tmp_path, 0, "ray", cluster.address)
    deadline = time.monotonic() + 300
    while len(at_work(tmp_path / "m")) < 2:
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    began = time.monotonic()
    child.send_signal(signal.SIGTERM)
    output = child.communicate(timeout=40)[0]
    assert child.returncode == 75 and time.monotonic() - began < 30, output
    for run in (tmp_path / "m").glob("*-s0"):
        run_record = status(run)
        assert run_record["state"] == "preempted" and 0 < run_record["step"] < 400
    assert not (tmp_path / "m" / ".launch").exists()


def test_runs_that_hang_or_are_halted_go_on_in_other_actors(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    unresponsive_and_halted(tmp_path, "ray", cluster.address)
