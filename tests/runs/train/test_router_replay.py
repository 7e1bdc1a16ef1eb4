"""`sampler.router_replay` in whole steps: with routes that differ, replay of the sampler's closes the gap,
that of the trainer's own does not; where they do not differ, nothing changes; an interrupted run goes on with
the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.sampling import END, requests, same
from helpers.stops import Told, carry, stopped
from helpers.toys import characters, tiny, trainer_for
from helpers.whole_runs import configure, timeless, training

from grpobench.algorithms.ngrpo import NGRPO
from grpobench.algorithms.returned import ReturnError
from grpobench.runs.calibration.faults import NoisyRouteSampler
from grpobench.runs.models import nano
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.routing import UNKNOWN
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.settings.config import RunConfig, SamplerConfig, TrainConfig
from grpobench.runs.settings.rules import incompatible
from grpobench.tasks import TASKS

NOISY = "grpobench.runs.calibration.faults:noisy_routes"
EXPERTS, CHOSEN, LAYERS = 4, 2, 2
CLOSED = 1e-10
"""Nats: k3 of differences of float32 sums, some 1e-6, is half of their square."""


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random Mixtral over the characters of the nano policies."""
    import transformers

    folder = tmp_path_factory.mktemp("mixture")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=nano.VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        num_local_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        sliding_window=None,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    transformers.MixtralForCausalLM(config).save_pretrained(folder)
    nano.character_tokenizer().save_pretrained(folder)
    return str(folder)


def config_of(policy: str, epochs: int = 1, minibatches: int = 2, **sampler: Any) -> RunConfig:
    """Four steps of 4 problems × 4 completions."""
    train = TrainConfig(
        steps=4,
        prompts_per_step=4,
        group_size=4,
        num_minibatches=minibatches,
        epochs=epochs,
        learning_rate={"policy": 1e-2},
    )
    return configure(policy, sampler=SamplerConfig(**sampler), train=train)


def steps(config: RunConfig, count: int = 2) -> list[dict[str, float]]:
    trainer = trainer_for(config)
    return [timeless(trainer.step(step)) for step in range(1, count + 1)]


# Routes that differ


def test_replaying_the_samplers_routes_closes_the_gap(mixture: str) -> None:
    gaps = {}
    for mode in ("none", "R2", "R3"):
        rows = steps(config_of(mixture, kind=NOISY, old_logp="trainer", router_replay=mode))
        gaps[mode] = [(row["gap/k3"], row["gap/mean"]) for row in rows]
    assert all(k3 > 1e-3 and mean > 1e-2 for k3, mean in gaps["none"])
    assert all(k3 < CLOSED and mean < 1e-5 for k3, mean in gaps["R3"])
    # The pass for log π_old has the trainer's routes, whatever becomes of them in the updates.
    assert gaps["R2"][0] == gaps["none"][0]
    assert gaps["R2"][1][0] > 1e-3


def test_a_step_that_measures_in_its_first_minibatch_replays_too(mixture: str) -> None:
    """Whatever log π_old is: here the sampler's, so that no pass but the update's compares the two."""
    (row,) = steps(config_of(mixture, kind=NOISY, old_logp="sampler", router_replay="R3"), 1)
    assert row["gap/k3"] < CLOSED
    (row,) = steps(config_of(mixture, kind=NOISY, old_logp="sampler"), 1)
    assert row["gap/k3"] > 1e-3


def test_ratios_of_the_first_update_are_1_and_later_ones_keep_the_recorded_routes(mixture: str) -> None:
    """One update is made at the weights of log π_old. With more, R2 changes what the ratio compares."""
    plain, replayed = (
        steps(config_of(mixture, epochs=3, old_logp="trainer", router_replay=mode), 1)[0]
        for mode in ("none", "R2")
    )
    assert plain["trained/ratio_max"] != replayed["trained/ratio_max"]
    assert plain["gap/k3"] == replayed["gap/k3"]
    assert plain["cost/flops"] == replayed["cost/flops"]


# Routes that do not


def test_without_a_difference_replay_changes_no_bit(mixture: str) -> None:
    """The in-process sampler routes as the trainer does until the first update; FLOPs, too, stay what they
    are. Behind an update the trainer's routers may choose otherwise, and with replay do not."""
    expected, replayed_rows = (
        steps(config_of(mixture, minibatches=1, router_replay=mode)) for mode in ("none", "R3")
    )
    for replayed_row, other in zip(replayed_rows, expected, strict=True):
        assert {key for key in other if repr(replayed_row[key]) != repr(other[key])} == set()  # repr: NaN too
        assert replayed_row["cost/flops"] == other["cost/flops"] > 0


