"""One trained role's optimizer: its update, and what a checkpoint keeps of it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from grpobench.runs.models.shards import bytes_of, is_sharded, local_shard, shard_like
from grpobench.runs.models.stored_weights import MASTER, StoredWeights

MOMENT = "optimizer:"
"""What the names of an optimizer's tensors begin with in a checkpoint; the weights have their own names."""
Plain = bool | int | float | str | None
"""A value of an optimizer's state that is not a tensor and is kept as JSON."""
ROUNDED = "updates"
"""In that JSON: how often the role was updated, from which stochastic rounding draws its numbers."""


class NonFinite(Exception):
    """A loss or gradient that is not a finite number, found before the optimizer could use it."""


@dataclass
class Optimizer:
    """One trained role: its weights, torch's optimizer of them, and the clipping threshold."""

    weights: StoredWeights
    inner: torch.optim.Optimizer
    """Made for the targets of `weights`."""
    learning_rate: float
    max_grad_norm: float
    updates: int = 0
    """Since the run's beginning."""
    gradient_bytes: int = 0
    """Of the last update, until `take_gradient_bytes`."""
    initial_groups: list[dict[str, Any]] = field(init=False)
    """The settings that the optimizer was made with, group by group."""

    def __post_init__(self) -> None:
        self.initial_groups = [settings(group) for group in self.inner.param_groups]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters by name."""
        return self.weights.parameters

    def clip(self) -> float:
        """Clip the gradient. Returns its norm before. Raises NonFinite if that is not finite."""
        # Before the optimizer sees it: a NaN in its moments would stay there for the rest of the run.
        norm = self.weights.clip(self.max_grad_norm)
        if not math.isfinite(norm):
            raise NonFinite(f"gradient norm is {norm}")
        return norm

    def update(self, scale: float) -> None:
        """One step of the optimizer, at its learning rate times `scale`."""
        for group in self.inner.param_groups:
            if isinstance(group["lr"], torch.Tensor):  # as torchao's, which compile with it
                group["lr"].fill_(self.learning_rate * scale)
            else:
                group["lr"] = self.learning_rate * scale
        self.updates += 1
        # Before the step, in which rounded weights drop each gradient once it is used.
        holders = [*self.parameters.values(), *self.weights.targets.values()]
        self.gradient_bytes = bytes_of(p.grad for p in holders if p.grad is not None)
        self.weights.step(self.inner, self.updates)

    def take_gradient_bytes(self) -> int:
        """Bytes of the last update's gradients, those of copies of the weights included; 0 if there was no
        update since this was asked before."""
        gradient_bytes, self.gradient_bytes = self.gradient_bytes, 0
        return gradient_bytes

    def finite(self) -> bool:
        """Whether every weight that this rank holds is a finite number. Waits for the device only once."""
        parts = [local_shard(p.detach()).flatten() for p in self.parameters.values()]
        weights = [part for part in parts if len(part)]  # the maximum of an empty part is an error
        if not weights:
            return True
        # A dot product reads a tensor once and makes none of its size, as isfinite() would.
        squares = torch.stack([torch.dot(weight, weight).float() for weight in weights])
        if bool(
            squares.isfinite().all()
        ):  # the fast test; an overflow proves nothing, so the exact one follows
            return True
        largest = torch._foreach_norm(weights, math.inf)
        return bool(torch.stack([size.float() for size in largest]).isfinite().all())

    def clear(self) -> None:
        self.weights.clear()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights by name, and under `MOMENT` the optimizer's tensors and master weights. A tensor that is
        made of others, as those of 8-bit optimizers, is kept as these: ``exp_avg.codes``."""
        tensors = {name: p.detach() for name, p in self.parameters.items()}
        for name, copy in self.weights.copies().items():
            tensors[f"{MOMENT}{MASTER}:{name}"] = copy
        for name, key, value in self._state():
            if is_composed(value):
                for part in value.__tensor_flatten__()[0]:
                    tensors[f"{MOMENT}{key}.{part}:{name}"] = getattr(value, part)
            elif isinstance(value, torch.Tensor):
                tensors[f"{MOMENT}{key}:{name}"] = value
        return tensors

    def _state(self) -> Iterator[tuple[str, str, Any]]:
        """(parameter, key, value) of all that the optimizer keeps by parameter."""
        for name, target in self.weights.targets.items():
            for key, value in self.inner.state.get(target, {}).items():
                yield name, key, value

    def plain(self) -> dict[str, Any]:
        """The optimizer's state that is not tensors: by parameter, and by group the settings that changed
        since it was made (some optimizers count there); how tensors are composed of others; and the number of
        updates where rounding depends on it. Empty for AdamW. Raises TypeError for a value that JSON cannot
        hold."""
        by_parameter: dict[str, dict[str, Plain]] = {}
        composed: dict[str, dict[str, Any]] = {}
        for name, key, value in self._state():
            if is_composed(value):
                composed.setdefault(name, {})[key] = composition(key, value)
            elif not isinstance(value, torch.Tensor):
                by_parameter.setdefault(name, {})[key] = demand_plain(key, value)
        groups = [
            {
                key: demand_plain(key, value)
                for key, value in settings(group).items()
                if value != made.get(key)
            }
            for group, made in zip(self.inner.param_groups, self.initial_groups, strict=True)
        ]
        plain_state: dict[str, Any] = (
            {"state": by_parameter, "groups": groups} if by_parameter or any(groups) else {}
        )
        plain_state |= {"composed": composed} if composed else {}
        rounded = any(p.dtype != torch.float32 for p in self.parameters.values())
        return plain_state | ({ROUNDED: self.updates} if rounded else {})

    def restore(self, tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]) -> None:
        """The inverse of `tensors` and `plain`, after the weights are restored."""
        self.updates = plain.get(ROUNDED, 0)  # absent for float32 weights
        for group, changed_settings in zip(self.inner.param_groups, plain.get("groups", ()), strict=False):
            group.update(changed_settings)
        copies: dict[str, torch.Tensor] = {}
        for name, target in self.weights.targets.items():
            state: dict[str, Any] = dict(plain.get("state", {}).get(name, {}))
            for key, tensor in tensors.items():
                if key.startswith(MOMENT) and key.split(":", 2)[2] == name:
                    state_name = key.split(":", 2)[1]
                    if state_name == MASTER:
                        copies[name] = shard_like(tensor, target)
                    else:
                        # A copy: the optimizer updates its state in place, and the tensors are the caller's.
                        tensor_copy = tensor.detach().to(self.device_of(state_name, target), copy=True)
                        state[state_name] = shard_like(tensor_copy, target)
            for key, made in plain.get("composed", {}).get(name, {}).items():
                state[key] = self._compose(key, made, state)
            if state:
                self.inner.state[target] = state
        self.weights.restore(copies)

    def _compose(self, key: str, made: Mapping[str, Any], state: dict[str, Any]) -> torch.Tensor:
        """The inverse of `composition`; takes the parts out of `state`."""
        module, _, name = made["class"].partition(":")
        # A checkpoint is data: it names classes of the optimizer's own package and no others.
        if module.partition(".")[0] != type(self.inner).__module__.partition(".")[0]:
            raise ValueError(f"the checkpoint's {key} is a {made['class']}, which is not of the optimizer")
        cls = getattr(importlib.import_module(module), name)
        parts = {part: state.pop(f"{key}.{part}") for part in made["parts"]}
        context = [restored_context(context_part) for context_part in made["context"]]
        return cls.__tensor_unflatten__(parts, context, None, None)  # type: ignore[no-any-return]

    def device_of(self, state_name: str, p: nn.Parameter) -> torch.device:
        """The device of a tensor of a parameter's state: the parameter's own, except for the count of steps,
        which torch keeps on the CPU unless the optimizer is fused or capturable."""
        # `is`, since `in` would compare tensors element by element.
        group = next(g for g in self.inner.param_groups if any(p is member for member in g["params"]))
        beside = state_name != "step" or group.get("fused") or group.get("capturable")
        return p.device if beside else torch.device("cpu")


