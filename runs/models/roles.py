"""The models of a run: the output of each role for a batch."""

# No model's forward pass is rewritten. A Hugging Face trunk gets packed tokens, positions and a block mask.
# Its own output head is applied in chunks, to the states that predict tokens of the policy and to no others.

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from grpobench.algorithms.algorithm import Batch, ModelOutput, Role
from grpobench.runs.models import adapters
from grpobench.runs.models.activation_checkpointing import checkpointed, layers_of
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.attention import UNSPLIT, PackedAttention
from grpobench.runs.models.flops import FlopCount, weights_per_token
from grpobench.runs.models.head import token_divergence, token_kl, token_squares, token_statistics
from grpobench.runs.models.packing import (
    Pack,
    estimate,
    micro_batches,
    pack,
    packed_tokens,
    replay,
    scatter,
)
from grpobench.runs.models.proof import demand_same_reading, demand_served_layers
from grpobench.runs.models.ranks import ALONE, DeviceRanks, moved
from grpobench.runs.models.role_weights import Network, RoleWeights
from grpobench.runs.models.routing import demand_replay, replayed, to_packed
from grpobench.runs.models.shards import Shards
from grpobench.runs.models.teaching import taught_states
from grpobench.runs.models.token_budgets import (
    MICRO_BATCH_TOKENS,
    REMEDY,
    ModelError,
    NoRoom,
    RankOutOfMemory,
    TokenBudget,
    gpu_memory,
    most_logits,
    retry_smaller,
)
from grpobench.runs.tools.process import safe_point

T = TypeVar("T")
CHUNK = 2**25
"""Most logits (tokens × vocabulary) held at once on a CPU, and on a GPU of up to 8 GiB. More are computed in
pieces, and again for the gradient."""


