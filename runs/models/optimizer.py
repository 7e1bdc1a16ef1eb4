"""One trained role's optimizer: its update, and what a checkpoint keeps of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

MOMENT = "optimizer:"
"""What the names of an optimizer's tensors begin with in a checkpoint; the weights have their own names."""
Plain = bool | int | float | str | None
"""A value of an optimizer's state that is not a tensor and is kept as JSON."""


class NonFinite(Exception):
    """A loss or gradient that is not a finite number, found before the optimizer could use it."""


@dataclass
class Optimizer:
    """One trained role: its parameters by name, torch's optimizer of them, and the clipping threshold."""

    parameters: dict[str, nn.Parameter]
    inner: torch.optim.Optimizer
    learning_rate: float
    max_grad_norm: float
    initial_groups: list[dict[str, Any]] = field(init=False)
    """The settings that the optimizer was made with, group by group."""

    def __post_init__(self) -> None:
        self.initial_groups = [settings(group) for group in self.inner.param_groups]

    def clip(self) -> float:
        """Clip the gradient. Returns its norm before. Raises NonFinite if that is not finite."""
        # Before the optimizer sees it: a NaN in its moments would stay there for the rest of the run.
        norm = nn.utils.clip_grad_norm_(list(self.parameters.values()), self.max_grad_norm).item()
        if not math.isfinite(norm):
            raise NonFinite(f"gradient norm is {norm}")
        return norm

    def update(self, scale: float) -> None:
        """One step of the optimizer, at its learning rate times `scale`."""
        for group in self.inner.param_groups:
            group["lr"] = self.learning_rate * scale
        self.inner.step()

    def finite(self) -> bool:
        """Whether every weight is a finite number. Waits for the device only once."""
        weights = [p.detach().flatten() for p in self.parameters.values()]
        squares = torch.stack([torch.dot(weight, weight).float() for weight in weights])
        if bool(
            squares.isfinite().all()
        ):  # the fast test; an overflow proves nothing, so the exact one follows
            return True
        largest = torch._foreach_norm(weights, math.inf)
        return bool(torch.stack([size.float() for size in largest]).isfinite().all())

    def clear(self) -> None:
        self.inner.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights by name, and the optimizer's tensors under `MOMENT`."""
        tensors = {name: p.detach() for name, p in self.parameters.items()}
        for name, p in self.parameters.items():
            for key, value in self.inner.state.get(p, {}).items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{MOMENT}{key}:{name}"] = value
        return tensors

    def plain(self) -> dict[str, Any]:
        """The optimizer's state that is not tensors: by parameter, and by group the settings that changed
        since it was made (some optimizers count there). Empty for AdamW. Raises TypeError for a value that
        JSON cannot hold."""
        by_parameter: dict[str, dict[str, Plain]] = {}
        for name, p in self.parameters.items():
            for key, value in self.inner.state.get(p, {}).items():
                if not isinstance(value, torch.Tensor):
                    by_parameter.setdefault(name, {})[key] = demand_plain(key, value)
        groups = [
            {
                key: demand_plain(key, value)
                for key, value in settings(group).items()
                if value != made.get(key)
            }
            for group, made in zip(self.inner.param_groups, self.initial_groups, strict=True)
        ]
        return {"state": by_parameter, "groups": groups} if by_parameter or any(groups) else {}

    def restore(self, tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Any]) -> None:
        """The inverse of `tensors` and `plain`, without the weights."""
        for group, kept in zip(self.inner.param_groups, plain.get("groups", ()), strict=False):
            group.update(kept)
        for name, p in self.parameters.items():
            state: dict[str, Any] = dict(plain.get("state", {}).get(name, {}))
            for key, tensor in tensors.items():
                if key.startswith(MOMENT) and key.split(":", 2)[2] == name:
                    what = key.split(":", 2)[1]
                    state[what] = tensor.detach().to(self.device_of(what, p), copy=True)
            if state:
                self.inner.state[p] = state

    def device_of(self, what: str, p: nn.Parameter) -> torch.device:
        """The device of a tensor of a parameter's state: the parameter's own, except for the count of steps,
        which torch keeps on the CPU unless the optimizer is fused or capturable."""
        group = next(g for g in self.inner.param_groups if any(p is member for member in g["params"]))
        beside = what != "step" or group.get("fused") or group.get("capturable")
        return p.device if beside else torch.device("cpu")


def settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a parameter group, without the learning rate, which every update sets."""
    return {key: value for key, value in group.items() if key not in ("params", "lr", "initial_lr")}


def demand_plain(key: str, value: Any) -> Plain:
    """The value, if JSON gives it back equal."""
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"its state holds {key}, a {type(value).__name__}, which a checkpoint cannot keep")
    return value
