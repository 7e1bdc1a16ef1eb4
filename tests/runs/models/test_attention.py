"""FlexAttention's block masks: they are the dense masks, and few pairs are computed in vain.

FlexAttention has a forward pass on a CPU (eager, which reads the function of the mask, not its blocks), so
the blocks are compared with the dense mask one by one. The gradient is compared where there is a GPU.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from helpers.toys import ARCHITECTURES, distance, rollouts, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.algorithms.algorithm import Batch
from grpobench.runs.models import attention
from grpobench.runs.models.attention import UNSPLIT, block_mask
from grpobench.runs.models.packing import PADDING, Cost, Pack, estimate, pack
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError

FP32: dict[str, float] = {"rtol": 1e-4, "atol": 2e-5}
"""Of log-probabilities: the same float32 numbers in another order."""
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention has no backward on a CPU")


def visible_pairs(layout: Pack, block: int) -> torch.Tensor:
    """Bool (S, L, L): the pairs that FlexAttention sees, by its lists of blocks."""
    mask = block_mask(layout, block)
    sequences, length = layout.tokens.shape
    number = torch.arange(length)
    assert mask.mask_mod is not None
    each = torch.broadcast_tensors(
        torch.arange(sequences)[:, None, None], torch.tensor(0), number[:, None], number[None, :]
    )
    inside = mask.mask_mod(*each)
    counts = {"partial": mask.kv_num_blocks, "full": mask.full_kv_num_blocks}
    indices = {"partial": mask.kv_indices, "full": mask.full_kv_indices}
    visible = torch.zeros(sequences, length, length, dtype=torch.bool)
    for kind, count in counts.items():
        for s in range(sequences):
            for q in range(count.shape[-1]):
                for k in indices[kind][s, 0, q, : count[s, 0, q]].tolist():
                    block_index = s, slice(q * block, (q + 1) * block), slice(k * block, (k + 1) * block)
                    assert not visible[block_index].any()  # no block is listed twice
                    visible[block_index] = inside[block_index] if kind == "partial" else True
    return visible


def branching(batch: Batch, prompts: list[int]) -> Batch:
    """The batch whose rows see so many tokens of their group's prompt at least."""
    shorter = torch.minimum(batch.prompt_length, torch.tensor(prompts[: len(batch)]))
    return dataclasses.replace(batch, prompt_length=shorter)


@given(
    st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=5), min_size=1, max_size=3),
    st.lists(st.integers(1, 9), min_size=15, max_size=15),
    st.sampled_from([2, 3, 8]),
    st.booleans(),
)
@settings(max_examples=40)
def test_blocks_show_every_token_what_the_dense_mask_shows(
    lengths: list[list[int]], prompts: list[int], block: int, branch: bool
) -> None:
    batch = rollouts(lengths, prompts=(5, 9, 2))
    layout = pack(branching(batch, prompts) if branch else batch, UNSPLIT)
    token = layout.segment != PADDING
    expected = layout.mask()[:, 0]
    visible = visible_pairs(layout, block)
    assert torch.equal(visible[token], expected[token])
    alone = torch.eye(visible.shape[1], dtype=torch.bool).expand_as(visible)
    assert torch.equal(visible[~token], alone[~token])  # no softmax over nothing


def computed_pairs(mask: Any) -> int:
    """Pairs of query and key that FlexAttention computes for a block mask, masked ones of its blocks too."""
    block = mask.BLOCK_SIZE[0] * mask.BLOCK_SIZE[1]
    full = 0 if mask.full_kv_num_blocks is None else int(mask.full_kv_num_blocks.sum())
    return block * (int(mask.kv_num_blocks.sum()) + full)


def test_pairs_computed_for_long_completions_are_few_more_than_those_needed() -> None:
    """8 completions of 1,024 tokens behind a prompt of 300: by hand, 300·301/2 + 8 · (1,023·1,024/2 +
    1,023·300) pairs are needed, and 8,484² stand in the dense mask."""
    layout = pack(rollouts([[1024] * 8], prompts=(300,), limit=1024), UNSPLIT)
    length = layout.tokens.shape[1]
    needed = 300 * 301 // 2 + 8 * (1023 * 1024 // 2 + 1023 * 300)
    assert length == 300 + 8 * 1023 and int(layout.mask().sum()) == needed
    assert needed < computed_pairs(block_mask(layout)) < 1.35 * needed
    split = pack(rollouts([[1024] * 8], prompts=(300,), limit=1024), Cost(1e6, 1e2))
    dense = split.tokens.shape[0] * split.tokens.shape[1] ** 2
    assert len(split.tokens) > 1 and dense > 2 * computed_pairs(block_mask(layout))


