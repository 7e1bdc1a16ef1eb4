"""The sizes of a model on which its memory depends, counted on a model without memory (torch's meta device)
that is made from its config.json alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpobench.runs.models import sizes, trust
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.model_files import folder_of, locate_outline
from grpobench.runs.models.model_packages import read_outline
from grpobench.runs.models.token_budgets import USUAL, ModelError, first_line
from grpobench.tasks.data import bounded

TOGETHER: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that have the same input."""
AFTER_ATTENTION: Final = ("o_proj", "out_proj", "dense")
"""Layers whose input is the result of attention, which attention keeps itself."""
LLAMA: Final = {name for names in TOGETHER for name in names} | {"o_proj", "down_proj"}
OF_KEYS: Final = re.compile(r"(^|\.)k_")
"""Names of norms over key heads."""


@dataclass(frozen=True)
class Linear:
    """The linear layers of one name in a trunk."""

    name: str
    inputs: int
    outputs: int
    count: float
    """How many of them a token goes through."""
    weights: int
    """Weights of all of them."""

    @property
    def kind(self) -> tuple[str, ...]:
        """The layers that have the same input, by name."""
        return next((names for names in TOGETHER if self.name in names), (self.name,))


@dataclass(frozen=True)
class Norm:
    """The norms of one width in a trunk."""

    width: int
    """Elements of one token that one of them normalizes."""
    count: int
    fused: bool
    """Whether it is torch's layer norm, which keeps its input and nothing else for the backward pass."""
    of_heads: bool = False
    """Whether it normalizes the heads of a linear layer's result, and not the residual stream."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a causal language model. Weights that are tied count once."""

    kind: str
    """What its config.json calls the architecture, such as `qwen2`."""
    parameters: int
    """Weights of trunk and output head."""
    trunk: int
    """Weights of the trunk, with the input embeddings."""
    head: int
    """Weights of the output head, which may be the embeddings."""
    tied: bool
    """Whether output head and input embeddings are the same weights."""
    largest: int
    """Weights of the largest tensor."""
    layers: int
    hidden: int
    vocabulary: int
    """Logits of a token."""
    heads: int
    key_heads: int
    head_size: int
    linears: tuple[Linear, ...]
    norms: tuple[Norm, ...]
    context: int
    """Tokens of the longest sequence; 0 if the configuration does not say."""

    @property
    def llama_like(self) -> bool:
        """Whether the layers have a Llama's linear layers, which decoding may fuse."""
        return {linear.name for linear in self.linears} == LLAMA

    @property
    def multiplied(self) -> int:
        """Weights of the linear layers, without the output head."""
        return sum(linear.weights for linear in self.linears)

    @property
    def used(self) -> float:
        """Weights of the linear layers that a token goes through."""
        return sum(linear.inputs * linear.outputs * linear.count for linear in self.linears)

    @property
    def attention(self) -> int:
        """Width of all attention heads together."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Width of all key heads together."""
        return self.key_heads * self.head_size

    @property
    def intermediate(self) -> int:
        """Width inside of a feed-forward layer, summed over the experts of a token."""
        down = [linear for linear in self.linears if linear.name in ("down_proj", "fc2", "c_proj", "w2")]
        return round(
            max((linear.inputs * linear.count / self.layers for linear in down), default=4 * self.hidden)
        )


def has_adapter(linear: Linear, adapter: Adapter) -> bool:
    return not adapter.targets or linear.name in adapter.targets


def adapter_weights(adapter: Adapter, shape: ModelShape) -> int:
    """Trained weights of an adapter: two small matrices for each linear layer that has it."""
    each = (
        linear.weights // (linear.inputs * linear.outputs) * (linear.inputs + linear.outputs)
        for linear in shape.linears
        if has_adapter(linear, adapter)
    )
    return adapter.rank * sum(each)


