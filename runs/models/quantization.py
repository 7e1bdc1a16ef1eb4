"""Linear weights rounded to 8 or 4 bits, with the numbers that an inference engine's have."""

# A weight is stored as a small number times a scale, and both are made anew from the trainer's weights. Here
# the product is written out in the weight's own type, so that any forward pass computes with it. As in vLLM,
# which quantizes linear layers and experts alone, embeddings, norms, biases, routers and the output head stay
# as they are, and so does an adapter beside the weights.
#
# - int8, int4: integers from −127 to 127, or −7 to 7, by a symmetric scale for each output channel.
# - fp8: float8 e4m3, by one scale for a tensor, or for each expert, as vLLM does with quantization = "fp8"
#   (`Fp8PerTensorOnlineLinearMethod` in vllm@00e73bf, vllm/model_executor/layers/quantization/online/fp8.py).
#   vLLM stacks query, key and value layers, and gate and up layers, so that these share a scale there. It
#   also rounds the activations, which are exact here.

from __future__ import annotations

import contextlib

import torch
from torch import nn

from grpobench.runs.models.past_weights import swapped_data
from grpobench.runs.models.token_budgets import ModelError

INTEGERS = {"int8": 127, "int4": 7}
"""Largest integer of each format."""


def quantize(weight: torch.Tensor, form: str, input_dim: int = -1) -> torch.Tensor:
    """The numbers of `weight` (…, out, in) that are left of it in a format, as a new tensor of its type.
    `input_dim` is the dimension of its inputs: −2 for (…, in, out)."""
    exact = weight.detach().float()
    float8 = torch.finfo(torch.float8_e4m3fn)
    dims, most = ((-2, -1), float8.max) if form == "fp8" else ((input_dim,), float(INTEGERS[form]))
    # A row of zeros has no scale: any will do.
    scale = exact.abs().amax(dims, keepdim=True).div(most).clamp(min=torch.finfo(torch.float32).tiny)
    # Times the reciprocal, as the kernels of torch and vLLM compute it.
    scaled = (exact * scale.reciprocal()).clamp(-most, most)
    rounded = scaled.to(torch.float8_e4m3fn).float() if form == "fp8" else scaled.round()
    return (rounded * scale).to(weight.dtype)


def linear_weights(trunk: nn.Module) -> list[tuple[torch.Tensor, int]]:
    """The weights of a trunk's linear layers and experts, each with the dimension of its inputs. Raises
    ModelError for a trunk without any."""
    weights: list[tuple[torch.Tensor, int]] = []
    for name, module in trunk.named_modules():
        # An adapter's matrices are linear layers too.
        if type(module) is nn.Linear and ".lora_" not in name:
            weights.append((module.weight, -1))
        elif isinstance(transposed := getattr(module, "is_transposed", None), bool):
            # What transformers calls experts: tensors (experts, out, in), or (experts, in, out).
            own_weights = (p for p in module.parameters(recurse=False) if p.dim() == 3)
            weights += [(p, -2 if transposed else -1) for p in own_weights]
    if not weights:
        raise ModelError(
            f"{type(trunk).__name__} has no layers of type torch.nn.Linear, whose weights sampler.weights "
            'rounds; set sampler.weights = "trainer"'
        )
    return weights


def quantized(trunk: nn.Module, form: str) -> contextlib.AbstractContextManager[None]:
    """Within, the linear layers of a trunk hold quantized copies of their weights, as in `swapped_data`."""
    return swapped_data(
        (parameter, quantize(parameter, form, input_dim)) for parameter, input_dim in linear_weights(trunk)
    )