def test_embeddings_that_are_mixed_keep_their_routes(mixture: str) -> None:
    config = config_of(mixture, kind="hf", router_replay="R3", old_logp="trainer")
    trainer = trainer_for(dataclasses.replace(config, algorithm=NGRPO(rho=0.5)))
    assert trainer.step(1)["gap/k3"] < CLOSED
    rollouts = [rollout for group in trainer.groups for rollout in group.rollouts]
    assert any(rollout.mixture is not None and rollout.mixture[1].any() for rollout in rollouts)


# What the sampler reports


def sampled(noise: float, rows: int = 64, temperature: float = 1.0) -> list[Rollout]:
    models = RoleModels(tiny("qwen3_moe"), router_replay="R3")
    source = NoisyRouteSampler.__new__(NoisyRouteSampler)
    HFSampler.__init__(source, models, END, 0, rows, 128)
    source.noise = noise
    return [rollout for group in source.sample(requests(), 12, temperature) for rollout in group]


def test_each_token_has_its_experts_whatever_else_is_in_the_batch() -> None:
    together, parts = sampled(1.0), sampled(1.0, rows=3)
    for rollout, other in zip(together, parts, strict=True):
        assert same(rollout, other)
        assert rollout.routed_experts is not None and other.routed_experts is not None
        prompt, completion = rollout.routed_experts
        assert prompt.shape == (len(rollout.prompt), LAYERS, CHOSEN)
        assert completion.shape == (len(rollout.completion), LAYERS, CHOSEN)
        for ours, theirs in zip(rollout.routed_experts, other.routed_experts, strict=True):
            assert np.array_equal(ours, theirs)
        assert (completion[-1] == UNKNOWN).all()  # never fed
        fed = np.concatenate([prompt, completion[:-1]])
        assert ((fed >= 0) & (fed < EXPERTS)).all()
        assert (fed[..., 0] != fed[..., 1]).all()


def test_the_error_of_scores_changes_sampled_routes_and_no_greedy_one() -> None:
    sound, broken = sampled(0.0), sampled(1.0)
    apart = [
        np.mean(np.sort(sound_rollout.routed_experts[0]) != np.sort(other.routed_experts[0]))
        for sound_rollout, other in zip(sound, broken, strict=True)
        if sound_rollout.routed_experts is not None and other.routed_experts is not None
    ]
    assert len(apart) == len(sound) and np.mean(apart) > 0.1
    assert all(map(same, sampled(0.0, temperature=0.0), sampled(1.0, temperature=0.0)))


# An interruption


def test_an_interrupted_run_goes_on_byte_for_byte(mixture: str, tmp_path: Path) -> None:
    config = config_of(mixture, kind=NOISY, old_logp="trainer", router_replay="R3")
    undisturbed = carry(config, tmp_path / "whole")
    assert stopped(config, tmp_path / "cut", Told(2, "training", 1))
    assert carry(config, tmp_path / "cut") == undisturbed


# What is refused


def test_a_dense_policy_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    policy = characters(tmp_path / "dense")
    for mode in ("R2", "R3"):
        with pytest.raises(ModelError, match=r'has no router .* set sampler\.router_replay = "none"'):
            trainer_for(config_of(policy, router_replay=mode))
    with pytest.raises(ModelError, match="has no router"):
        trainer_for(config_of(policy, kind=NOISY))


def test_a_sampler_that_reports_no_routes_is_refused(mixture: str) -> None:
    config = config_of(mixture, kind="grpobench.runs.calibration.faults:stale", router_replay="R3")
    with pytest.raises(ReturnError, match="returned a rollout without routed_experts"):
        trainer_for(config).step(1)


def test_several_turns_take_recorded_routes_and_trl_is_refused() -> None:
    config = config_of("nano-moe", router_replay="R2")
    several = dataclasses.replace(config, task=TASKS["horizon"]())
    assert not any("horizon has several" in fault for fault in incompatible(several))
    trl = training(config, backend="trl")
    assert any("replays no routes" in fault for fault in incompatible(trl))
