"""FlashAttention over a pack's parts: it is attention with the dense mask, in values and gradients.

A CPU has no such kernel, so a plain loop over the parts stands in for torch's two operators; what is ours
(parts, copies and their sum, types, choice, proof) is compared with the dense mask. The kernel runs on a GPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from typing import Any

import pytest
import torch
from helpers.toys import ARCHITECTURES, distance, rollouts, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from grpobench.algorithms.algorithm import Batch
from grpobench.runs.models import attention
from grpobench.runs.models.attention import UNSPLIT, attend_within, obstacle
from grpobench.runs.models.packing import PADDING, PIECE, VariableLengths, estimate, pack
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError

FP32: dict[str, float] = {"rtol": 1e-5, "atol": 1e-5}
"""The same float32 numbers, added in another order."""
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU has no FlashAttention")


def loop(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, parts: VariableLengths, scale: float
) -> torch.Tensor:
    """What the kernel computes: each part alone, by the causal mask that ends at the last key."""
    results = []
    ends = itertools.pairwise(parts.query_ends.tolist()), itertools.pairwise(parts.key_ends.tolist())
    for (first, stop), (first_key, stop_key) in zip(*ends, strict=True):
        queries, keys = stop - first, stop_key - first_key
        assert 0 < queries <= min(keys, parts.most_queries) and keys <= parts.most_keys
        states = (query[first:stop], key[first_key:stop_key], value[first_key:stop_key])
        mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        heads = [each.transpose(0, 1)[None] for each in states]
        results.append(scaled_dot_product_attention(*heads, attn_mask=mask, scale=scale, enable_gqa=True))
    assert stop == len(query) and stop_key == len(key) == len(value)
    return torch.cat([result[0].transpose(0, 1) for result in results])


def plain_flash(*inputs: Any) -> tuple[torch.Tensor, ...]:
    result = loop(*inputs)
    return result, result.new_zeros(0), result.new_zeros(0), result.new_zeros(0)


def plain_flash_backward(gradient: torch.Tensor, *inputs: Any) -> tuple[torch.Tensor, ...]:
    *states, _, _, parts, scale = inputs
    leaves = [state.detach().requires_grad_() for state in states]
    with torch.enable_grad():
        return torch.autograd.grad(loop(*leaves, parts, scale), leaves, gradient)


@pytest.fixture
def plain_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop in place of torch's operators, also for float32."""
    monkeypatch.setattr(attention, "flash", plain_flash)
    monkeypatch.setattr(attention, "flash_backward", plain_flash_backward)
    monkeypatch.setattr(attention, "TYPES", (torch.float32, torch.bfloat16))
    monkeypatch.setattr(attention, "obstacle", lambda *_: "")


def branching(batch: Batch, prompts: list[int]) -> Batch:
    """The batch whose rows see so many tokens of their group's prompt at least."""
    shorter = torch.minimum(batch.prompt_length, torch.tensor(prompts[: len(batch)]))
    return dataclasses.replace(batch, prompt_length=shorter)


def seen_pairs(parts: VariableLengths) -> torch.Tensor:
    """Bool (S, L, L): the pairs that the kernel computes."""
    count, _, length, _ = parts.shape
    pairs = torch.zeros(count * length, count * length, dtype=torch.bool)
    ends = itertools.pairwise(parts.query_ends.tolist()), itertools.pairwise(parts.key_ends.tolist())
    for (first, stop), (first_key, stop_key) in zip(*ends, strict=True):
        for query in range(first, stop):
            pairs[query, parts.columns[first_key : stop_key - (stop - 1 - query)]] = True
    return torch.stack([pairs[s * length :, s * length :][:length, :length] for s in range(count)])


LENGTHS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=5), min_size=1, max_size=3)
PROMPTS = st.lists(st.integers(1, 9), min_size=15, max_size=15)


