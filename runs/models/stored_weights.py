"""The weights of a role as its optimizer sees them: themselves, float32 copies, or bfloat16 with rounding."""

# An update of 1e-6 is lost on a weight of 1 in bfloat16, whose neighbors are 4e-3 and more away. Either the
# optimizer updates a float32 copy of the weights (master weights), to which the model's weights are rounded;
# or the update is computed in float32 for one weight tensor after the other and rounded up or down at random,
# so that its mean is exact (stochastic rounding), and no copy is kept.

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch
from torch import nn

from grpobench.runs.models.shards import full_tensor
from grpobench.runs.tools.seeds import derive

MASTER = "master"
"""Under what a checkpoint keeps master weights, in place of the name of an optimizer's tensor."""


class StoredWeights:
    """The weights of a role, which its optimizer updates in place."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        self.targets = dict(parameters)
        """What the optimizer is made for, by the name of the model's parameter."""

    def clip(self, most: float) -> float:
        """Scale the gradient down to a norm of at most `most`. Returns its norm before."""
        # Of sharded gradients the norm is a DTensor, whose parts must be added up over the ranks.
        return full_tensor(nn.utils.clip_grad_norm_(list(self.targets.values()), most)).item()

    def step(self, inner: torch.optim.Optimizer, update: int) -> None:
        """One step of the optimizer; `update` counts those of the role."""
        inner.step()

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients that are held now, by the name of the parameter, before clipping; without those that
        are None."""
        gradient_by_name: dict[str, torch.Tensor] = {}
        for name, p in self.parameters.items():
            target = self.targets[name]
            # A master copy has taken the gradient over from its parameter.
            gradient = p.grad if target.grad is None else target.grad
            if gradient is not None:
                gradient_by_name[name] = gradient
        return gradient_by_name

    def clear(self) -> None:
        """Drop the gradients."""
        # None instead of zeros: optimizers skip a parameter without gradient, and the memory is free.
        for p in (*self.parameters.values(), *self.targets.values()):
            p.grad = None

    def copies(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold beside the weights of the model, by their names."""
        return {}

    def restore(self, copies: Mapping[str, torch.Tensor]) -> None:
        """The inverse of `copies`, after the model's weights are restored. Without copies the present weights
        are taken."""


