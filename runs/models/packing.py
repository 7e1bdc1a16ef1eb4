"""Prompt-shared packing: the layout of a batch of rollouts for one forward pass."""

# A group's prompt is computed once, and its completions follow it in the same sequence. Each completion sees
# only the prompt and itself (a block mask) and counts its positions from the prompt's end. Its hidden states
# are therefore those of an ordinary forward pass over prompt + completion, but a step costs Σ(prompt + Σ
# completions) tokens instead of G × prompt + Σ completions.
#
# The rows of a group may also branch off the group's prompt early: a row whose prompt is a beginning of the
# longest one sees only that beginning.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from grpobench.algorithms.algorithm import Batch
from grpobench.runs.tools.device import to_cpu, to_device

PADDING = -1
PROMPT = 0
PIECE = 128
"""Most columns of padding that attend to each other as one part: all of them together could be longer than
every completion, and attention costs the square."""


@dataclass(frozen=True)
class Cost:
    """What a forward pass costs, in any unit: per token, and per query-key pair of attention."""

    token: float
    pair: float

    def of(self, sequences: int, length: int) -> float:
        return sequences * length * (self.token + self.pair * length)


@dataclass(frozen=True)
class VariableLengths:
    """A pack as J parts for a kernel that attends within each part: every prompt, every completion, and
    pieces of padding. Their queries are the S · L tokens in order. The M keys of a completion are those of
    the prompt that it sees, then its own: its queries see all of them but the later ones of the completion,
    which is causal attention whose last query sees the last key."""

    columns: torch.Tensor
    """Long (M,): the token (a flat index into (S, L)) of each key. A prompt's stand there once for itself
    and once for each completion."""
    copies: torch.Tensor
    """Long (M,): the keys in the order of their tokens, so that those of one token are neighbours."""
    first_copy: torch.Tensor
    """Long (S · L,): where those of each token begin in `copies`."""
    query_ends: torch.Tensor
    """int32 (J + 1,): 0, and the number of queries up to the end of each part."""
    key_ends: torch.Tensor
    """int32 (J + 1,)."""
    most_queries: int
    """Of one part."""
    most_keys: int
    shape: tuple[int, int, int, int]
    """(S, 1, L, L), as of the dense mask in whose place transformers hands this to its layers."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def sum_copies(self, gradient: torch.Tensor) -> torch.Tensor:
        """The sum (S · L, K, D) of the gradients (M, K, D) of each token's keys. Of many completions a prompt
        has as many copies, so the order of the sum must be fixed: the forward pass of a bag of embeddings
        adds its rows one after the other, in float32."""
        bags = torch.nn.functional.embedding_bag(
            self.copies, gradient.flatten(1), self.first_copy, mode="sum"
        )
        return bags.view(-1, *gradient.shape[1:])


@dataclass(frozen=True)
class Pack:
    """S sequences of length L with the N tokens of B rollouts whose log-probabilities are asked for: those
    that the policy wrote and, for an algorithm that learns them, replies."""

    tokens: torch.Tensor
    """Long (S, L)."""
    position: torch.Tensor
    """Long (S, L)."""
    segment: torch.Tensor
    """Long (S, L): 0 prompt, i ≥ 1 the i-th completion, −1 padding."""
    source: torch.Tensor
    """Long (N,): flat index into (S, L) of the state that predicts each of the N tokens."""
    target: torch.Tensor
    """Long (N,): the token itself."""
    flat_index: torch.Tensor
    """Long (N,): flat index into (B, T) where its log-probability goes."""
    fed: torch.Tensor
    """Long (M,): flat indices into (S, L) of completion tokens used as inputs, and"""
    fed_place: torch.Tensor
    """Long (M,): their flat indices into (B, T), to replay a mixture or routes."""
    sequence: torch.Tensor
    """Long (B,): the sequence that holds each row."""
    trunk: torch.Tensor
    """Long (S,): the row whose prompt begins each sequence."""
    reach: torch.Tensor | None = None
    """Long (S, L): how much of the prompt a token's completion sees; None if every row sees all of it."""
    parts: VariableLengths | None = None
    """None where attention gets a dense mask."""

    def mask(self) -> torch.Tensor:
        """Bool (S, 1, L, L), True where a query (dim 2) may see a key (dim 3)."""
        length = self.tokens.shape[1]
        key, query = self.segment[:, None, None, :], self.segment[:, None, :, None]
        before = torch.ones(length, length, dtype=torch.bool, device=self.tokens.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=self.tokens.device)
        prompt = key == PROMPT
        if self.reach is not None:
            prompt = prompt & (torch.arange(length, device=self.reach.device) < self.reach[:, None, :, None])
        # Every query sees itself, padding too: a softmax over nothing would be NaN, also in the gradient.
        return (prompt | (key == query)) & before & (key != PADDING) | itself


