"""Memory gives out: what is read or decoded at once is halved, and nothing else changes.

Locked here: the gradient, the metrics and what is counted are those of a run with memory enough; what is
sampled is the same; the lowered size stays, also over a resume; where a single row does not fit the run ends
with exit code 70 and says what to lower.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.memory import hold_sequences, hold_tokens, in_a_fresh_process, read_with_little
from helpers.sampling import requests, same, sampler
from helpers.stops import Told
from helpers.toys import backward, distance, models_for, off_policy, resting_run, rollouts
from helpers.whole_runs import QUIET, configure, run, run_until_stopped, timeless, weights
from helpers.whole_runs import same as same_runs

from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.gspo import GSPO
from grpobench.algorithms.ppo import PPO
from grpobench.runs.experiment.experiment import CODES
from grpobench.runs.experiment.worker import Ended, RunJob
from grpobench.runs.experiment.worker import run as work
from grpobench.runs.models.optimizer import Optimizer
from grpobench.runs.models.packing import micro_batches, packed_tokens
from grpobench.runs.models.token_budgets import (
    NoRoom,
    TokenBudget,
    gpu_memory,
    is_out_of_memory,
    portions,
)
from grpobench.runs.sample.fused import Fused
from grpobench.runs.settings.config import CheckpointConfig
from grpobench.runs.tools import faults
from grpobench.runs.train.execute import execute

CLOSE = 1e-5
"""Of the gradient's norm: float32 sums in another order."""
SMALL = 1e-6
"""Of a metric near zero, the mean of numbers near one in another order."""
LENGTHS = [[7, 4, 9, 5], [12, 6, 3, 8], [5, 5, 10, 2]]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of faults, in which a name plans one."""
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setenv(faults.VARIABLE, str(folder))
    monkeypatch.setattr(faults, "COUNTS", Counter[str]())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "out of memory")
        yield folder


def batch_for(models: Any) -> Any:
    rewards = [[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
    return off_policy(rollouts(LENGTHS, rewards), models)


# The same gradient


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize("algorithm", [GRPO(), PPO(critic="shared"), DPO()], ids=lambda a: a.name)
def test_halved_micro_batches_give_the_same_gradient_and_metrics(
    algorithm: Algorithm[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 25
    models = models_for(algorithm, "llama")
    batch = batch_for(models)
    gradient, metrics = backward(algorithm, models, batch)
    tried = hold_tokens(monkeypatch, most)
    halved_gradient, again = backward(algorithm, models, batch)
    assert distance(halved_gradient, gradient) < CLOSE
    assert again == pytest.approx(metrics, rel=1e-4, abs=SMALL, nan_ok=True)
    assert max(tried) > most and models.budget < 80 and models.token_budget.times > 0
    tried.clear()
    backward(algorithm, models, batch)
    assert max(tried) <= most, "what was lowered stays lowered"


def test_gradients_of_a_failed_attempt_are_forgotten(planned: Path) -> None:
    """The third of several micro-batches fails behind its backward pass, with the others' gradients there."""
    algorithm = PPO()
    models = models_for(algorithm, "llama", budget=40)
    batch = batch_for(models)
    gradient, metrics = backward(algorithm, models, batch)
    faults.COUNTS.clear()
    (planned / "update.3.oom").touch()
    halved_gradient, again = backward(algorithm, models, batch)
    assert (planned / faults.STRUCK).read_text() == "update.3.oom\n"
    assert distance(halved_gradient, gradient) < CLOSE and again == pytest.approx(
        metrics, rel=1e-4, nan_ok=True
    )
    assert models.budget < 40


def test_a_batch_is_halved_until_it_fits_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    models = models_for(GRPO(), "llama")
    batch = batch_for(models)
    every = torch.arange(len(batch))
    assert packed_tokens(batch, every) == 3 * max(5 + 25, 3 + 29, 7 + 22)
    logp = models.forward("policy", batch).logp
    hold_tokens(monkeypatch, 50)
    with pytest.warns(UserWarning, match=r"out of memory with 96 tokens .* from now on 48: OutOfMemoryError"):
        halved_logp = models.forward("policy", batch).logp
    torch.testing.assert_close(halved_logp, logp, rtol=0, atol=1e-5)
    assert models.budget == 48 and models.token_budget.times == 1
    assert all(packed_tokens(batch, rows) <= 48 for rows in micro_batches(batch, every, 48))


def test_a_row_that_does_not_fit_alone_is_told_with_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    models = models_for(GRPO(), "llama")
    batch = batch_for(models)
    hold_tokens(monkeypatch, 10)
    with pytest.warns(UserWarning, match="out of memory"), pytest.raises(NoRoom) as raised:
        models.forward("policy", batch)
    text = str(raised.value)
    assert "1 row of 17 tokens (prompt 7, longest completion 10)" in text
    assert all(name in text for name in ("micro_batch_tokens", "max_completion_tokens", "dtype", "float32"))


