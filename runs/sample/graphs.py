"""Decodes a token as one CUDA graph, for the models that `fused.py` serves."""

# On a GPU most of a small model's decoding is the time in which the processor launches hundreds of small
# operations per token. Here all tensors of a step keep their place and their shape: the cache has room for
# the longest completion, a column counts what is written, and a mask hides the rest. The whole step, from the
# embedding of the last token to the draw of the next one, is then recorded once and replayed by one launch.
#
# All random numbers of a batch are drawn before its first token and lie in a buffer, as without graphs. A
# sample therefore has its own numbers, tokens, log-probabilities and entropies.
#
# A graph belongs to a bucket of rows, prompt columns and completion columns. Rows lie in a grid of prompts ×
# most completions of one prompt, so that attention to the prompts needs no indexing; empty cells and finished
# sequences are computed and ignored. When at most half of the cells still write, they move to a smaller grid.
#
# The step does not need a GPU: without one the same step runs on the same buffers, and only the recording is
# left out. A probe (`proven`) compares it with fused decoding when a model is loaded.

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from grpobench.runs.models.head import has_triton
from grpobench.runs.models.proof import length, random_tokens
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import gpu_memory, is_out_of_memory, summarize_error
from grpobench.runs.sample.decoding import Decoding, Groups
from grpobench.runs.sample.draws import Draws, WrittenTokens, choose
from grpobench.runs.sample.fused import Fused
from grpobench.runs.sample.recording import StepRecorder
from grpobench.runs.settings.truncation import FULL, Truncation
from grpobench.runs.tools.determinism import determinism_restored
from grpobench.runs.tools.process import safe_point

COLUMNS = 32
"""The fewest columns of a bucket, of prompts and of completions."""
KEPT, KEPT_SHARE = 2**30, 32
"""Up to so many bytes of weights, buffers and graphs, or one in so many parts of the GPU's memory, are kept
from one call of the sampler to the next. Larger ones are made anew in every call, so that the memory is free
while the model is trained."""
MOST_KEPT = 8
"""Most grids that are kept from call to call."""
PER_LOGIT, PER_READ_LOGIT = 40, 4
"""Bytes that a graph holds for each logit: torch's operations make the draw in float64, kernels read the
logits and write nothing of their size."""
PER_TRUNCATED = 40
"""Bytes that it holds for each logit in addition where the distribution is truncated."""
CHECK_INTERVAL = 8
"""Tokens between two checks which sequences have ended. Each waits for the GPU."""
LARGEST_GAP, LARGEST_ROUNDED_GAP = 1e-3, 0.1
"""Nats between a recorded and a fused step: the largest in float32, the mean in bfloat16."""


@dataclass(frozen=True)
class Grid:
    """What the shapes of a step depend on."""

    prompts: int
    most: int
    """Rows of each prompt."""
    prompt_columns: int
    columns: int
    """Room for so many tokens of a completion."""
    temperature: float
    """0: greedy."""
    some_greedy: bool
    truncation: Truncation = FULL

    @property
    def rows(self) -> int:
        return self.prompts * self.most

    def cache_bytes(self, token_bytes: int) -> int:
        """Bytes of its cache, where the keys and values of a token take `token_bytes`."""
        return (self.prompts * self.prompt_columns + self.rows * self.columns) * token_bytes

    @property
    def is_plain(self) -> bool:
        """Whether every token is drawn from the full distribution, which kernels can do."""
        return bool(self.temperature) and not self.some_greedy and not self.truncation.active

    def graph_bytes(self, vocabulary: int, kernels: bool) -> int:
        """Bytes that its graphs take for what a step computes, by kernels or torch's operations."""
        each = PER_LOGIT + PER_TRUNCATED * self.truncation.active
        return (PER_READ_LOGIT if kernels and self.is_plain else each) * self.rows * vocabulary


def bucket(size: int, least: int = 1) -> int:
    """The smallest least × 2^k, or least × 3 × 2^k, that is at least `size`."""
    power = least
    while power < size:
        power *= 2
    between = power * 3 // 4
    return between if power >= 4 * least and between >= size else power


