"""The weights of a run's roles: what an update changes and a checkpoint holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from grpobench.algorithms.algorithm import Role
from grpobench.runs.models import adapters
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.optimizer import Optimizer
from grpobench.runs.models.past_weights import PastWeights
from grpobench.runs.models.ranks import ALONE, DeviceRanks
from grpobench.runs.models.shards import bytes_of, full_tensor, local_shard, shard_like
from grpobench.runs.models.stored_weights import StoredWeights, round_stochastically, stored
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.tools.seeds import derive

PAST = "past"
"""The name under which a checkpoint keeps the policy's earlier weights, beside the roles."""


class Ruined(Exception):
    """An update has made weights infinite or NaN. They must not be saved."""


@dataclass
class Network:
    """A trunk and the heads on it."""

    trunk: nn.Module
    head: nn.Module | None = None
    """Output embeddings of a language model."""
    value: nn.Linear | None = None

    def parameters(self) -> list[nn.Parameter]:
        """All parameters, tied ones once: an output head may be the trunk's embeddings."""
        parts = [self.trunk, self.head, self.value]
        unique = {id(p): p for part in parts if part is not None for p in part.parameters()}
        return list(unique.values())


class RoleWeights:
    """The weights of a run's roles: what an update changes and a checkpoint holds."""

    def __init__(
        self,
        language: Any,
        networks: dict[str, Network],
        adapter: Adapter | None = None,
        ranks: DeviceRanks = ALONE,
    ) -> None:
        self.language, self.networks, self.adapter = language, networks, adapter
        self.ranks = ranks
        """Who holds a part of the weights."""
        self.optimizers: dict[Role, Optimizer] = {}
        self.moved = False
        """Whether the reference is no longer the initial policy, so that a checkpoint must hold it."""
        self.past = PastWeights({}, 0)
        """The policy's weights before its last updates, if a sampler lags behind."""

    def keep_past(self, lag: int) -> None:
        """Keep the policy's weights of the last `lag` updates from now on. Takes `lag` times the memory of
        the policy's weights, on its device."""
        self.past = PastWeights(self.named_parameters("policy"), lag)

    def named_parameters(self, role: Role) -> dict[str, nn.Parameter]:
        """The parameters that a role's optimizer updates, tied ones once."""
        if role == "policy":
            return adapters.trained(self.language) if self.adapter else dict(self.language.named_parameters())
        if role == "value_head":
            assert self.networks["policy"].value is not None
            return dict(self.networks["policy"].value.named_parameters())
        network = self.networks[role]
        parts = {"trunk": network.trunk, "head": network.head, "value": network.value}
        every = {
            f"{n}.{k}": p for n, part in parts.items() if part is not None for k, p in part.named_parameters()
        }
        return {n: p for n, p in every.items() if p.requires_grad} if self.adapter else every

    def optimize(
        self,
        rates: Mapping[Role, float],
        betas: tuple[float, float],
        weight_decay: float,
        max_grad_norm: float,
        make: Callable[[list[Any], float], torch.optim.Optimizer] | None = None,
        store: Callable[[Mapping[str, nn.Parameter], Role], StoredWeights] = stored,
    ) -> None:
        """Give every role in `rates` its optimizer: AdamW, or the result of `make` for parameters and a rate.
        `store` says how it sees the weights. Raises ModelError if that fails for these parameters."""

        def adamw(parameters: list[Any], rate: float) -> torch.optim.Optimizer:
            return torch.optim.AdamW(parameters, lr=rate, betas=betas, weight_decay=weight_decay, fused=True)

        for role, rate in rates.items():
            # First the store: the optimizer may update copies in place of the parameters.
            weights = store(self.named_parameters(role), role)
            try:
                inner = (make or adamw)(list(weights.targets.values()), rate)
            except (TypeError, ValueError) as error:
                raise ModelError(
                    f"train.optimizer cannot be made of the {role}'s weights: {error}; use another"
                ) from error
            self.optimizers[role] = Optimizer(weights, inner, rate, max_grad_norm)

    def step(self, roles: Iterable[Role], scale: float) -> dict[str, float]:
        """Update each role with its accumulated gradient. Returns the gradient norms before clipping. Raises
        NonFinite if a gradient is not finite, and Ruined if an update makes weights infinite or NaN."""
        # All norms before any update: if one role's gradient is not finite, no role is updated.
        norms = {role: self.optimizers[role].clip() for role in roles}
        # A critic's update leaves the policy as it is, and so ages nothing.
        if "policy" in norms:
            self.past.remember()
        for role in norms:
            self.optimizers[role].update(scale)
        self.clear()
        if ruined := self.ruined(norms):
            raise Ruined(ruined)
        return {f"grad_norm/{role}": norm for role, norm in norms.items()}

    def take_state_bytes(self) -> int:
        """Bytes of all weights, of what the optimizers keep, and of the gradients of updates since this was
        asked before, on all devices together. Tensors that roles share count once."""
        weights = [self.language.parameters(), *(network.parameters() for network in self.networks.values())]
        stored_tensors = [
            *(optimizer.tensors() for optimizer in self.optimizers.values()),
            self.past.tensors(),
        ]
        every = itertools.chain(*weights, *(tensors.values() for tensors in stored_tensors))
        gradients = sum(optimizer.take_gradient_bytes() for optimizer in self.optimizers.values())
        return gradients + bytes_of(every)

    def ruined(self, roles: Iterable[Role] | None = None) -> str:
        """A sentence about the trained roles whose weights are not finite; empty: there are none."""
        checked = self.optimizers if roles is None else roles
        # Each rank sees its part only.
        ruined_here = [role for role in checked if not self.optimizers[role].finite()]
        # A run whose last step is done has no further place to stop.
        ruined_by_rank = self.ranks.all_gather(ruined_here, stops=False)
        lost = list(dict.fromkeys(role for of_rank in ruined_by_rank for role in of_rank))
        return f"weights of the {' and the '.join(lost)} are not finite" if lost else ""

    def follow(self, mix: float) -> None:
        """Move the reference toward the policy: ref ← mix·policy + (1 − mix)·ref."""
        if self.adapter:
            raise ModelError(
                "the reference cannot move: under model.adapter it shares the policy's weights, which stay; "
                'set modify.reference_every = 0 or model.adapter = "none"'
            )
        self.moved = True
        reference, policy = self.networks["reference"], self.networks["policy"]
        # By the number of updates, which a checkpoint keeps: a resumed run rounds alike.
        seed = derive(self.optimizers["policy"].updates if "policy" in self.optimizers else 0, "reference")
        generator = torch.Generator(next(policy.trunk.parameters()).device).manual_seed(seed)
        with torch.no_grad():
            pairs = zip(reference.parameters(), policy.parameters(), strict=True)
            # Part by part: both roles are cut alike, so that no rank needs another's part.
            for ours, theirs in (map(local_shard, pair) for pair in pairs):
                if ours.dtype == torch.float32 or mix == 1:
                    ours.lerp_(theirs, mix)
                else:  # a small step would be lost in bfloat16
                    ours.copy_(round_stochastically(ours.float().lerp(theirs.float(), mix), generator))

    def clear(self) -> None:
        """Drop the gradients."""
        for optimizer in self.optimizers.values():
            optimizer.clear()

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights and optimizer moments of every trained role, the weights of a reference that has moved, and
        the policy's earlier weights where a sampler lags behind, as flat tensors by name. Of several ranks
        each has its parts."""
        tensors_by_role: dict[str, dict[str, torch.Tensor]] = {}
        for role, optimizer in self.optimizers.items():
            tensors_by_role[role] = optimizer.tensors()
        if self.moved:
            tensors_by_role["reference"] = dict(self.named_parameters("reference"))
        if self.past.staleness:
            tensors_by_role[PAST] = self.past.tensors()
        return {
            role: {n: t.detach() for n, t in tensors.items()} for role, tensors in tensors_by_role.items()
        }

    def empty_state(self, outline: Mapping[str, tuple[torch.Size, torch.dtype]]) -> dict[str, torch.Tensor]:
        """Tensors to read a checkpoint of several ranks into, by ``ROLE/NAME``, in parts where the weights
        that they belong to are."""
        room: dict[str, torch.Tensor] = {}
        roles = {key.partition("/")[0] for key in outline}
        weights: dict[str, dict[str, nn.Parameter]] = {
            role: self.named_parameters(role) for role in (*self.optimizers, "reference") if role in roles
        }
        for key, (shape, dtype) in outline.items():
            role, _, name = key.partition("/")
            # Moments, and master weights, end in the name of their weight: optimizer:exp_avg:NAME.
            like = weights.get(role, {}).get(name.rpartition(":")[2])
            if like is None or like.shape != shape:
                room[key] = torch.empty(shape, dtype=dtype)
            else:
                # The checkpoint's type: moments may be finer than their weight.
                room[key] = torch.empty_like(like, dtype=dtype, requires_grad=False)
        return room

    def full_tensors(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Weights or tensors of an optimizer, detached. Those of several ranks are gathered into the CPU's
        memory of the rank that writes, and are empty on the others."""
        if self.ranks.alone:
            return {name: tensor.detach() for name, tensor in tensors.items()}
        full_by_name: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            full = full_tensor(tensor.detach())  # on every rank, one tensor after the other
            full_by_name[name] = full.cpu() if self.ranks.writes else torch.empty(0)
        return full_by_name

    def counters(self) -> dict[str, Any]:
        """What else the optimizers keep, by role, as JSON; empty for AdamW."""
        return {role: plain for role, optimizer in self.optimizers.items() if (plain := optimizer.plain())}

    def restore(
        self, state: Mapping[str, Mapping[str, torch.Tensor]], counters: Mapping[str, Any] | None = None
    ) -> None:
        """The inverse of `state` and `counters`; raises ModelError when roles or names differ."""
        self.moved = "reference" in state
        if state.keys() - {"reference", PAST} != self.optimizers.keys():
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
                    # Into the same tensors: optimizers, hooks and other roles hold them.
                    local_shard(p).copy_(local_shard(shard_like(saved[name], p)))
                optimizer.restore(saved, (counters or {}).get(role, {}))
            for name, p in self.named_parameters("reference").items() if self.moved else ():
                local_shard(p).copy_(local_shard(shard_like(state["reference"][name], p)))
        try:
            self.past.restore(state.get(PAST, {}))
        except (KeyError, ValueError) as error:
            raise ModelError(
                f"the checkpoint's earlier weights do not fit sampler.lag and this model ({error}); "
                "delete the run's folder to start over"
            ) from error
