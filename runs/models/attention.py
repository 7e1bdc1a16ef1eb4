"""Attention over packed sequences without a dense mask: FlashAttention over sequences of unequal lengths."""

# Completions of one sequence do not see each other, so most of its (L, L) pairs are masked. A dense mask
# takes L² bytes and has all pairs computed. A kernel for sequences of unequal lengths gets each completion
# with the keys of its prompt before its own (`VariableLengths`) and computes the pairs that are seen. It is
# part of torch and compiles nothing, so it pays at every width.

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from grpobench.runs.models.packing import PADDING, Cost, HostRows, Pack, VariableLengths, pack_rows
from grpobench.runs.models.token_budgets import ModelError, first_line, is_out_of_memory
from grpobench.runs.tools.determinism import determinism_restored

NAME = "grpobench_packed"
"""Of the attention function, in transformers' registry."""
UNSPLIT = Cost(1.0, 0.0)
"""What a forward pass costs where masked pairs cost nothing: a group is never split over sequences."""
TYPES: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
"""Types that the kernel computes in."""
LARGEST_HEAD = 256
HEAD_MULTIPLE = 8
"""The kernel takes heads of up to 256 channels, in multiples of 8."""
CAPABILITY = (8, 0)
"""Of the oldest GPU with the kernel: an A100."""
MOST_APART = 0.1
"""Largest relative difference between the kernel and the dense mask, of states and gradients: a wrong mask
makes it about 1, rounding in several layers a few hundredths in bfloat16."""
COMPARED = 256
"""Positions of the longest completion with its prompt in that comparison, several blocks of the kernel."""


class PackedAttention:
    """Which attention packs get: with a dense mask, or FlashAttention where it has shown that it computes the
    same.

    `implementation` is `sdpa` (always dense), `flash`, or `auto`: FlashAttention where the device, the type
    of numbers and the model allow it, and dense masks with a warning if it fails there. Raises ModelError for
    `flash` where they do not.
    """

    def __init__(self, language: Any, implementation: str, device: torch.device, dtype: torch.dtype) -> None:
        why_not = "" if implementation == "sdpa" else obstacle(language, device, dtype)
        self.demanded = implementation == "flash"
        if self.demanded and why_not:
            raise ModelError(f'FlashAttention {why_not}; set model.attention = "auto"')
        self.flash = implementation != "sdpa" and not why_not
        self.proven: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Trunks, each of which the kernel must serve: a teacher is a model of another kind."""

    def serves(self, dtype: torch.dtype) -> bool:
        """Whether packs that are computed in this type need no dense mask. A check of a model computes in
        float32, whatever the run does."""
        return self.flash and dtype in TYPES

    def mask(self, trunk: nn.Module, layout: Pack) -> torch.Tensor | VariableLengths:
        """What stands for the mask of a pack in a forward pass of a trunk, to be asked for in the precision
        of the pass."""
        if layout.parts is not None and self.flash and trunk not in self.proven:
            self._prove(trunk)
        return layout.parts if layout.parts is not None and self.flash else layout.mask()

    def _prove(self, trunk: nn.Module) -> None:
        """At the first pack that needs it: compare FlashAttention with a dense mask, forward and backward."""
        use(trunk)
        try:
            apart = difference(trunk)
            # In this form NaN is a difference, too.
            why = "" if apart <= MOST_APART else f"it differs from a dense mask by {apart:.2g} of the size"
        except Exception as error:  # a kernel fails as it likes
            if is_out_of_memory(error):
                raise  # a retry with fewer tokens compares again
            why = first_line(error)
        self.proven.add(trunk)
        if not why:
            return
        if self.demanded:
            raise ModelError(f'FlashAttention cannot be used: {why}; set model.attention = "sdpa"')
        self.flash = False
        warnings.warn(f"packed sequences get dense masks, because FlashAttention failed: {why}", stacklevel=2)


def obstacle(language: Any, device: torch.device, dtype: torch.dtype) -> str:
    """Why the kernel cannot serve a model on a device in a type of numbers; empty if it can."""
    if device.type != "cuda":
        return f"needs a CUDA device, and this one is of type {device.type}"
    if torch.cuda.get_device_capability(device) < CAPABILITY:
        return "needs a GPU of compute capability 8.0 or more"
    if dtype not in TYPES:
        return f'computes in bfloat16 and float16 alone, and model.dtype is "{str(dtype).split(".")[-1]}"'
    config = language.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return "" if serves_heads(size) else f"has no kernel for heads of {size} channels"


def serves_heads(size: int) -> bool:
    return size <= LARGEST_HEAD and size % HEAD_MULTIPLE == 0


def difference(trunk: nn.Module) -> float:
    """The larger relative difference of states and gradients between the kernel and the dense mask, on a pack
    of two prompts with completions of several lengths, of which one sees a part of its prompt only."""
    embeddings: Any = trunk.get_input_embeddings()  # type: ignore[operator]
    device = embeddings.weight.device
    positions = getattr(trunk.config, "max_position_embeddings", None) or COMPARED
    half = max(1, min(COMPARED, positions) // 2)  # of a prompt, and of the longest completion
    prompts, lengths = [half, max(1, half // 2), half, max(1, half // 3)], [half, half // 3 + 1, half, half]
    # Not the global generator: runs with and without the kernel must draw the same numbers later.
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, embeddings.num_embeddings, (2, len(prompts), half), generator=generator)
    prompt, completion = tokens.numpy()
    mask, groups = np.ones_like(completion, dtype=bool), [0, 0, 0, 1]
    rows = HostRows(prompts, lengths, groups, prompt, completion, mask, None)
    layout = pack_rows(rows, tokens[1].to(device), UNSPLIT, parts=True)
    states_and_gradients: list[tuple[torch.Tensor, torch.Tensor]] = []
    # What padding sees is not the same in both.
    token = (layout.segment != PADDING)[..., None]
    # The first pack may be read without gradient, and the backward pass must be compared all the same.
    with torch.enable_grad():
        for either_mask in (layout.mask(), layout.parts):
            # The gradient of the inputs, not of weights: these may be frozen, and their `.grad` must stay
            # empty.
            inputs = embeddings(layout.tokens).detach().requires_grad_()
            output: Any = trunk(
                inputs_embeds=inputs,
                attention_mask=either_mask,
                position_ids=layout.position,
                use_cache=False,
            )
            states = output.last_hidden_state * token
            # A new generator for each mask: both get the same weights, else their gradients would differ.
            weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(1)).to(states)
            (gradient,) = torch.autograd.grad((states * weight).sum(), inputs)
            # Detached, so that the graph of the first pass is gone before the second one.
            states_and_gradients.append((states.detach().float(), gradient.float()))
    apart = [
        ((first - other).norm() / first.norm()).item()
        for first, other in zip(*states_and_gradients, strict=True)
    ]
    return float(max(apart))


def use(trunk: Any) -> None:
    """Have a trunk attend by FlashAttention where it gets `VariableLengths`, and as before
    elsewhere."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | VariableLengths | None,
        **settings: Any,
    ) -> Any:
        # By the mask and not by a switch: with activation checkpointing, layers run again when no switch of
        # the forward pass is set any more.
        if isinstance(attention_mask, VariableLengths):
            return attend_within(query, key, value, attention_mask, settings.get("scaling")), None
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)

    def mask(**settings: Any) -> Any:
        # transformers asks for a mask whenever it is not handed a tensor of four dimensions.
        parts = settings.get("attention_mask")
        return parts if isinstance(parts, VariableLengths) else sdpa_mask(**settings)

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)
    trunk.set_attn_implementation(NAME)