class MasterWeights(StoredWeights):
    """Float32 copies of the weights that are not float32, or, given a device, of those elsewhere.

    The gradient is added up in the copies too, after each backward pass, and leaves the model at once. With
    copies on the CPU the device holds neither gradients nor any state of the optimizer.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], device: torch.device | None = None) -> None:
        super().__init__(parameters)
        for name, p in parameters.items():
            master_device = device or p.device
            if is_coarse(p) or p.device != master_device:
                master_dtype = torch.float32 if is_coarse(p) else p.dtype
                master = nn.Parameter(p.detach().to(master_device, master_dtype, copy=True))
                p.register_post_accumulate_grad_hook(functools.partial(_hand_over, master))
                self.targets[name] = master

    def step(self, inner: torch.optim.Optimizer, update: int) -> None:
        inner.step()
        with torch.no_grad():
            for name, master in self._copied().items():
                self.parameters[name].copy_(master)

    def copies(self) -> dict[str, torch.Tensor]:
        # A copy of a float32 weight on another device is the weight itself.
        return {
            name: master.detach()
            for name, master in self._copied().items()
            if is_coarse(self.parameters[name])
        }

    def restore(self, copies: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, master in self._copied().items():
                master.copy_(copies.get(name, self.parameters[name]))

    def _copied(self) -> dict[str, nn.Parameter]:
        return {name: target for name, target in self.targets.items() if target is not self.parameters[name]}


def _hand_over(master: nn.Parameter, p: torch.Tensor) -> None:
    """Move the gradient of a parameter to its master weights."""
    assert p.grad is not None
    gradient = p.grad.to(master.device, master.dtype)
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
    p.grad = None


class RoundedWeights(StoredWeights):
    """Weights of which those in bfloat16 are updated by stochastic rounding.

    The optimizer is made for float32 parameters without memory. Each in turn gets the weights and their
    gradient, is updated alone, and gives the weights back. An optimizer must therefore treat every parameter
    by itself, as Adam and SGD do. Its state is float32. Random numbers depend on `seed` and on the number of
    the update and on nothing else.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], seed: int) -> None:
        super().__init__(parameters)
        self.seed, self.scale = seed, 1.0
        for name, p in parameters.items():
            if is_coarse(p):
                self.targets[name] = nn.Parameter(_without_memory(p))

    def clip(self, most: float) -> float:
        """The norm; the gradient is scaled when it is used, because in bfloat16 it would be rounded again."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        # In float32: a norm in bfloat16 has fewer than three digits.
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms)).item() if norms else 0.0
        # As torch.nn.utils.clip_grad_norm_ does it.
        self.scale = min(1.0, most / (norm + 1e-6)) if math.isfinite(norm) else 1.0
        return norm

    def step(self, inner: torch.optim.Optimizer, update: int) -> None:
        in_place_parameters = [
            p for name, p in self.parameters.items() if self.targets[name] is p and p.grad is not None
        ]
        for p in in_place_parameters:
            assert p.grad is not None
            p.grad.mul_(self.scale)
        if in_place_parameters:
            inner.step()
        # Without a gradient they are left alone by the steps of the other parameters, below.
        for p in in_place_parameters:
            p.grad = None
        generators: dict[torch.device, torch.Generator] = {}
        with torch.no_grad():
            for name, p in self.parameters.items():
                if (target := self.targets[name]) is p or p.grad is None:
                    continue
                if p.device not in generators:
                    generators[p.device] = torch.Generator(p.device).manual_seed(
                        derive(self.seed, "update", update)
                    )
                target.data, target.grad = p.float(), p.grad.float().mul_(self.scale)
                p.grad = None
                inner.step()  # which skips parameters without a gradient: all others
                p.copy_(round_stochastically(target.data, generators[p.device]))
                target.data, target.grad = _without_memory(p), None
        self.scale = 1.0


def is_coarse(p: torch.Tensor) -> bool:
    """Whether small updates of a parameter would be lost to rounding: it has fewer digits than float32."""
    return p.dtype.itemsize < torch.float32.itemsize


def _without_memory(p: torch.Tensor) -> torch.Tensor:
    """A float32 tensor of the same shape and device, of one number."""
    return torch.zeros((), device=p.device).expand(p.shape)


def round_stochastically(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Float32 values rounded to one of their two neighbors in bfloat16, to each with the probability that
    makes the mean exact. Values that are not finite stay as they are.

    bfloat16 is the upper half of a float32. The lower half, as a fraction of 2^16, is how far the value is on
    its way to the next number: adding a uniform integer below 2^16 carries over with just that probability.
    """
    noise = torch.randint(
        0, 2**16, values.shape, dtype=torch.int32, device=values.device, generator=generator
    )
    # The lower half is cleared, so that the cast below is exact and rounds nothing.
    cut = (values.contiguous().view(torch.int32) + noise).bitwise_and_(-(2**16)).view(torch.float32)
    return cut.where(values.isfinite(), values).to(torch.bfloat16)


def cast_weights(module: nn.Module, dtype: torch.dtype) -> None:
    """Give the parameters another type. Buffers keep theirs: rotary frequencies in bfloat16 would move the
    positions of a long text."""
    for p in module.parameters():
        p.data = p.data.to(dtype)


def stored(
    parameters: Mapping[str, nn.Parameter],
    role: str = "",
    *,
    master: bool = True,
    offload: bool = False,
    seed: int = 0,
) -> StoredWeights:
    """The weights of a role in the way that the settings ask for; `seed` is the run's.
    Weights of float32 or finer beside their optimizer need nothing of all this."""
    if offload:
        return MasterWeights(parameters, torch.device("cpu"))
    if not any(map(is_coarse, parameters.values())):
        return StoredWeights(parameters)
    # By role, else policy and critic would be rounded by the same numbers.
    return MasterWeights(parameters) if master else RoundedWeights(parameters, derive(seed, "rounding", role))
