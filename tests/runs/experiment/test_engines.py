"""Engines: what the command line says of them, what is missing, and files as the line to a run elsewhere."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import stand_ins
from helpers.experiments import recipe

from grpobench.runs.experiment import remote
from grpobench.runs.experiment.engines import Where, engine
from grpobench.runs.experiment.on_ray import capacity, connect
from grpobench.runs.experiment.remote import Board, Post, carry_out, surroundings
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.tools import lock
from grpobench.runs.tools.lock import Lock
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.train.progress import Progress


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An experiment folder that this process owns."""
    stand_ins.register(monkeypatch)
    monkeypatch.setattr(remote, "LOOK", 0.0)
    folder = tmp_path / "m"
    folder.mkdir()
    mine = Lock(folder)
    mine.take()
    yield folder
    mine.release()


def sent(experiment: Path, *troubles: str, steps: int = 3) -> tuple[Board, list[ExperimentRun]]:
    parsed_recipe = recipe(experiment.parent, *troubles, steps=steps)
    runs = [ExperimentRun(config, experiment / config.folder) for config in parsed_recipe.runs()]
    return Board(experiment, "helpers.stand_ins.execute", 1, False), runs


def test_a_run_that_was_sent_tells_where_it_is_and_how_it_ended(experiment: Path) -> None:
    board, (fine, failing) = sent(experiment, "fine", "raise")
    assert board.heard([fine]) == []
    assert carry_out(board.parcel(fine)).fate == "finished"
    (news,) = board.heard([fine])
    assert news[0] is fine and (news[1].step, news[1].steps) == (3, 3)
    assert board.heard([fine]) == []  # nothing new
    # An attempt that was thought lost may have finished it: it is not run again.
    before = (fine.path / "status.json").read_bytes()
    assert carry_out(board.parcel(fine)).fate == "finished"
    assert (fine.path / "status.json").read_bytes() == before
    assert carry_out(board.parcel(failing)).fate == "crashed"
    board.last(fine)
    assert [path.name for path in board.path.iterdir()] == [f"{failing.name}.json"]
    board.close()
    assert not (experiment / ".launch").exists()


def test_remote_run_stops_when_told_and_when_its_launcher_is_gone(experiment: Path) -> None:
    board, (first, second) = sent(experiment, "fine1", "fine2")
    parcel = pickle.loads(board.parcel(first))
    post = Post(parcel)
    assert not post.stop()
    board.stop()
    assert post.stop()
    assert carry_out(board.parcel(first)).fate == "preempted" and not first.path.exists()

    board = sent(experiment, "fine1", "fine2")[0]
    packed, post = board.parcel(second), Post(pickle.loads(board.parcel(second)))
    assert not post.stop()
    Lock(experiment).release()
    assert post.stop()
    Lock(experiment).take()  # another launcher, which has sent nothing
    assert Post(pickle.loads(packed)).stop() and carry_out(packed).fate == "preempted"