def flexible(language: Any, **options: Any) -> RoleModels:
    """Models whose packs of any width get a block mask, also on a CPU."""
    models = RoleModels(language, ("policy",), **options)
    attention.use(language)
    models.attention.flex = models.attention.proven = True
    models.attention.least = 0
    return models


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "gpt2"])
def test_flex_attention_gives_the_log_probabilities_of_a_dense_mask(architecture: str) -> None:
    batch = branching(rollouts([[6, 0, 1, 9], [4, 4, 1], [8]]), [3, 5, 4, 5, 9, 9, 9, 9])
    expected = RoleModels(tiny(architecture), ("policy",)).forward("policy", batch)
    with torch.compiler.set_stance("force_eager"):
        output = flexible(tiny(architecture)).forward("policy", batch)
    torch.testing.assert_close(output.logp, expected.logp, **FP32)
    torch.testing.assert_close(output.entropy, expected.entropy, **FP32)


def test_a_cpu_keeps_dense_masks_and_refuses_flex_with_the_remedy() -> None:
    models = RoleModels(tiny(), ("policy",))
    assert not models.attention.flex and models.language.config._attn_implementation == "sdpa"
    assert models.cost == estimate(models.networks["policy"].trunk, models.language.config)
    with pytest.raises(ModelError, match=r'set model\.attention = "auto"'):
        RoleModels(tiny(), ("policy",), attention="flex")


@pytest.mark.parametrize(
    ("architecture", "error"),
    [
        # On a CPU, which has no backward pass; torch 2.9 does not get so far.
        ("llama", "(NotImplementedError|InductorError)"),
        ("gpt2", "AttributeError: 'BlockMask'"),  # its code in transformers takes none but dense masks
    ],
)
def test_flex_attention_that_fails_is_replaced_by_dense_masks_with_a_warning(
    architecture: str, error: str
) -> None:
    models, batch = flexible(tiny(architecture)), rollouts([[6, 3]])
    models.attention.proven = False
    with pytest.warns(UserWarning, match=f"FlexAttention failed: {error}"):
        logp = models.forward("policy", batch).logp
    assert not models.attention.flex
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(models.forward("policy", batch).logp, logp)
    models.attention.flex, models.attention.proven, models.attention.demanded = True, False, True
    with pytest.raises(ModelError, match=r'set model\.attention = "sdpa"'):
        models.forward("policy", batch)


def test_a_comparison_that_ran_out_of_memory_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    models, batch = flexible(tiny()), rollouts([[6, 3]])
    models.attention.proven = False
    attempts = []

    def compare(trunk: object) -> tuple[float, float]:
        attempts.append(trunk)
        if len(attempts) == 1:
            raise torch.OutOfMemoryError("no memory")
        return 1.0, 0.1

    monkeypatch.setattr(attention, "difference", compare)
    # The pass is repeated with fewer tokens at once.
    with pytest.warns(UserWarning, match="out of memory"), pytest.warns(UserWarning, match="it differs from"):
        models.forward("policy", batch)
    assert len(attempts) == 2 and not models.attention.flex


def test_narrow_packs_keep_a_dense_mask() -> None:
    models = flexible(tiny())
    layout, trunk = pack(rollouts([[6, 3]]), UNSPLIT), models.networks["policy"].trunk
    models.attention.least = layout.tokens.shape[1] + 1
    assert isinstance(models.attention.mask(trunk, layout), torch.Tensor)
    models.attention.least -= 1
    assert not isinstance(models.attention.mask(trunk, layout), torch.Tensor)


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_on_a_gpu_gradients_are_those_of_a_dense_mask(dtype: str, checkpointing: bool) -> None:
    gradients = []
    for implementation in ("sdpa", "flex"):
        language = tiny(context=4096).to("cuda")
        models = RoleModels(
            language,
            ("policy",),
            attention=implementation,
            dtype=dtype,
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
    assert distance(gradients[1], gradients[0]) < (1e-3 if dtype == "float32" else 0.1)
