"""Triton kernels of a decoding step, for graphs on a GPU."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

# A decoding step of a small model is bound by the number of its kernels: torch takes about fifty a layer, of
# which four are products. Here what lies between two products is one kernel, so that a layer takes nine, and
# the draw of a token, fifteen passes over all logits in float64, is three of which only two read the logits.
#
# What is computed is what `Fused.step`, `StaticBatch.attention` and `draws.choose` compute, which are the
# reference of the tests. Products stay torch's. Sums are made in one order, so a step repeats to the bit.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

if TYPE_CHECKING:
    from grpobench.runs.sample.fused import Fused

COLUMNS: int = 64
"""Keys that attention reads at once."""
PIECE: int = 2048
"""Logits of a row that a program of the draw reads."""
LEAST_ROWS: int = 16
"""Fewest rows of a product of blocks."""
NEVER: tl.constexpr = tl.constexpr(-1e30)
"""Below every score: finite, unlike −∞, whose difference to itself would be NaN."""
ONE_BITS: tl.constexpr = tl.constexpr(0x3FF << 52)
"""As `draws.ONE_BITS`."""


@triton.jit
def normalize_rows(
    states, added, weight, out, hidden, epsilon, ADDS: tl.constexpr, WEIGHS: tl.constexpr, BLOCK: tl.constexpr
):
    """`states` (R, H) in float32, plus `added` (R, H) in offset, over the root mean square of each row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    offset = row * hidden + column
    total = tl.load(states + offset, mask=inside, other=0.0)
    if ADDS:
        total += tl.load(added + offset, mask=inside, other=0.0).to(tl.float32)
        tl.store(states + offset, total, mask=inside)
    normed = total * (1.0 / tl.sqrt(tl.sum(total * total, 0) / hidden + epsilon))
    if WEIGHS:
        normed *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + offset, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def turn_and_store(
    states, cos, sin, position, last, query, keys, values, columns,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn queries and keys of `states` (R, (A + 2 K) × D) by their positions; keys and values go into column
    `last` of the cache (R, K, C, D), queries into `query` (R, A, D)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    source = states + (row * (HEADS + 2 * KEY_HEADS) + head) * SIZE
    state = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS + KEY_HEADS:
        angle = tl.load(position + row) * SIZE + column
        across = tl.load(source + (column + SIZE // 2) % SIZE, mask=inside, other=0.0).to(tl.float32)
        state = state * tl.load(cos + angle, mask=inside, other=0.0)
        state += across * tl.load(sin + angle, mask=inside, other=0.0)
    if head < HEADS:
        tl.store(query + (row * HEADS + head) * SIZE + column, state.to(query.dtype.element_ty), mask=inside)
    else:
        kind = (head - HEADS) // KEY_HEADS  # 0: a key, 1: a value
        key_head = (head - HEADS) % KEY_HEADS
        target = ((row * KEY_HEADS + key_head) * columns + tl.load(last)) * SIZE + column
        if kind == 0:
            tl.store(keys + target, state.to(keys.dtype.element_ty), mask=inside)
        else:
            tl.store(values + target, state.to(values.dtype.element_ty), mask=inside)


@triton.jit
def attend_to(
    query, largest, total, mean, keys, values, base, visible, start,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A softmax over some keys more: its largest score (r,), sum of exponentials (r,) and weighted sum of
    values (r, D), as they are after `BLOCK` keys from column `start`, of which those `visible` (n,) count."""
    number, column = tl.arange(0, BLOCK), tl.arange(0, WIDE)
    offset = (base + start + number)[:, None] * SIZE + column[None, :]
    inside = visible[:, None] & (column < SIZE)[None, :]
    key = tl.load(keys + offset, mask=inside, other=0.0)
    value = tl.load(values + offset, mask=inside, other=0.0)
    # Exact products in float32, where the default would round to 10 bits.
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    scores = tl.where(visible[None, :], scores, NEVER)
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    weight = tl.where(visible[None, :], tl.exp(scores - new_largest[:, None]), 0.0)
    shrink = tl.exp(largest - new_largest)
    total = total * shrink + tl.sum(weight, 1)
    mean = mean * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return new_largest, total, mean


@triton.jit
def attend(
    query, prompt_keys, prompt_values, padding, keys, values, last, out, most, prompt_columns, columns,
    KEY_HEADS: tl.constexpr, REPEAT: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Attention of the queries (R, K, r, D) that share a key head: to the columns of their prompt
    (P, K, n, D) that are not `padding` (P, n), and to those that their row (R, K, C, D) has written, the last
    one too."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    number, column, key_number = tl.arange(0, ROWS), tl.arange(0, WIDE), tl.arange(0, BLOCK)
    offset = ((row * KEY_HEADS + head) * REPEAT + number)[:, None] * SIZE + column[None, :]
    inside = (number < REPEAT)[:, None] & (column < SIZE)[None, :]
    queries = tl.load(query + offset, mask=inside, other=0.0)
    largest = tl.full([ROWS], NEVER, tl.float32)
    total, mean = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDE], tl.float32)
    prompt = row // most
    base = (prompt * KEY_HEADS + head) * prompt_columns
    for start in range(0, prompt_columns, BLOCK):
        within = start + key_number < prompt_columns
        hidden = tl.load(padding + prompt * prompt_columns + start + key_number, mask=within, other=1)
        largest, total, mean = attend_to(
            queries, largest, total, mean, prompt_keys, prompt_values, base, hidden == 0, start,
            SIZE, BLOCK, WIDE,
        )  # fmt: skip
    base = (row * KEY_HEADS + head) * columns
    # Read on the device: a recorded step reads as many columns as are written when it is replayed.
    written = tl.load(last).to(tl.int32) + 1
    for start in range(0, written, BLOCK):
        largest, total, mean = attend_to(
            queries, largest, total, mean, keys, values, base, start + key_number < written, start,
            SIZE, BLOCK, WIDE,
        )  # fmt: skip
    tl.store(out + offset, (mean / total[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate(states, out, width, BLOCK: tl.constexpr):
    """SiLU of the first half of each row of `states` (R, 2 I), times the second half."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    first = tl.load(states + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(states + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    gated = first / (1.0 + tl.exp(-first)) * second
    tl.store(out + row * width + column, gated.to(out.dtype.element_ty), mask=inside)


@triton.jit
def tempered(logits, row, piece, vocabulary, temperature, BLOCK: tl.constexpr):
    """A piece of a row of logits (R, V) over the temperature, −∞ behind its end."""
    column = piece * BLOCK + tl.arange(0, BLOCK)
    read = tl.load(logits + row * vocabulary + column, mask=column < vocabulary, other=float("-inf"))
    return read.to(tl.float32) / temperature


@triton.jit
def sum_exponentials(logits, largest, total, vocabulary, temperature, pieces, BLOCK: tl.constexpr):
    """The largest tempered logit of a piece of a row, and the sum of exponentials less it, as (R, pieces)."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    read = tempered(logits, row, piece, vocabulary, temperature, BLOCK)
    # A piece of −∞ alone has the sum 0.
    most = tl.maximum(tl.max(read, 0), NEVER)
    tl.store(largest + row * pieces + piece, most)
    tl.store(total + row * pieces + piece, tl.sum(tl.exp(read - most), 0))


@triton.jit
def log_normalizer(largest, total, row, pieces, WIDE: tl.constexpr):
    """The largest logit of a row, and the logarithm of the sum of exponentials less it, from its pieces."""
    number = tl.arange(0, WIDE)
    tops = tl.load(largest + row * pieces + number, mask=number < pieces, other=NEVER)
    sums = tl.load(total + row * pieces + number, mask=number < pieces, other=0.0)
    top = tl.max(tops, 0)
    return top, tl.log(tl.sum(sums * tl.exp(tops - top), 0))


@triton.jit
def masses(read, top, log_total):
    """The log-probabilities of tempered logits, in float64, and the probabilities, also as integers of 2^-52
    (`draws.integers`)."""
    logp = tl.maximum(read - top - log_total, -1e4).to(tl.float64)
    probability = tl.exp(logp)
    return logp, probability, (probability + 1.0).to(tl.int64, bitcast=True) - ONE_BITS


@triton.jit
def sum_masses(
    logits, largest, total, mass, entropy, vocabulary, temperature, pieces,
    BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The mass of a piece of a row, and what it adds to the entropy, as (R, pieces)."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top, log_total = log_normalizer(largest, total, row, pieces, WIDE)
    read = tempered(logits, row, piece, vocabulary, temperature, BLOCK)
    logp, probability, integer = masses(read, top, log_total)
    tl.store(mass + row * pieces + piece, tl.sum(integer, 0))
    tl.store(entropy + row * pieces + piece, -tl.sum(logp * probability, 0))


@triton.jit
def invert(
    logits, largest, total, mass, entropy, uniform, stride, last, drawn, drawn_logp, row_entropy,
    vocabulary, temperature, pieces, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The token of a row whose part of the cumulative distribution holds the number in column `last` of
    `uniform`, its log-probability, and the entropy of the row (`draws.invert`)."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, WIDE)
    of_pieces = tl.load(mass + row * pieces + number, mask=number < pieces, other=0)
    parts = tl.load(entropy + row * pieces + number, mask=number < pieces, other=0.0)
    tl.store(row_entropy + row, tl.sum(parts, 0).to(tl.float32))
    row_mass = tl.sum(of_pieces, 0)
    quantile = (tl.load(uniform + row * stride + tl.load(last)) * row_mass.to(tl.float64)).to(tl.int64)
    quantile = tl.minimum(quantile, row_mass - 1)
    until = tl.cumsum(of_pieces, 0)
    # The pieces that end at or before the quantile.
    before = (until <= quantile) & (number < pieces)
    piece = tl.sum(before.to(tl.int32), 0)
    piece = tl.minimum(piece, pieces - 1)
    quantile -= tl.sum(tl.where(before, of_pieces, 0), 0)
    top, log_total = log_normalizer(largest, total, row, pieces, WIDE)
    read = tempered(logits, row, piece, vocabulary, temperature, BLOCK)
    _, _, integer = masses(read, top, log_total)
    inside = (tl.cumsum(integer, 0) <= quantile).to(tl.int32)
    token = tl.minimum(piece * BLOCK + tl.sum(inside, 0), vocabulary - 1)
    logit = tl.load(logits + row * vocabulary + token).to(tl.float32) / temperature
    tl.store(drawn + row, token.to(tl.int64))
    tl.store(drawn_logp + row, logit - top - log_total)


def rms_normed(
    fused: Fused, states: torch.Tensor, epsilon: float, added: torch.Tensor | None, weighed: bool = False
) -> torch.Tensor:
    """`states` (R, H), to which `added` is added in offset, normalized, in the dtype of the products."""
    out = torch.empty(states.shape, dtype=fused.dtype, device=states.device)
    block = triton.next_power_of_2(states.shape[1])
    summand = states if added is None else added
    normalize_rows[(len(states),)](
        states, summand, fused.norm, out, states.shape[1], epsilon, added is not None, weighed, block,
        num_warps=8 if block > 1024 else 4,
    )  # fmt: skip
    return out


def step_logits(fused: Fused, static: Any, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Logits (R, V), in the dtype of the products, after one more token of each row of `static`, a
    `StaticBatch`. `cos` and `sin` (C, 1, D) are those of all positions."""
    heads, key_heads, size = fused.heads, fused.key_heads, fused.size
    # In float32 and of its own: the sums of the residual are added in offset.
    x = static.embedding.to(torch.float32, copy=True)
    rows, repeat, wide = len(x), heads // key_heads, triton.next_power_of_2(size)
    grid = static.grid
    query = torch.empty(rows, heads * size, dtype=static.cache.layers[0].keys.dtype, device=x.device)
    attended = torch.empty_like(query)
    added: torch.Tensor | None = None
    for layer, cache in zip(fused.layers, static.cache.layers, strict=True):
        states = layer.qkv(rms_normed(fused, x, layer.epsilon[0], added), layer.qkv_bias)
        turn_and_store[(rows, heads + 2 * key_heads)](
            states, cos, sin, static.position, static.last, query, cache.keys, cache.values, grid.columns,
            heads, key_heads, size, wide, num_warps=1,
        )  # fmt: skip
        attend[(rows, key_heads)](
            query, cache.prompt_keys, cache.prompt_values, static.padding, cache.keys, cache.values,
            static.last, attended, grid.most, grid.prompt_columns, grid.columns,
            key_heads, repeat, size, max(LEAST_ROWS, triton.next_power_of_2(repeat)), COLUMNS,
            max(LEAST_ROWS, wide), num_warps=4,
        )  # fmt: skip
        added = layer.out(attended.to(fused.dtype))
        states = layer.gate_up(rms_normed(fused, x, layer.epsilon[1], added))
        width = states.shape[1] // 2
        gated = torch.empty(rows, width, dtype=fused.dtype, device=x.device)
        gate[(rows, triton.cdiv(width, 1024))](states, gated, width, 1024, num_warps=4)
        added = layer.down(gated)
    return F.linear(rms_normed(fused, x, fused.epsilon, added, weighed=True), fused.head)


def draw(
    logits: torch.Tensor, uniform: torch.Tensor, last: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens (R,) drawn from logits (R, V) over the temperature at column `last` (1,) of `uniform` (R, C) in
    float64; their log-probabilities (R,), and the entropies (R,) in nats of the rows."""
    rows, vocabulary = logits.shape
    pieces = triton.cdiv(vocabulary, PIECE)
    wide = triton.next_power_of_2(pieces)
    shape, device = (rows, pieces), logits.device
    largest, total = (torch.empty(shape, device=device) for _ in range(2))
    mass = torch.empty(shape, dtype=torch.int64, device=device)
    entropy = torch.empty(shape, dtype=torch.float64, device=device)
    drawn = torch.empty(rows, dtype=torch.int64, device=device)
    drawn_logp, row_entropy = (torch.empty(rows, device=device) for _ in range(2))
    sum_exponentials[(rows, pieces)](
        logits, largest, total, vocabulary, temperature, pieces, PIECE, num_warps=4
    )
    sum_masses[(rows, pieces)](
        logits, largest, total, mass, entropy, vocabulary, temperature, pieces, PIECE, wide, num_warps=4
    )
    invert[(rows,)](
        logits, largest, total, mass, entropy, uniform, uniform.stride(0), last,
        drawn, drawn_logp, row_entropy, vocabulary, temperature, pieces, PIECE, wide, num_warps=8,
    )  # fmt: skip
    return drawn, drawn_logp, row_entropy