@dataclass
class Cursor:
    """Where a batch and all of its layers write."""

    last: torch.Tensor
    """(1,): which token was drawn last, from 0; its key goes into this column."""
    width: int
    """Columns that a step reads."""


class LayerCache:
    """Keys and values of a layer: of the prompts (P, K, N, D), and of what each row wrote (R, K, C, D).

    It knows the cursor and not the batch: a batch that knew itself by its layers would keep its memory until
    the garbage is collected, long after it was dropped to make room for training."""

    def __init__(self, grid: Grid, cursor: Cursor, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.cursor = cursor
        prompts = [
            (grid.prompts, tensor.shape[1], grid.prompt_columns, tensor.shape[3]) for tensor in (keys, values)
        ]
        rows = [(grid.rows, tensor.shape[1], grid.columns, tensor.shape[3]) for tensor in (keys, values)]
        # Zeros: a masked weight of 0 times whatever lay in the memory could be NaN.
        self.prompt_keys, self.prompt_values = keys.new_zeros(prompts[0]), values.new_zeros(prompts[1])
        self.keys, self.values = keys.new_zeros(rows[0]), values.new_zeros(rows[1])

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.prompt_keys, self.prompt_values, self.keys, self.values

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (R, K, 1, D) into the current column. Returns the bucket's columns, written or not."""
        for store, states in ((self.keys, keys), (self.values, values)):
            # By a tensor: a column given as a number would be recorded and never move again.
            store.index_copy_(2, self.cursor.last, states.to(store.dtype))
        width = self.cursor.width
        return self.keys[:, :, :width], self.values[:, :, :width]

    def put_prompts(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """The columns of prompts (p, K, n, D) at the right end; the rest is padding."""
        for store, states in ((self.prompt_keys, keys), (self.prompt_values, values)):
            # What an earlier batch left is masked, but must be a number, too.
            store.zero_()
            store[: len(states), :, store.shape[2] - states.shape[2] :] = states


class StaticBatch:
    """The sequences of a grid, in tensors that never move."""

    def __init__(
        self,
        grid: Grid,
        fused: Fused,
        batch: Decoding,
        end: torch.Tensor,
        recorder: StepRecorder | None = None,
        kernels: Any = None,
    ) -> None:
        rows, device = grid.rows, end.device
        self.grid, self.fused, self.end, self.recorder, self.kernels = grid, fused, end, recorder, kernels
        prompt_states = [(layer.prompt_keys, layer.prompt_values) for layer in batch.cache.layers]
        self.last = torch.zeros(1, dtype=torch.long, device=device)
        self.cursor = Cursor(self.last, grid.columns)
        self.cache = SimpleNamespace(
            layers=[LayerCache(grid, self.cursor, *states) for states in prompt_states]
        )
        # Every prompt has as many cells, so that no step needs indices (`regular`).
        self.groups = Groups(torch.arange(rows, device=device) // grid.most, grid.prompts)
        shape = (rows, grid.columns)
        self.padding = torch.ones(grid.prompts, 1, 1, grid.prompt_columns, dtype=torch.bool, device=device)
        self.rotary = fused.rotary(grid.prompt_columns + grid.columns + 1)
        self.noise = torch.zeros(shape, dtype=torch.float64, device=device)  # as `uniforms` draws them
        self.greedy = torch.zeros(rows, dtype=torch.bool, device=device)
        self.tokens = torch.zeros(shape, dtype=torch.long, device=device)
        self.logp, self.entropy = (torch.zeros(shape, device=device) for _ in range(2))
        self.length = torch.zeros(rows, dtype=torch.long, device=device)
        self.stopped = torch.ones(rows, dtype=torch.bool, device=device)
        self.position = torch.zeros(rows, dtype=torch.long, device=device)
        self.drawn = torch.zeros(rows, dtype=torch.long, device=device)
        self.column = torch.arange(grid.columns, device=device)
        width, dtype = batch.logits.shape[1], fused.norm.dtype
        self.embedding = torch.zeros(rows, len(fused.norm), dtype=dtype, device=device)
        self.steps: dict[int, Callable[[], None] | None] = {}
        """The replay of each width; None: its step has run and is not recorded yet."""
        of_token = (
            tensor.shape[1] * tensor.shape[3] * tensor.element_size()
            for pair in prompt_states
            for tensor in pair
        )
        self.nbytes = grid.cache_bytes(sum(of_token)) + grid.graph_bytes(width, kernels is not None)

    # The step

    def step(self, width: int) -> None:
        """Feed the embeddings of the tokens drawn last, and draw the next ones. Attention sees the first
        `width` columns of the completions. This is what a graph records: nothing in it waits for the
        device, and no shape depends on a value."""
        # A number, since shapes are fixed in a recording: each width has one of its own.
        self.cursor.width = width
        # In place, like everything here: a replay reads and writes where the recording did.
        self.position.add_(1)
        if self.kernels:
            logits = self.kernels.step_logits(self.fused, self, *self.rotary)
        else:
            cos, sin = (table.index_select(0, self.position) for table in self.rotary)
            logits = self.fused.step(self, self.embedding, cos, sin)
        # Only now: the key of the token drawn last belongs into its column, not into the next one.
        self.last.add_(1)
        self.choose(logits)

    def attention(
        self, layer: LayerCache, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """As `Decoding.attention`, with columns that are not written yet masked."""
        # Compared on the device: a recorded step is the same one for every token.
        unwritten = self.column[: self.cursor.width] > self.last
        return self.groups.attend(layer, query, key, value, self.padding, unwritten)

    def choose(self, logits: torch.Tensor) -> None:
        """Draw token number `last` from logits (R, V) and record it, as `Draws` and `WrittenTokens` do."""
        drawn, logp, entropy = self._drawn(logits)
        if entropy is not None:
            self.entropy.index_copy_(1, self.last, entropy[:, None].float())
        self.tokens.index_copy_(1, self.last, drawn[:, None])
        self.logp.index_copy_(1, self.last, logp[:, None])
        now = self.stopped | (drawn[:, None] == self.end).any(-1)
        # Only a sequence that ends with this very token gets a length.
        self.length.copy_(torch.where(self.stopped | ~now, self.length, self.last + 1))
        self.stopped.copy_(now)
        self.drawn.copy_(drawn)

    def _drawn(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Tokens, log-probabilities and entropies as `choose` gives them."""
        grid = self.grid
        if self.kernels and grid.is_plain:
            drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = self.kernels.draw(
                logits.contiguous(), self.noise, self.last, grid.temperature
            )
            return drawn
        logits = logits.float()
        # At temperature 0 the log-probabilities are those of 1.
        logits = logits if grid.temperature in (0.0, 1.0) else logits / grid.temperature
        uniform = self.noise.index_select(1, self.last).squeeze(1) if grid.temperature else None
        greedy = self.greedy if grid.some_greedy else None
        return choose(logits.log_softmax(-1), uniform, greedy, grid.truncation)

    def advance(self, width: int) -> None:
        """One step, with a recorder replayed from the second one of its width on. Raises RecordingError if it
        cannot be recorded."""
        step = functools.partial(self.step, width)
        with unordered():
            if self.recorder is None:
                step()
            elif width not in self.steps:
                # The first token of a width is not recorded. So no token is computed twice, and the first
                # call launches no more operations than one that records nothing.
                self.recorder.run(step)
                self.steps[width] = None
            else:
                replay = self.steps[width] = self.steps[width] or self.recorder.record(step)
                replay()

    # Filling, moving and emptying

    def fill(self, batch: Decoding, draws: Draws, cells: torch.Tensor, limit: int) -> None:
        """Take over a batch whose prompts are computed, and draw the first tokens. `cells` (jobs,) is where
        each job goes."""
        self.last.zero_()
        self.clear(limit)
        self.position[cells], self.stopped[cells] = batch.position, False
        if draws.noise is not None:
            self.noise[cells, :limit] = draws.noise
        self.greedy[cells] = draws.greedy
        self.put_padding(~batch.seen)
        for layer, computed_layer in zip(self.cache.layers, batch.cache.layers, strict=True):
            layer.put_prompts(computed_layer.prompt_keys, computed_layer.prompt_values)
        # Zeros in empty cells, which draw a token that nobody reads.
        logits = batch.logits.new_zeros((self.grid.rows, batch.logits.shape[1]))
        logits[cells] = batch.logits
        with unordered():
            self.choose(logits)

    def clear(self, limit: int) -> None:
        """Every cell is empty: it has ended before it began."""
        self.stopped.fill_(True)
        self.length.fill_(limit)  # of a sequence that never ends
        self.position.zero_()
        self.drawn.zero_()

    def put_padding(self, padding: torch.Tensor) -> None:
        """Bool (p, n): the padding of the prompts, whose columns are the last ones."""
        self.padding.fill_(True)
        self.padding[: len(padding), 0, 0, self.grid.prompt_columns - padding.shape[1] :] = padding

    def move(
        self,
        to: StaticBatch,
        prompts: torch.Tensor,
        cells: torch.Tensor,
        target_cells: torch.Tensor,
        written: int,
    ) -> None:
        """Continue in another grid: these prompts (p,), and the rows of `cells` (n,) at
        `target_cells` (n,), of which `written` tokens are drawn."""
        to.clear(0)
        to.last.copy_(self.last)
        columns = ("noise", "tokens", "logp", "entropy")
        for name in (*columns, "greedy", "length", "stopped", "position", "drawn"):
            getattr(to, name)[target_cells] = getattr(self, name)[cells]
        to.put_padding(self.padding[prompts, 0, 0])
        for ours, theirs in zip(self.cache.layers, to.cache.layers, strict=True):
            theirs.put_prompts(ours.prompt_keys[prompts], ours.prompt_values[prompts])
            theirs.keys[target_cells, :, :written] = ours.keys[cells, :, :written]
            theirs.values[target_cells, :, :written] = ours.values[cells, :, :written]

    def write(self, written: WrittenTokens, jobs: torch.Tensor, cells: torch.Tensor) -> None:
        """Write the rows of `cells` (n,) down as what `jobs` (n,) wrote."""
        limit = written.tokens.shape[1]
        for name in ("tokens", "logp", "entropy"):
            getattr(written, name)[jobs] = getattr(self, name)[cells, :limit]
        written.length[jobs], written.stopped[jobs] = self.length[cells], self.stopped[cells]


class Graphs:
    """Decodes batches of `models`' policy by recorded steps."""

    def __init__(self, models: RoleModels, kernels: Any = None) -> None:
        self.models, self.kernels = models, kernels
        self.batches: dict[Grid, StaticBatch] = {}
        self.weights: Fused | None = None
        self.keeps = True
        self.recorder = StepRecorder() if models.device.type == "cuda" else None

    @contextlib.contextmanager
    def using(self, fused: Fused) -> Iterator[None]:
        """Within, decode with these weights, a copy of the current ones. Where memory does not hold a second
        copy for graphs that stay, they are recorded anew in each call."""
        new = tensors(fused)
        most = most_kept(gpu_memory(self.models.device))
        self.keeps = sum(tensor.nbytes for tensor in new) <= most
        if self.keeps and self.weights is not None:
            for ours, theirs in zip(tensors(self.weights), new, strict=True):
                # Into the same memory, from which recorded steps read.
                ours.copy_(theirs)
        elif self.keeps:
            try:
                # `fused` shares some tensors with the model, which recorded steps must not read.
                self.weights = cloned(fused)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.keeps = False
        if not self.keeps:
            self.weights = fused
        try:
            yield
        finally:
            held_bytes = sum(tensor.nbytes for tensor in new) + sum(
                static_batch.nbytes for static_batch in self.batches.values()
            )
            # Both together: the steps of a batch read these weights.
            if not self.keeps or held_bytes > most:
                self.batches.clear()
                self.weights = None
            # The first ones were used longest ago (`_batch`).
            for grid in list(self.batches)[:-MOST_KEPT]:
                del self.batches[grid]

    def decode(self, batch: Decoding, draws: Draws, written: WrittenTokens) -> None:
        """Decode a batch whose prompts are computed, to its end. What its jobs write goes into `written`."""
        limit, table = written.tokens.shape[1], self.models.networks["policy"].trunk
        embed: Any = table.get_input_embeddings()  # type: ignore[operator]
        groups, drawing = batch.groups, (draws.temperature, draws.some_greedy, draws.truncation)
        grid = grid_for(groups.prompts, groups.most, batch.column, limit, *drawing)
        cells = groups.owner * grid.most + groups.cell % groups.most
        jobs = torch.arange(len(cells), device=cells.device)
        with self._emptied_by_failure():
            static = self._batch(grid, batch, written.end)
            static.fill(batch, draws, cells, limit)
            for t in range(1, limit):  # `fill` has drawn the first token
                safe_point()
                if t % CHECK_INTERVAL == 0:
                    unfinished = ~static.stopped[cells]
                    count = int(unfinished.sum())
                    if not count:
                        break
                    if 2 * count <= static.grid.rows:
                        # Before the move, in which the rows that have ended stay behind.
                        static.write(written, jobs, cells)
                        static, jobs, cells = self._smaller(
                            static, batch, jobs[unfinished], cells[unfinished], t
                        )
                # Outside of the recording: the table is the model's own tensor, which may move.
                static.embedding.copy_(embed(static.drawn))
                # The kernels read the written columns, whatever the width: one recording serves them all.
                columns = static.grid.columns
                static.advance(columns if self.kernels else min(columns, bucket_width(t)))
            static.write(written, jobs, cells)

    @contextlib.contextmanager
    def _emptied_by_failure(self) -> Iterator[None]:
        """Whatever fails within drops the buffers: a smaller batch that is tried next needs the memory."""
        try:
            yield
        except BaseException:
            self.batches.clear()
            raise

    def _batch(self, grid: Grid, batch: Decoding, end: torch.Tensor) -> StaticBatch:
        assert self.weights is not None
        static_batch = self.batches.pop(grid, None)
        if static_batch is None or not torch.equal(static_batch.end, end):
            # A clone of the end tokens, because recorded steps read that very tensor.
            static_batch = StaticBatch(grid, self.weights, batch, end.clone(), self.recorder, self.kernels)
        self.batches[grid] = static_batch  # the last one used comes last
        return static_batch

    def _smaller(
        self, static: StaticBatch, batch: Decoding, jobs: torch.Tensor, cells: torch.Tensor, count: int
    ) -> tuple[StaticBatch, torch.Tensor, torch.Tensor]:
        """Move the rows of `cells`, which still write and have `count` tokens, to a grid of half the rows or
        fewer, if one fits."""
        prompts, owner = (cells // static.grid.most).unique(return_inverse=True)
        groups = Groups(owner, len(prompts))
        old = static.grid
        rows, most = bucket(len(prompts)), bucket(groups.most)
        # Rounded up to a bucket, the grid may not be that much smaller.
        if 2 * rows * most > old.rows:
            return static, jobs, cells
        grid = dataclasses.replace(old, prompts=rows, most=most)
        to = self._batch(grid, batch, static.end)
        target_cells = owner * most + groups.cell % groups.most
        static.move(to, prompts, cells, target_cells, count)
        return to, jobs, target_cells


def most_kept(memory: int | None) -> int:
    """Bytes that are kept from call to call on a GPU with so many bytes of memory; None: no GPU."""
    return max(KEPT, (memory or 0) // KEPT_SHARE)


def grid_for(
    prompts: int,
    most: int,
    columns: int,
    limit: int,
    temperature: float,
    some_greedy: bool,
    truncation: Truncation = FULL,
) -> Grid:
    prompt_columns, width = bucket(columns, COLUMNS), bucket_width(limit)
    return Grid(bucket(prompts), bucket(most), prompt_columns, width, temperature, some_greedy, truncation)


def bucket_width(columns: int) -> int:
    """The columns of a bucket: `COLUMNS` × 2^k."""
    width = COLUMNS
    while width < columns:
        width *= 2
    return width


def tensors(weights: Any) -> list[torch.Tensor]:
    """Every tensor of fused weights or of a part of them, in one order."""
    if isinstance(weights, torch.Tensor):
        return [weights]
    if isinstance(weights, list | tuple):
        parts = list(weights)
    elif isinstance(weights, Fused) or dataclasses.is_dataclass(weights):
        parts = list(vars(weights).values())
    else:
        parts = []
    return [tensor for part in parts for tensor in tensors(part)]


def cloned(weights: Any) -> Any:
    """A copy of fused weights that shares no tensor with the model, whose own tensors may move."""
    if isinstance(weights, torch.Tensor):
        return weights.clone()
    if isinstance(weights, list | tuple):
        return type(weights)(map(cloned, weights))
    if isinstance(weights, Fused) or dataclasses.is_dataclass(weights):
        clone = copy.copy(weights)
        for name, value in vars(weights).items():
            object.__setattr__(clone, name, cloned(value))  # layers are frozen
        return clone
    return weights


@contextlib.contextmanager
def unordered() -> Iterator[None]:
    """Within, torch looks for no deterministic operators: those for indexed writes wait for the device, which
    a recording must not. Nothing is lost: no index of a step occurs twice, and a draw adds integers up, whose
    sums are the same in any order."""
    with determinism_restored():
        torch.use_deterministic_algorithms(False)
        yield


def proven(models: RoleModels, pad: int) -> Graphs | None:
    """Recorded decoding, if it gives the log-probabilities of fused decoding, which is proven by itself: with
    the kernels, else without them. None, with a warning, if neither does or a step cannot be recorded."""
    if kernels := step_kernels(models.device):
        graphs = Graphs(models, kernels)
        if not (reason := unproven(graphs, pad)):
            return graphs
        warnings.warn(f"decoding goes on without kernels of its own: {reason}", stacklevel=2)
    graphs = Graphs(models)
    if not (reason := unproven(graphs, pad)):
        return graphs
    warn_unrecorded(reason)
    return None


def step_kernels(device: torch.device) -> Any:
    """The module of Triton's kernels; None where there is no GPU or no Triton."""
    if device.type != "cuda" or not has_triton():
        return None
    # Only here: without Triton, which comes with torch's builds for GPUs, it cannot be imported.
    return importlib.import_module("grpobench.runs.sample.step_kernels")


def unproven(graphs: Graphs, pad: int) -> str:
    """Why recorded decoding cannot be used; empty: it gives the log-probabilities of fused decoding."""
    try:
        gaps = gaps_to_fused(graphs, pad)
    except Exception as error:  # a compiler fails as it likes
        if is_out_of_memory(error):
            raise
        return summarize_error(error)
    if not are_rounding(gaps, graphs.models.dtype):
        return f"log-probabilities of recorded steps are off by up to {float(gaps.max()):.2g} nats"
    return ""


def warn_unrecorded(reason: str) -> None:
    """Warn that a sampler goes on without CUDA graphs."""
    warnings.warn(f"sampling goes on without CUDA graphs, by fused decoding: {reason}", stacklevel=2)


def are_rounding(gaps: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether |Δ log p| in nats can come from other shapes of the same products. In bfloat16 a single token
    may be off by far more than most."""
    return bool(gaps.max() <= LARGEST_GAP if dtype == torch.float32 else gaps.mean() <= LARGEST_ROUNDED_GAP)


def gaps_to_fused(graphs: Graphs, pad: int) -> torch.Tensor:
    """|Δ log p| (3, 3) in nats between three drawn completions of three tokens and what fused decoding gives
    the same tokens."""
    models = graphs.models
    sequence_length = max(2, length(models))
    tokens = random_tokens(models, 2, sequence_length)
    prompts: Sequence[Sequence[int]] = [
        tokens[0, : max(1, sequence_length - 3)].tolist(),
        tokens[1, : max(1, sequence_length // 3)].tolist(),
    ]
    owner = torch.tensor([0, 1, 0], device=models.device)
    # No token ends a completion, so that all three columns are compared.
    never = torch.tensor([-1], device=models.device)
    draws, written = Draws(range(3), 3, 1.0, models.device), WrittenTokens(3, 3, pad, never)
    fused = Fused(models)
    with graphs.using(fused):
        # Without room for completions, which a grid has itself.
        batch = Decoding(models, prompts, owner, 0, pad, True, fused=fused)
        graphs.decode(batch, draws, written)
    reference = Decoding(models, prompts, owner, 3, pad, True, fused=fused)
    gaps = []
    for column in range(3):
        drawn = written.tokens[:, column]
        logp = reference.logits.log_softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)
        gaps.append((logp - written.logp[:, column]).abs())
        if column < 2:
            reference.advance(drawn, None, None)
    return torch.stack(gaps)
