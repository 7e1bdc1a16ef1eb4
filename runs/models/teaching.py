"""The batch that a teacher reads: the policy's completions behind prompts of the teacher's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from grpobench.algorithms.algorithm import Batch
from grpobench.runs.models.packing import micro_batches, packed_tokens


def taught_rows(batch: Batch) -> torch.Tensor:
    """Long (B',): the rows that the teacher reads, in order."""
    if batch.teacher_prompt_length is None:
        return torch.arange(len(batch), device=batch.completion.device)
    return (batch.teacher_prompt_length > 0).nonzero().squeeze(-1)


def as_taught(batch: Batch) -> Batch:
    """The rows that the teacher reads, with its prompts. Rows of a group may have different ones: those that
    share one, and no others, have a group number in common, so that packing computes it once."""
    if batch.teacher_prompt is None or batch.teacher_prompt_length is None:
        return batch
    read = batch[taught_rows(batch)]
    prompt, length = read.teacher_prompt, read.teacher_prompt_length
    assert prompt is not None and length is not None
    return dataclasses.replace(
        read,
        prompt=prompt,
        prompt_length=length,
        group=_by_prompt(read.group, prompt, length),
        teacher_prompt=None,
        teacher_prompt_length=None,
        # Routes are of the policy's prompt: behind another one the teacher chooses its own, also where it is
        # the policy.
        routed_experts=None,
    )


def _by_prompt(group: torch.Tensor, prompt: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Long (B,): a number for each different prompt of a group, in the order of first rows. With one prompt a
    group, rows are laid out as those of the policy."""
    texts = [tuple(text[:size]) for text, size in zip(prompt.tolist(), length.tolist(), strict=True)]
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    pairs = zip(group.tolist(), texts, strict=True)
    return torch.tensor([numbers.setdefault(pair, len(numbers)) for pair in pairs], dtype=torch.long).to(
        group.device
    )


Read = Callable[[Batch], tuple[torch.Tensor, torch.Tensor]]
"""The states of a teacher that predict the tokens of a batch (N, H), and the flat indices (N,) into (B, T) of
these tokens."""


def taught_states(
    batch: Batch, flat_index: torch.Tensor, limit: int, read: Read
) -> tuple[torch.Tensor, torch.Tensor]:
    """(which of the policy's states the teacher has a counterpart of (N',), the counterparts (N', H) in the
    same order), given the flat indices (N,) of the tokens that the policy's states predict.

    The teacher's prompts may be far longer than the policy's: more than `limit` packed tokens are read in
    pieces.
    """
    if batch.teacher_prompt is None:
        return torch.arange(len(flat_index), device=flat_index.device), read(batch)[0]
    rows, taught_batch, width = taught_rows(batch), as_taught(batch), batch.completion.shape[1]
    if not taught_batch.completion_mask.any():
        return flat_index[:0], batch.sampler_logp[:0]
    each = torch.arange(len(taught_batch), device=flat_index.device)
    fits = packed_tokens(taught_batch, each) <= limit
    states, piece_indices = [], []
    for piece in [each] if fits else micro_batches(taught_batch, each, limit):
        part, inside = read(taught_batch[piece])
        states.append(part)
        # From the row of the piece to that of the batch; the column stays.
        piece_indices.append(rows[piece][inside // width] * width + inside % width)
    # Pieces, and groups of a prompt, bring the tokens in another order than the policy's.
    at = torch.full((batch.completion.numel(),), -1, device=flat_index.device)
    at[torch.cat(piece_indices)] = torch.arange(sum(map(len, piece_indices)), device=flat_index.device)
    taught_index = (at[flat_index] >= 0).nonzero().squeeze(-1)
    return taught_index, torch.cat(states).index_select(0, at[flat_index[taught_index]])