def test_a_run_waits_for_an_attempt_before_it_that_is_about_to_go(
    experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, (fine,) = sent(experiment, "fine")
    fine.path.mkdir()
    gone = lock.Lease(lock.Owner(1, "far", "b", "1"), "token", 0, 0.5)
    (fine.path / "lock").write_text(gone.text())
    began = time.monotonic()
    assert carry_out(board.parcel(fine)).fate == "finished"
    assert time.monotonic() - began > 0.5
    assert json.loads((fine.path / "status.json").read_text())["attempt"] == 1


def test_reports_are_whole_or_not_there(experiment: Path) -> None:
    board, (fine,) = sent(experiment, "fine")
    post = Post(pickle.loads(board.parcel(fine)))
    post.report(Progress(1, 3, float("nan"), 2.0, "training"))
    assert [str(news) for _, news in board.heard([fine])] == [
        "Progress(step=1, steps=3, reward=nan, tokens_per_second=2.0, phase='training')"
    ]
    (board.path / f"{fine.name}.json").write_text("{")
    assert board.heard([fine]) == []


def test_remote_processes_inherit_threads_and_environment_but_not_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRPOBENCH_DATA", "/data")
    monkeypatch.setenv(lock.HOST, "here")
    variables = surroundings(3)
    assert (
        variables["OMP_NUM_THREADS"] == variables["MKL_NUM_THREADS"] == "3"
        and variables["GRPOBENCH_DATA"] == "/data"
    )
    assert lock.HOST not in variables


def test_room_of_a_cluster_counts_whole_runs_on_each_living_node() -> None:
    def node(alive: bool = True, **has: float) -> dict[str, Any]:
        return {"Alive": alive, "Resources": has}

    nodes = [node(CPU=5, GPU=2), node(CPU=8, GPU=1), node(CPU=8), node(alive=False, CPU=99, GPU=9)]
    assert capacity(nodes, 1, 0) == 21 and capacity(nodes, 3, 0) == 1 + 2 + 2
    assert capacity(nodes, 1, 1) == 3 and capacity(nodes, 1, 2) == 1
    assert capacity(nodes, 1, 0.25) == 5 + 4  # the processors bound the first node
    assert capacity(nodes, 1, 0.1) == 5 + 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "a"}, "--address: belongs to --on ray"),
        ({"on": "ray", "job": ("a=1",)}, "--job: belongs to --on slurm"),
        ({"cpus_per_run": 2}, "--cpus-per-run: belongs to --on ray or slurm"),
        ({"gpus_per_run": 1.5}, "--gpus-per-run 1.5: must be a fraction up to 1, or a whole number"),
        ({"gpus_per_run": 0.0}, "--gpus-per-run 0: must be"),
        ({"on": "slurm", "gpus_per_run": 0.5}, "Slurm gives whole GPUs to a job"),
    ],
)
def test_what_does_not_belong_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Where(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("on", "package", "name"), [("ray", "ray", "Ray"), ("slurm", "submitit", "submitit")]
)
def test_a_missing_package_is_named_with_what_installs_it(
    on: Any, package: str, name: str, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"{name} is not installed.* pip install '\.\[{on}\]'"):
        engine(Where(on), experiment, 1, "no.matter", False)
    assert not (experiment / ".launch").exists()


def test_gpus_are_shared_or_given_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpobench.runs.tools import machine

    monkeypatch.setattr(machine, "list_gpus", lambda: ["0", "1", "2", "3"])
    slots = [machine.count_worker_slots(share) for share in (None, 1, 0.5, 0.25, 2, 3, 8)]
    assert slots == [4, 4, 8, 16, 2, 1, 0]
    visible = [machine.make_worker_environment(8, slot, 0.5)[machine.VISIBLE_GPUS] for slot in range(8)]
    assert visible == ["0", "1", "2", "3"] * 2
    visible = [machine.make_worker_environment(2, slot, 2)[machine.VISIBLE_GPUS] for slot in (0, 1)]
    assert visible == ["0,1", "2,3"]
    with pytest.raises(ConfigError, match="--gpus-per-run 8: this machine has 4"):
        engine(Where(gpus_per_run=8), Path(os.devnull), 0, "no.matter", False)


@pytest.mark.parametrize(
    ("address", "raised", "expected", "message"),
    [
        (
            "far:1",
            ConnectionError("refused\nmore"),
            ConfigError,
            "--address far:1: no Ray cluster answers there",
        ),
        (
            "",
            Exception("the node timed out"),
            RuntimeError,
            "Ray did not start on this machine: the node timed",
        ),
    ],
)
def test_a_cluster_that_does_not_answer_is_named(
    address: str, raised: Exception, expected: type[Exception], message: str
) -> None:
    class Ray:
        """Stands for the package."""

        def init(self, **options: Any) -> None:
            assert options["address"] == (address or "local")
            raise raised

    with pytest.raises(expected, match=message):
        connect(Ray(), address)
