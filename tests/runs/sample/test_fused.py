"""Decoding with fused layers: a model's own logits, by weights as they are now, where that is proved."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from helpers.sampling import EXACT, PROMPTS, requests, sampler, six_steps, texts
from helpers.toys import ARCHITECTURES, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample import fused
from grpobench.runs.sample.decoding import Decoding, ways
from grpobench.runs.sample.fused import Fused, fits

OWNER = (0, 1, 1, 2, 0, 3, 1, 0)
LLAMAS = ("llama", "qwen2")


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("architecture", LLAMAS)
def test_fused_layers_give_the_models_own_logits(architecture: str, mixed: bool) -> None:
    language = tiny(architecture)
    with torch.no_grad():  # norms whose weights are 1 and biases of nought would hide a mistake
        for name, p in language.named_parameters():
            if "norm" in name or "bias" in name:
                p.add_(torch.randn_like(p) * 0.3)
    models = RoleModels(language)
    assert fits(models) and ways(models, 0) == (True, True)
    plain_logp, fast = (six_steps(models, True, fuse, mixed) for fuse in (False, True))
    for fused_step, other in zip(fast, plain_logp, strict=True):
        torch.testing.assert_close(fused_step, other, rtol=0, atol=EXACT)


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - set(LLAMAS)))
def test_other_architectures_decode_by_their_own_forward_pass(architecture: str) -> None:
    source = sampler(architecture)
    assert source.shares and not source.fuses


def without_a_part(language: Any) -> None:
    language.model.layers[0].self_attn.q_norm = torch.nn.Identity()


def with_an_adapter(language: Any) -> None:
    class Adapted(torch.nn.Linear):
        """As a low-rank adapter stands in for a layer."""

    attention = language.model.layers[1].self_attn
    attention.q_proj = Adapted(32, 32, bias=False)


def with_a_hook(language: Any) -> None:
    language.model.layers[0].mlp.register_forward_hook(lambda module, inputs, output: output)


def with_a_moving_table(language: Any) -> None:
    language.model.rotary_emb.rope_type = "dynamic"


@pytest.mark.parametrize("change", [without_a_part, with_an_adapter, with_a_hook, with_a_moving_table])
def test_a_llama_with_something_more_is_not_fused(change: Any) -> None:
    language = tiny()
    change(language)
    assert not fits(RoleModels(language))


def test_a_model_larger_than_is_copied_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "MOST_COPIED", 1000)
    assert not fits(RoleModels(tiny()))
    assert fits(RoleModels(tiny(), dtype="bfloat16"))  # cast anyway


def test_model_computing_something_else_with_same_parts_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A norm that adds one to its weight, as Gemma's does."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    plain = LlamaRMSNorm.forward
    monkeypatch.setattr(LlamaRMSNorm, "forward", lambda self, states: 2 * plain(self, states))
    models = RoleModels(tiny())
    assert fits(models) and ways(models, 0) == (True, False)


def test_a_sampler_follows_weights_that_move_between_two_calls() -> None:
    fused_sampler, other = sampler(), sampler()
    other.fuses = False
    assert fused_sampler.fuses
    for _ in range(2):
        ours, theirs = (source.sample(requests(), 15, 1.0) for source in (fused_sampler, other))
        assert texts(ours) == texts(theirs)
        for source in (fused_sampler, other):
            for p in source.models.language.parameters():
                p.data.mul_(0.9)  # as an optimizer of somebody's may do it, unseen by torch


def in_bfloat16(scale: float = 1.0) -> RoleModels:
    """A Llama whose logits are so many times larger."""
    language = tiny()
    with torch.no_grad():
        language.get_output_embeddings().weight.mul_(scale)
    return RoleModels(language, dtype="bfloat16")


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_logits_as_large_as_those_of_real_models_are_shared_and_fused_in_bfloat16(scale: float) -> None:
    """Logits of 16 to 32 have steps of an eighth, so that some always differ by that much."""
    models = in_bfloat16(scale)
    repeated, shared = (torch.cat(six_steps(models, share)) for share in (False, True))
    assert scale == 1.0 or ((repeated - shared).abs().max() > 0.1 and repeated.max() - repeated.min() > 16)
    assert ways(models, 0) == (True, True)


def test_a_fault_smaller_than_bfloat16_rounds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 shows it: a norm that gives one in a thousand more."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    plain = LlamaRMSNorm.forward
    monkeypatch.setattr(LlamaRMSNorm, "forward", lambda self, states: 1.001 * plain(self, states))
    assert ways(in_bfloat16(), 0) == (True, False)


@pytest.mark.parametrize(("part", "bits"), [("attention", 5), ("step", 3)])
def test_a_way_that_is_right_in_float32_alone_and_coarse_in_bfloat16_is_found(
    part: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds what a part computes to fewer bits, where the run rounds to eight."""
    owner: Any = Decoding if part == "attention" else Fused
    plain = getattr(owner, part)

    def coarse(self: Any, *arguments: Any) -> torch.Tensor:
        exact: torch.Tensor = plain(self, *arguments)
        if (self.models if part == "attention" else self).dtype == torch.float32:
            return exact
        mantissa, exponent = exact.float().frexp()
        return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent).to(exact.dtype)

    monkeypatch.setattr(owner, part, coarse)
    assert ways(in_bfloat16(), 0) == (part == "step", False)
    assert ways(RoleModels(tiny()), 0) == (True, True)


