"""Runs on several devices: processes of a CPU over gloo stand for GPUs.

A part of it is in `make test`, all of it in `make test-devices`.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import multiprocessing
import pickle
from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.core import CORE
from helpers.ranked import Result, gradients, in_ranks
from helpers.toys import brief, distance, norm
from helpers.warm import Warm
from helpers.whole_runs import (
    configure,
    killing,
    rows,
    run,
    run_until_stopped,
    same,
    timeless,
    training,
    weights,
)
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.ppo import PPO
from grpobench.runs.evaluation.export import export
from grpobench.runs.experiment.engines import HERE, Where, with_devices
from grpobench.runs.experiment.worker import failed
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.ranks import DeviceRanks
from grpobench.runs.models.token_budgets import RankOutOfMemory, TokenBudget
from grpobench.runs.runfolder import checkpoints, sharded
from grpobench.runs.runfolder.folder import FolderError, RunFolder, status
from grpobench.runs.settings.config import (
    CheckpointConfig,
    EvaluateConfig,
    ModelConfig,
    RunConfig,
)
from grpobench.runs.tools.faults import COUNTS
from grpobench.runs.tools.process import safe_point
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.train import devices, trainer
from grpobench.runs.train.devices import cause, demand_alive
from grpobench.runs.train.execute import execute
from grpobench.runs.train.progress import SAVING, Preempted
from grpobench.runs.train.stopping import ASK, Before, Stopping
from grpobench.tasks.nanobias import NanoBias
from grpobench.tasks.signed import Signed

NAMES = sorted(ALGORITHMS)
SMALL = {"train": 4, "validation": 6, "test": 5}
ROUNDED = 2e-5
"""Relative, for float32 sums in another order."""


# Gradients


@functools.cache
def of_ranks(
    size: int, names: tuple[str, ...], architecture: str, kind: str, wide: bool
) -> list[dict[str, Result]]:
    """What every rank found, for some algorithms."""
    return in_ranks(size, gradients, names, architecture, kind, wide)


@pytest.mark.parametrize("name", CORE)
def test_gradients_and_metrics_of_two_ranks_are_those_of_one(name: str) -> None:
    compare(2, CORE, "gpt2", "ragged", True, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "architecture", "kind", "wide"),
    [
        (2, "gpt2", "ragged", True),
        (4, "gpt2", "single", True),
        (4, "llama", "ragged", True),
        (4, "qwen3_moe", "equal", False),  # torch multiplies the matrices of experts in float32 at most
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_metrics_of_several_ranks_are_those_of_one(
    size: int, architecture: str, kind: str, wide: bool, name: str
) -> None:
    compare(size, tuple(NAMES), architecture, kind, wide, name)


def compare(size: int, names: tuple[str, ...], architecture: str, kind: str, wide: bool, name: str) -> None:
    (alone,) = (results_by_name[name] for results_by_name in of_ranks(1, names, architecture, kind, wide))
    # In float64 only the order of sums differs, in all but the rotary embeddings.
    tolerance = 1e-9 if wide else ROUNDED
    for gradient, metrics in (
        results_by_name[name] for results_by_name in of_ranks(size, names, architecture, kind, wide)
    ):
        assert distance(gradient, alone[0]) < tolerance or norm(alone[0]) < 1e-12
        assert metrics == pytest.approx(alone[1], rel=tolerance, abs=tolerance, nan_ok=True)


# Whole runs


@pytest.mark.parametrize(
    ("algorithm", "adapter"),
    [
        pytest.param(GRPO(beta=0.1), None, id="full", marks=pytest.mark.slow),
        pytest.param(
            PPO(critic_warmup=0, beta=0.1), Adapter(rank=4, alpha=8.0), id="adapter", marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_on_two_devices_is_the_run_on_one_up_to_rounding(
    algorithm: Algorithm[Any], adapter: Adapter | None, policy: str, tmp_path: Path
) -> None:
    config = configure(policy, algorithm, model=ModelConfig(policy, adapter=adapter))
    # SGD, since AdamW makes a step of full length of a gradient that is 0 but for rounding.
    config = training(config, devices=1, optimizer="torch:SGD")
    single_rows, two = run(config, tmp_path / "one"), run(training(config, devices=2), tmp_path / "two")
    # Roles that share frozen weights on one device have their own on several.
    equal_up_to_rounding(single_rows, two, {"cost/state_gb"} if adapter else set())
    equal_weights(tmp_path / "one", tmp_path / "two")


def equal_up_to_rounding(
    first_rows: list[dict[str, Any]], two: list[dict[str, Any]], but: Collection[str] = ()
) -> None:
    """Compare the rows of two runs. Raises AssertionError."""
    for before, now in zip(first_rows, two, strict=True):
        expected_row = {name: value for name, value in timeless(before).items() if name not in but}
        # Gaps are of the order of rounding themselves, and so are tails and trends of equal ratios; whether a
        # single value is clipped may hang on it.
        ends = ("_tail", "_growth", "_clip")
        loose = {name for name in expected_row if name.startswith("gap/") or name.endswith(ends)}
        assert timeless(now).keys() - set(but) == expected_row.keys()
        for name in expected_row.keys() - loose:
            if expected_row[name] is None:  # no number: critics have explained nothing of equal returns
                assert now[name] is None
                continue
            assert now[name] == pytest.approx(expected_row[name], rel=1e-3, abs=1e-5, nan_ok=True), name


def equal_weights(first_folder: Path, two: Path) -> None:
    """Compare the final weights of two runs. Raises AssertionError."""
    before, now = (weights(path / "final" / "policy.safetensors") for path in (first_folder, two))
    assert before.keys() == now.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(now[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            {
                "task": NanoBias(train=8, validation=6, test=5),
                "model": ModelConfig("nano"),
                "evaluate": EvaluateConfig(
                    every=2, problems=3, samples=2, test_problems=2, kl_base=True, also={"arithmetic": SMALL}
                ),
            },
            id="likelihoods, a task beside, base",
        ),
        pytest.param({"task": Signed(train=8), "model": ModelConfig("signed")}, id="turns"),
        pytest.param({"algorithm": brief(ALGORITHMS["a_star_po"]())}, id="answers before training"),
        pytest.param({"algorithm": brief(ALGORITHMS["ads"]())}, id="a study of the problems"),
        pytest.param({"modify": Modifiers(reference_every=1, reference_mix=0.5)}, id="moving reference"),
    ],
)
def test_further_parts_of_a_run_on_two_devices_are_those_on_one(
    change: dict[str, Any], policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path / "cache"))
    config = dataclasses.replace(configure(policy, GRPO(beta=0.1)), **change)
    config = training(config, devices=1, optimizer="torch:SGD")
    single_rows, two = run(config, tmp_path / "one"), run(training(config, devices=2), tmp_path / "two")
    equal_up_to_rounding(single_rows, two)
    equal_weights(tmp_path / "one", tmp_path / "two")
    if "evaluate" in change:
        names = {name for row in two for name in row}
        assert any("/likelihood/" in name for name in names) and any(n.startswith("also/") for n in names)


def run_warm(config: RunConfig, folder: Path) -> None:
    """A whole run whose other ranks are forked from a process that has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "multiprocessing", Warm)
        run(config, folder)