@given(LENGTHS, PROMPTS, st.booleans(), st.sampled_from([1, 3, PIECE]))
@settings(max_examples=60, deadline=None)
def test_parts_show_every_token_what_the_dense_mask_shows(
    lengths: list[list[int]], prompts: list[int], branch: bool, piece: int
) -> None:
    batch = rollouts(lengths, prompts=(5, 9, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpobench.runs.models.packing.PIECE", piece)
        layout = pack(branching(batch, prompts) if branch else batch, UNSPLIT, parts=True)
    parts, token = layout.parts, layout.segment != PADDING
    assert parts is not None and parts.query_ends.dtype == parts.key_ends.dtype == torch.int32
    pairs = seen_pairs(parts)
    assert torch.equal(pairs[token], layout.mask()[:, 0][token])
    padding = pairs[~token]
    # Padding sees itself and at most a piece of padding: no softmax over nothing.
    assert pairs.diagonal(dim1=1, dim2=2).all()
    assert not (pairs & ~token[:, :, None] & token[:, None, :]).any()
    assert not len(padding) or padding.sum(-1).max() <= piece


@given(LENGTHS, PROMPTS, st.integers(1, 2))
@settings(max_examples=30, deadline=None)
def test_values_and_gradients_are_those_of_the_dense_mask(
    lengths: list[list[int]], prompts: list[int], groups: int
) -> None:
    batch = branching(rollouts(lengths, prompts=(5, 9, 2)), prompts)
    layout = pack(batch, UNSPLIT, parts=True)
    generator = torch.Generator().manual_seed(0)
    count, length = layout.tokens.shape
    shapes = [(count, heads, length, 8) for heads in (2 * groups, 2, 2)]
    states = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    token = (layout.segment != PADDING)[:, :, None, None]
    expected = scaled_dot_product_attention(*states, attn_mask=layout.mask(), scale=0.3, enable_gqa=True)
    expected = expected.transpose(1, 2) * token
    weight = torch.randn(expected.shape, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "flash", plain_flash)
        patch.setattr(attention, "flash_backward", plain_flash_backward)
        assert layout.parts is not None
        attended = attend_within(*states, layout.parts, 0.3) * token  # type: ignore[misc]
        torch.testing.assert_close(attended, expected, **FP32)
        gradients = torch.autograd.grad((attended * weight).sum(), states)
    for gradient, dense in zip(
        gradients, torch.autograd.grad((expected * weight).sum(), states), strict=True
    ):
        torch.testing.assert_close(gradient, dense, **FP32)


def test_gradients_of_a_shared_prompt_are_added_in_the_order_of_completions() -> None:
    """Two completions of 2 fed tokens behind a prompt of 1: the prompt is key 0, 1 and 4."""
    layout = pack(rollouts([[3, 3]], prompts=(1,)), UNSPLIT, parts=True)
    assert layout.parts is not None
    assert layout.parts.columns.tolist() == [0, 0, 1, 2, 0, 3, 4]
    assert layout.parts.copies.tolist() == [0, 1, 4, 2, 3, 5, 6]
    assert layout.parts.first_copy.tolist() == [0, 3, 4, 5, 6]
    copies = torch.tensor([1.0, 10, 2, 3, 100, 4, 5])[:, None, None]
    assert layout.parts.sum_copies(copies).flatten().tolist() == [111, 2, 3, 4, 5]


def flat_gradient(models: RoleModels, batch: Batch) -> torch.Tensor:
    models.forward_train(("policy",), batch)["policy"].logp.sum().backward()
    gradients = [p.grad for p in models.named_parameters("policy").values() if p.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.usefixtures("plain_kernel")
def test_models_give_the_log_probabilities_and_gradients_of_a_dense_mask(
    architecture: str, checkpointing: bool
) -> None:
    batch = branching(rollouts([[6, 0, 1, 9], [4, 4, 1], [8]]), [3, 5, 4, 5, 9, 9, 9, 9])
    dense, flash = (
        RoleModels(
            tiny(architecture), ("policy",), attention=implementation, activation_checkpointing=checkpointing
        )
        for implementation in ("sdpa", "flash")
    )
    expected, output = (models.forward("policy", batch) for models in (dense, flash))
    assert flash.layout(batch).parts is not None and dense.layout(batch).parts is None
    torch.testing.assert_close(output.logp, expected.logp, **FP32)
    torch.testing.assert_close(output.entropy, expected.entropy, **FP32)
    gradients = [flat_gradient(models, batch) for models in (dense, flash)]
    # Relative to the largest: single gradients are sums of terms of that size.
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5 * float(gradients[0].abs().max()))
    trunk = flash.networks["policy"].trunk
    assert flash.attention.flash and trunk in flash.attention.proven
    assert attention.difference(trunk) < 1e-5


@pytest.mark.usefixtures("plain_kernel")
def test_under_autocast_the_kernel_gets_the_type_that_is_computed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    types = set()

    def recorded(*inputs: Any) -> tuple[torch.Tensor, ...]:
        types.update(state.dtype for state in inputs[:3])
        return plain_flash(*inputs)

    batch = rollouts([[6, 3]])
    expected = RoleModels(tiny(), ("policy",), dtype="bfloat16", attention="sdpa").forward("policy", batch)
    models = RoleModels(tiny(), ("policy",), dtype="bfloat16")
    monkeypatch.setattr(attention, "flash", recorded)
    logp = models.forward("policy", batch).logp
    assert types == {torch.bfloat16}
    # bfloat16 has three digits, and logits are about 10.
    torch.testing.assert_close(logp, expected.logp, rtol=0.02, atol=0.1)


@pytest.mark.usefixtures("plain_kernel")
def test_a_teacher_of_another_kind_is_proven_too() -> None:
    models = RoleModels(tiny(), ("policy",), ("teacher",), teacher=tiny("qwen2"))
    batch = rollouts([[6, 3]])
    expected = RoleModels(tiny("qwen2"), ("policy",), attention="sdpa").forward("policy", batch).logp
    torch.testing.assert_close(models.forward("teacher", batch).logp, expected, **FP32)
    assert models.networks["teacher"].trunk in models.attention.proven


def test_a_cpu_keeps_dense_masks_and_refuses_flash_with_the_remedy() -> None:
    models = RoleModels(tiny(), ("policy",))
    assert not models.attention.flash and models.language.config._attn_implementation == "sdpa"
    assert models.cost == estimate(models.networks["policy"].trunk, models.language.config)
    with pytest.raises(ModelError, match=r'set model\.attention = "auto"'):
        RoleModels(tiny(), ("policy",), attention="flash")


@pytest.mark.parametrize(
    ("capability", "dtype", "size", "why"),
    [
        ((9, 0), torch.bfloat16, 8, ""),
        ((7, 5), torch.bfloat16, 8, "capability 8.0"),
        ((9, 0), torch.float32, 8, 'model.dtype is "float32"'),
        ((9, 0), torch.float16, 264, "no kernel for heads of 264"),
        ((9, 0), torch.float16, 12, "no kernel for heads of 12"),
    ],
)
def test_an_older_gpu_other_types_and_odd_heads_have_no_kernel(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype, size: int, why: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    language = tiny()
    language.config.head_dim = size
    answer = obstacle(language, torch.device("cuda"), dtype)
    assert why in answer and bool(answer) == bool(why)


@pytest.mark.usefixtures("plain_kernel")
def test_flash_attention_that_fails_is_replaced_by_dense_masks_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = rollouts([[6, 3]])
    expected = RoleModels(tiny(), ("policy",), attention="sdpa").forward("policy", batch).logp

    def fail(*_: Any) -> tuple[torch.Tensor, ...]:
        raise RuntimeError("no kernel image")

    def unmasked(query: Any, key: Any, value: Any, parts: Any, scale: float) -> tuple[torch.Tensor, ...]:
        backwards = dataclasses.replace(parts, columns=parts.columns.flip(0))
        return plain_flash(query, key.flip(0), value.flip(0), backwards, scale)

    for kernel, error in (
        (fail, "RuntimeError: no kernel image"),
        (unmasked, "it differs from a dense mask"),
    ):
        monkeypatch.setattr(attention, "flash", kernel)
        monkeypatch.setattr(attention, "TYPES", (torch.float32,))
        with pytest.warns(UserWarning, match=f"FlashAttention failed: {error}"):
            models = RoleModels(tiny(), ("policy",))  # the check of the model computes a pack
        assert not models.attention.flash
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(models.forward("policy", batch).logp, expected, **FP32)
    with pytest.raises(ModelError, match=r'set model\.attention = "sdpa"'):
        RoleModels(tiny(), ("policy",), attention="flash")


@pytest.mark.usefixtures("plain_kernel")
def test_a_comparison_that_ran_out_of_memory_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    models, batch = RoleModels(tiny(), ("policy",)), rollouts([[6, 3]])
    models.attention.proven.clear()
    attempts = []

    def compare(trunk: object) -> float:
        attempts.append(trunk)
        if len(attempts) == 1:
            raise torch.OutOfMemoryError("no memory")
        return 1.0

    monkeypatch.setattr(attention, "difference", compare)
    # The pass is repeated with fewer tokens at once.
    with pytest.warns(UserWarning, match="out of memory"), pytest.warns(UserWarning, match="it differs from"):
        models.forward("policy", batch)
    assert len(attempts) == 2 and not models.attention.flash


@pytest.mark.parametrize("warns", [False, True])
def test_the_kernel_adds_in_one_order_where_torch_would_only_warn(warns: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=warns)
    try:
        with attention.strictly():
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warns
    finally:
        torch.use_deterministic_algorithms(False)


@on_gpu
@pytest.mark.parametrize("checkpointing", [False, True])
def test_on_a_gpu_gradients_are_those_of_a_dense_mask_and_repeat_to_the_bit(checkpointing: bool) -> None:
    gradients = []
    for implementation in ("sdpa", "flash", "flash"):
        language = tiny(context=4096).to("cuda")
        models = RoleModels(
            language,
            ("policy",),
            attention=implementation,
            dtype="bfloat16",
            activation_checkpointing=checkpointing,
        )
        batch = rollouts([[300, 200, 300, 290]], prompts=(200,), limit=300)
        moved = {
            field.name: value.to("cuda")
            for field in dataclasses.fields(batch)
            if isinstance(value := getattr(batch, field.name), torch.Tensor)
        }
        models.forward_train(("policy",), dataclasses.replace(batch, **moved))["policy"].logp.sum().backward()
        gradients.append({name: p.grad.float() for name, p in models.named_parameters("policy").items()})
    assert distance(gradients[1], gradients[0]) < 0.1
    assert all(torch.equal(gradients[1][name], gradient) for name, gradient in gradients[2].items())
