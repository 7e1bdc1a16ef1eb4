"""Prompt-shared packing: how a batch of rollouts is laid out for one forward pass.

A group's prompt is computed once and its completions stand behind it in the same sequence. Each completion
sees the prompt and itself only (a block mask) and counts its positions from the prompt's end, so its hidden
states are those of an ordinary forward pass over prompt + completion. A step then costs
Σ(prompt + Σ completions) tokens instead of G × prompt + Σ completions.

The rows of a group may also branch off the group's prompt early: a row whose prompt is a beginning of the
longest one sees only that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch

PADDING = -1
PROMPT = 0


@dataclass(frozen=True)
class Cost:
    """What a forward pass costs, in any unit: per token, and per query-key pair of attention."""

    token: float
    pair: float

    def of(self, sequences: int, length: int) -> float:
        return sequences * length * (self.token + self.pair * length)


@dataclass(frozen=True)
class Pack:
    """S sequences of length L that hold N written tokens of B rollouts."""

    tokens: torch.Tensor
    """Long (S, L)."""
    position: torch.Tensor
    """Long (S, L)."""
    segment: torch.Tensor
    """Long (S, L): 0 prompt, i ≥ 1 the i-th completion, −1 padding."""
    source: torch.Tensor
    """Long (N,): flat index into (S, L) of the state that predicts a token which the policy wrote."""
    target: torch.Tensor
    """Long (N,): the token itself."""
    flat_index: torch.Tensor
    """Long (N,): flat index into (B, T) where its log-probability goes."""
    fed: torch.Tensor
    """Long (M,): flat indices into (S, L) of completion tokens used as inputs, and"""
    fed_place: torch.Tensor
    """Long (M,): their flat indices into (B, T), for replaying a mixture."""
    reach: torch.Tensor | None = None
    """Long (S, L): how much of the prompt a token's completion sees; None where all see all of it."""

    def mask(self) -> torch.Tensor:
        """Bool (S, 1, L, L), True where a query (dim 2) may see a key (dim 3)."""
        length = self.tokens.shape[1]
        key, query = self.segment[:, None, None, :], self.segment[:, None, :, None]
        before = torch.ones(length, length, dtype=torch.bool, device=self.tokens.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=self.tokens.device)
        prompt = key == PROMPT
        if self.reach is not None:
            prompt = prompt & (torch.arange(length, device=self.reach.device) < self.reach[:, None, :, None])
        return (prompt | (key == query)) & before & (key != PADDING) | itself


def pack(batch: Batch, cost: Cost, share: bool = True) -> Pack:
    """Lay out all rows of a batch. With `share=False` every completion repeats its prompt (the plain
    padded layout, kept for tests and comparison)."""
    lengths = batch.length.tolist()
    prompts = batch.prompt_length.tolist()
    sequences = _sequences(batch, cost) if share else [[row] for rows in _by_group(batch) for row in rows]
    trunks = [max(rows, key=lambda row: prompts[row]) for rows in sequences]
    width = max(
        prompts[trunk] + sum(max(0, lengths[row] - 1) for row in rows)
        for trunk, rows in zip(trunks, sequences, strict=True)
    )
    tokens = np.zeros((len(sequences), width), dtype=np.int64)
    position = np.zeros_like(tokens)
    segment = np.full_like(tokens, PADDING)
    reach = np.full_like(tokens, width)
    branching = any(
        prompts[row] < prompts[t] for t, rows in zip(trunks, sequences, strict=True) for row in rows
    )
    source, place, fed, fed_place = [], [], [], []
    prompt, completion, written = (
        tensor.cpu().numpy() for tensor in (batch.prompt, batch.completion, batch.completion_mask)
    )
    columns = completion.shape[1]
    for index, (trunk, rows) in enumerate(zip(trunks, sequences, strict=True)):
        base = index * width
        start = prompts[trunk]
        tokens[index, :start] = prompt[trunk, :start]
        position[index, :start] = np.arange(start)
        segment[index, :start] = PROMPT
        for number, row in enumerate(rows, 1):
            if not (length := lengths[row]):
                continue
            end = prompts[row]
            stop = start + length - 1  # the last token is predicted, never read
            tokens[index, start:stop] = completion[row, : length - 1]
            position[index, start:stop] = np.arange(end, end + length - 1)
            reach[index, start:stop] = end
            segment[index, start:stop] = number
            inside = np.arange(base + start, base + stop)
            own = np.flatnonzero(written[row, :length])
            source.append(np.concatenate(([base + end - 1], inside))[own])
            place.append(row * columns + own)
            fed.append(inside)
            fed_place.append(np.arange(row * columns, row * columns + length - 1))
            start = stop
    places = _join(place)
    move = batch.completion.device
    put = [torch.from_numpy(a).to(move) for a in (tokens, position, segment, _join(source), places)]
    return Pack(
        tokens=put[0],
        position=put[1],
        segment=put[2],
        source=put[3],
        target=batch.completion.flatten()[put[4]],
        flat_index=put[4],
        fed=torch.from_numpy(_join(fed)).to(move),
        fed_place=torch.from_numpy(_join(fed_place)).to(move),
        reach=torch.from_numpy(reach).to(move) if branching else None,
    )


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _by_group(batch: Batch) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(batch.group.tolist()):
        groups.setdefault(group, []).append(row)
    return list(groups.values())


