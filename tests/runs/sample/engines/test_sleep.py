"""vLLM beside the trainer on one GPU, with a stand-in for vLLM that has such memory: when it sleeps and wakes
up, and an adapter that is handed over alone. The same with vLLM itself is in test_vllm.py."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fake_vllm import FakeLLM, install
from helpers.sampling import END, PROMPTS, texts, update
from helpers.toys import tiny
from helpers.whole_runs import arithmetic, run

from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.adapters import is_adapted, merged
from grpobench.runs.models.loading import load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.sample.engines.sampler import EngineSampler, SamplerMismatch, stirred
from grpobench.runs.sample.engines.vllm import VLLM, AdapterRoom, reserved, room_for
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import GREEDY, Request
from grpobench.runs.settings.config import CheckpointConfig, ModelConfig, RunConfig, SamplerConfig
from grpobench.runs.tools import installed
from grpobench.runs.train.update import Updater

PROMPT = PROMPTS[0]
LORA = Adapter(rank=4, alpha=8.0)
CYCLE = {
    False: ["sleep 2", "train", "wake weights", "reload_weights", "reset_prefix_cache", "wake kv_cache"],
    True: ["sleep 1", "train", "wake weights", "add_lora", "reset_prefix_cache", "wake kv_cache"],
}
"""What lies between the sampling of two steps, without and with an adapter."""


def follower(
    patch: pytest.MonkeyPatch, adapter: Adapter | None = None, **settings: Any
) -> tuple[EngineSampler, FakeLLM]:
    """A sampler over a stand-in with the weights of a tiny model."""
    torch.manual_seed(0)  # an adapter's A is drawn
    models = RoleModels(tiny(), ("policy",), adapter=adapter)
    models.optimize({"policy": 1e-2}, (0.9, 0.95), 0.0, 1.0)
    llm = FakeLLM(tiny(seed=1), **settings)
    install(patch, llm)
    engine = VLLM("", dtype="float32", rows=64, cache_gb=1.0, room=room_for(models))
    return EngineSampler(engine, models, end=END, pad=0, context=128, prompt=PROMPT), llm


def configure(adapter: Adapter | None = None, **sampler: Any) -> RunConfig:
    quiet = CheckpointConfig(every=0)
    return arithmetic(model=ModelConfig(adapter=adapter), sampler=SamplerConfig(**sampler), checkpoint=quiet)


# Order


@pytest.mark.parametrize("adapter", [None, LORA], ids=["weights", "adapter"])
def test_engine_sleeps_from_sampling_to_the_synchronization(
    adapter: Adapter | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The order of a colocated trainer: sleep, train, wake the weights, take over what was trained, wake the
    cache, sample. The numbers are those of an engine that stays awake."""
    language = load("nano").model
    llm, restless = FakeLLM(language, context=1024), FakeLLM(language, sleeps=False, context=1024)
    install(monkeypatch, llm, restless)
    plain = Updater.update

    def train(self: Updater, *args: Any) -> Any:
        llm.events.append("train")
        return plain(self, *args)

    monkeypatch.setattr(Updater, "update", train)
    sleeping_rows = run(configure(adapter, kind="vllm"), tmp_path / "sleeps")
    begins = llm.events.index(CYCLE[bool(adapter)][0])
    events = llm.events[begins:]
    ends = len(events) - 1 - events[::-1].index("wake kv_cache")
    between = [event for event in events[: ends + 1] if event != "generate"]
    assert between == 2 * CYCLE[bool(adapter)]
    assert events[6] == events[-2] == "generate" and events[-1] == "shutdown"
    monkeypatch.setattr(Updater, "update", plain)
    others = run(configure(adapter, kind="vllm", sleep=False), tmp_path / "awake")
    assert not any(event.startswith(("sleep", "wake")) for event in restless.events)
    for row, other in zip(sleeping_rows[1:], others[1:], strict=True):
        for name in ("reward/mean", "grad_norm/policy", "gap/sync", "policy/entropy"):
            assert row[name] == other[name], name
        assert 0 <= row["gap/sync"] < 1e-4 and row["grad_norm/policy"] > 0


