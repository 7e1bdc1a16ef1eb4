"""A batch of sequences in flight: prefilled prompts, a key-value cache, one token fed at a time."""

# The keys and values of a prompt are kept once, however many completions it has: all queries of a group meet
# them in one matrix product (as in Juravsky et al., "Hydragen", 2024), and only what a sequence wrote itself
# is its own. Attention over both parts is one softmax, so nothing is approximated. A model for which a probe
# does not confirm that, because it does more in its attention than transformers hands over, decodes with the
# prompt repeated.
#
# In a conversation every prompt goes on from what an earlier batch wrote. A batch that is kept has the keys
# and values of that, and only what is new is computed (`Known`).

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from grpobench.runs.models.proof import demand_equal, length, log_probabilities, plainly, random_tokens, unfit
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.routing import recorded, stacked
from grpobench.runs.models.token_budgets import is_out_of_memory
from grpobench.runs.sample.cache_buffers import buffers, cache_argument
from grpobench.runs.sample.fused import Fused, fits

DROP_SHARE = 8
"""Finished sequences are dropped from the batch when they are at least one in so many."""
PREFILL = 2**15
"""Most tokens of prompts that go forward at once."""
SAME = 1e-3
"""Nats by which two ways to decode may differ in float32, for every token of the vocabulary: far more than
the order of sums can change."""
COARSER = 2.0
"""How many times as far from float32 as repeated prompts another way may be in a lower precision, in the mean
over the vocabulary. The largest difference says nothing: a logit of 16 to 32 has steps of .125 in bfloat16.
Each way rounds the same sums in other places, so that all are about equally far off: .7 to 1.3 times as far
on tiny models, `nano` and `smollm2-135m` (there .05 nats). A part that is twice as far off computes more
coarsely than the model does."""
SHARED = "grpobench_shared_prompt"
"""The name under which transformers knows the attention function below."""