def _sequences(batch: Batch, cost: Cost) -> list[list[int]]:
    """The rows of each sequence, all of one group."""
    lengths, prompts = batch.length.tolist(), batch.prompt_length.tolist()
    return [
        part
        for rows in _by_group(batch)
        for part in _split(rows, max(prompts[row] for row in rows), lengths, cost)
    ]


def _split(rows: list[int], prompt: int, lengths: Sequence[int], cost: Cost) -> list[list[int]]:
    """Cut a group into the number of sequences that costs least: long completions pay for attention over
    each other's masked tokens, so beyond a point it is cheaper to repeat the prompt."""
    total = sum(lengths[row] for row in rows)
    parts = min(range(1, len(rows) + 1), key=lambda n: cost.of(n, prompt + -(-total // n)))
    if parts == 1:
        return [rows]
    split: list[list[int]] = [[] for _ in range(parts)]
    filled = [0] * parts
    for row in sorted(rows, key=lambda row: -lengths[row]):
        least = filled.index(min(filled))
        split[least].append(row)
        filled[least] += lengths[row]
    return [part for part in split if part]


def packed_tokens(batch: Batch, rows: torch.Tensor) -> int:
    """What rows of a batch count for as a micro-batch: each group's longest prompt and all its completions,
    padded to the longest group."""
    sizes: dict[int, tuple[int, int]] = {}
    of = [values[rows].tolist() for values in (batch.group, batch.prompt_length, batch.length)]
    for group, prompt, length in zip(*of, strict=True):
        longest, total = sizes.get(group, (0, 0))
        sizes[group] = max(longest, prompt), total + length
    return len(sizes) * max((sum(size) for size in sizes.values()), default=0)


def micro_batches(batch: Batch, unit: torch.Tensor, budget: int) -> list[torch.Tensor]:
    """Rows of each micro-batch: at most `budget` packed tokens (a single unit may exceed it), groups of
    similar length together, units never split. Rows with unit −1 are left out."""
    lengths, prompts = batch.length.tolist(), batch.prompt_length.tolist()
    units: dict[int, list[int]] = {}
    for row, number in enumerate(unit.tolist()):
        if number >= 0:
            units.setdefault(number, []).append(row)
    group = batch.group.tolist()
    chunks: list[tuple[int, list[int]]] = []  # (tokens, rows), each within one group
    by_group: dict[int, list[list[int]]] = {}
    for rows in units.values():
        by_group.setdefault(group[rows[0]], []).append(rows)
    for members in by_group.values():
        prompt, size, current = max(prompts[row] for rows in members for row in rows), 0, list[int]()
        for rows in members:
            more = sum(lengths[row] for row in rows)
            if current and prompt + size + more > budget:
                chunks.append((prompt + size, current))
                size, current = 0, []
            size, current = size + more, current + rows
        chunks.append((prompt + size, current))
    chunks.sort(key=lambda chunk: -chunk[0])
    packed: list[list[int]] = []
    widest, held = 0, set[int]()
    for size, rows in chunks:
        # Two chunks of one group would be laid out as one sequence, wider than both.
        number = group[rows[0]]
        if packed and number not in held and (len(held) + 1) * widest <= budget:
            packed[-1].extend(rows)
            held.add(number)
        else:
            packed.append(list(rows))
            widest, held = size, {number}
    return [torch.tensor(rows, dtype=torch.long, device=batch.completion.device) for rows in packed]