def attend_within(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    parts: VariableLengths,
    scale: float | None = None,
) -> torch.Tensor:
    """Causal attention of queries (S, A, L, D) to keys and values (S, K, L, D) within the parts of a pack:
    (S, L, A, D). K divides A, and `scale` is D^(−1/2) unless it is given."""
    device = query.device.type
    # Rotary positions leave float32 under autocast, which knows nothing of this kernel.
    computed = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else value.dtype
    states = [states.to(computed).transpose(1, 2).flatten(0, 1) for states in (query, key, value)]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    attended: torch.Tensor = AttentionWithin.apply(*states, parts, factor)  # type: ignore[no-untyped-call]
    return attended.view(parts.shape[0], parts.shape[2], *attended.shape[1:])


class AttentionWithin(torch.autograd.Function):
    """The kernel over queries (S · L, A, D) and keys and values (S · L, K, D), of which it gets the copies
    (M, K, D). The copies are made again for the backward pass: kept, they would take a prompt's memory for
    each completion and layer."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        parts: VariableLengths,
        scale: float,
    ) -> torch.Tensor:
        keys, values = _copied(parts, key, value)
        attended, *beside = flash(query, keys, values, parts, scale)
        ctx.save_for_backward(query, key, value, attended, *beside)
        ctx.parts, ctx.scale = parts, scale
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, attended, *beside = ctx.saved_tensors
        parts: VariableLengths = ctx.parts
        keys, values = _copied(parts, key, value)
        of_query, *of_copies = flash_backward(
            gradient, query, keys, values, attended, beside, parts, ctx.scale
        )
        return of_query, *map(parts.sum_copies, of_copies), None, None


def _copied(parts: VariableLengths, *states: torch.Tensor) -> list[torch.Tensor]:
    return [each.index_select(0, parts.columns) for each in states]


def flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, parts: VariableLengths, scale: float
) -> tuple[torch.Tensor, ...]:
    """The kernel of torch: (N, A, D) from queries (N, A, D) and keys and values (M, K, D), and what its
    backward pass needs: log-sum-exp, and two tensors for dropout, of which there is none."""
    lengths = parts.query_ends, parts.key_ends, parts.most_queries, parts.most_keys
    outputs = torch.ops.aten._flash_attention_forward(
        query, key, value, *lengths, 0.0, True, False, scale=scale
    )
    return tuple(outputs[:4])


def flash_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attended: torch.Tensor,
    beside: list[torch.Tensor],
    parts: VariableLengths,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    """The gradients of queries (N, A, D), and of keys and values (M, K, D)."""
    log_sum_exp, *dropout = beside
    lengths = parts.query_ends, parts.key_ends, parts.most_queries, parts.most_keys
    with strictly():
        gradients: tuple[torch.Tensor, ...] = torch.ops.aten._flash_attention_backward(
            *(gradient, query, key, value, attended, log_sum_exp, *lengths, 0.0, True, *dropout), scale=scale
        )
    return gradients


@contextmanager
def strictly() -> Iterator[None]:
    """Within, torch takes operators that add in one order where that was preferred before. Its kernel does so
    only on demand: where torch may warn instead, the kernel warns."""
    with determinism_restored():
        torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
        yield
