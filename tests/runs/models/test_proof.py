"""A model is read as it reads itself, or refused in words: windows, hybrids, and what no list names."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.sampling import logps
from helpers.toys import SIZES, plain_logp, rollouts, text_of, tiny
from helpers.whole_runs import configure, run

from grpobench.runs.models import loading, proof
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.nano import VOCABULARY as CHARACTERS
from grpobench.runs.models.nano import character_tokenizer
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import Request
from grpobench.runs.train.rollouts import preference
from grpobench.tasks.data.tables import DataError

WINDOW = 16
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LINEAR = {
    **{f"linear_num_{kind}_heads": 2 for kind in ("key", "value")},
    **{f"linear_{kind}_head_dim": 8 for kind in ("key", "value")},
}
WINDOWED: dict[str, dict[str, Any]] = {
    "Mistral": {},
    "Mixtral": EXPERTS,
    "Phi3": {},
    "Phimoe": EXPERTS,
    "Starcoder2": {},
    "Qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "Qwen3": {"use_sliding_window": True, "max_window_layers": 1, "head_dim": 8},
}
STATEFUL: dict[str, tuple[str, dict[str, Any]]] = {
    "Lfm2": ("conv", {"full_attn_idxs": [1]}),
    "Qwen3Next": (
        "linear_attention",
        {
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24,
            "layer_types": ["linear_attention", "full_attention"],
            **LINEAR,
        },
    ),
    "Jamba": (
        "linear_attention",
        {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4},
    ),
}


def build(name: str, **settings: Any) -> Any:
    """A random model of an architecture of transformers, with the attention that `load` asks for."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | settings)
    return getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation="sdpa").eval()


def windowed(name: str, window: int = WINDOW) -> Any:
    return build(name, sliding_window=window, **WINDOWED[name])


def sampler(models: RoleModels) -> HFSampler:
    return HFSampler(models, [1], 0, 8, Loaded(models.language, None, {}, (1,)).context)


def gap(language: Any, prompt: int, completion: int) -> float:
    """Greatest |Δ log p| between packing and the model's own forward pass, of two completions of a prompt."""
    batch = rollouts([[completion, completion]], prompts=(prompt,))
    with torch.no_grad():
        packed_logp = RoleModels(language).forward("policy", batch).logp
        plain = torch.stack([plain_logp(language, *text_of(batch, row)) for row in range(2)])
    return (plain.gather(-1, batch.completion[..., None]).squeeze(-1) - packed_logp).abs().max().item()


@pytest.mark.parametrize("name", WINDOWED)
def test_window_is_followed_up_to_its_length_and_bounds_the_context(name: str) -> None:
    """Packed, two rows of 4 behind 12 tokens reach over the window. Beyond it the model's own numbers are
    others, by nats."""
    language = windowed(name)
    assert gap(language, WINDOW - 4, 4) < 1e-4, "float32; logits of a few tens"
    assert gap(language, 2 * WINDOW, 8) > 0.1
    loaded = Loaded(language, None, {}, (1,))
    assert loaded.context == WINDOW and "attention window of 16 tokens" in loaded.context_description
    source = sampler(RoleModels(language))
    ((first, _),) = source.sample([Request((5, 9, 30, 7), (1, 2))], WINDOW - 4, 1.0)
    torch.testing.assert_close(
        logps(language, first), torch.from_numpy(first.sampler_logp), atol=1e-4, rtol=0
    )
    with pytest.raises(DataError, match="16"):
        source.sample([Request((5, 9, 30, 7), (1,))], WINDOW - 3, 1.0)


@pytest.mark.parametrize("name", WINDOWED)
def test_window_that_no_setting_names_is_found_by_the_probe(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "WINDOW_SETTINGS", ())
    with pytest.raises(ModelError, match=rf"{name}\w* cannot be used: packed completions get probabilities"):
        RoleModels(windowed(name))


@pytest.mark.parametrize("name", STATEFUL)
def test_layers_that_carry_a_state_are_refused_in_words(name: str) -> None:
    kind, settings = STATEFUL[name]
    language = build(name, **settings)
    with pytest.raises(
        ModelError, match=rf"{name}ForCausalLM has layers of type {kind}, which carry a state"
    ):
        RoleModels(language)


@pytest.mark.parametrize("name", STATEFUL)
def test_layers_that_carry_a_state_unsaid_are_found_by_the_probe(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpobench.runs.models.roles.demand_served_layers", lambda _: None)
    language = build(name, **STATEFUL[name][1])
    with pytest.raises(ModelError, match=rf"{name}ForCausalLM cannot be used: packed"):
        RoleModels(language)


def test_decoding_that_is_not_the_models_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    models = RoleModels(tiny())
    assert sampler(models).shares
    plain = proof.log_probabilities
    monkeypatch.setattr(
        "grpobench.runs.sample.decoding.log_probabilities", lambda *arguments: plain(*arguments).roll(1, -1)
    )
    with pytest.raises(ModelError, match="decoded tokens get probabilities that differ from its own by"):
        sampler(models)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_proof_is_made_in_float32(dtype: str) -> None:
    models = RoleModels(tiny("qwen3_moe"), dtype=dtype)
    assert sampler(models).shares and models.dtype == getattr(torch, dtype)


def test_probe_reaches_over_the_window_only_when_packed() -> None:
    for window in (2, 7, 16, 100, proof.FARTHEST):
        fake = SimpleNamespace(
            language=windowed("Mistral", window), device=torch.device("cpu"), temperature=1.0
        )
        fake.language.config.max_position_embeddings = 2 * proof.FARTHEST
        batch = proof.probe(fake)  # type: ignore[arg-type]
        prompt, completion_length = batch.prompt.shape[1], batch.completion.shape[1]
        assert prompt + completion_length == window < prompt + 2 * completion_length
    fake.language.config.sliding_window = 4096  # too long to try: it bounds the context all the same
    assert proof.length(fake) == proof.USUAL  # type: ignore[arg-type]
    assert loading.read_attention_window(fake.language.config) == 4096


def folder(path: Path, window: int) -> str:
    """A Mistral over characters."""
    import transformers

    torch.manual_seed(0)
    settings = SIZES | {"vocab_size": CHARACTERS, "sliding_window": window}
    transformers.MistralForCausalLM(transformers.MistralConfig(**settings)).save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    return str(path)


def test_run_beyond_the_window_is_refused_and_one_within_it_is_served(tmp_path: Path) -> None:
    """Letters' prompts have up to 9 characters and its completions 6 tokens."""
    with pytest.raises(
        DataError, match=r"no room for 6 new tokens in the model's attention window of 10 tokens"
    ):
        run(configure(folder(tmp_path / "short", 10)), tmp_path / "one")
    config = configure(folder(tmp_path / "long", WINDOW))
    run_rows = run(
        dataclasses.replace(config, train=dataclasses.replace(config.train, steps=1)), tmp_path / "two"
    )
    assert run_rows[1]["gap/mean"] < 1e-4 and run_rows[1]["grad_norm/policy"] > 0


def test_preference_pair_beyond_the_window_is_refused(tmp_path: Path) -> None:
    loaded = load(folder(tmp_path, 10))
    pair = {"prompt": "12345", "chosen": "1234", "rejected": "1"}
    assert len(preference(pair, "f:1", loaded).rollouts) == 2
    with pytest.raises(DataError, match=r"f:1: .* 11 tokens.*attention window of 10"):
        preference({**pair, "rejected": "12345"}, "f:1", loaded)
