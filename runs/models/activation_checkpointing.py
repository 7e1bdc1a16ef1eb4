"""Activation checkpointing: a layer keeps only its input, and the backward pass runs it once more."""

# The switch of transformers (`gradient_checkpointing_enable`) acts only on models in training mode, which
# also turns dropout on. The models of a run stay in evaluation mode, so their layers are wrapped here.

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from grpobench.runs.models.token_budgets import ModelError


def layers_of(trunk: nn.Module) -> list[nn.Module]:
    """The layers that are checkpointed: those that transformers would checkpoint. Raises ModelError for a
    trunk without any."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers: list[nn.Module] = [
        module for module in trunk.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    # Layers inside a layer run again with it.
    inner = {id(module) for layer in layers for module in layer.modules() if module is not layer}
    if outermost_layers := [layer for layer in layers if id(layer) not in inner]:
        return outermost_layers
    raise ModelError(
        f"{type(trunk).__name__} has no layers that can be checkpointed; set train.activation_checkpointing "
        "= false"
    )


@contextlib.contextmanager
def checkpointed(trunk: nn.Module) -> Iterator[None]:
    """Within, forward passes of the trunk keep only the inputs of its layers for the backward pass, which may
    run outside."""
    with contextlib.ExitStack() as stack:
        for layer in layers_of(trunk):
            # No random numbers to repeat: dropout is off.
            # Not reentrant: that variant gives no gradients where no input of a layer requires one, as behind
            # the frozen embeddings under an adapter.
            again = functools.partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
            )
            stack.enter_context(replaced_forward(layer, again))
        yield


@contextlib.contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within, a module's forward pass is `forward`. Nothing stays on the module afterwards: a copy of it must
    not call this one."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before
