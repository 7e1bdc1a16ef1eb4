"""GPUs without one: tensors on a device that refuses to mix with another, and what each worker is given."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import stand_ins
from helpers.experiments import launch, recipe, states_by_arm
from helpers.toys import tiny

from grpobench.runs.models.loading import load
from grpobench.runs.models.optimizer import Optimizer
from grpobench.runs.models.past_weights import PastWeights
from grpobench.runs.models.ranks import ALONE
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.stored_weights import StoredWeights
from grpobench.runs.settings.config import ModelConfig
from grpobench.runs.tools import machine
from grpobench.runs.train.prepare import demonstrations, warmstart
from grpobench.tasks.arithmetic import Arithmetic


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Have the machine show a driver, and torch see so many devices."""
    monkeypatch.delenv(machine.VISIBLE_GPUS, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "driver").touch()
    monkeypatch.setattr(machine, "DRIVER_FILES", (str(tmp_path / "driver"),))

    def give(count: int) -> None:
        machine._print_number.cache_clear()
        monkeypatch.setattr(machine, "COUNT_CODE", f"print({count})")

    yield give
    machine._print_number.cache_clear()


def elsewhere() -> RoleModels:
    """Models with one trained tensor on torch's device without storage, and nothing else."""
    models = RoleModels.__new__(RoleModels)
    parameters = {"weight": torch.nn.Parameter(torch.empty(3, 2, device="meta"))}
    adam = torch.optim.AdamW(parameters.values())
    models.optimizers = {"policy": Optimizer(StoredWeights(parameters), adam, 1e-3, 1.0)}
    models.moved, models.ranks = False, ALONE
    models.past = PastWeights({}, 0)
    return models


def update(models: RoleModels) -> None:
    optimizer = models.optimizers["policy"]
    for parameter in optimizer.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.update(1.0)


def test_resumed_moments_are_where_the_weights_are() -> None:
    """A checkpoint is read into the processor's memory, and an update would mix the two."""
    models = elsewhere()
    update(models)
    saved = {name: torch.ones(tensor.shape) for name, tensor in models.state()["policy"].items()}
    assert {tensor.device.type for tensor in saved.values()} == {"cpu"}
    inner = models.optimizers["policy"].inner
    for fused, device in ((False, "cpu"), (True, "meta")):
        inner.param_groups[0]["fused"] = fused
        models.restore({"policy": saved})
        (moments,) = inner.state.values()
        device_by_name = {name: value.device.type for name, value in moments.items()}
        # the count too where the update is fused, as AdamW's is: that is where it looks for it on a GPU
        assert device_by_name == {"step": device, "exp_avg": "meta", "exp_avg_sq": "meta"}


def test_restored_moments_are_copies_that_a_later_update_leaves_alone() -> None:
    models = RoleModels(tiny(), ("policy",))
    models.optimize({"policy": 1e-3}, (0.9, 0.95), 0.0, 1.0)
    update(models)
    saved = {"policy": {name: tensor.clone() for name, tensor in models.state()["policy"].items()}}
    copies = {name: tensor.clone() for name, tensor in saved["policy"].items()}
    models.restore(saved)
    update(models)
    assert all(torch.equal(saved["policy"][name], copies[name]) for name in copies)


def test_warm_start_feeds_batches_where_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []
    plain = warmstart.pack_groups

    class Elsewhere(RoleModels):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.device = torch.device("cpu", 0)  # the same memory under a name that no default has

    def packed(*arguments: Any) -> Any:
        devices.append(arguments[4:])
        return plain(*arguments)

    monkeypatch.setattr(warmstart, "RoleModels", Elsewhere)
    monkeypatch.setattr(warmstart, "pack_groups", packed)
    loaded, config = load("nano"), ModelConfig("nano", warm_start=2, warm_start_batch=2)
    lessons = demonstrations.demonstrations(loaded, Arithmetic(train=4), config)
    warmstart.train(loaded, config, lessons, lambda *_: None)
    assert devices == [("cpu:0",)] * 2


def test_without_a_gpu_workers_are_as_many_as_cores_and_see_what_they_saw(gpus: Any) -> None:
    gpus(0)
    assert machine.list_gpus() == [] and machine.count_worker_slots() == 8
    assert machine.make_worker_environment(8, 3) == {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "GOMP_SPINCOUNT": "1000",
    }


def test_each_worker_has_a_gpu_of_its_own(gpus: Any) -> None:
    gpus(2)
    assert machine.list_gpus() == ["0", "1"] and machine.count_worker_slots() == 2
    assert [machine.make_worker_environment(2, slot)[machine.VISIBLE_GPUS] for slot in (0, 1)] == ["0", "1"]
    assert machine.make_worker_environment(2, 0)["OMP_NUM_THREADS"] == "4"
    shared = [machine.make_worker_environment(3, slot)[machine.VISIBLE_GPUS] for slot in range(3)]
    assert shared == ["0", "1", "0"], "the user asked for more workers than there are"


def test_gpus_that_the_user_hides_stay_hidden(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(2)
    for visible, expected in (("3,GPU-8f1", ["3", "GPU-8f1"]), ("5, 7, 9", ["5", "7"]), ("", []), ("-1", [])):
        monkeypatch.setenv(machine.VISIBLE_GPUS, visible)
        assert machine.list_gpus() == expected, visible
    assert machine.VISIBLE_GPUS not in machine.make_worker_environment(2, 0)


def test_machine_without_a_driver_is_not_asked(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(2)
    monkeypatch.setattr(machine, "DRIVER_FILES", ("/no/such/device",))
    assert machine.list_gpus() == []


def test_worker_processes_get_their_gpus_and_a_fresh_one_that_of_the_dead(
    gpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    stand_ins.register(monkeypatch)
    monkeypatch.setattr("grpobench.runs.experiment.launcher.PAUSES", (0.0,) * 3)
    gpus(2)
    parsed_recipe = recipe(tmp_path, "kill", "see1", "see2", "see3", "see4")
    outcome, _ = launch(parsed_recipe, tmp_path)
    assert states_by_arm(outcome)["kill"] == "crashed"
    gpus_by_run = [re.findall(r"on GPU (\S+)", (run.path / "log.txt").read_text()) for run in outcome.runs]
    assert {gpu for run in gpus_by_run for gpu in run} == {"0", "1"}