def pack(batch: Batch, cost: Cost, share: bool = True, parts: bool = False) -> Pack:
    """Lay out all rows of a batch. With `share=False` every completion repeats its prompt: the plain padded
    layout, for tests and comparison. `parts`: also as `VariableLengths`."""
    return pack_rows(HostRows.of(batch), batch.completion, cost, share, parts)


def pack_rows(
    rows: HostRows, completion: torch.Tensor, cost: Cost, share: bool = True, parts: bool = False
) -> Pack:
    """`pack` of rows that are on the host already, and whose completions (B, T) are on the device, too."""
    sequences, trunks, width = _arranged(rows, cost, share)
    layout = Layout(rows, sequences, trunks, width)
    for index, (trunk, members) in enumerate(zip(trunks, sequences, strict=True)):
        start = layout.put_prompt(index, trunk)
        for number, row in enumerate(members, 1):
            start = layout.put_completion(index, row, number, start)
    branching = any(
        rows.prompts[row] < rows.prompts[trunk]
        for trunk, members in zip(trunks, sequences, strict=True)
        for row in members
    )
    return layout.pack(completion, branching, parts)


@dataclass(frozen=True)
class HostRows:
    """What the layout of B rows depends on, read from their device by one copy: building it takes many small
    slices, each of which would be a kernel of its own on a GPU."""

    prompts: list[int]
    """Tokens of each prompt."""
    lengths: list[int]
    """Tokens of each completion."""
    groups: list[int]
    prompt: np.ndarray
    """(B, P)."""
    completion: np.ndarray
    """(B, T)."""
    predicted: np.ndarray
    """Bool (B, T): tokens whose log-probabilities are asked for."""
    routes: np.ndarray | None
    """Of the prompts, (B, …); None if there are none to replay."""

    @classmethod
    def of(cls, batch: Batch) -> HostRows:
        tensors = [batch.prompt_length, batch.length, batch.group]
        written, replies = batch.completion_mask, batch.replies
        tensors += [batch.prompt, batch.completion, written if replies is None else written | replies]
        if batch.routed_experts is not None:
            tensors.append(batch.routed_experts.prompt)
        prompts, lengths, groups, prompt, completion, mask, *routed = (t.numpy() for t in to_cpu(tensors))
        routes = routed[0] if routed else None
        return cls(prompts.tolist(), lengths.tolist(), groups.tolist(), prompt, completion, mask, routes)


def packed_size(batch: Batch, cost: Cost) -> tuple[int, int]:
    """The number S and the length L of the sequences that `pack` lays a batch out in."""
    sequences, _, width = _arranged(HostRows.of(batch), cost)
    return len(sequences), width


def _arranged(rows: HostRows, cost: Cost, share: bool = True) -> tuple[list[list[int]], list[int], int]:
    """(the rows of each sequence, the row with the longest prompt of each, the length of the sequences)."""
    groups = _by_group(rows)
    sequences = _sequences(rows, groups, cost) if share else [[row] for members in groups for row in members]
    # The other prompts of a group are beginnings of its longest one.
    trunks = [max(members, key=lambda row: rows.prompts[row]) for members in sequences]
    width = max(
        # Last tokens are predicted and never fed; an empty completion takes no column.
        rows.prompts[trunk] + sum(max(0, rows.lengths[row] - 1) for row in members)
        for trunk, members in zip(trunks, sequences, strict=True)
    )
    return sequences, trunks, width