class MicroBatches:
    """The rows of each micro-batch of a batch. Every iteration splits it by the token budget of then."""

    def __init__(
        self,
        batch: Batch,
        row_group: torch.Tensor,
        token_budget: TokenBudget,
        dtype: torch.dtype,
        ranks: DeviceRanks = ALONE,
    ) -> None:
        self.batch, self.row_group, self.token_budget, self.dtype = batch, row_group, token_budget, dtype
        self.ranks = ranks
        self.current = torch.arange(len(batch))
        """The rows that are in the models now, or in which memory ran out."""
        self.entered = False
        """Whether an iteration has begun that did not come to its end."""
        self.filling = False
        """Whether the present micro-batch is one of another rank, which this one computes only because all
        must go through their sharded layers equally often. It counts for nothing."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.entered = True
        for rows in self._of_this_rank():
            # A step that is given up here has changed gradients and no weight.
            safe_point()
            self.current = rows
            yield rows
        self.entered = self.filling = False

    def _of_this_rank(self) -> Iterator[torch.Tensor]:
        """The micro-batches of this rank: every N-th, and as many on every rank."""
        limit, ranks = self.token_budget.limit, self.ranks
        if not ranks.alone:  # as many at least as there are ranks
            limit = min(limit, -(-packed_tokens(self.batch, torch.arange(len(self.batch))) // ranks.size))
        every = micro_batches(self.batch, self.row_group, limit)
        for start in range(0, len(every), ranks.size):
            self.filling = start + ranks.rank >= len(every)
            yield every[0 if self.filling else start + ranks.rank]

    def halve_budget(self, why: str) -> None:
        """Make the micro-batches smaller. Raises NoRoom if memory ran out in a single row group."""
        batch, rows = self.batch, self.current
        # By the size that failed, not by the budget: a batch may be much smaller than its budget.
        size = packed_tokens(batch, rows)
        if len(self.row_group.to(rows.device)[rows].unique()) == 1:
            lengths = batch.prompt_length[rows].tolist(), batch.length[rows].tolist()
            raise NoRoom(
                f"out of memory with {len(rows)} row{'s' * (len(rows) > 1)} of {size:,} tokens (prompt "
                f"{max(lengths[0]):,}, longest completion {max(lengths[1]):,}), which cannot be split: "
                f"{why}; at {self.token_budget.limit:,} {self.token_budget.of} and {self.dtype}, set "
                f"train.activation_checkpointing = true, {REMEDY}"
            )
        self.token_budget.lower(size, why)


class RoleModels(RoleWeights):
    """The roles of one run, with their forward passes. `language` is an `AutoModelForCausalLM`, the policy;
    further roles start as copies of it, except the `teacher`, a language model of its own, which is frozen.
    With an `adapter` the policy gets one, in place; the roles that start as copies then share its weights,
    and a critic has an adapter of its own."""

    def __init__(
        self,
        language: Any,
        trains: Sequence[Role] = (),
        reads: Sequence[Role] = (),
        *,
        temperature: float = 1.0,
        dtype: str = "float32",
        budget: int = 0,
        share: bool = True,
        chunk: int = 0,
        adapter: Adapter | None = None,
        activation_checkpointing: bool = False,
        attention: str = "auto",
        teacher: Any = None,
        router_replay: str = "none",
        ranks: DeviceRanks = ALONE,
        keep_base: bool = False,
    ) -> None:
        # Without dropout, even in updates: it would move the ratio π/π_old away from 1 before any update.
        language = language.eval()
        # Before `attach`, which replaces layers in the policy's tree.
        self.plain: Any = adapters.sharing(language) if adapter else None
        """The language model without its adapter, over the same weights; None if there is no adapter."""
        if adapter:
            adapters.attach(language, adapter)
        trunk, head = trunk_and_head(language, ranks.alone)
        super().__init__(language, {"policy": Network(trunk, head)}, adapter, ranks)
        self.shards: Shards | None = None
        """The weights on the ranks of the run; None while this rank holds them whole."""
        self.temperature = temperature or 1.0
        self.dtype = getattr(torch, dtype)
        self.share = share
        self.activation_checkpointing = activation_checkpointing and bool(layers_of(trunk))
        # Of several ranks the weights are still on the CPU: each rank moves its own part.
        self.device = ranks.device or next(trunk.parameters()).device
        self.chunk = chunk or most_logits(gpu_memory(self.device), CHUNK)
        most = budget or MICRO_BATCH_TOKENS["cpu" if self.device.type == "cpu" else "gpu"]
        self.token_budget = TokenBudget("tokens (train.micro_batch_tokens)", most)
        # FlashAttention would be proven on whole weights.
        implementation = attention if ranks.alone else "sdpa"
        self.attention = PackedAttention(language, implementation, self.device, self.dtype)
        self.cost = estimate(trunk, language.config)
        # Before further networks take room: the check needs some. Of several ranks the sampler makes it: its
        # weights are whole.
        if ranks.alone:
            demand_same_reading(self)
        self.router_replay = router_replay
        """`sampler.router_replay`."""
        if router_replay != "none":
            demand_replay(self)
        self._add_networks({*trains, *reads}, teacher)
        self.flops = self._flop_count(teacher)
        self.base: Network | None = None
        """The policy as it is now, kept in parts on the ranks beside the roles."""
        if not ranks.alone:
            self._shard(keep_base)

    def _flop_count(self, teacher: Any) -> FlopCount:
        """The counter, at 0."""
        config = self.language.config
        return FlopCount(
            {
                role: weights_per_token(
                    network.trunk, network.head, teacher.config if role == "teacher" else config
                )
                for role, network in self.networks.items()
            },
            {
                role: weights_per_token(self.plain.base_model, network.head, config)
                for role, network in self.networks.items()
                if self.plain is not None and role != "teacher"
            },
        )

    def _shard(self, keep_base: bool) -> None:
        """Lay the weights of every network in parts on the ranks."""
        if keep_base:
            language = self._copy(self.plain or self.language).requires_grad_(False)
            self.base = Network(*trunk_and_head(language, probed=False))
        # Of the whole weights, which must not stay in memory.
        self.plain = None
        networks = [*self.networks.values(), *([self.base] if self.base else [])]
        trunks = {id(network.trunk): network.trunk for network in networks}
        heads = [network.head for network in networks if network.head is not None]
        values = [network.value for network in networks if network.value is not None]
        self.shards = Shards(trunks.values(), heads, values, self.ranks)

    def _add_networks(self, roles: Collection[Role], teacher: Any) -> None:
        """The networks of further roles. Raises ModelError for a teacher that cannot be used."""
        policy = self.networks["policy"]
        if "reference" in roles:
            frozen = self._sharing(self.plain) or self._copy(self.language).requires_grad_(False)
            self.networks["reference"] = Network(*trunk_and_head(frozen, self.ranks.alone))
        if "critic" in roles:
            trunk = self._copy(policy.trunk)
            if self.plain:
                trunk = self._sharing(adapters.sharing(self.plain.base_model))
            if self.adapter:
                adapters.attach(trunk, self.adapter)
            self.networks["critic"] = Network(trunk, None, self._value_layer())
        if "value_head" in roles:
            policy.value = self._value_layer()
        if "teacher" in roles:
            if teacher is None:
                raise ModelError("an algorithm reads a teacher, and there is none; set model.teacher")
            frozen = teacher.eval().requires_grad_(False)
            self.networks["teacher"] = Network(*trunk_and_head(frozen, self.ranks.alone))

    def _sharing(self, module: Any) -> Any:
        """A module over the policy's weights, for another role; with weights of its own where they are laid
        in parts on the ranks, since one part cannot belong to two modules. None for None."""
        return module if self.ranks.alone or module is None else self._copy(module)

    def _copy(self, module: nn.Module) -> Any:
        """A copy of a module, for another role. Where it is laid in parts on the ranks, its parameters share
        their memory with the module's until then: each rank takes its own part of them anyway, and the whole
        of a loaded model is the mapped file, which takes no memory of a rank."""
        if self.ranks.alone:
            return copy.deepcopy(module)
        memo = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in module.parameters()}
        return copy.deepcopy(module, memo)

    def _value_layer(self) -> nn.Linear:
        """A value head that starts at zero: before any update it gives every state the value 0."""
        layer = nn.Linear(self.language.config.hidden_size, 1, device=self.device)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    @property
    def budget(self) -> int:
        """Most packed tokens of a micro-batch, unless a single row group has more."""
        return self.token_budget.limit

    @budget.setter
    def budget(self, tokens: int) -> None:
        self.token_budget.limit = tokens

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast, if the model computes in another precision than float32. The weights stay as they are
        stored: float32, or bfloat16 (`model.weights`)."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def forward(
        self, role: Role, batch: Batch, row_group: torch.Tensor | None = None, *, squares: bool = False
    ) -> ModelOutput:
        """A forward pass over the whole batch without gradient, in micro-batches. Given the signal's
        `row_group` (B,), none of them −1, it uses the micro-batches and the very operations of an update of
        these rows."""
        names = ("logp", "entropy", "value", *(("squares",) if squares else ()))
        # Where nothing says which rows belong together, each may be split from the others.
        each = torch.arange(len(batch)) if row_group is None else row_group

        def collect(micro_batches: MicroBatches) -> ModelOutput:
            outputs: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = []
            # With gradient enabled torch may choose other kernels than without.
            with torch.set_grad_enabled(row_group is not None):
                for rows in micro_batches:
                    now = self.forward_train((role,), batch[rows], squares=squares)[role]
                    # Detached at once, so that the graph of each micro-batch is freed before the next.
                    if not micro_batches.filling:
                        outputs.append((rows, {name: getattr(now, name).detach() for name in names}))
            outputs = self.gathered(outputs)
            # Micro-batches hold rows of similar length: put the rows back in their order.
            order = torch.cat([rows for rows, _ in outputs]).argsort()
            return ModelOutput(
                **{name: torch.cat([output[name] for _, output in outputs])[order] for name in names}
            )

        output = self.in_micro_batches(batch, each, collect)
        self.flops.add_forward(role, batch)  # once, however often memory ran out
        return output

    def gathered(self, local_values: list[T]) -> list[T]:
        """The lists of all ranks as one, on this rank's device."""
        if self.ranks.alone:
            return local_values
        return [
            moved(gathered_value, self.device)
            for part in self.ranks.all_gather(local_values)
            for gathered_value in part
        ]

    def within_root(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        """`work()`, where the weights outside of layers are whole. Every rank must call this at the same
        places."""
        return work() if self.shards is None else self.shards.run(work)

    @torch.no_grad()
    def kl_to(self, other: Network, batch: Batch) -> torch.Tensor:
        """KL(policy‖other) in nats of the tempered softmax, over the vocabulary, before each token that the
        policy wrote, and 0 elsewhere: (B, T)."""
        networks = (self.networks["policy"], other)

        def kl(part: Batch) -> list[torch.Tensor]:
            layout = self.layout(part)
            with self.precision():
                states = [self._states(network.trunk, layout, part) for network in networks]
                flat = token_kl(states, [network.head for network in networks], self.temperature, self.chunk)
            return [scatter(flat, layout.flat_index, part.completion.shape)]

        def collect(micro_batches: MicroBatches) -> torch.Tensor:
            kl_parts: list[tuple[torch.Tensor, torch.Tensor]] = []
            for rows in micro_batches:
                (micro_batch_kl,) = self.within_root(functools.partial(kl, batch[rows]))
                if not micro_batches.filling:
                    kl_parts.append((rows, micro_batch_kl))
            batch_kl = torch.zeros_like(batch.sampler_logp)
            for rows, rows_kl in self.gathered(kl_parts):
                batch_kl[rows.to(batch_kl.device)] = rows_kl
            return batch_kl

        return self.in_micro_batches(batch, torch.arange(len(batch)), collect)

    def in_micro_batches(
        self,
        batch: Batch,
        row_group: torch.Tensor,
        work: Callable[[MicroBatches], T],
        undo: Callable[[], None] = lambda: None,
    ) -> T:
        """The result of `work`, which is given the rows of each micro-batch. Row groups (B,) are not split.
        If memory runs out, `undo` and then `work` are called again with half the token budget, which the run
        then keeps. Raises NoRoom if a single row group does not fit."""
        return self.in_micro_batches_of([(batch, row_group)], lambda splits: work(splits[0]), undo)

    def in_micro_batches_of(
        self,
        batches: Sequence[tuple[Batch, torch.Tensor]],
        work: Callable[[Sequence[MicroBatches]], T],
        undo: Callable[[], None] = lambda: None,
    ) -> T:
        """The same for several batches with their row groups, whose results belong together: wherever memory
        runs out, `undo` and `work` are called for all of them."""
        splits = [
            MicroBatches(*batch_and_groups, self.token_budget, self.dtype, self.ranks)
            for batch_and_groups in batches
        ]

        def halve(why: str) -> None:
            # The failed attempt may have added gradients, to which the next one would add its own.
            undo()
            # The one in which memory ran out: `work` takes them one after the other.
            exhausted = next((split for split in splits if split.entered), splits[0])
            for split in splits:  # the next attempt begins with the first one again
                split.entered = False
            exhausted.halve_budget(why)
            if not self.ranks.alone:
                # The other ranks wait within a layer for a part that this one will not send.
                lowered = self.token_budget.take_unreported()[-1]
                raise RankOutOfMemory(
                    f"out of memory on rank {self.ranks.rank} of {self.ranks.size} ({why}); the next attempt "
                    f"takes at most {lowered['now']:,} {lowered['of']} at once",
                    {**lowered, "asked": self.token_budget.initial},
                )

        return retry_smaller(lambda: work(splits), halve)

    def forward_train(
        self,
        roles: Iterable[Role],
        batch: Batch,
        differentiate_entropy: bool = False,
        *,
        squares: bool = False,
        divergence: float | None = None,
        teacher: Role = "teacher",
    ) -> dict[Role, ModelOutput]:
        """The output of each role for one micro-batch, with gradient where it is enabled. Roles on one trunk
        share its forward pass. `divergence` and `teacher` are the algorithm's `teacher_divergence` and
        `teacher_role`."""
        outputs = functools.partial(
            self._outputs, roles, batch, differentiate_entropy, squares, divergence, teacher
        )
        return outputs() if self.shards is None else self.shards.call(outputs)

    def _outputs(
        self,
        roles: Iterable[Role],
        batch: Batch,
        differentiate_entropy: bool,
        squares: bool,
        divergence: float | None,
        teacher: Role,
    ) -> dict[Role, ModelOutput]:
        """`forward_train`, where the weights outside of layers are whole."""
        layout = self.layout(batch)
        states: dict[int, torch.Tensor] = {}
        outputs: dict[Role, ModelOutput] = {}
        for role in roles:
            network = self.networks["policy" if role == "value_head" else role]
            if id(network.trunk) not in states:
                with self.precision():
                    states[id(network.trunk)] = self._states(network.trunk, layout, batch)
            hidden = states[id(network.trunk)]
            if role in ("policy", "reference", "teacher"):
                outputs[role] = self._token_output(
                    network, hidden, layout, batch, differentiate_entropy, squares
                )
                if role == "policy" and divergence is not None:
                    teacher_divergence = self._divergence(hidden, layout, batch, divergence, teacher)
                    outputs[role] = dataclasses.replace(outputs[role], divergence=teacher_divergence)
            else:
                outputs[role] = self._value_output(network, hidden, layout, batch)
        return outputs

    def _divergence(
        self, hidden: torch.Tensor, layout: Pack, batch: Batch, beta: float, role: Role
    ) -> torch.Tensor:
        """The divergence (B, T) of the teacher from the policy, whose states are given, (N, H)."""
        policy, teacher = self.networks["policy"], self.networks[role]
        assert policy.head is not None and teacher.head is not None
        flat_index = layout.flat_index

        def read(part: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            part_layout = layout if part is batch else self.layout(part)
            return self._states(teacher.trunk, part_layout, part), part_layout.flat_index

        with self.precision():
            # Without gradient also where the teacher is the policy itself.
            with torch.no_grad():
                taught_index, theirs = taught_states(batch, flat_index, self.token_budget.limit, read)
            if not len(taught_index):  # no row has a teacher, or no row has a token
                # In the type of log-probabilities: states may be bfloat16.
                return hidden.new_zeros(batch.completion.shape, dtype=batch.sampler_logp.dtype)
            if len(taught_index) < len(hidden):
                # index_select, whose gradient is added up in one order (see `_states`).
                hidden, flat_index = hidden.index_select(0, taught_index), flat_index[taught_index]
            flat = token_divergence(
                hidden, policy.head, theirs, teacher.head, self.temperature, self.chunk, beta
            )
        return scatter(flat, flat_index, batch.completion.shape)

    def _token_output(
        self,
        network: Network,
        hidden: torch.Tensor,
        layout: Pack,
        batch: Batch,
        differentiate_entropy: bool,
        squares: bool,
    ) -> ModelOutput:
        """What a language model says about the tokens that the policy wrote, from states (N, H)."""
        assert network.head is not None
        shape = batch.completion.shape
        sums = None
        with self.precision():
            logp, entropy = token_statistics(
                hidden, network.head, layout.target, self.temperature, self.chunk, differentiate_entropy
            )
            if squares:
                flat = token_squares(hidden, network.head, self.temperature, self.chunk)
                sums = scatter(flat, layout.flat_index, shape)
        return ModelOutput(
            scatter(logp, layout.flat_index, shape),
            scatter(entropy, layout.flat_index, shape),
            # (B, 0) instead of None: `forward` puts the rows of every field in order.
            batch.sampler_logp[:, :0],
            squares=sums,
        )

    def _value_output(
        self, network: Network, hidden: torch.Tensor, layout: Pack, batch: Batch
    ) -> ModelOutput:
        """The values of the states (N, H) that precede the tokens that the policy wrote."""
        assert network.value is not None
        nothing = batch.sampler_logp[:, :0]
        # float32, outside autocast: a value in bfloat16 has fewer than three digits.
        value = network.value(hidden.float()).squeeze(-1)
        return ModelOutput(nothing, nothing, scatter(value, layout.flat_index, batch.completion.shape))

    def layout(self, batch: Batch) -> Pack:
        """The layout of a micro-batch. Where masked pairs cost nothing, no group is split."""
        flash = self.attention.serves(self.dtype)
        return pack(batch, UNSPLIT if flash else self.cost, self.share, flash)

    def _states(self, trunk: nn.Module, layout: Pack, batch: Batch) -> torch.Tensor:
        """Final hidden states (N, H) that predict the tokens that the policy wrote."""
        inputs: dict[str, torch.Tensor] = {"input_ids": layout.tokens}
        if batch.mixture is not None:
            plain = trunk.get_input_embeddings()(layout.tokens)  # type: ignore[operator]
            inputs = {"inputs_embeds": replay(plain, trunk, layout, batch)}
        mask = self.attention.mask(trunk, layout)
        again = self.activation_checkpointing and torch.is_grad_enabled()
        # Around the checkpoints, so that a layer that is run again chooses the same experts.
        with self._routes(trunk, layout, batch), checkpointed(trunk) if again else contextlib.nullcontext():
            output = trunk(**inputs, attention_mask=mask, position_ids=layout.position, use_cache=False)
        # Not [layout.source]: a prompt's last state predicts the first token of each completion, and threads
        # add up the gradient of an index in whichever order they arrive.
        return output.last_hidden_state.flatten(0, 1).index_select(0, layout.source)  # type: ignore[no-any-return]

    def _routes(
        self, trunk: nn.Module, layout: Pack, batch: Batch
    ) -> contextlib.AbstractContextManager[None]:
        """Within, the policy sends the tokens of a batch to the experts that the batch names, if it does.
        Other roles choose their own, as in verl and slime: they are other models."""
        if batch.routed_experts is None or trunk is not self.networks["policy"].trunk:
            return contextlib.nullcontext()
        return replayed(trunk, to_packed(batch.routed_experts, layout))


def trunk_and_head(language: Any, probed: bool = True) -> tuple[nn.Module, nn.Module]:
    """The trunk and output head of a causal language model. If `probed`, a probe checks that they give the
    model's own logits. Raises ModelError if they do not (soft-capping, scaling)."""
    trunk, head = language.base_model, language.get_output_embeddings()
    if trunk is language or head is None:
        raise ModelError(
            f"{type(language).__name__} has no separate trunk and output head; use another causal LM"
        )
    demand_served_layers(language)
    if not probed:
        return trunk, head
    device = next(trunk.parameters()).device
    # Modulo, since a vocabulary may be tiny.
    probe = torch.tensor([[5, 7, 11, 13]], device=device) % language.config.vocab_size
    with torch.no_grad():
        full_logits = language(input_ids=probe).logits
        pieces = head(trunk(input_ids=probe).last_hidden_state)
    if not torch.allclose(full_logits, pieces.to(full_logits.dtype), rtol=1e-4, atol=1e-4):
        raise ModelError(
            f"{type(language).__name__} changes its logits after the output head; use another causal LM"
        )
    return trunk, head
