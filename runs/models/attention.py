"""Attention over packed sequences without a dense mask: FlexAttention with a mask of blocks."""

# Completions of one sequence do not see each other, so most of its (L, L) pairs are masked. A dense mask
# takes L² bytes and has all pairs computed. A block mask lists, for each 128 queries, the blocks of 128 keys
# of which any is seen, and only these are computed: its size is (L/128)².

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from grpobench.runs.models.packing import PADDING, PROMPT, Cost, Pack
from grpobench.runs.models.token_budgets import ModelError, first_line, is_out_of_memory

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Queries and keys of a block, FlexAttention's own choice on a GPU."""
NAME = "grpobench_packed"
"""Of the attention function, in transformers' registry."""
UNSPLIT = Cost(1.0, 0.0)
"""What a forward pass costs where masked pairs cost nothing: a group is never split over sequences."""
LEAST = 1024
"""Columns of the narrowest pack that gets a block mask. Below, a dense mask is at most 1 MB a sequence, and
nothing needs to be compiled."""
MOST_APART = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest relative difference between FlexAttention and the dense mask, of states and gradients: a wrong mask
makes it about 1, rounding in several layers a few hundredths in bfloat16."""


class PackedAttention:
    """Which mask packs get: dense, or of blocks where FlexAttention has shown that it computes the same.

    `implementation` is `sdpa` (always dense), `flex`, or `auto`: FlexAttention on a CUDA device, and dense
    masks with a warning if it fails there. Raises ModelError for `flex` on a CPU.
    """

    def __init__(self, language: Any, implementation: str, device: torch.device) -> None:
        if implementation == "flex" and device.type != "cuda":
            raise ModelError(
                f"FlexAttention has no backward pass on a device of type {device.type}; set model.attention "
                '= "auto"'
            )
        ordered = torch.are_deterministic_algorithms_enabled()
        strict = ordered and not torch.is_deterministic_algorithms_warn_only_enabled()
        self.demanded = implementation == "flex"
        self.flex = self.demanded or (implementation == "auto" and device.type == "cuda" and not strict)
        self.proven = False
        self.least = LEAST
        if self.flex:
            use(language)

    def mask(self, trunk: nn.Module, layout: Pack) -> torch.Tensor | BlockMask:
        """The mask of a pack for a forward pass of a trunk, to be asked for in the precision of the pass."""
        if not self.flex or layout.tokens.shape[1] < self.least:
            return layout.mask()
        if not self.proven:
            self._prove(trunk)
        return block_mask(layout) if self.flex else layout.mask()

    def _prove(self, trunk: nn.Module) -> None:
        """At the first pack that needs it: compare FlexAttention with a dense mask, forward and backward."""
        try:
            apart, most = difference(trunk)
            # In this form NaN is a difference, too.
            why = "" if apart <= most else f"it differs from a dense mask by {apart:.2g} of the size"
        except Exception as error:  # a compiler fails as it likes
            if is_out_of_memory(error):
                raise  # a retry with fewer tokens compares again
            why = first_line(error)
        self.proven = True
        if not why:
            return
        if self.demanded:
            raise ModelError(f'FlexAttention cannot be used: {why}; set model.attention = "sdpa"')
        self.flex = False
        warnings.warn(f"packed sequences get dense masks, because FlexAttention failed: {why}", stacklevel=2)


def difference(trunk: nn.Module) -> tuple[float, float]:
    """(the larger relative difference of states and gradients between both masks, the largest allowed one),
    on a pack of several blocks."""
    embeddings: Any = trunk.get_input_embeddings()  # type: ignore[operator]
    device = embeddings.weight.device
    positions = getattr(trunk.config, "max_position_embeddings", None) or BLOCK
    # Half a block, so that every block holds parts of two segments, which a wrong mask would mix up.
    half = max(1, min(BLOCK, positions) // 2)  # of a prompt, and of each completion
    count = 3 * BLOCK // half
    numbers = torch.arange(half)
    segment = torch.arange(count + 1).repeat_interleave(half)[None]
    position = torch.cat([numbers, *[half + numbers] * count])[None]
    # Not the global generator: runs with and without FlexAttention must draw the same numbers later.
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, embeddings.num_embeddings, segment.shape, generator=generator)
    nothing = torch.zeros(0, dtype=torch.long, device=device)
    layout = Pack(
        tokens.to(device),
        position.to(device),
        segment.to(device),
        *[nothing] * 7,  # the masks read the first three fields only
    )
    states_and_gradients: list[tuple[torch.Tensor, torch.Tensor]] = []
    # The first pack may be read without gradient, and the backward pass must be compared all the same.
    with torch.enable_grad():
        for mask in (layout.mask(), block_mask(layout)):
            # The gradient of the inputs, not of weights: these may be frozen, and their `.grad` must stay
            # empty.
            inputs = embeddings(layout.tokens).detach().requires_grad_()
            output: Any = trunk(
                inputs_embeds=inputs, attention_mask=mask, position_ids=layout.position, use_cache=False
            )
            states = output.last_hidden_state
            # A new generator for each mask: both get the same weights, else their gradients would differ.
            weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(1)).to(states)
            (gradient,) = torch.autograd.grad((states * weight).sum(), inputs)
            # Detached, so that the graph of the first pass is gone before the second one.
            states_and_gradients.append((states.detach().float(), gradient.float()))
    apart = [
        ((first - other).norm() / first.norm()).item()
        for first, other in zip(*states_and_gradients, strict=True)
    ]
    # Under autocast the layers compute in another type than that of the weights.
    computed = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    return max(apart), MOST_APART.get(computed or embeddings.weight.dtype, MOST_APART[torch.bfloat16])


def use(language: Any) -> None:
    """Have a language model attend by FlexAttention where it gets a block mask, and as before elsewhere."""
    from torch.nn.attention.flex_attention import BlockMask
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.flex_attention import flex_attention_forward
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | BlockMask | None,
        **settings: Any,
    ) -> Any:
        # By the mask and not by a switch: with activation checkpointing, layers run again when no switch of
        # the forward pass is set any more.
        flex = isinstance(attention_mask, BlockMask)
        function: Any = flex_attention_forward if flex else sdpa_attention_forward
        return function(module, query, key, value, attention_mask, **settings)

    AttentionInterface.register(NAME, attend)
    # Without a mask function under this name transformers hands no mask at all to the attention.
    AttentionMaskInterface.register(NAME, sdpa_mask)
    language.set_attn_implementation(NAME)


def block_mask(layout: Pack, block: int = BLOCK) -> BlockMask:
    """The mask of a pack, (S, 1, L, L), in blocks. It lets every token of prompt and completions see what
    `Pack.mask` lets it see; padding sees itself alone.

    Blocks are compared by their first and last segment, so no tensor here has L × L elements.
    """
    from torch.nn.attention.flex_attention import BlockMask

    length = layout.tokens.shape[1]
    reach = torch.full_like(layout.segment, length) if layout.reach is None else layout.reach
    segment = layout.segment

    def visible(
        sequence: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        ours, theirs = segment[sequence, query], segment[sequence, key]
        prompt = (theirs == PROMPT) & (key < reach[sequence, query]) & (ours != PADDING)
        same = (theirs == ours) & (ours != PADDING)
        return ((prompt | same) & (key <= query)) | (key == query)

    partial, full = compare_blocks(segment, reach, block)
    # int32 and contiguous, as torch's own create_block_mask makes them for the kernels.
    counts = [which.sum(-1, dtype=torch.int32)[:, None] for which in (partial, full)]
    # The numbers of the blocks in question first, in order, as from_kv_blocks wants them.
    order = [
        which.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)[:, None]
        for which in (partial, full)
    ]
    return BlockMask.from_kv_blocks(
        counts[0],
        order[0].contiguous(),
        counts[1],
        order[1].contiguous(),
        BLOCK_SIZE=block,
        mask_mod=visible,
        seq_lengths=(length, length),
    )


def compare_blocks(
    segment: torch.Tensor, reach: torch.Tensor, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of segments and reaches (S, L): bool (S, Q, K), which blocks of keys a block of queries sees in part,
    and which in full. A block seen in part may turn out not to be seen; others are exact."""
    length = segment.shape[1]
    count = -(-length // block)
    # Padding comes last, and so do larger numbers: within a sequence segments only grow.
    last = length + 1
    grown = segment.masked_fill(segment == PADDING, last)
    # Columns that only fill up the last block count as padding, which sees nothing but itself.
    blocks = torch.nn.functional.pad(grown, (0, count * block - length), value=last).unflatten(
        1, (count, block)
    )
    # The same columns must not lower the shortest reach of their block.
    shortest = torch.nn.functional.pad(reach, (0, count * block - length), value=length)
    shortest = shortest.unflatten(1, (count, block)).amin(-1)
    low, high = blocks.amin(-1), blocks.amax(-1)
    query_low, query_high = low[:, :, None], high[:, :, None]
    key_low, key_high = low[:, None, :], high[:, None, :]
    index = torch.arange(count, device=segment.device)
    before, same = index[None, None, :] < index[None, :, None], index[None, None, :] == index[None, :, None]
    tokens = query_low < last
    # The diagonal always, since every token sees itself; and as segments only grow, an earlier block shares
    # one with this only if it reaches up to it.
    visible = same | (before & tokens & ((key_low == PROMPT) | (key_high >= query_low)))
    ends = (index[None, None, :] + 1) * block
    prompt = (key_high == PROMPT) & (query_high < last) & (shortest[:, :, None] >= ends)
    same_segment = (query_low == query_high) & (key_low == key_high) & (query_low == key_low) & tokens
    # A block on the diagonal is never full: it holds keys behind its queries.
    full = before & (prompt | same_segment)
    return visible & ~full, full