class Layout:
    """A pack of sequences of length `width` with these rows, to be filled; `trunks` are the rows whose
    prompts begin them."""

    def __init__(
        self, rows: HostRows, sequences: Sequence[Sequence[int]], trunks: Sequence[int], width: int
    ) -> None:
        self.rows, self.trunks, self.width = rows, trunks, width
        self.sequence = np.zeros(len(rows.lengths), dtype=np.int64)
        for index, members in enumerate(sequences):
            self.sequence[members] = index
        self.tokens = np.zeros((len(sequences), width), dtype=np.int64)
        self.position = np.zeros_like(self.tokens)
        self.segment = np.full_like(self.tokens, PADDING)
        # Prompts and padding get a bound beyond every column, so that it cuts nothing.
        self.reach = np.full_like(self.tokens, width)
        self.source: list[np.ndarray] = []
        self.flat_index: list[np.ndarray] = []
        self.fed: list[np.ndarray] = []
        self.fed_place: list[np.ndarray] = []

    def put_prompt(self, index: int, row: int) -> int:
        """Begin a sequence with the prompt of a row. Returns the column after it."""
        length = self.rows.prompts[row]
        self.tokens[index, :length] = self.rows.prompt[row, :length]
        self.position[index, :length] = np.arange(length)
        self.segment[index, :length] = PROMPT
        return length

    def put_completion(self, index: int, row: int, number: int, start: int) -> int:
        """Put a row's completion, the `number`-th of its sequence, at a column. Returns the next column."""
        length, prompt = self.rows.lengths[row], self.rows.prompts[row]
        # An empty completion predicts nothing, and would take −1 columns.
        if not length:
            return start
        stop = start + length - 1  # the last token is predicted, never an input
        self.tokens[index, start:stop] = self.rows.completion[row, : length - 1]
        # From the end of the row's own prompt, whatever its column: a sequence alone has these positions.
        self.position[index, start:stop] = np.arange(prompt, prompt + length - 1)
        self.reach[index, start:stop] = prompt
        self.segment[index, start:stop] = number
        base, columns = index * self.width, self.rows.completion.shape[1]
        inside = np.arange(base + start, base + stop)
        # An environment's replies are read, and predicted only for an algorithm that learns them.
        predicted = np.flatnonzero(self.rows.predicted[row, :length])
        # The state before a token predicts it: that of the first one is the last of this row's prompt, which
        # the rows of the group share.
        self.source.append(np.concatenate(([base + prompt - 1], inside))[predicted])
        self.flat_index.append(row * columns + predicted)
        self.fed.append(inside)
        self.fed_place.append(np.arange(row * columns, row * columns + length - 1))
        return stop

    def pack(self, completion: torch.Tensor, branching: bool, parts: bool) -> Pack:
        """The tensors, on the device of the completions. `branching`: some rows see only a part of their
        prompt."""
        joined = [_join(pieces) for pieces in (self.source, self.flat_index, self.fed, self.fed_place)]
        trunk = np.array(self.trunks, dtype=np.int64)
        arrays = [self.tokens, self.position, self.segment, self.reach, *joined, self.sequence, trunk]
        part_arrays = self.part_arrays() if parts else []
        tensors = to_device([*arrays, *part_arrays], completion.device)
        tokens, position, segment, reach, source, flat_index, fed, fed_place, sequence, trunks = tensors[:10]
        variable_lengths = None
        if parts:
            columns, copies, first_copy, query_ends, key_ends = tensors[10:]
            variable_lengths = VariableLengths(
                columns,
                copies,
                first_copy,
                query_ends.int(),
                key_ends.int(),
                # Of the host's arrays: a kernel is told them without waiting for the device.
                most_queries=int(np.diff(part_arrays[3]).max()),
                most_keys=int(np.diff(part_arrays[4]).max()),
                shape=(len(self.tokens), 1, self.width, self.width),
            )
        return Pack(
            tokens=tokens,
            position=position,
            segment=segment,
            source=source,
            target=completion.flatten()[flat_index],
            flat_index=flat_index,
            fed=fed,
            fed_place=fed_place,
            sequence=sequence,
            trunk=trunks,
            reach=reach if branching else None,
            parts=variable_lengths,
        )

    def part_arrays(self) -> list[np.ndarray]:
        """The tensors of `VariableLengths`, in order."""
        segment, column = self.segment.ravel(), np.tile(np.arange(self.width), len(self.segment))
        begins = (column == 0) | (segment != np.roll(segment, 1))
        starts = np.flatnonzero(begins | ((segment == PADDING) & (column % PIECE == 0)))
        lengths = np.diff(starts, append=segment.size)
        sequence = starts // self.width
        prompts = (self.segment == PROMPT).sum(1)[sequence]
        visible = np.where(segment[starts] > PROMPT, np.minimum(self.reach.ravel()[starts], prompts), 0)
        columns = _join(
            [
                np.arange(first, first + count)
                for base, shared, start, length in zip(
                    sequence * self.width, visible, starts, lengths, strict=True
                )
                for first, count in ((base, shared), (start, length))
            ]
        )
        # Stable: each token's copies come in the order of the completions.
        copies = columns.argsort(kind="stable")
        counts = np.bincount(columns, minlength=segment.size)
        ends = [np.concatenate(([0], sizes.cumsum())) for sizes in (lengths, visible + lengths)]
        return [columns, copies, counts.cumsum() - counts, *ends]


