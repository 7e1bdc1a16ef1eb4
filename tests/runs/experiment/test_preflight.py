"""What is tried of an experiment's folder before its first run."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.whole_runs import configure

from grpobench.algorithms.ppo import PPO
from grpobench.runs.experiment import preflight
from grpobench.runs.experiment.engines import Where
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.models.model_files import POLICIES
from grpobench.runs.settings.config import CheckpointConfig, ModelConfig, SamplerConfig, TrainConfig
from grpobench.runs.tools import machine
from grpobench.runs.tools.lock import FolderError

NANO = preflight.weights("nano")


def test_a_sound_folder_is_left_as_it_was(tmp_path: Path) -> None:
    preflight.probe(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_bfloat16_weights_take_two_bytes_and_four_more_with_master_weights() -> None:
    """Beside Adam's eight, for 10 weights."""
    model = ModelConfig("nano", dtype="bfloat16", weights="bfloat16")
    master, rounded = (
        configure("nano", model=model, train=TrainConfig(master_weights=master_weights))
        for master_weights in (True, False)
    )
    assert (preflight.state(master, 10), preflight.state(rounded, 10)) == (140, 100)
    assert preflight.result(rounded, 10) == 20


@pytest.mark.parametrize(
    ("where", "number", "doing"),
    [
        ((fcntl, "flock"), errno.ENOLCK, r"lock a file \(flock\)"),
        ((os, "fsync"), errno.EIO, r"sync a file \(fsync\)"),
        ((Path, "rename"), errno.EPERM, "rename a file"),
    ],
)
def test_what_a_file_system_cannot_do_is_named(
    where: tuple[Any, str], number: int, doing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(*where, refuses)
    with pytest.raises(
        FolderError, match=f"cannot {doing} there .*{os.strerror(number)}.*another file system"
    ):
        preflight.probe(tmp_path)
    assert not [*tmp_path.iterdir()]


def left(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))


def test_weights_are_counted_in_the_files() -> None:
    from safetensors.torch import load_file

    tensors = load_file(POLICIES / "nano" / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == NANO
    assert preflight.weights("owner/of-the-hub") == 0


def test_what_runs_keep_is_held_against_the_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRPO keeps its policy (4 bytes a weight) and with `final` its state (12); a critic adds 12. While one
    works its checkpoints are 12 bytes a weight and role, two kept and one aside. Each update of a lag adds
    4."""
    grpo = configure("nano", checkpoint=CheckpointConfig(keep=2, final=True))
    ppo = configure("nano", PPO(critic="separate"), checkpoint=CheckpointConfig(keep=2, final=True))
    assert preflight.state(configure("nano", sampler=SamplerConfig(lag=3)), 10) == (12 + 3 * 4) * 10
    runs = [ExperimentRun(grpo, tmp_path / "a"), ExperimentRun(ppo, tmp_path / "b")]
    logs = preflight.log_bytes(grpo) + preflight.log_bytes(ppo)
    need = (4 + 12) * NANO + (4 + 24) * NANO + 3 * 24 * NANO + logs
    messages: list[str] = []
    for free, count in ((need, 0), (need - 1, 1)):
        left(monkeypatch, free)
        preflight.demand(runs, tmp_path, 1, messages.append)
        assert len(messages) == count
    assert "checkpoint.keep = 1" in messages[0] and "checkpoint.weights = false" in messages[0]
    logs_alone = [
        ExperimentRun(configure("nano", checkpoint=CheckpointConfig(keep=2, weights=False)), tmp_path / "c")
    ]
    need = 3 * 12 * NANO + preflight.log_bytes(logs_alone[0].config)
    for free, count in ((need, 0), (need - 1, 1)):
        left(monkeypatch, free)
        messages.clear()
        preflight.demand(logs_alone, tmp_path, 1, messages.append)
        assert len(messages) == count
    unknown = [ExperimentRun(configure("owner/of-the-hub"), tmp_path / "d")]
    left(monkeypatch, preflight.log_bytes(unknown[0].config) - 1)
    preflight.demand(unknown, tmp_path, 1, messages.append)
    assert "1 runs (1 of unknown size) keep about 0.0 MB of weights and up to" in messages[-1]
    left(monkeypatch, 8 * NANO - 1)
    with pytest.raises(FolderError, match=r"MB free, but the weights of one run and their temporary copy"):
        preflight.demand(runs, tmp_path, 1, messages.append)
    for run in runs:
        run.state = "finished"
    preflight.demand(runs, tmp_path, 1, messages.append)  # nothing is to be written


@pytest.mark.parametrize(
    ("slowdown", "gpus", "on", "noted"),
    [(8.2, 0, "local", True), (1.4, 0, "local", False), (8.2, 1, "local", False), (8.2, 0, "ray", False)],
)
def test_a_precision_that_this_processor_is_slow_in_is_noted_where_runs_use_it(
    slowdown: float, gpus: int, on: Any, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "measure_slowdown", lambda precision: slowdown)
    monkeypatch.setattr(machine, "count_gpus", lambda: gpus)
    float32, bfloat16 = (
        configure("nano", model=ModelConfig("nano", dtype=d)) for d in ("float32", "bfloat16")
    )
    notes = preflight.notes_on_precision([float32, bfloat16, bfloat16], Where(on))
    assert [note.partition(" takes ")[0] for note in notes] == noted * ["a product of matrices in bfloat16"]
    assert all("takes 8 times as long" in note and 'set model.dtype = "float32"' in note for note in notes)
    assert not preflight.notes_on_precision([float32], Where(on))


def test_the_slowdown_of_a_precision_is_the_quotient_of_the_shortest_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([40, 16, 24, 30, 9, 2, 3, 4])
    ticks = itertools.accumulate(time for pair in ((0, time) for time in times) for time in pair)
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(ticks))
    assert machine.measure_slowdown.__wrapped__("bfloat16") == 8