@pytest.fixture(scope="module")
def undisturbed_run(policy: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path]:
    """An undisturbed run on two devices."""
    config = training(configure(policy, PPO(critic_warmup=0, beta=0.1)), devices=2)
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_warm(config, folder)
    return config, folder


@pytest.mark.slow
def test_a_stopped_run_goes_on_exactly(undisturbed_run: tuple[RunConfig, Path], tmp_path: Path) -> None:
    config, undisturbed = undisturbed_run
    for step in (1, 2):
        run_until_stopped(config, tmp_path / "parts", step)
        assert not multiprocessing.active_children()
    run(config, tmp_path / "parts")
    assert same(tmp_path / "parts", undisturbed)


def test_a_rank_that_is_killed_ends_the_run_which_goes_on_exactly(
    undisturbed_run: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    """From a checkpoint of which each rank has written its parts, and which can be exported."""
    config, undisturbed = undisturbed_run
    path = tmp_path / "parts"
    with (
        RunFolder.open(path, config) as folder,
        pytest.raises(OSError, match="rank 1 of the run was killed by SIGKILL"),
    ):
        execute(config, folder, lambda progress: None, killing(path, 2, checkpoint=True))
    assert not multiprocessing.active_children()
    (checkpoint,) = (path / "checkpoints").iterdir()
    whole_tensors = checkpoints.tensors_of(checkpoint, "policy")
    for file in checkpoint.glob(sharded.FILES):
        parts = {n.removeprefix("policy/"): t for n, t in weights(file).items() if n.startswith("policy/")}
        assert all(len(t) <= (len(whole_tensors[n]) + 1) // 2 for n, t in parts.items() if t.dim() > 1)
    (checkpoint / "other.safetensors").write_bytes(
        (checkpoint / next(checkpoint.glob(sharded.FILES)).name).read_bytes()
    )
    assert checkpoints.damage(checkpoint) == "other.safetensors is no part of it"
    (checkpoint / "other.safetensors").unlink()
    exported = export(path, tmp_path / "exported")
    assert exported.step == 1 and "checkpoint of step 1" in exported.caution
    run_warm(config, path)
    assert same(path, undisturbed)


def test_later_attempts_take_what_an_earlier_one_was_lowered_to(policy: str, tmp_path: Path) -> None:
    budget = TokenBudget("tokens", 64)
    budget.lower(60, "no memory")
    error = RankOutOfMemory("out of memory on rank 1 of 2", {**budget.take_unreported()[0], "asked": 64})
    error = pickle.loads(pickle.dumps(error))  # it comes from another rank
    assert failed(error).machine and "rank 1 of 2" in str(error)
    with RunFolder.open(tmp_path, configure(policy)) as folder:
        folder.note_out_of_memory(error)
        assert folder.lowered() == []
    with RunFolder.open(tmp_path, configure(policy)) as folder:
        lowered = folder.lowered()
    later, other = TokenBudget("tokens", 64), TokenBudget("tokens", 128)
    for token_budget in (later, other, later):
        token_budget.lower_as(lowered)
    assert (later.limit, later.times, other.limit) == (30, 1, 128)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["update.2.oom", "update.4.oom"])
def test_a_rank_that_runs_out_of_memory_has_the_next_attempt_do_with_less(
    point: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = training(configure(policy, GRPO()), devices=2, optimizer="torch:SGD")
    run(config, tmp_path / "whole")
    faults = tmp_path / "faults"
    faults.mkdir()
    (faults / point).touch()
    monkeypatch.setenv("GRPOBENCH_FAULTS", str(faults))
    COUNTS.clear()  # Rank 0 is this process, and may have made updates in other tests.
    path = tmp_path / "parts"
    with pytest.raises(OSError, match=r"out of memory on rank \d of 2") as raised:
        run(config, path)
    assert failed(raised.value).machine  # so that the launcher makes another attempt
    assert not multiprocessing.active_children()
    again = run(config, path)
    attempts = json.loads((path / "provenance.json").read_text())["attempts"]
    (lowered,) = attempts[0]["out_of_memory"]
    assert lowered["now"] < lowered["before"] and len(attempts) == 2
    assert again[-1]["cost/memory_halvings"] == 1
    before, now = (weights(tmp_path / name / "final" / "policy.safetensors") for name in ("whole", "parts"))
    for name, tensor in before.items():
        torch.testing.assert_close(now[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_stop_behind_the_last_update_of_a_step_keeps_the_step(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks meet once more there. The weights are those after the step, which must not be saved as those
    before it."""
    config = training(configure(policy, checkpoint=CheckpointConfig(every=0)), devices=2)
    run(config, tmp_path / "whole")
    measured: list[float] = []

    def measure() -> float:
        measured.append(0.0)
        return 0.0

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "read_peak_memory_gb", measure)
        with pytest.raises(Preempted):
            run(config, tmp_path / "parts", lambda: len(measured) >= 2)
    assert [path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()] == ["step-2"]
    run(config, tmp_path / "parts")
    assert same(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
def test_a_checkpoint_goes_on_with_another_number_of_ranks(
    devices: int, undisturbed_run: tuple[RunConfig, Path], tmp_path: Path
) -> None:
    config, undisturbed = undisturbed_run
    path = tmp_path / "parts"
    run_until_stopped(config, path, 1)
    with pytest.raises(FolderError, match=r"train\.devices"):
        run(training(config, devices=devices), path)
    with RunFolder.open(path, training(config, devices=devices), allow_change=True) as folder:
        execute(training(config, devices=devices), folder, lambda progress: None, lambda: False)
    assert len(rows(path)) == len(rows(undisturbed))
    # The step before is the same, and the next one differs by rounding.
    assert timeless(rows(path)[1]) == timeless(rows(undisturbed)[1])
    expected_row, resumed_row = rows(undisturbed)[2], rows(path)[2]
    for name in ("reward/mean", "grad_norm/policy", "grad_norm/critic", "policy/entropy", "length/mean"):
        assert resumed_row[name] == pytest.approx(expected_row[name], rel=1e-3)


class Gone:
    """A rank that has ended, with an error or by a signal."""

    def __init__(self, rank: int, code: int) -> None:
        self.name, self.exitcode = f"rank {rank}", code


class Clumsy(Exception):
    """One that pickle writes and cannot read."""

    def __init__(self, first: int, other: int) -> None:
        super().__init__(f"{first} and {other}")


def test_a_rank_that_cannot_write_leaves_no_checkpoint_and_says_so(policy: str, tmp_path: Path) -> None:
    """torch wraps the error in a BaseException, which would end the launcher's worker."""
    full = OSError(errno.ENOSPC, "No space left on device")
    failures: dict[int, Any] = {1: (full, None)}

    def begin(checkpoint_folder: Path) -> Future[Any]:
        begun: Future[Any] = Future()
        begun.set_exception(CheckpointException("write", failures))
        return begun

    with RunFolder.open(tmp_path, configure(policy)) as folder:
        folder.save_sharded(1, begin, {})
        with pytest.raises(OSError, match="No space left") as raised:
            folder.finish_saving()
        assert raised.value.errno == errno.ENOSPC  # which ends the experiment
        failures[1] = (ValueError("unknown type"), None)
        folder.save_sharded(1, begin, {})
        with pytest.raises(OSError, match="unknown type"):
            folder.finish_saving()
        assert not any((tmp_path / "checkpoints").iterdir())


def test_a_checkpoint_that_ends_late_does_not_set_the_run_back(policy: str, tmp_path: Path) -> None:
    """The final weights and the final state are found by the step in status.json."""
    written: Future[Any] = Future()
    with RunFolder.open(tmp_path, configure(policy)) as folder:
        folder.log({"step": 1})
        folder.save_sharded(1, lambda checkpoint_folder: written, {})
        folder.log({"step": 2})
        written.set_result(None)
        folder.finish_saving()
        assert folder.steps() == [1]
        assert status(tmp_path)["step"] == folder.step == 2


def test_a_launcher_that_stops_a_run_hears_that_a_checkpoint_is_still_written(
    policy: str, tmp_path: Path
) -> None:
    """It kills runs that do not say so in time."""
    phases: list[tuple[int, str]] = []
    written: Future[Any] = Future()

    def tell(step: int, phase: str) -> None:
        phases.append((step, phase))
        written.set_result(None)  # as if it had taken until then

    part: Any = SimpleNamespace(
        state=lambda: {"algorithm": {}}, tell=tell, updater=SimpleNamespace(begun=False)
    )
    with RunFolder.open(tmp_path, configure(policy)) as folder:
        folder.save_sharded(1, lambda checkpoint_folder: written, {})
        slow = Timer(1, written.set_result, [None])
        slow.start()
        Before(part, folder, 1).save()
        slow.cancel()
        assert folder.steps() == [1]
    assert phases == [(1, SAVING)]


def test_a_checkpoint_that_cannot_be_read_is_an_error_like_others(tmp_path: Path) -> None:
    """torch's is no Exception, and would end the worker without a word to the launcher."""
    save_file({"policy/one": torch.ones(2)}, tmp_path / "shard-1.safetensors")
    with pytest.raises(OSError, match="policy/other"):
        sharded.load_into(tmp_path, {"policy/other": torch.empty(2)})


@pytest.mark.parametrize(
    "message", ["Connection closed by peer [127.0.0.1]", "writev [127.0.0.1]: Broken pipe"]
)
def test_the_first_death_is_told_and_not_those_that_follow(message: str, tmp_path: Path) -> None:
    closed = RuntimeError(message)
    (tmp_path / "rank 1.error").write_bytes(pickle.dumps(closed))
    (tmp_path / "rank 2.error").write_bytes(pickle.dumps(ConfigError(["the cause"])))
    (tmp_path / "rank 3.error").write_bytes(pickle.dumps(Clumsy(1, 2)))
    gone: list[Any] = [Gone(1, 1), Gone(2, 1)]
    rank_error = cause(gone, tmp_path, closed)
    assert isinstance(rank_error, ConfigError) and rank_error.faults == ["the cause"]
    assert "killed by SIGKILL" in str(cause([Gone(1, 1), Gone(4, -9)], tmp_path, closed))  # type: ignore[list-item]
    assert "rank 3 of the run exited with 1" in str(cause([Gone(3, 1)], tmp_path, closed))  # type: ignore[list-item]
    assert cause([], tmp_path, ValueError("of this rank")) is None


def test_a_long_work_of_the_first_rank_ends_when_another_dies() -> None:
    ranks = DeviceRanks(0, 2)
    ranks.demand = functools.partial(demand_alive, [Gone(1, 1)])
    stopping = Stopping(lambda progress: None, lambda: False)
    stopping.last_asked -= ASK
    with stopping.heeded(ranks), pytest.raises(OSError, match="rank 1 of the run exited with 1"):
        safe_point()


# What cannot be


def test_a_run_gets_as_many_gpus_as_it_has_devices(policy: str) -> None:
    two = [training(configure(policy), devices=2), configure(policy)]
    assert with_devices(HERE, two).gpus_per_run == 2
    assert with_devices(HERE, two[1:]) is HERE
    assert with_devices(Where(gpus_per_run=4), two).gpus_per_run == 4
    with pytest.raises(ConfigError, match=r"train\.devices is 2"):
        with_devices(Where(gpus_per_run=0.5), two)


# Ranks