def test_errors_of_torch_and_of_the_system_are_told_apart_from_others() -> None:
    cpu = (
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
    )
    assert (
        is_out_of_memory(RuntimeError(cpu))
        and is_out_of_memory(MemoryError())
        and is_out_of_memory(torch.OutOfMemoryError("x"))
    )
    assert not is_out_of_memory(RuntimeError("The size of tensor a (3) must match")) and not is_out_of_memory(
        ValueError(cpu)
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound a process's memory")
def test_memory_that_the_system_refuses_is_made_do_with() -> None:
    """The real allocator's real error, under a limit of the process; what a process has freed it may use
    again without asking the system, so that this needs one that has freed little."""
    lowered, difference = in_a_fresh_process(read_with_little)
    assert lowered and "can't allocate memory" in lowered[0]
    assert difference < 1e-4


# Portions of anything else


def test_portions_are_taken_once_each_and_in_order() -> None:
    token_budget, done = TokenBudget("things", 8), list[int]()

    def some(part: range) -> None:
        if len(part) > 3:
            raise MemoryError("full")
        done.extend(part)

    with pytest.warns(UserWarning, match="out of memory with"):
        portions(token_budget, 11, some, "a thing")
    assert done == [*range(11)] and token_budget.limit == 2 and token_budget.times == 2
    with pytest.raises(
        NoRoom, match=(r"a thing alone \(MemoryError: full\); lower sampler.max_completion_tokens")
    ):
        portions(TokenBudget("things", 1), 1, lambda part: some(range(9)), "a thing")


@pytest.mark.filterwarnings("ignore:out of memory")
def test_fewer_sequences_at_once_are_the_same_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    source = sampler()
    expected_groups = source.sample(requests(), 15, 1.0)
    tried = hold_sequences(monkeypatch, 4)
    groups = source.sample(requests(), 15, 1.0)
    assert all(
        same(*pair)
        for group, two in zip(groups, expected_groups, strict=True)
        for pair in zip(group, two, strict=True)
    )
    assert tried[0] == 12 and source.token_budget.limit == 3
    hold_sequences(monkeypatch, 0)
    with pytest.raises(NoRoom, match="a sequence of up to 15 tokens behind a prompt of up to 7 alone"):
        source.sample(requests(), 15, 1.0)


# Whole runs


def provenance(path: Path) -> dict[str, Any]:
    attempt: dict[str, Any] = json.loads((path / "provenance.json").read_text())["attempts"][-1]
    return attempt


def test_a_run_in_which_memory_gives_out_is_the_same_run(policy: str, planned: Path, tmp_path: Path) -> None:
    config = configure(policy, evaluate=QUIET)
    plain = run(config, tmp_path / "plain")
    faults.COUNTS.clear()
    for fault in ("update.1.oom", "update.6.oom"):
        (planned / fault).touch()
    full_rows = run(config, tmp_path / "full")
    assert len((planned / faults.STRUCK).read_text().split()) == 2
    for plain_row, other in zip(map(timeless, plain), map(timeless, full_rows), strict=True):
        halvings = other.pop("cost/memory_halvings", 0)
        assert halvings == (0 if other["step"] == 0 else 1 if other["step"] == 1 else 2)
        assert plain_row["step"] == other["step"]
        for name in ("cost/trained_tokens", "reward/mean", "grad_norm/policy", "trained/entropy"):
            if plain_row["step"]:
                assert other[name] == pytest.approx(plain_row[name], rel=1e-4)
    first, second = provenance(tmp_path / "full")["out_of_memory"]
    assert first["step"] == 1 and first["why"] == "OutOfMemoryError: CUDA out of memory (a fail point)"
    assert first["of"] == "tokens (train.micro_batch_tokens)" and first["before"] == 1024
    assert 1024 > first["now"] == second["before"] > second["now"]
    assert "out_of_memory" not in provenance(tmp_path / "plain")


@pytest.mark.filterwarnings("ignore:out of memory")
def test_a_resumed_run_goes_on_with_what_was_lowered(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, though memory would hold more by then."""
    config = configure(policy, PPO(), checkpoint=CheckpointConfig(every=1), evaluate=QUIET)
    with monkeypatch.context() as patch:
        hold_tokens(patch, 60)
        hold_sequences(patch, 5)
        undisturbed = run(config, tmp_path / "whole")
        run_until_stopped(config, tmp_path / "resumed", 2)
    run(config, tmp_path / "resumed")
    assert same_runs(tmp_path / "resumed", tmp_path / "whole")
    assert undisturbed[-1]["cost/memory_halvings"] >= 2
    assert {"tokens", "sequences"} == {
        lowering["of"].split()[0] for lowering in provenance(tmp_path / "whole")["out_of_memory"]
    }


def test_another_size_in_the_recipe_begins_with_that_size() -> None:
    lowered_budget = TokenBudget("tokens", 1000)
    with pytest.warns(UserWarning, match="out of memory"):
        lowered_budget.lower(600, "full")
    state = json.loads(json.dumps(lowered_budget.state()))
    for initial, most in ((1000, 300), (500, 500)):
        token_budget = TokenBudget("tokens", initial)
        token_budget.restore(state)
        assert token_budget.limit == most
    token_budget.restore({})
    assert token_budget.limit == 500, "a checkpoint of a version that kept none"


def test_ratios_stay_1_where_nothing_moved_and_memory_gave_out(planned: Path, tmp_path: Path) -> None:
    """In bfloat16 log π_old depends on what is read together: it is read again as the updates read it."""
    config = resting_run(GSPO())
    (planned / "update.1.oom").touch()
    row = run(config, tmp_path / "run")[-1]
    assert (planned / faults.STRUCK).exists() and row["grad_norm/policy"] > 0
    assert row["trained/ratio_min"] == row["trained/ratio_max"] == 1 and row["cost/memory_halvings"] == 1


def test_weights_that_memory_does_not_hold_twice_are_not_copied_for_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, plain, later = sampler(), sampler(), sampler()
    plain.fuses = False
    tried = []

    def full(self: Fused, models: Any, keep: bool = True) -> None:
        tried.append(models)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Fused, "__init__", full)
    assert source.fuses
    with pytest.warns(UserWarning, match=r"1 copies of the policy's weights .* from now on 0: OutOfMemory"):
        groups = source.sample(requests(), 8, 1.0)
    for ours, theirs in zip(groups, plain.sample(requests(), 8, 1.0), strict=True):
        assert all(map(same, ours, theirs))
    later.copies.restore(source.copies.state())
    for hf_sampler in (source, later):  # a resumed run computes as the run that was interrupted
        hf_sampler.sample(requests(), 8, 1.0)
    assert len(tried) == 1 and source.token_budget.limit == 64


@pytest.mark.parametrize(
    ("memory", "pieces"), [(None, 1192), (8 * 2**30, 1192), (24 * 2**30, 397), (80 * 2**30, 119)]
)
def test_logits_are_cut_into_as_few_pieces_as_a_gpus_memory_allows(
    memory: int | None, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """262,144 tokens over 152,064 others. On a CPU, and so for `nano`, pieces are as they were."""
    monkeypatch.setattr("grpobench.runs.models.roles.gpu_memory", lambda device: memory)
    chunk = models_for(GRPO(), "llama").chunk
    assert -(-262_144 // (chunk // 152_064)) == pieces
    assert memory is None or 16 * chunk <= max(memory / 16, 16 * 2**25)
    assert gpu_memory(torch.device("cpu")) is None


def ended(config: Any, path: Path) -> Ended:
    return work(RunJob(config, path, False), execute, Told(), 1, lambda _: None)


@pytest.mark.filterwarnings("ignore:out of memory")
def test_run_whose_single_row_is_too_large_exits_70_with_remedy(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(policy, evaluate=QUIET)
    with monkeypatch.context() as patch:
        hold_tokens(patch, 4)
        patch.setattr("grpobench.runs.models.roles.demand_same_reading", lambda models: None)
        outcome = ended(config, tmp_path)
    assert (outcome.fate, outcome.machine, CODES["crashed"]) == ("crashed", False, 70)
    assert (
        "NoRoom: out of memory with 1 row of" in outcome.why
        and "lower sampler.max_completion_tokens" in outcome.why
    )
    assert "NoRoom" in (tmp_path / "crash.txt").read_text()
    # A first attempt that crashed blocks nothing: with room enough the same command goes on.
    assert ended(config, tmp_path).fate == "finished"
    assert weights(tmp_path / "final" / "policy.safetensors")


def test_an_optimizer_that_does_not_fit_is_told_as_such(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Optimizer, scale: float) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(Optimizer, "update", full)
    outcome = ended(configure(policy, evaluate=QUIET), tmp_path)
    assert (
        outcome.fate == "crashed" and "another train.optimizer" in outcome.why and "20.00 MiB" in outcome.why
    )


def living() -> int:
    """Bytes of all tensors that anything holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other objects answer to isinstance by a warning
        tensors = [candidate for candidate in gc.get_objects() if isinstance(candidate, torch.Tensor)]
    return sum(
        {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
        }.values()
    )


def test_a_run_leaves_nothing_behind_that_waits_for_the_collector(policy: str, tmp_path: Path) -> None:
    """A worker makes one run after the other. On a GPU that many runs share, the models of the last run
    beside those of this one are memory that no plan counts."""
    config = configure(policy, PPO(beta=0.1))
    run(config, tmp_path / "first")  # what is imported meanwhile keeps its callers
    gc.collect()
    before = living()
    gc.disable()
    try:
        run(config, tmp_path / "second")
        assert living() <= before
    finally:
        gc.enable()
