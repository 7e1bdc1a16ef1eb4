"""The models of a run: what each role says about a batch, and how it is updated.

Nothing of a model's forward is rewritten: a Hugging Face trunk gets packed tokens, positions and a block
mask, and its own output head is applied to the states that predict written tokens, in chunks.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from grpobench.algorithms.algorithm import Batch, ModelOutput, Role
from grpobench.runs.models.optimizer import Optimizer
from grpobench.runs.models.packing import Cost, micro_batches, pack, packed_tokens
from grpobench.runs.models.proof import demand_same_reading, demand_served_layers
from grpobench.runs.models.token_budgets import REMEDY, ModelError, NoRoom, TokenBudget, retry_smaller
from grpobench.runs.tools.process import safe_point

T = TypeVar("T")
CHUNK = 2**25
"""Most logits (tokens × vocabulary) held at once; beyond it they are made in pieces and made again for the
gradient."""


class Ruined(Exception):
    """Weights that an update has made infinite or NaN. Nothing of them may be kept."""


@dataclass
class Network:
    """One trunk and what stands on it."""

    trunk: nn.Module
    head: nn.Module | None = None
    """Output embeddings of a language model."""
    value: nn.Linear | None = None

    def parameters(self) -> list[nn.Parameter]:
        parts = [self.trunk, self.head, self.value]
        found = {id(p): p for part in parts if part is not None for p in part.parameters()}
        return list(found.values())


class RoleModels:
    """Roles of one run. `language` is an `AutoModelForCausalLM`; further roles start as copies of it."""

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
        chunk: int = CHUNK,
    ) -> None:
        self.temperature = temperature or 1.0
        self.dtype = getattr(torch, dtype)
        self.share = share
        self.chunk = chunk
        self.language = language.eval()
        trunk, head = trunk_and_head(language)
        self.device = next(trunk.parameters()).device
        most = budget or (1024 if self.device.type == "cpu" else 16384)
        self.token_budget = TokenBudget("tokens (train.micro_batch_tokens)", most)
        self.cost = estimate(trunk, language.config)
        self.networks: dict[str, Network] = {"policy": Network(trunk, head)}
        wanted = {*trains, *reads}
        if "reference" in wanted:
            frozen_trunk, frozen_head = trunk_and_head(copy.deepcopy(language).requires_grad_(False))
            self.networks["reference"] = Network(frozen_trunk, frozen_head)
        if "critic" in wanted:
            self.networks["critic"] = Network(copy.deepcopy(trunk), None, self._value_layer())
        if "value_head" in wanted:
            self.networks["policy"].value = self._value_layer()
        self.optimizers: dict[Role, Optimizer] = {}
        self.moved = False
        """Whether the reference is no longer the initial policy, so that a checkpoint must hold it."""
        demand_same_reading(self)

    @property
    def budget(self) -> int:
        """Most packed tokens of a micro-batch, as far as rows can be parted."""
        return self.token_budget.limit

    @budget.setter
    def budget(self, tokens: int) -> None:
        self.token_budget.limit = tokens

    def _value_layer(self) -> nn.Linear:
        """A value head that starts at zero: before any update every state is worth nothing."""
        layer = nn.Linear(self.language.config.hidden_size, 1, device=self.device)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    def named_parameters(self, role: Role) -> dict[str, nn.Parameter]:
        """Parameters that a role's optimizer owns, tied ones once."""
        if role == "policy":
            return dict(self.language.named_parameters())
        if role == "value_head":
            assert self.networks["policy"].value is not None
            return dict(self.networks["policy"].value.named_parameters())
        network = self.networks[role]
        parts = {"trunk": network.trunk, "head": network.head, "value": network.value}
        return {
            f"{n}.{k}": p for n, part in parts.items() if part is not None for k, p in part.named_parameters()
        }

    def optimize(
        self,
        rates: Mapping[Role, float],
        betas: tuple[float, float],
        weight_decay: float,
        max_grad_norm: float,
        make: Callable[[list[Any], float], torch.optim.Optimizer] | None = None,
    ) -> None:
        """Give every role in `rates` an optimizer of its own: AdamW, or what `make` makes of parameters and a
        rate. Raises ModelError where that cannot be made of these parameters."""

        def adamw(parameters: list[Any], rate: float) -> torch.optim.Optimizer:
            return torch.optim.AdamW(parameters, lr=rate, betas=betas, weight_decay=weight_decay, fused=True)

        for role, rate in rates.items():
            parameters = self.named_parameters(role)
            try:
                inner = (make or adamw)(list(parameters.values()), rate)
            except (TypeError, ValueError) as error:
                raise ModelError(
                    f"train.optimizer cannot be made of the {role}'s weights: {error}; use another"
                ) from error
            self.optimizers[role] = Optimizer(parameters, inner, rate, max_grad_norm)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def forward(
        self, role: Role, batch: Batch, unit: torch.Tensor | None = None, *, squares: bool = False
    ) -> ModelOutput:
        """A reading of the whole batch without gradient, in micro-batches; given the signal's `unit` (B,),
        none of them −1, in the micro-batches of an update of these rows, and with its very operations."""
        names = ("logp", "entropy", "value", *(("squares",) if squares else ()))
        each = torch.arange(len(batch)) if unit is None else unit

        def read(micro: Iterable[torch.Tensor]) -> ModelOutput:
            parts: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = []
            with torch.set_grad_enabled(unit is not None):  # which may choose other operations than without
                for rows in micro:
                    now = self.forward_train((role,), batch[rows], squares=squares)[role]
                    parts.append((rows, {name: getattr(now, name).detach() for name in names}))
            order = torch.cat([rows for rows, _ in parts]).argsort()
            return ModelOutput(
                **{name: torch.cat([found[name] for _, found in parts])[order] for name in names}
            )

        return self.in_micro_batches(batch, each, read)

    def in_micro_batches(
        self,
        batch: Batch,
        unit: torch.Tensor,
        work: Callable[[Iterable[torch.Tensor]], T],
        undo: Callable[[], None] = lambda: None,
    ) -> T:
        """What `work` makes of the rows of each micro-batch of a batch, given its rows' `unit` (B,). Where
        memory gives out it is called again after `undo`, with micro-batches of half the tokens, which the
        run then keeps to. Raises NoRoom where those of a single unit do not fit."""
        under_way = [torch.arange(len(batch))]

        def attempt() -> T:
            def parts() -> Iterator[torch.Tensor]:
                for rows in micro_batches(batch, unit, self.budget):
                    safe_point()
                    under_way[:] = [rows]
                    yield rows

            return work(parts())

        def smaller(why: str) -> None:
            undo()
            rows = under_way[0]
            size = packed_tokens(batch, rows)
            if len(unit.to(rows.device)[rows].unique()) == 1:
                lengths = batch.prompt_length[rows].tolist(), batch.length[rows].tolist()
                raise NoRoom(
                    f"out of memory with {len(rows)} row{'s' * (len(rows) > 1)} of {size:,} tokens (prompt "
                    f"{max(lengths[0]):,}, longest completion {max(lengths[1]):,}), which cannot be split: "
                    f"{why}; at {self.budget:,} {self.token_budget.of} and {self.dtype}, {REMEDY}"
                )
            self.token_budget.lower(size, why)

        return retry_smaller(attempt, smaller)

    def forward_train(
        self,
        roles: Iterable[Role],
        batch: Batch,
        differentiate_entropy: bool = False,
        *,
        squares: bool = False,
    ) -> dict[Role, ModelOutput]:
        """One reading per role of one micro-batch, with gradient where it is enabled. Roles on one trunk
        share its forward pass."""
        roles = tuple(roles)
        layout = pack(batch, self.cost, self.share)
        states: dict[int, torch.Tensor] = {}
        readings: dict[Role, ModelOutput] = {}
        shape, nothing = batch.completion.shape, batch.sampler_logp[:, :0]
        for role in roles:
            network = self.networks["policy" if role == "value_head" else role]
            if id(network.trunk) not in states:
                with self.precision():
                    states[id(network.trunk)] = self._states(network.trunk, layout, batch)
            hidden = states[id(network.trunk)]
            logp = entropy = value = nothing
            sums = None
            if role in ("policy", "reference"):
                assert network.head is not None
                with self.precision():
                    flat = token_statistics(
                        hidden,
                        network.head,
                        layout.target,
                        self.temperature,
                        self.chunk,
                        differentiate_entropy,
                    )
                    if squares:
                        sums = scatter(
                            token_squares(hidden, network.head, self.temperature, self.chunk),
                            layout.flat_index,
                            shape,
                        )
                logp, entropy = (scatter(part, layout.flat_index, shape) for part in flat)
            else:
                assert network.value is not None
                value = scatter(network.value(hidden.float()).squeeze(-1), layout.flat_index, shape)
            readings[role] = ModelOutput(logp, entropy, value, squares=sums)
        return readings

    def _states(self, trunk: nn.Module, layout: Any, batch: Batch) -> torch.Tensor:
        """Final hidden states (N, H) that predict the written tokens."""
        inputs: dict[str, torch.Tensor] = {"input_ids": layout.tokens}
        if batch.mixture is not None:
            plain = trunk.get_input_embeddings()(layout.tokens)  # type: ignore[operator]
            inputs = {"inputs_embeds": replay(plain, trunk, layout, batch)}
        output = trunk(**inputs, attention_mask=layout.mask(), position_ids=layout.position, use_cache=False)
        # Not [layout.source]: a prompt's last state is read once per completion, and the gradient of an index
        # is added up by whichever thread comes first.
        return output.last_hidden_state.flatten(0, 1).index_select(0, layout.source)  # type: ignore[no-any-return]

    def step(self, roles: Iterable[Role], scale: float) -> dict[str, float]:
        """Update each role with its accumulated gradient; gradient norms before clipping by role. When one
        role's gradient is not finite none is updated, and NonFinite is raised; Ruined when an update leaves
        weights that are not finite."""
        norms = {role: self.optimizers[role].clip() for role in roles}
        for role in norms:
            self.optimizers[role].update(scale)
        self.clear()
        if ruined := self.ruined(norms):
            raise Ruined(ruined)
        return {f"grad_norm/{role}": norm for role, norm in norms.items()}

    def ruined(self, roles: Iterable[Role] | None = None) -> str:
        """Which of the trained roles have weights that are not finite, in words; empty: none."""
        asked = self.optimizers if roles is None else roles
        lost = [role for role in asked if not self.optimizers[role].finite()]
        return f"weights of the {' and the '.join(lost)} are not finite" if lost else ""

    def follow(self, mix: float) -> None:
        """Move the reference toward the policy: ref ← mix·policy + (1 − mix)·ref."""
        self.moved = True
        with torch.no_grad():
            for ours, theirs in zip(
                self.networks["reference"].parameters(), self.networks["policy"].parameters(), strict=True
            ):
                ours.lerp_(theirs, mix)

    def clear(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.clear()

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights and optimizer moments of every trained role, and the weights of a reference that has
        moved, as flat tensors by name."""
        out: dict[str, dict[str, torch.Tensor]] = {}
        for role, optimizer in self.optimizers.items():
            out[role] = optimizer.tensors()
        if self.moved:
            out["reference"] = {name: p.detach() for name, p in self.named_parameters("reference").items()}
        return out

    def counters(self) -> dict[str, Any]:
        """What else the optimizers keep, by role, as JSON; empty for AdamW."""
        return {role: plain for role, optimizer in self.optimizers.items() if (plain := optimizer.plain())}

    def restore(
        self, state: Mapping[str, Mapping[str, torch.Tensor]], counters: Mapping[str, Any] | None = None
    ) -> None:
        """The inverse of `state` and `counters`; raises ModelError when roles or names differ."""
        self.moved = "reference" in state
        if state.keys() - {"reference"} != self.optimizers.keys():
            raise ModelError(
                f"the checkpoint holds roles {sorted(state)}, the run trains {sorted(self.optimizers)}"
            )
        with torch.no_grad():
            for role, optimizer in self.optimizers.items():
                saved = state[role]
                missing = [name for name in optimizer.parameters if name not in saved]
                if missing:
                    raise ModelError(f"the checkpoint of {role} lacks {missing[0]}; it is of another model")
                for name, p in optimizer.parameters.items():
                    p.copy_(saved[name])
                optimizer.restore(saved, (counters or {}).get(role, {}))
            for name, p in self.named_parameters("reference").items() if self.moved else ():
                p.copy_(state["reference"][name])


def trunk_and_head(language: Any) -> tuple[nn.Module, nn.Module]:
    """The trunk and output head of a causal language model, proved on a probe to give the model's own
    logits. Raises ModelError for a model whose logits are made otherwise (soft-capping, scaling)."""
    trunk, head = language.base_model, language.get_output_embeddings()
    if trunk is language or head is None:
        raise ModelError(
            f"{type(language).__name__} has no separate trunk and output head; use another causal LM"
        )
    demand_served_layers(language)
    device = next(trunk.parameters()).device
    probe = torch.tensor([[5, 7, 11, 13]], device=device) % language.config.vocab_size
    with torch.no_grad():
        whole = language(input_ids=probe).logits
        pieces = head(trunk(input_ids=probe).last_hidden_state)
    if not torch.allclose(whole, pieces.to(whole.dtype), rtol=1e-4, atol=1e-4):
        raise ModelError(
            f"{type(language).__name__} changes its logits after the output head; use another causal LM"
        )
    return trunk, head


def estimate(trunk: nn.Module, config: Any) -> Cost:
    """Multiply-adds of a forward pass per token and per query-key pair."""
    embeddings = sum(
        p.numel() for m in trunk.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
    )
    weights = sum(p.numel() for p in trunk.parameters()) - embeddings
    return Cost(token=float(weights), pair=2.0 * config.hidden_size * config.num_hidden_layers)


def scatter(flat: torch.Tensor, place: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """(N,) values into zeros of shape (B, T)."""
    out = flat.new_zeros(shape.numel())
    return out.index_copy(0, place, flat).view(shape)


def token_statistics(
    hidden: torch.Tensor,
    head: nn.Module,
    target: torch.Tensor,
    temperature: float,
    chunk: int,
    differentiate_entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of `target` (N,) and entropy in nats of the tempered softmax over head(hidden (N, H)).

    At most `chunk` logits exist at once. When more are needed each piece is computed again for its gradient.
    """
    vocabulary: int = head.weight.shape[0]  # type: ignore[assignment, index]
    rows = max(1, chunk // vocabulary)

    def piece(states: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = head(states).float()
        if temperature != 1.0:
            logits = logits / temperature
        total = logits.logsumexp(-1)
        logp = logits.gather(-1, tokens[:, None]).squeeze(-1) - total
        if differentiate_entropy:
            return logp, total - ((logits - total[:, None]).exp() * logits).sum(-1)
        with torch.no_grad():
            return logp, total - ((logits - total[:, None]).exp_().mul_(logits)).sum(-1)

    if len(target) <= rows:
        return piece(hidden, target)
    again = torch.is_grad_enabled() and hidden.requires_grad
    parts = [
        checkpoint(piece, states, tokens, use_reentrant=False) if again else piece(states, tokens)
        for states, tokens in zip(hidden.split(rows), target.split(rows), strict=True)
    ]
    return torch.cat([logp for logp, _ in parts]), torch.cat([entropy for _, entropy in parts])


@torch.no_grad()
def token_squares(hidden: torch.Tensor, head: nn.Module, temperature: float, chunk: int) -> torch.Tensor:
    """Σ_v π_v² (N,) of the tempered softmax π over head(hidden (N, H)), at most `chunk` logits at once."""
    vocabulary: int = head.weight.shape[0]  # type: ignore[assignment, index]
    pieces = hidden.split(max(1, chunk // vocabulary))
    return torch.cat([(head(states).float() / temperature).softmax(-1).square().sum(-1) for states in pieces])


def replay(plain: torch.Tensor, trunk: nn.Module, layout: Any, batch: Batch) -> torch.Tensor:
    """Input embeddings (S, L, H) with the sampler's mixtures in place of mixed tokens."""
    assert batch.mixture is not None
    table = trunk.get_input_embeddings()  # type: ignore[operator]
    token = batch.mixture.token.flatten(0, 1)[layout.fed_place]
    weight = batch.mixture.weight.flatten(0, 1)[layout.fed_place]
    mixed = weight.sum(-1) > 0
    blend = (table(token[mixed]) * weight[mixed, :, None]).sum(1)
    return plain.flatten(0, 1).index_copy(0, layout.fed[mixed], blend.to(plain.dtype)).view(plain.shape)