class Decoding:
    """Sequences of `models`' policy. `alive` (R,) are the jobs still in the batch, `logits` (R, V) come next.

    `owner` (R,) is the prompt of each job, `limit` the most tokens it may write. Keys and values in the
    `prefix_cache` are not computed again. A batch that `keeps` drops no sequence, so that others can continue
    it. With `records`, the experts that tokens were sent to are kept: `prompt_routes` (prompts, columns,
    routers, k), and `routes` (R, routers, k) of the tokens fed last.
    """

    def __init__(
        self,
        models: RoleModels,
        prompts: Sequence[Sequence[int]],
        owner: torch.Tensor,
        limit: int,
        pad: int,
        share: bool,
        prefix_cache: PrefixCache | None = None,
        keeps: bool = False,
        fused: Fused | None = None,
        records: bool = False,
    ) -> None:
        self.models, self.network = models, models.networks["policy"]
        self.share, self.keeps, self.records = share, keeps, records
        # Fused steps attend to prompts apart from completions (`attention`).
        self.fused = fused if share else None
        self.alive, self.owner = torch.arange(len(owner), device=models.device), owner
        if prefix_cache is not None:
            prompts = [prompt[length:] for prompt, length in zip(prompts, prefix_cache.lengths, strict=True)]
        width = max(map(len, prompts))
        # Filled on the CPU and moved once: on a GPU each row would be a kernel of its own.
        tokens = torch.full((len(prompts), width), pad)
        token_mask = torch.zeros(len(prompts), width, dtype=torch.bool)
        for row, prompt in enumerate(prompts):  # left padding: every sequence writes the same column next
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            token_mask[row, width - len(prompt) :] = True
        tokens, token_mask = tokens.to(models.device), token_mask.to(models.device)
        before = 0 if prefix_cache is None else prefix_cache.columns
        if prefix_cache is not None:
            token_mask = torch.cat([prefix_cache.seen, token_mask], -1)
        columns = before + width
        # Positions count tokens and not columns: padding in front must not move a prompt.
        position = (token_mask.cumsum(-1) - 1).clamp(min=0)[:, before:]
        # Shared prompts need no room behind them: completions get buffers of their own.
        states = self._prefill(tokens, token_mask, position, prefix_cache, 0 if share else limit)
        self.position = position[:, -1][owner]
        # Asked once, because it waits for the device: without padding no step needs a mask.
        self.ragged = not bool(token_mask.all())
        self.column = self.prompt_columns = columns
        self.logits = self._logits(states)[owner]  # the head once per prompt, not per job
        if share:
            self.groups = Groups(owner, len(prompts))
            self._see(token_mask)
            for layer in self.cache.layers:
                layer.keep_prompt(len(owner), limit)
            if self.fused is not None:
                self.rotary = self.fused.rotary(columns + limit)
        else:
            self.seen = torch.cat([token_mask[owner], token_mask.new_ones(len(owner), limit)], -1)
            for layer in self.cache.layers:
                layer.select(owner)

    def _prefill(
        self,
        tokens: torch.Tensor,
        token_mask: torch.Tensor,
        position: torch.Tensor,
        prefix_cache: PrefixCache | None,
        more: int,
    ) -> torch.Tensor:
        """Fill the cache, with room for `more` columns, from tokens (prompts, width), where `token_mask`
        (prompts, columns) is False for padding. Returns the last states (prompts, H)."""
        width, columns = tokens.shape[1], token_mask.shape[1]
        # Columns of an earlier batch come before all of these, so that every token may see them.
        causal = torch.ones(width, columns, dtype=torch.bool, device=tokens.device).tril(columns - width)
        # Padding sees itself: a softmax over nothing would be NaN.
        itself = causal.triu(columns - width)
        # Some prompts at a time: while a layer computes a token, it holds much more than its key and value.
        at_once = max(1, PREFILL // width)
        states, caches, routes = [], [], []
        # Autocast turns keys by a table in float32, which makes them float32, and rounds them again whenever
        # attention meets them. Rounded once, here, they take half of the memory.
        dtype = None if self.models.dtype == torch.float32 else self.models.dtype
        for start in range(0, len(tokens), at_once):
            part = slice(start, start + at_once)
            self.cache = buffers(self.models.language.config, columns + more, dtype)
            if prefix_cache is not None:
                for number, layer in enumerate(self.cache.layers):
                    layer.begin(*(cached_states[part] for cached_states in prefix_cache.layer(number)))
            mask = (token_mask[part, None, None, :] & causal) | itself
            states.append(self._forward({"input_ids": tokens[part]}, mask, position[part]))
            caches.append(self.cache)
            if self.records:
                routes.append(self.routes.view(-1, width, *self.routes.shape[1:]))
        if self.records:
            self.prompt_routes = torch.cat(routes)
        self.cache = caches[0]
        for number, layer in enumerate(self.cache.layers if len(caches) > 1 else ()):
            layer.join([cache.layers[number] for cache in caches[1:]])
        return torch.cat(states)

    def _see(self, token_mask: torch.Tensor) -> None:
        """Bool (prompts, columns): the tokens of the prompts; the rest is padding."""
        self.seen, self.padding = token_mask, ~token_mask[:, None, None, :]

    def _recording(self) -> contextlib.AbstractContextManager[list[torch.Tensor]]:
        return recorded(self.network.trunk) if self.records else contextlib.nullcontext([])

    def _forward(
        self, inputs: dict[str, torch.Tensor], mask: torch.Tensor | None, position: torch.Tensor
    ) -> torch.Tensor:
        trunk: Any = self.network.trunk
        with self.models.precision(), self._recording() as choices:
            output = trunk(
                **inputs,
                attention_mask=mask,
                position_ids=position,
                use_cache=True,
                **{cache_argument(type(trunk).forward): self.cache},
            )
        if self.records:
            self.routes = stacked(choices)
        # Left padding puts the last token of every row into the last column.
        return output.last_hidden_state[:, -1]  # type: ignore[no-any-return]

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        assert self.network.head is not None
        with self.models.precision():
            return self.network.head(states).float()  # type: ignore[no-any-return]

    def advance(self, drawn: torch.Tensor, stopped: torch.Tensor | None, mixture: Any) -> None:
        """Feed the drawn tokens (R,). With `stopped`, over all jobs, drop the sequences that have ended."""
        done = None if stopped is None or self.keeps else stopped[self.alive]
        # Only when enough have ended: dropping a few costs a copy of the whole cache.
        if done is not None and int(done.sum()) * DROP_SHARE >= len(done):
            keep = (~done).nonzero().squeeze(-1)
            self._select(keep)
            drawn = drawn[keep]
            mixture = None if mixture is None else mixture[keep]
        self.position = self.position + 1
        self.column += 1
        inputs = {"input_ids": drawn[:, None]}
        if mixture is not None or self.fused is not None:
            inputs = {"inputs_embeds": self._embedded(drawn, mixture)[:, None]}
        if self.fused is not None:
            turn = (table[self.position] for table in self.rotary)
            self.logits = self.fused.step(self, inputs["inputs_embeds"][:, 0], *turn)
            return
        position = self.position[:, None]
        if self.share:
            with shared_attention(self):
                states = self._forward(inputs, None, position)
        else:
            mask = self.seen[:, None, None, : self.column] if self.ragged else None
            states = self._forward(inputs, mask, position)
        self.logits = self._logits(states)

    def _embedded(self, drawn: torch.Tensor, mixture: Any) -> torch.Tensor:
        """What is fed (R, H): the embeddings of the drawn tokens, or mixtures in their place."""
        table = self.network.trunk.get_input_embeddings()  # type: ignore[operator]
        if mixture is None:
            return table(drawn)  # type: ignore[no-any-return]
        blend = (table(mixture.token) * mixture.weight[..., None]).sum(1)
        mixes = mixture.weight.sum(-1, keepdim=True) > 0
        # Weights of 0 stand for the plain token: their sum would be a zero vector.
        return torch.where(mixes, blend, table(drawn))

    def _select(self, keep: torch.Tensor) -> None:
        """Go on with these rows only, and with the prompts that still have one."""
        self.alive, self.position = self.alive[keep], self.position[keep]
        for layer in self.cache.layers:
            layer.select(keep)
        if not self.share:
            self.seen = self.seen[keep]
            return
        prompts, owner = self.groups.owner[keep].unique(return_inverse=True)
        self.groups = Groups(owner, len(prompts))
        # Only then, since it copies the keys and values of all prompts that stay.
        if len(prompts) < len(self.seen):
            self._see(self.seen[prompts])
            for layer in self.cache.layers:
                layer.select_prompts(prompts)

    def attention(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attention of scaled queries (R, K, r, D) to the prompts' keys and values in `layer` and to each
        row's `key` and `value` (R, K, T, D), in one softmax. Returns (R, K, r, D). Each of K key heads serves
        r heads."""
        return self.groups.attend(layer, query, key, value, self.padding if self.ragged else None)

    def seen_by(self, rows: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
        """Bool (n, columns): the tokens of these jobs (n,) that the cache holds: their prompts, and what they
        wrote without the last token, which was never fed. `written` (n,) counts that token."""
        columns = torch.arange(self.column - self.prompt_columns, device=rows.device)
        prompts = self.seen[self.groups.owner[rows] if self.share else rows][:, : self.prompt_columns]
        return torch.cat([prompts, columns < written[:, None] - 1], -1)

    def layer(self, number: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (n, K, columns, D) of these jobs (n,)."""
        cache_layer = self.cache.layers[number]
        if not self.share:
            return cache_layer.keys[rows], cache_layer.values[rows]
        owner = self.groups.owner[rows]
        keys = torch.cat([cache_layer.prompt_keys[owner], cache_layer.keys[rows]], 2)
        return keys, torch.cat([cache_layer.prompt_values[owner], cache_layer.values[rows]], 2)


class PrefixCache:
    """The beginnings of prompts, one job of a kept batch each, given as (batch, job, tokens written by it,
    tokens of the prompt that it holds)."""

    def __init__(self, prefixes: Sequence[tuple[Decoding, int, int, int]]) -> None:
        self.lengths = [length for *_, length in prefixes]
        batches = list({id(batch): batch for batch, *_ in prefixes}.values())
        self.columns: int = max(batch.column for batch in batches)
        device = batches[0].seen.device
        self.seen: torch.Tensor = torch.zeros(len(prefixes), self.columns, dtype=torch.bool, device=device)
        self.parts: list[tuple[Decoding, torch.Tensor, torch.Tensor]] = []
        for batch in batches:
            chosen = [(i, row, written) for i, (b, row, written, _) in enumerate(prefixes) if b is batch]
            index, rows, written = torch.tensor(chosen, device=device).unbind(-1)
            self.seen[index, : batch.column] = batch.seen_by(rows, written)
            self.parts.append((batch, index, rows))

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (prompts, K, columns, D) of a layer; 0 where nothing is known."""
        states = [batch.layer(number, rows) for batch, _, rows in self.parts]
        return self._columns([keys for keys, _ in states]), self._columns([values for _, values in states])

    def _columns(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        heads, size = pieces[0].shape[1], pieces[0].shape[3]
        # Zeros: a masked weight of 0 times whatever lay in the memory could be NaN.
        out = pieces[0].new_zeros((len(self.lengths), heads, self.columns, size))
        for (batch, index, _), piece in zip(self.parts, pieces, strict=True):
            out[index, :, : batch.column] = piece
        return out


class KeptBatches:
    """Kept batches, by the tokens whose keys and values they hold."""

    def __init__(self) -> None:
        self.jobs: dict[tuple[int, ...], tuple[Decoding, int, int]] = {}
        self.lengths: list[int] = []

    def add(
        self, batch: Decoding, prompts: Sequence[tuple[int, ...]], written: Sequence[tuple[int, ...]]
    ) -> None:
        """Add the jobs of a batch: their prompts and what they wrote. A later prompt may begin with all or a
        part of it."""
        for row, (prompt, completion) in enumerate(zip(prompts, written, strict=True)):
            for count in range(1, len(completion) + 1):
                # Without the last token, which was never fed: the batch has no key of it.
                self.jobs[(*prompt, *completion[: count - 1])] = (batch, row, count)
        # Longest first, so that `find` takes the prefix that saves most.
        self.lengths = sorted({len(tokens) for tokens in self.jobs}, reverse=True)

    def find(self, prompts: Sequence[tuple[int, ...]]) -> PrefixCache | None:
        """The known prefixes of the prompts; None if one of the prompts has none."""
        prefixes = []
        for prompt in prompts:
            for size in self.lengths:
                # At least one token must be left to feed, since its state gives the next logits.
                if size < len(prompt) and (job := self.jobs.get(prompt[:size])):
                    prefixes.append((*job, size))
                    break
            else:
                return None
        return PrefixCache(prefixes)


class Groups:
    """Maps rows (R,) to a grid of (prompts, most rows of one prompt) and back."""

    def __init__(self, owner: torch.Tensor, prompts: int) -> None:
        self.owner, self.prompts, self.rows = owner, prompts, len(owner)
        count = owner.bincount(minlength=prompts)
        self.most = int(count.max())  # a shape: the device must be waited for
        # Stable: rows in the order of their prompts keep their cells (`regular`).
        order = owner.argsort(stable=True)
        rank = torch.arange(self.rows, device=owner.device) - (count.cumsum(0) - count)[owner[order]]
        self.cell = torch.empty_like(owner)
        """Long (R,): the flat cell of the grid that holds each row."""
        self.cell[order] = owner[order] * self.most + rank
        self.slot = self.cell.new_zeros(prompts * self.most)
        """Long (prompts × most,): the row in each cell."""
        everyone = torch.arange(self.rows, device=owner.device)
        self.slot[self.cell] = everyone
        # Equal groups in order need no indexing, which is the usual case and saves a copy of each query.
        self.regular = self.rows == len(self.slot) and bool((self.cell == everyone).all())

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """(R, K, r, D) of rows as (prompts, K, most × r, D). Empty cells repeat the first row."""
        grid = rows if self.regular else rows[self.slot]
        heads, repeat, size = rows.shape[1:]
        grid = grid.view(self.prompts, self.most, heads, repeat, size).transpose(1, 2)
        return grid.reshape(self.prompts, heads, self.most * repeat, size)

    def scatter(self, grid: torch.Tensor, repeat: int) -> torch.Tensor:
        """The inverse of `gather`."""
        heads, size = grid.shape[1], grid.shape[3]
        rows = grid.view(self.prompts, heads, self.most, repeat, size).transpose(1, 2)
        rows = rows.reshape(self.prompts * self.most, heads, repeat, size)
        return rows if self.regular else rows[self.cell]

    def attend(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        padding: torch.Tensor | None = None,
        unwritten: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention as of `Decoding.attention`, without the `padding` of the prompts and without the columns
        of `key` that are `unwritten`."""
        repeat = query.shape[2]
        # All queries of a prompt in one product, so that a step reads its keys once.
        prompt = self.gather(query) @ layer.prompt_keys.transpose(-1, -2)
        completion = query @ key.transpose(-1, -2)
        for scores, hidden in ((prompt, padding), (completion, unwritten)):
            if hidden is not None:
                scores.masked_fill_(hidden, float("-inf"))
        # In float32 whatever the precision of the keys: rounding here would be a gap to the trainer.
        weights = torch.cat([self.scatter(prompt, repeat), completion], -1).softmax(-1, dtype=torch.float32)
        to_prompt, to_completion = weights.to(value.dtype).split((prompt.shape[-1], key.shape[2]), -1)
        from_completion: torch.Tensor = to_completion @ value
        return self.scatter(self.gather(to_prompt) @ layer.prompt_values, repeat) + from_completion


_decoding: list[Decoding] = []
"""The batch whose forward pass is under way; transformers' attention functions are global."""


@contextlib.contextmanager
def shared_attention(decoding: Decoding) -> Iterator[None]:
    """Let the policy's attention find the prompts' keys and values in `decoding`."""
    from transformers import AttentionInterface

    AttentionInterface.register(SHARED, attend)
    config: Any = decoding.network.trunk.config
    before = config._attn_implementation
    config._attn_implementation = SHARED
    _decoding.append(decoding)
    try:
        yield
    finally:
        _decoding.pop()
        config._attn_implementation = before


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one query per row, (R, heads, 1, D), to its prompt and to the row's `key` and `value`
    (R, K, T, D). Returns (R, 1, heads, D). Several heads may share one of the K key heads."""
    decoding = _decoding[-1]
    layer = decoding.cache.layers[module.layer_idx]
    rows, heads, _one, size = query.shape
    query = query.reshape(rows, key.shape[1], heads // key.shape[1], size)
    # The queries are scaled, not the scores, which are far more numbers.
    out = decoding.attention(layer, query * (size**-0.5 if scaling is None else scaling), key, value)
    return out.reshape(rows, 1, heads, value.shape[-1]), None


def ways(models: RoleModels, pad: int) -> tuple[bool, bool]:
    """Whether decoding with shared prompts gives what decoding with repeated prompts gives, and whether fused
    layers do: in float32, and in the run's own precision up to `COARSER`. Raises ModelError where repeated
    prompts do not give what the model's own forward pass gives, in float32."""
    sequence_length = length(models)
    tokens = random_tokens(models, 2, sequence_length)
    # Of two lengths, so that the probe has padding.
    prompts = [
        tokens[0, : max(1, sequence_length - 3)].tolist(),
        tokens[0, :1].tolist() + tokens[1, : sequence_length // 3].tolist(),
    ]
    with plainly(models):
        try:
            exact, texts = forced(models, prompts, pad, share=False)
        except Exception as error:  # an architecture fails as it likes
            if is_out_of_memory(error):
                raise
            raise unfit(models, f"decoding ends in {type(error).__name__}: {error}") from error
        expected = torch.stack(
            [log_probabilities(models, torch.tensor([text], device=models.device))[0, -1] for text in texts]
        )
        demand_equal(models, expected, exact, "decoded tokens")

    def off(fused: bool | None) -> torch.Tensor:
        """Distance from float32 in nats (3, V). None: of repeated prompts."""
        copied = Fused(models, keep=False) if fused else None
        logp, _ = forced(models, prompts, pad, share=fused is not None, fused=copied)
        return (logp - exact).abs()

    rounds = models.dtype != torch.float32
    # How far repeated prompts are off: the measure for the other ways.
    usual = off(None).mean().item() if rounds else 0.0

    def same(fused: bool) -> bool:
        try:
            # In float32 a wrong part shows; in the run's precision, one that computes too coarsely.
            with plainly(models):
                proved = off(fused).max().item() <= SAME
            return proved and (not rounds or off(fused).mean().item() <= COARSER * usual)
        # Whatever fails is decoded by repeated prompts, which are proven above.
        except (RuntimeError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            return False

    shares = same(fused=False)
    return shares, shares and fits(models) and same(fused=True)


def forced(
    models: RoleModels,
    prompts: Sequence[Sequence[int]],
    pad: int,
    share: bool,
    fused: Fused | None = None,
) -> tuple[torch.Tensor, list[list[int]]]:
    """Log-probabilities (3, V) behind three completions of two tokens, and the whole texts so far; the first
    and the last belong to the first prompt."""
    # A prompt's rows stand apart and are not equally many, so that the grid of `Groups` needs its indices.
    owner = torch.tensor([0, 1, 0], device=models.device)
    stopped = torch.zeros(3, dtype=torch.bool, device=models.device)
    drawn = random_tokens(models, 2, 3)
    run = Decoding(models, prompts, owner, 3, pad, share, fused=fused)
    for column in drawn:
        run.advance(column, stopped, None)
    texts = [[*prompts[p], *drawn[:, row].tolist()] for row, p in enumerate(owner.tolist())]
    return (run.logits / models.temperature).log_softmax(-1), texts