def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _by_group(rows: HostRows) -> list[list[int]]:
    """The rows of each group that can share a prompt: with routes to replay, those whose prompts have the
    same ones. A sampler that computes a prompt twice may choose other experts the second time."""
    routes = [b""] * len(rows.groups) if rows.routes is None else [row.tobytes() for row in rows.routes]
    groups: dict[tuple[int, bytes], list[int]] = {}
    for row, key in enumerate(zip(rows.groups, routes, strict=True)):
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _sequences(rows: HostRows, groups: Sequence[list[int]], cost: Cost) -> list[list[int]]:
    """The rows of each sequence, all of one group."""
    return [
        part
        for members in groups
        for part in _split(members, max(rows.prompts[row] for row in members), rows.lengths, cost)
    ]


def _split(rows: list[int], prompt: int, lengths: Sequence[int], cost: Cost) -> list[list[int]]:
    """Cut a group into the number of sequences that costs least. Long completions pay for attention over each
    other's masked tokens, so that beyond some length it is cheaper to repeat the prompt."""
    total = sum(lengths[row] for row in rows)
    # Of equal costs `min` takes the first: the fewest sequences.
    parts = min(range(1, len(rows) + 1), key=lambda n: cost.of(n, prompt + -(-total // n)))
    if parts == 1:
        return [rows]
    split: list[list[int]] = [[] for _ in range(parts)]
    filled = [0] * parts
    # The longest first, each into the emptiest sequence: all are padded to the fullest one.
    for row in sorted(rows, key=lambda row: -lengths[row]):
        least = filled.index(min(filled))
        split[least].append(row)
        filled[least] += lengths[row]
    return [part for part in split if part]  # rows without tokens fill no sequence


def packed_tokens(batch: Batch, rows: torch.Tensor) -> int:
    """The tokens of a micro-batch of these rows: each group's longest prompt and all its completions, padded
    to the longest group."""
    sizes: dict[int, tuple[int, int]] = {}
    rows = rows.to(batch.group.device)
    lists = to_cpu([values[rows] for values in (batch.group, batch.prompt_length, batch.length)])
    for group, prompt, length in zip(*(values.tolist() for values in lists), strict=True):
        longest, total = sizes.get(group, (0, 0))
        sizes[group] = max(longest, prompt), total + length
    return len(sizes) * max((sum(size) for size in sizes.values()), default=0)


def micro_batches(batch: Batch, row_group: torch.Tensor, budget: int) -> list[torch.Tensor]:
    """The rows of each micro-batch: at most `budget` packed tokens (a single row group may exceed it), groups
    of similar length together, row groups never split. Rows with row group −1 are left out."""
    tensors = to_cpu([batch.length, batch.prompt_length, batch.group, row_group])
    lengths, prompts, group, numbers = (tensor.tolist() for tensor in tensors)
    row_groups: dict[int, list[int]] = {}
    for row, number in enumerate(numbers):
        if number >= 0:
            row_groups.setdefault(number, []).append(row)
    chunks: list[tuple[int, list[int]]] = []  # (tokens, rows), each within one group
    by_group: dict[int, list[list[int]]] = {}
    for rows in row_groups.values():
        by_group.setdefault(group[rows[0]], []).append(rows)
    for members in by_group.values():
        prompt, size, current = max(prompts[row] for rows in members for row in rows), 0, list[int]()
        for rows in members:
            more = sum(lengths[row] for row in rows)
            # `current`: a row group that alone exceeds the budget must go all the same.
            if current and prompt + size + more > budget:
                chunks.append((prompt + size, current))
                size, current = 0, []
            size, current = size + more, current + rows
        chunks.append((prompt + size, current))
    # Longest first: similar lengths come together, which pads least, and memory runs out early if at all.
    chunks.sort(key=lambda chunk: -chunk[0])
    packed: list[list[int]] = []
    widest, packed_groups = 0, set[int]()
    for size, rows in chunks:
        # Two chunks of one group would be laid out as one sequence, wider than both.
        number = group[rows[0]]
        if packed and number not in packed_groups and (len(packed_groups) + 1) * widest <= budget:
            # The first chunk is the longest, to which the others are padded.
            packed[-1].extend(rows)
            packed_groups.add(number)
        else:
            packed.append(list(rows))
            widest, packed_groups = size, {number}
    return to_device([np.array(rows, dtype=np.int64) for rows in packed], batch.completion.device)


def scatter(flat: torch.Tensor, flat_index: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Values (N,) at flat indices (N,) of zeros of shape (B, T)."""
    zeros = flat.new_zeros(shape.numel())
    return zeros.index_copy(0, flat_index, flat).view(shape)


def replay(plain: torch.Tensor, trunk: nn.Module, layout: Pack, batch: Batch) -> torch.Tensor:
    """Input embeddings (S, L, H) with the sampler's mixtures instead of the tokens that it fed mixed."""
    assert batch.mixture is not None
    table = trunk.get_input_embeddings()  # type: ignore[operator]
    token = batch.mixture.token.flatten(0, 1)[layout.fed_place]
    weight = batch.mixture.weight.flatten(0, 1)[layout.fed_place]
    mixed = weight.sum(-1) > 0
    # Only what was fed mixed: elsewhere the weights are 0, and the plain token must stay.
    blend = (table(token[mixed]) * weight[mixed, :, None]).sum(1)
    # Out of place, so that gradients reach the embeddings of both; in one type, which index_copy demands.
    return plain.flatten(0, 1).index_copy(0, layout.fed[mixed], blend.to(plain.dtype)).view(plain.shape)


def estimate(trunk: nn.Module, config: Any) -> Cost:
    """Multiply-adds of a forward pass per token and per query-key pair."""
    embeddings = sum(
        p.numel() for m in trunk.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
    )
    weights = sum(p.numel() for p in trunk.parameters()) - embeddings
    # Scores and the weighted sum of values: one multiply-add each for every channel of a pair.
    return Cost(token=float(weights), pair=2.0 * config.hidden_size * config.num_hidden_layers)