def is_composed(value: Any) -> bool:
    """Whether a value is a tensor made of others, by the protocol of torch's tensor subclasses."""
    # FSDP's DTensor has the same protocol, but a checkpoint keeps its parts as they are.
    return isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__") and not is_sharded(value)


def composition(key: str, value: Any) -> dict[str, Any]:
    """How to make a tensor of its parts again, as JSON. Raises TypeError where JSON cannot hold it."""
    parts, context = value.__tensor_flatten__()
    if any(is_composed(getattr(value, part)) for part in parts):
        raise TypeError(f"its state holds {key}, a {type(value).__name__} of several layers")
    return {
        "class": f"{type(value).__module__}:{type(value).__name__}",
        "parts": list(parts),
        "context": [plain_context(key, context_part) for context_part in context],
    }


def plain_context(key: str, value: Any) -> Plain | list[int]:
    """A part of a composition that is not a tensor: a type, a shape, or what JSON holds as it is."""
    if isinstance(value, torch.dtype):
        return str(value)
    return list(value) if isinstance(value, torch.Size) else demand_plain(key, value)


def restored_context(value: Plain | list[int]) -> Any:
    """The inverse of `plain_context`."""
    if isinstance(value, list):
        return torch.Size(value)
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value


def settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a parameter group, without the learning rate, which every update sets."""
    return {key: value for key, value in group.items() if key not in ("params", "lr", "initial_lr")}


def demand_plain(key: str, value: Any) -> Plain:
    """The value, if JSON gives it back equal."""
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"its state holds {key}, a {type(value).__name__}, which a checkpoint cannot keep")
    return value
