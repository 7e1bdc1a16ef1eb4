"""`sampler.weights` in whole steps: rollouts have the probabilities of rounded weights, everything else those
of the trainer's, which no sampling changes; an interrupted run goes on with the same."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stops import Told, carry, stopped
from helpers.toys import trainer_for
from helpers.warm import Warm
from helpers.whole_runs import configure, run, same

from grpobench.algorithms.dpo import DPO
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.settings.config import CheckpointConfig, ModelConfig, RunConfig, SamplerConfig
from grpobench.runs.settings.rules import incompatible
from grpobench.runs.train import stopping

FORMATS = ("int8", "int4", "fp8")


def rounded(policy: str, weights: str = "int4", **sampler: Any) -> RunConfig:
    return configure(policy, sampler=SamplerConfig(weights=weights, **sampler))  # type: ignore[arg-type]


def rounded_by_torch(language: Any) -> Any:
    """A copy whose linear layers, but for the output head, torch has rounded to int8."""
    copied = copy.deepcopy(language).requires_grad_(False)
    for layer in copied.base_model.modules():
        if isinstance(layer, torch.nn.Linear):
            scale = layer.weight.abs().amax(-1) / 127
            zero = torch.zeros(len(scale), dtype=torch.int32)
            layer.weight.data = torch.fake_quantize_per_channel_affine(
                layer.weight, scale, zero, 0, -127, 127
            )
    return copied


def test_rollouts_have_the_probabilities_of_weights_that_torch_rounds(policy: str) -> None:
    trainer = trainer_for(rounded(policy, "int8"))
    other = rounded_by_torch(trainer.models.language)
    trainer.step(1)
    largest = 0.0
    for group in trainer.groups:
        for rollout in group.rollouts:
            text = torch.tensor([[*rollout.prompt, *rollout.completion]])
            with torch.no_grad():
                logp = other(input_ids=text).logits[0, len(rollout.prompt) - 1 : -1].log_softmax(-1)
            chosen = logp.gather(-1, torch.tensor(rollout.completion)[:, None])[:, 0]
            # The same float32 weights; only the order of sums differs.
            assert torch.allclose(torch.tensor(rollout.sampler_logp), chosen, atol=1e-4, rtol=0)
            largest = max(largest, float(chosen.abs().max()))
    assert largest > 0.1


@pytest.mark.parametrize("form", FORMATS)
def test_sampling_leaves_the_trainers_weights_to_the_bit_and_a_gap(policy: str, form: str) -> None:
    trainer = trainer_for(rounded(policy, form))
    before = {
        name: (p.data_ptr(), p.detach().clone()) for name, p in trainer.models.language.named_parameters()
    }
    groups = trainer.source.gather(1, 0, range(4))
    for name, p in trainer.models.language.named_parameters():
        assert p.data_ptr() == before[name][0] and torch.equal(p, before[name][1])
    assert len(groups) == 4
    row = trainer.step(1)
    assert row["gap/k3"] > 1e-7 and 1e-4 < row["gap/mean"] < 1
    # log π_old is the trainer's without being asked for, so that the first ratios are 1.
    assert row["trained/ratio_max"] == pytest.approx(1, abs=0.5) and row["gap/max"] > 1e-3


def test_the_coarser_format_leaves_the_larger_gap(policy: str) -> None:
    gaps = [trainer_for(rounded(policy, form)).step(1)["gap/k3"] for form in ("int8", "fp8", "int4")]
    assert gaps == sorted(gaps) and gaps[-1] > 10 * gaps[0]
    assert trainer_for(rounded(policy, "trainer")).step(1)["gap/k3"] < 1e-10


def test_evaluations_are_of_the_trainers_weights(policy: str, tmp_path: Path) -> None:
    """Before the first update they are those of a run with exact rollouts."""
    before = {}
    for weights in ("trainer", "int4"):
        config = rounded(policy, weights)
        run(config, tmp_path / weights)
        lines = (tmp_path / weights / "eval.jsonl").read_text().splitlines()
        before[weights] = [line for line in lines if '"step": 0' in line]
    assert before["int4"] == before["trainer"] != []


@pytest.mark.parametrize(
    "model", [{}, {"adapter": Adapter(rank=2, alpha=4.0)}, {"dtype": "bfloat16", "weights": "bfloat16"}]
)
def test_a_run_stopped_while_it_samples_is_the_undisturbed_one(
    policy: str, model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it samples the parameters hold rounded weights, and the checkpoint must hold the others."""
    monkeypatch.setattr(stopping, "ASK", 0.0)
    config = dataclasses.replace(
        rounded(policy, lag=1), model=ModelConfig(name=policy, **model), checkpoint=CheckpointConfig(every=0)
    )
    undisturbed = carry(config, tmp_path / "whole")
    path = tmp_path / "stopped"
    assert stopped(config, path, Told(1, "sampling", 2)) == [1]
    assert carry(config, path) == undisturbed


def test_another_process_rounds_the_weights_alike(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(rounded(policy, lag=2), tmp_path / "alone")
    monkeypatch.setattr(torch.multiprocessing, "get_context", Warm.get_context)
    run(rounded(policy, lag=2, ahead=True), tmp_path / "ahead")
    assert same(tmp_path / "ahead", tmp_path / "alone")


# In recipes


@pytest.mark.parametrize("kind", ["replay", "vllm-server", "grpobench.runs.calibration.faults:stale"])
def test_samplers_that_have_their_weights_from_elsewhere_are_refused(policy: str, kind: str) -> None:
    config = dataclasses.replace(rounded(policy, "fp8", kind=kind, url="http://127.0.0.1:1"), algorithm=DPO())
    (why,) = incompatible(config)
    assert 'sampler.weights is "fp8"' in why and 'sampler.kind = "hf"' in why


def test_vllm_takes_fp8_in_16_bits(policy: str) -> None:
    config = rounded(policy, "fp8", kind="vllm")
    assert not incompatible(dataclasses.replace(config, model=ModelConfig(name=policy, dtype="bfloat16")))