def shape_of(name: str) -> ModelShape:
    """The sizes of a model by its name, folder or hub id. Reads config.json and no weights. Raises
    ModelError."""
    from transformers import AutoConfig

    location, where = locate_outline(name)
    try:
        if folder_of(name):
            # Before anything is made: Python would make a stated number of layers one by one.
            stated = bounded.read_object(Path(location) / "config.json")
            sizes.check_counts(stated, sizes.WeightCounts(0, 0, 0))
        config = read_outline(AutoConfig, location, trust_remote_code=trust.trusted(), **where)
        return count(config)
    except Exception as error:  # damaged files raise what their reader likes
        why = trust.remedy(error) or f"{first_line(error)}; {USUAL}"
        raise ModelError(f"model {name!r}: the memory plan cannot read {location}: {why}") from error


def count(config: Any) -> ModelShape:
    """The sizes of the causal language model of a configuration, which takes no memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", trust_remote_code=trust.trusted()
        )
    trunk, head = model.base_model, model.get_output_embeddings()
    text = config.get_text_config()
    inputs = trunk.get_input_embeddings().weight
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    # Some architectures, such as Qwen3, have heads of another size than their share of the width.
    head_size = int(getattr(text, "head_dim", None) or hidden // heads)
    key_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    return ModelShape(
        kind=str(config.model_type),
        parameters=sum(p.numel() for p in model.parameters()),
        trunk=sum(p.numel() for p in trunk.parameters()),
        head=head.weight.numel(),
        tied=head.weight is inputs,
        largest=max(p.numel() for p in model.parameters()),
        layers=int(text.num_hidden_layers),
        hidden=hidden,
        vocabulary=int(head.weight.shape[0]),
        heads=heads,
        key_heads=key_heads,
        head_size=head_size,
        linears=tuple(_linears(trunk, text)),
        norms=tuple(_norms(trunk, hidden, heads, key_heads)),
        context=int(getattr(text, "max_position_embeddings", 0) or 0),
    )


def _linears(trunk: Any, config: Any) -> Iterator[Linear]:
    """The linear layers by name and size. Of routed experts, which are tensors (experts, out, in), a token
    goes through some."""
    from torch import nn

    from grpobench.runs.models.flops import ROUTED

    embeddings = {id(module.weight) for module in trunk.modules() if isinstance(module, nn.Embedding)}
    used = int(getattr(config, "num_experts_per_tok", None) or 1)
    weights_by_kind: dict[tuple[str, int, int, bool], int] = {}
    experts: dict[tuple[str, int, int, bool], int] = {}
    for path, weight in trunk.named_parameters():
        if id(weight) in embeddings or weight.dim() not in (2, 3):  # norms and biases have 1 dimension
            continue
        name = path.removesuffix(".weight").rpartition(".")[2]
        routed = weight.dim() == 3 or bool(ROUTED.search(path))
        outputs, inputs = weight.shape[-2:]
        owner = trunk.get_submodule(path.rpartition(".")[0])
        if type(owner).__name__ == "Conv1D":  # GPT-2's, which has them the other way around
            outputs, inputs = inputs, outputs
        key = (name, int(inputs), int(outputs), routed)
        weights_by_kind[key] = weights_by_kind.get(key, 0) + weight.numel()
        experts[key] = max(experts.get(key, 1), weight.shape[0] if weight.dim() == 3 else 1)
    for (name, inputs, outputs, routed), weights in weights_by_kind.items():
        there = weights / (inputs * outputs)
        share = min(1.0, used / experts[name, inputs, outputs, routed]) if routed else 1.0
        yield Linear(name, inputs, outputs, there * share, weights)


def _norms(trunk: Any, hidden: int, heads: int, key_heads: int) -> Iterator[Norm]:
    """The norms by width. One over a single head normalizes each of them."""
    from torch import nn

    count_by_kind: dict[tuple[int, bool, bool], int] = {}
    for path, module in trunk.named_modules():
        weight = getattr(module, "weight", None)
        # By name: every architecture of transformers has an RMSNorm class of its own.
        if not type(module).__name__.endswith("Norm") or weight is None:
            continue
        width = int(weight.numel())
        of_heads = width < hidden
        if of_heads:
            width *= key_heads if OF_KEYS.search(path.rpartition(".layers.")[2]) else heads
        key = (width, isinstance(module, nn.LayerNorm), of_heads)
        count_by_kind[key] = count_by_kind.get(key, 0) + 1
    for (width, fused, of_heads), count in count_by_kind.items():
        yield Norm(width, count, fused, of_heads)
