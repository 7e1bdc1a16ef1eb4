"""Low-rank adapters (LoRA: Hu et al., arXiv:2106.09685), made by peft."""

# An adapted linear layer computes W x + s·B A x with s = alpha / rank. W is frozen; A (rank, in) and B (out,
# rank) are trained, and B starts at 0.
#
# Policy, critic and reference share W. Each has modules of its own over the same weights: the reference has
# plain ones, policy and critic have an adapter each. Nothing is switched. In peft's own way, one tree of
# modules whose adapters are switched on and off, a forward pass that is repeated in the backward pass
# (activation checkpointing) would run with the adapter of that moment.
#
# W is never changed, not even for a moment: in bfloat16 W + s·BA − s·BA is not W. The sum is always a new
# tensor, computed in float32 (`merged`).

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import torch

from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.token_budgets import ModelError, first_line
from grpobench.runs.tools.strict import nearest

if TYPE_CHECKING:
    from torch import nn

NAME = "default"
"""What peft calls an adapter that nobody named."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter in a folder of peft's."""
PEFT_PREFIX = "base_model.model."
"""What the names of a `PeftModel`'s weights begin with."""


def sharing(module: Any) -> Any:
    """A copy of a module's tree over the same parameters and buffers: it takes no memory for weights."""
    tensors = [*module.parameters(), *module.buffers()]
    # deepcopy takes what the memo has instead of copying it.
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def linear_layers(module: nn.Module) -> list[str]:
    """What the linear layers inside a module are called, each name once."""
    # Exact types: `is_adapted` knows no subclass, and `merged` would lose the adapter of one.
    names = {name for name, layer in module.named_modules() if type(layer) is torch.nn.Linear}
    return sorted({name.rpartition(".")[2] for name in names})  # peft matches the end of a module's name


def targets_of(adapter: Adapter, trunk: nn.Module) -> list[str]:
    """The layers of a trunk that get an adapter. Raises ModelError for one that the trunk does not have."""
    present = linear_layers(trunk)
    if not present:
        raise ModelError(
            f"{type(trunk).__name__} has no layers of type torch.nn.Linear, to which model.adapter could be "
            'added; set model.adapter = "none"'
        )
    for name in adapter.targets:
        if name not in present:
            guess = nearest(name, present)
            did = f"; did you mean {guess!r}?" if guess else ""
            raise ModelError(
                f"model.adapter.targets: {type(trunk).__name__} has no linear layer {name!r}{did}; it has "
                f"{', '.join(present)}"
            )
    return sorted(adapter.targets) or present


def attach(module: Any, adapter: Adapter) -> None:
    """Add a new adapter to the linear layers of a language model's trunk, or of a trunk, in place. All other
    weights are frozen. A is drawn from the global generator. Raises ModelError where that is not possible."""
    from peft import LoraConfig, inject_adapter_in_model

    trunk = module.base_model
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]
        # Of the trunk alone: the output head is a linear layer of the module too.
        target_modules=targets_of(adapter, trunk),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        inject_adapter_in_model(config, module, NAME)
    except ValueError as error:
        raise ModelError(
            f"{type(module).__name__} cannot have this adapter: {first_line(error)}; choose other "
            f"model.adapter.targets among {', '.join(linear_layers(trunk))}"
        ) from error
    for parameter in trained(module).values():
        # peft gives them the base's dtype, and in bfloat16 small updates would be rounded away.
        parameter.data = parameter.data.float()
    # peft's new modules start in training mode.
    module.eval()


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a module's adapters."""
    # peft has frozen everything else when it added the adapter.
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def is_adapted(layer: Any) -> bool:
    """Whether a layer is a plain linear one with one adapter beside it, as `attach` makes them."""
    # Before the import of peft, which a run without an adapter need not wait for.
    if not hasattr(layer, "lora_A"):
        return False
    from peft.tuners.lora import Linear

    return (
        type(layer) is Linear
        and type(layer.base_layer) is torch.nn.Linear
        and list(layer.lora_A) == [NAME]
        # A variant such as DoRA computes something else than W + s·BA.
        and not (layer.merged or layer.disable_adapters or layer.lora_variant)
    )


def low_rank(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A (rank, in) and s·B (out, rank) of an adapted layer."""
    return layer.lora_A[NAME].weight, layer.lora_B[NAME].weight * layer.scaling[NAME]


def merged(layer: Any) -> torch.Tensor:
    """W + s·BA (out, in) of an adapted layer, in float32 and a new tensor; W itself of a plain layer."""
    if not is_adapted(layer):
        return layer.weight  # type: ignore[no-any-return]
    down, up = low_rank(layer)
    return torch.addmm(layer.base_layer.weight.float(), up.float(), down.float())


@torch.no_grad()
def merged_weights(language: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a language model as if it had no adapter, by the names of one that has none; those of
    adapted layers with BA added, in new tensors. Tied ones once."""
    adapted = {name: layer for name, layer in language.named_modules() if is_adapted(layer)}
    weights = {}
    for name, parameter in language.named_parameters():
        layer, _, kind = name.partition(".base_layer.")
        if layer in adapted and kind:
            weights[f"{layer}.{kind}"] = merged(adapted[layer]) if kind == "weight" else parameter.detach()
        # The names of A and B begin with that of their layer, whose sum holds them already.
        elif not any(name.startswith(f"{other}.") for other in adapted):
            weights[name] = parameter.detach()
    return weights


@torch.no_grad()
def adopt_merged(plain: Any, language: Any) -> None:
    """Give a plain model that shares the weights of an adapted one (`sharing`) weights of its own, with BA
    added, where the other has an adapter. The adapted model stays as it is."""
    for name, layer in language.named_modules():
        if is_adapted(layer):
            # A new parameter instead of `copy_`: the plain model's weight is the adapted model's W itself.
            plain.get_submodule(name).weight = torch.nn.Parameter(merged(layer), requires_grad=False)


def as_peft(language: Any, base: str, dtype: torch.dtype) -> tuple[str, dict[str, torch.Tensor]]:
    """The adapter of a language model as `PeftModel.from_pretrained` reads it: the text of `CONFIG` and the
    tensors of `WEIGHTS`. `base` is the model that it belongs to."""
    # A copy, since the model goes on training with its own.
    config = copy.copy(language.peft_config[NAME])
    config.base_model_name_or_path, config.inference_mode = base, True
    # peft holds the targets as a set, whose order changes from process to process.
    text = json.dumps(config.to_dict(), indent=2, sort_keys=True, default=sorted)
    tensors = {
        # peft's files leave out the name of the adapter.
        PEFT_PREFIX + name.replace(f".{NAME}.", "."): p.detach().to(dtype)
        for name, p in trained(language).items()
    }
    return text + "\n", tensors
