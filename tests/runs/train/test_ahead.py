"""`sampler.ahead`: another process samples the next step while this one is trained, and no number changes.

A part of it is in `make test`, all of it in `make test-devices`.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.warm import Warm
from helpers.whole_runs import configure, killing, run, run_until_stopped, same

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.curriculum import Shuffled
from grpobench.algorithms.modifiers import Refilled
from grpobench.algorithms.ppo import PPO
from grpobench.algorithms.spo import SPO
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.sample.sampler import StepRequest
from grpobench.runs.settings.config import ModelConfig, RunConfig, SamplerConfig, TrainConfig
from grpobench.runs.settings.rules import incompatible
from grpobench.runs.train.ahead import AheadSampler, SamplingOrder, adopt, flattened
from grpobench.runs.train.checked_curriculum import CheckedCurriculum
from grpobench.runs.train.execute import execute

UPDATES = 2
"""Of a step."""


def lagged(policy: str, ahead: bool, lag: int = UPDATES, **sections: Any) -> RunConfig:
    train = TrainConfig(
        steps=4, prompts_per_step=4, group_size=4, num_minibatches=UPDATES, learning_rate={"policy": 1e-3}
    )
    sampler = SamplerConfig(lag=lag, ahead=ahead)
    return configure(policy, **{"sampler": sampler, "train": train, **sections})


@pytest.fixture(scope="module")
def plain(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the lag that samples by itself."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    run(lagged(policy, False), folder)
    return folder


def test_every_number_is_that_of_a_run_that_samples_by_itself(
    plain: Path, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_requests: list[tuple[StepRequest, bool]] = []
    take = AheadSampler.take_next

    def watched(self: AheadSampler, work: StepRequest, weights: Callable[[], Any]) -> Any:
        step_requests.append((work, self.pending is not None and self.pending.work == work))
        return take(self, work, weights)

    monkeypatch.setattr(AheadSampler, "take_next", watched)
    monkeypatch.setattr(torch.multiprocessing, "get_context", Warm.get_context)
    run(lagged(policy, True), tmp_path / "run")
    assert same(tmp_path / "run", plain)
    # All but the first step found their rollouts begun, from the weights of one step before.
    assert [begun for _, begun in step_requests] == [False, True, True, True]
    assert [work.version for work, _ in step_requests] == [0, 0, UPDATES, 2 * UPDATES]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("lag", "sections"),
    [
        pytest.param(5, {"algorithm": PPO(critic_warmup=0)}, marks=pytest.mark.slow),
        pytest.param(UPDATES, {"adapter": True}, marks=pytest.mark.slow),
        # It draws by what it has learned: nothing is foreseen.
        pytest.param(UPDATES, {"algorithm": SPO()}, marks=pytest.mark.slow),
    ],
    ids=["long", "adapter", "prioritized"],
)
def test_so_it_is_with_other_lags_adapters_and_curricula(
    lag: int, sections: dict[str, Any], policy: str, tmp_path: Path
) -> None:
    if sections.pop("adapter", False):
        # The base of the other process is warm-started, too.
        model = ModelConfig(policy, adapter=Adapter(4, 8.0), warm_start=2, warm_start_batch=2)
        sections = {"model": model}
    for ahead in (False, True):
        run(lagged(policy, ahead, lag, **sections), tmp_path / str(ahead))
    assert same(tmp_path / "True", tmp_path / "False")


@pytest.mark.slow
def test_a_stopped_run_goes_on_exactly(plain: Path, policy: str, tmp_path: Path) -> None:
    for step in (1, 3):
        run_until_stopped(lagged(policy, True), tmp_path / "run", step)
        assert not multiprocessing.active_children()
    run(lagged(policy, True), tmp_path / "run")
    assert same(tmp_path / "run", plain)


def test_a_sampler_that_is_killed_is_replaced_and_nothing_is_lost(
    plain: Path, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.multiprocessing, "get_context", Warm.get_context)
    config, path = lagged(policy, True), tmp_path / "run"
    with RunFolder.open(path, config) as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        execute(config, folder, lambda progress: None, killing(path, 2))
    assert any(
        "killed by SIGKILL" in str(warning.message) and "takes over" in str(warning.message)
        for warning in caught
    )
    assert same(path, plain)


def test_a_run_whose_lag_leaves_no_time_is_refused(policy: str) -> None:
    refusals = incompatible(lagged(policy, True, lag=1))
    assert any("sampler.lag = 2 or more, or sampler.ahead = false" in why for why in refusals)
    assert not any("ahead" in why for why in incompatible(lagged(policy, True)))


def test_an_algorithm_that_mixes_embeddings_is_refused(policy: str) -> None:
    (why,) = incompatible(lagged(policy, True, algorithm=ALGORITHMS["ngrpo"]()))
    assert "does not mix embeddings; set sampler.ahead = false" in why


def test_only_draws_that_depend_on_nothing_are_foreseen() -> None:
    class Moody(Shuffled):
        def draw(self, step: int, attempt: int) -> list[int]:
            raise AssertionError("a draw may change its state")

    plain = Shuffled(10, 3, 0)
    assert CheckedCurriculum(plain, 10).foreseen(2) == plain.draw(2, 0)
    assert CheckedCurriculum(Refilled(plain, 2), 10).foreseen(2) == plain.draw(2, 0)
    assert CheckedCurriculum(Moody(10, 3, 0), 10).foreseen(2) is None


def test_weights_of_several_types_cross_as_one_tensor_each() -> None:
    ours = {"a": torch.randn(2, 3), "b": torch.randn(4).bfloat16(), "c": torch.randn(1)}
    flat = flattened(ours.values())
    assert [(tensor.dtype, len(tensor)) for tensor in flat] == [(torch.float32, 7), (torch.bfloat16, 4)]
    theirs = {name: torch.zeros_like(tensor) for name, tensor in ours.items()}
    adopt(SamplingOrder(StepRequest((), (), 0, 1.0, 0), tuple(ours), flat), theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
