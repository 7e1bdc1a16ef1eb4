"""Triton kernels of the output head: log-probability, entropy, and the gradient of 16-bit logits."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

# torch needs about twenty passes over float32 copies of the logits for what these kernels do in one pass over
# the logits forward and one backward. `RoundedLogits` in head.py has the same in plain torch: the reference,
# and what is used where Triton is not.

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096
"""Logits of a row that a program holds at once."""
WARPS = 8
"""Of a program: 16 logits for each thread."""
LOWEST = tl.constexpr(-1e30)
"""What the maximum of a row begins with. Finite: −∞ less −∞ is no number, and a row may begin with a block of
logits of −∞."""


# Single numbers are read from the pointers that are excepted, and these may be parts of other tensors: Triton
# would compile once more for those that lie at a multiple of 16 bytes.
@triton.jit(do_not_specialize_on_alignment=["tokens"])
def _row_statistics(
    logits,
    tokens,
    logp,
    entropy,
    largest,
    total,
    row_stride,
    vocabulary,
    inverse_temperature,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * row_stride  # a tensor may have more than 2^31 logits
    column = tl.arange(0, BLOCK)
    highest = LOWEST
    # Sums of each lane, added up once behind the loop.
    weights = tl.zeros([BLOCK], tl.float32)
    moments = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        mask = first + column < vocabulary
        z = tl.load(start + first + column, mask=mask, other=-float("inf")).to(tl.float32)
        before, highest = highest, tl.maximum(highest, tl.max(z, 0))
        # What was added up so far, relative to the new maximum.
        step = (before - highest) * inverse_temperature
        scale = tl.exp(step)
        shifted = (z - highest) * inverse_temperature
        weight = tl.exp(shifted)
        moments = (moments + weights * step) * scale
        # 0 · −∞ is no number.
        moments += tl.where(weight > 0, weight * shifted, 0.0)
        weights = weights * scale + weight
    sum_of_weights = tl.sum(weights, 0)
    log_total = tl.log(sum_of_weights)
    chosen = tl.load(start + tl.load(tokens + row)).to(tl.float32)
    tl.store(logp + row, (chosen - highest) * inverse_temperature - log_total)
    tl.store(entropy + row, log_total - tl.sum(moments, 0) / sum_of_weights)
    tl.store(largest + row, highest)
    tl.store(total + row, sum_of_weights)


@triton.jit(do_not_specialize_on_alignment=["tokens", "weight"])
def _row_gradient(
    logits,
    tokens,
    largest,
    total,
    weight,
    gradient,
    row_stride,
    vocabulary,
    inverse_temperature,
    BLOCK: tl.constexpr,
):
    blocks = tl.cdiv(vocabulary, BLOCK)
    row = tl.program_id(0) // blocks
    offset = row.to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    mask = column < vocabulary
    z = tl.load(logits + offset * row_stride + column, mask=mask, other=-float("inf")).to(tl.float32)
    scaled = tl.load(weight + row) * inverse_temperature
    share = scaled / tl.load(total + row)  # one division a program, not one a logit
    each = -share * tl.exp((z - tl.load(largest + row)) * inverse_temperature)
    each += tl.where(column == tl.load(tokens + row), scaled, 0.0)
    tl.store(gradient + offset * vocabulary + column, each.to(gradient.dtype.element_ty), mask=mask)


def row_statistics(
    logits: torch.Tensor, tokens: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of 16-bit logits z (N, V) and tokens (N,): log-probability and entropy in nats of softmax(z/T), the
    largest logit and the sum of exp((z − largest)/T), each (N,) in float32.

    One pass over the logits: the sums are scaled anew when the maximum of a row grows (arXiv:1805.02867).
    """
    rows, vocabulary = logits.shape
    logp, entropy, largest, total = (
        torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(4)
    )
    if rows:  # no grid of 0 programs can be launched
        _row_statistics[(rows,)](
            logits,
            tokens,
            logp,
            entropy,
            largest,
            total,
            logits.stride(0),
            vocabulary,
            1.0 / temperature,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
    return logp, entropy, largest, total


def row_gradient(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    largest: torch.Tensor,
    total: torch.Tensor,
    weight: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """The gradient (N, V) of Σ_n weight_n · log π(token_n), from what `row_statistics` gave: (1[v = a] − π_v)
    · weight/T, in the type of the logits."""
    rows, vocabulary = logits.shape
    gradient = torch.empty(rows, vocabulary, dtype=logits.dtype, device=logits.device)
    if rows:
        # In one dimension: another than the first has at most 65,535 programs.
        _row_gradient[(rows * triton.cdiv(vocabulary, BLOCK),)](
            logits,
            tokens,
            largest,
            total,
            weight,
            gradient,
            logits.stride(0),
            vocabulary,
            1.0 / temperature,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
    return gradient