def test_sampling_wakes_an_engine_that_nothing_else_woke(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose groups are all rejected trains nothing and synchronizes nothing."""
    source, llm = follower(monkeypatch)
    sample_requests = [Request(PROMPT, (1, 2, GREEDY))]
    before = source.sample(sample_requests, 9, 1.0)
    llm.events.clear()
    source.sleep()
    source.sleep()
    assert texts(source.sample(sample_requests, 9, 1.0)) == texts(before)
    assert llm.events == [
        *(event for event in CYCLE[False] if event != "train"),
        "generate",  # the probe
        "generate",
    ]


def test_weights_that_do_not_come_back_are_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = follower(monkeypatch)
    source.sleep()
    monkeypatch.setattr(FakeLLM, "collective_rpc", lambda self, name, kwargs: None)
    with pytest.raises(SamplerMismatch, match="after a weight synchronization"):
        source.sync()


@pytest.mark.parametrize("part", ["weights", "kv_cache"])
def test_memory_that_is_taken_meanwhile_names_remedies(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, llm = follower(monkeypatch)
    source.sleep()
    llm.fails = part
    with pytest.raises(ModelError, match=rf"\({part}\) back after the updates.*lower sampler\.cache_gb"):
        source.sync()
    source.close()
    assert llm.events[-1] == "shutdown", "closing does not fail where waking up does"


def test_an_engine_that_sleeps_wakes_up_before_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    source, llm = follower(monkeypatch)
    source.sleep()
    source.close()
    assert llm.events[-3:] == ["wake weights", "wake kv_cache", "shutdown"]


# The adapter alone


def test_adapter_alone_is_handed_over_and_the_samples_are_the_policys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """peft, which reads the folder here, adds the adapter to weights that stay as they are."""
    source, llm = follower(monkeypatch, LORA)
    proof = llm.events.count("reload_weights")
    assert proof == 3, "the weights, halved ones, the weights again"
    for _ in range(2):
        update(source.models)
        assert source.sync()["gap/sync"] < 1e-4
    assert llm.events.count("reload_weights") == proof
    assert llm.handed and all("lora_" in name for tensors in llm.handed for name in tensors)
    assert not Path(llm.adapter.lora_path).exists()
    sample_requests = [Request(PROMPT, (1, 2, GREEDY)), Request((8, 3), (4,))]
    theirs = HFSampler(source.models, END, 0, 64, 128).sample(sample_requests, 9, 1.0)
    assert texts(source.sample(sample_requests, 9, 1.0)) == texts(theirs)


@pytest.mark.parametrize(
    "part", ["layers.0.self_attn.q_proj", "layers.1.self_attn.o_proj", "layers.1.mlp.down_proj"]
)
def test_engine_that_ignores_the_adapter_of_one_layer_is_found_out_at_the_start(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SamplerMismatch, match=r"Set sampler\.merge_adapter = true"):
        follower(monkeypatch, LORA, deaf=[part])


def test_adapter_that_is_not_taken_over_is_caught_at_the_next_synchronization(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, _ = follower(monkeypatch, LORA)
    update(source.models)
    monkeypatch.setattr(VLLM, "load_adapter", lambda self, config, tensors: None)
    with pytest.raises(SamplerMismatch, match="after a weight synchronization"):
        source.sync()


def test_adapter_that_vllm_refuses_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    source, llm = follower(monkeypatch, LORA)

    def refuse(request: Any) -> bool:
        raise ValueError("the target module lm_head is not supported")

    llm.llm_engine.add_lora = refuse
    with pytest.raises(ModelError, match=r"lm_head is not supported; set sampler\.merge_adapter = true"):
        source.sync()


def test_stirred_adapters_have_an_eighth_of_the_weights_norm_and_leave_no_trace() -> None:
    models = RoleModels(tiny(), ("policy",), adapter=LORA)
    before = {name: p.clone() for name, p in models.language.named_parameters()}
    layers = [layer for layer in models.language.modules() if is_adapted(layer)]
    assert len(layers) == 14, "seven in each of two layers"
    drawn = torch.get_rng_state()
    with stirred(models.language):
        for layer in layers:
            weight = layer.base_layer.weight.detach()
            share = (merged(layer).detach() - weight).norm() / weight.norm()
            assert float(share) == pytest.approx(0.125, rel=1e-4)
    assert all(torch.equal(before[name], p) for name, p in models.language.named_parameters())
    assert torch.equal(drawn, torch.get_rng_state())


def test_room_for_adapters_comes_in_sizes() -> None:
    assert [reserved(rank) for rank in (1, 8, 9, 16, 33, 512)] == [8, 8, 16, 16, 64, 512]
    with pytest.raises(ModelError, match=r"up to rank 512.*is 513; set sampler\.merge_adapter = true"):
        reserved(513)


def test_room_is_made_in_the_layers_that_have_the_adapter() -> None:
    every = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    chosen = Adapter(rank=3, targets=("v_proj", "q_proj"))
    cases = [(None, None), (LORA, AdapterRoom(4, every)), (chosen, AdapterRoom(3, ("q_proj", "v_proj")))]
    for adapter, room in cases:
        assert room_for(RoleModels(tiny(), ("policy",), adapter=adapter)) == room


# Settings and provenance


@pytest.mark.parametrize(
    ("adapter", "merge", "expected"), [(None, False, "none"), (LORA, False, "beside"), (LORA, True, "merged")]
)
def test_provenance_says_how_the_engine_sampled(
    adapter: Adapter | None,
    merge: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    llm = FakeLLM(load("nano").model, context=1024)
    install(monkeypatch, llm)
    monkeypatch.setattr(installed, "version_of", lambda *names: "0.30.0" if "vllm" in names else "")
    config = configure(adapter, kind="vllm", merge_adapter=merge)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=1))
    run(config, tmp_path)
    (attempt,) = json.loads((tmp_path / "provenance.json").read_text())["attempts"]
    assert attempt["sampler"] == {
        "engine": "vllm",
        "version": "0.30.0",
        "seeds": "stateless",
        "sleeps": True,
        "adapter": expected,
    }
    assert attempt["versions"]["vllm"] == "0.30.0"
    assert ("add_lora" in llm.events) == (expected == "beside")
