"""Weights that lie in parts on the ranks of a run, by torch's FSDP2 (`fully_shard`)."""

# Each layer of every network is a unit: before it runs its weights are gathered, and dropped after it. A
# value head is a unit too, since it is float32 whatever the others are and a unit has one type. What is
# outside of these (embeddings, the output head, which may be tied to them, the last norm) is one more unit,
# the root. Trunk and head therefore run within one call of the root (`Shards.call`), else the head would find
# its weights dropped.
#
# Gradients are added up over ranks, never averaged: an algorithm's weights already count the whole minibatch.

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from grpobench.algorithms.algorithm import ModelOutput, Role
from grpobench.runs.models.activation_checkpointing import layers_of
from grpobench.runs.models.ranks import DeviceRanks

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

TENSORS = tuple(field.name for field in dataclasses.fields(ModelOutput))


class Root(nn.Module):
    """Holds every network of a run, and runs what it is given while the weights outside of layers are
    whole."""

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        return work()


class Shards:
    """The networks of a run, sharded over its ranks from now on. `trunks` are those that have layers, and
    `heads` and `values` their output heads and value heads."""

    def __init__(
        self,
        trunks: Iterable[nn.Module],
        heads: Iterable[nn.Module],
        values: Iterable[nn.Module],
        ranks: DeviceRanks,
    ) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        trunks, values = list(trunks), list(values)
        # Weights that lie elsewhere are moved to the rank's device, one unit after the other.
        device = ranks.device or next(trunks[0].parameters()).device
        mesh = init_device_mesh(device.type, (ranks.size,))
        self.root: Any = Root([*trunks, *heads, *values])
        units: list[Any] = [*(layer for trunk in trunks for layer in layers_of(trunk)), *values]
        # The root last: it takes the parameters that no unit has taken before it.
        for unit in (*units, self.root):
            fully_shard(unit, mesh=mesh)
            # Each rank's loss has the weights of the whole minibatch, so that their gradients add up.
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)

    def run(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        """`work()`, within the root. Every rank must call it at the same places. The root gathers its weights
        again when the gradient of one of the tensors is asked for, which it sees of no other result."""
        tensors: list[torch.Tensor] = self.root(work)
        if not torch.is_grad_enabled():
            self.root.reshard()  # else the next call would find these weights, even after an update
        return tensors

    def call(self, work: Callable[[], dict[Role, ModelOutput]]) -> dict[Role, ModelOutput]:
        """`run` for the outputs of roles."""
        output_fields: list[tuple[Role, str]] = []

        def flat() -> list[torch.Tensor]:
            outputs = work()
            field_values = [
                (role, name, getattr(output, name)) for role, output in outputs.items() for name in TENSORS
            ]
            tensors = [(role, name, value) for role, name, value in field_values if value is not None]
            output_fields.extend((role, name) for role, name, _ in tensors)
            # A hook on a view may be lost.
            return [value.clone() if value._base is not None else value for _, _, value in tensors]

        values = self.run(flat)
        tensors_by_role: dict[Role, dict[str, torch.Tensor]] = {}
        for (role, name), value in zip(output_fields, values, strict=True):
            tensors_by_role.setdefault(role, {})[name] = value
        return {role: ModelOutput(**tensors) for role, tensors in tensors_by_role.items()}


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether this rank holds a part of a tensor only."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False  # a run on one device, which need not wait for the import
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds, not copied; the tensor itself if it is not sharded."""
    if not is_sharded(tensor):
        return tensor
    sharded: DTensor = tensor  # type: ignore[assignment]
    return sharded.to_local()


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor, gathered from all ranks, each of which must call this; the tensor itself if it
    is not sharded."""
    if not is_sharded(tensor):
        return tensor
    sharded: DTensor = tensor  # type: ignore[assignment]
    return sharded.full_tensor()


def shard_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor in parts as `like` is, if both have a shape; each rank keeps its own part. One that is
    in parts stays as it is."""
    if is_sharded(tensor) or not is_sharded(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    sharded: DTensor = like  # type: ignore[assignment]
    # No rank sends anything: all have read the same tensor.
    return distribute_tensor(
        tensor.to(local_shard(like).device), sharded.device_mesh, sharded.placements, src_data_rank=None
    )


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors on all ranks together; those that share memory count once."""
    # A rank's part may be empty, and then has no address.
    return sum({local_shard(t).data_ptr() or id(t): t.numel() * t.element_size() for t in tensors}.values())