def test_a_probe_in_float32_copies_one_layer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**tiny().config.to_dict(), "num_hidden_layers": 6}
    language = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    alive: list[weakref.ref[Any]] = []
    most = []
    plain = Fused._layer

    def made(self: Fused, layer: Any) -> Any:
        layer_weights = plain(self, layer)
        alive.append(weakref.ref(layer_weights))
        most.append(sum(reference() is not None for reference in alive))
        return layer_weights

    monkeypatch.setattr(Fused, "_layer", made)
    assert ways(RoleModels(language, dtype="bfloat16"), 0) == (True, True)
    assert len(most) >= 12 and max(most) == 2, "the one in use, and the next"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("share", "fuse"), [(False, False), (True, False), (True, True)])
@torch.inference_mode()
def test_keys_and_values_are_kept_in_the_runs_own_precision(share: bool, fuse: bool, dtype: str) -> None:
    """Two layers, two heads of size 8, keys and values: 64 numbers a column."""
    models = RoleModels(tiny(), dtype=dtype)
    run = Decoding(models, PROMPTS, torch.tensor(OWNER), 7, 0, share, fused=Fused(models) if fuse else None)
    for _ in range(2):
        run.advance(torch.full((len(OWNER),), 3), None, None)
    width, numbers = max(map(len, PROMPTS)), 2 * 2 * 8 * 2
    columns = len(PROMPTS) * width + len(OWNER) * 7 if share else len(OWNER) * (width + 7)
    cache_tensors = [tensor for layer in run.cache.layers for tensor in layer.store]
    if share:
        cache_tensors += [
            tensor for layer in run.cache.layers for tensor in (layer.prompt_keys, layer.prompt_values)
        ]
    assert {tensor.dtype for tensor in cache_tensors} == {models.dtype}
    bytes_of_a_number = 4 if dtype == "float32" else 2
    assert sum(tensor.numel() * tensor.element_size() for tensor in cache_tensors) == (
        columns * numbers * bytes_of_a_number
    )


class Casts(TorchDispatchMode):
    """Counts casts to bfloat16 of whole weights."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if function is torch.ops.aten._to_copy.default and options.get("dtype") == torch.bfloat16:
            self.counts[tuple(args[0].shape)] += 1
        return function(*args, **options)


def test_in_bfloat16_a_weight_is_cast_once_a_call_and_not_at_every_token() -> None:
    models = RoleModels(tiny(), dtype="bfloat16")
    assert ways(models, 0) == (True, True)
    counted = []
    with torch.no_grad():  # in inference mode a cast is not seen as one
        for tokens in (2, 6):
            casts = Casts()
            with casts:
                run = Decoding(models, PROMPTS, torch.tensor(OWNER), 7, 0, True, fused=Fused(models))
                stopped = torch.zeros(len(OWNER), dtype=torch.bool)
                for _ in range(tokens):
                    run.advance(torch.full((len(OWNER),), 3), stopped, None)
            weights = {tuple(p.shape) for p in models.language.parameters()}
            weights |= {(64, 32), (96, 32)}  # queries with keys and values, gate with up
            counted.append({shape: n for shape, n in casts.counts.items() if shape in weights})
    assert counted[0] == counted[1] and counted[0][64, 32] >= 2
