"""Decodes a token in few, large operations, for models of the Llama family."""

# The query, key and value layers are one matrix product, and so are the gate and the up layer. The weight of
# a norm is part of the layer after it, the rotary table is computed once per batch, and the residual sum is
# part of a product. The trunk's own modules are not called, so the weights are copied, in bfloat16 if the run
# computes in it (autocast would cast every weight at every token). A copy is valid for one call of the
# sampler: between two calls the weights may change.
#
# Layers may have an adapter. In float32 the copy is of W + s·BA, which costs nothing at any token. In
# bfloat16 that sum rounds to W until the adapter has moved a weight by some thousandths of itself, so that
# the sampler would go on with the base policy. There the columns of A are part of the same product as W, and
# only the product with s·B is one more.
#
# Only models whose layers have the parts listed here, and no others, are decoded this way. A probe
# (`decoding.ways`) compares the result, so that a model with another norm, scale or cap in the same parts is
# decoded by its own forward pass.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from grpobench.runs.models import adapters

if TYPE_CHECKING:
    from grpobench.runs.models.roles import RoleModels

MOST_COPIED = 2**24
"""Most weights of a trunk that is copied in float32. Larger trunks spend their time in the products anyway,
and the copy would take noticeable memory."""
UNMOVING = {"default", "linear", "llama3"}
"""Kinds of rotary tables that do not depend on the length of the text."""
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


@dataclass(frozen=True)
class Product:
    """The linear layers that one product computes."""

    weight: torch.Tensor
    """(in, out), or (in, out + rank) with the columns of A behind those of W."""
    up: torch.Tensor | None = None
    """s·B, (rank, out), of an adapter beside W; None: there is none, or W holds it."""

    def __call__(self, states: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """(R, in) to (R, out)."""
        if self.up is None:
            return states @ self.weight if bias is None else torch.addmm(bias, states, self.weight)
        output_width = self.up.shape[1]
        both = states @ self.weight
        product = torch.addmm(both[:, :output_width], both[:, output_width:], self.up)
        return product if bias is None else product + bias


@dataclass(frozen=True)
class LayerWeights:
    """One layer's weights."""

    qkv: Product
    """H to (A + 2 K) × D: queries scaled for the softmax, keys, values."""
    qkv_bias: torch.Tensor | None
    out: Product
    """A × D to H."""
    gate_up: Product
    """H to 2 I."""
    down: Product
    """I to H."""
    epsilon: tuple[float, float]
    """Of the norm before attention, and of the one before the feed-forward layer."""


class Fused:
    """A copy of the current weights of `models`' policy: A attention heads that share K heads of keys.

    Without `keep`, a layer is copied at every token and dropped behind it: a probe in float32 of a model that
    runs in bfloat16 needs the memory of one layer, and not of the model.
    """

    def __init__(self, models: RoleModels, keep: bool = True) -> None:
        network = models.networks["policy"]
        trunk: Any = network.trunk
        head: Any = network.head
        self.trunk, self.dtype = trunk, models.dtype
        config = trunk.config
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.size: int = trunk.layers[0].self_attn.head_dim
        self.stored_layers = [*map(self._layer, trunk.layers)] if keep else None
        self.epsilon = float(trunk.norm.variance_epsilon)
        self.norm: torch.Tensor = trunk.norm.weight.detach()
        self.head: torch.Tensor = head.weight.to(self.dtype)

    @property
    def layers(self) -> Iterable[LayerWeights]:
        """Those that are kept; without, each is made when its turn comes."""
        return map(self._layer, self.trunk.layers) if self.stored_layers is None else self.stored_layers

    def _layer(self, layer: Any) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        before, behind = layer.input_layernorm, layer.post_attention_layernorm
        # In the weights, where the softmax's scale costs nothing at any token.
        scaled = (attention.scaling, 1.0, 1.0)
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        biases = [part.bias for part in parts]
        bias = None
        if any(part_bias is not None for part_bias in biases):
            bias = torch.cat(
                [
                    part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias * scale
                    for part, scale in zip(parts, scaled, strict=True)
                ]
            )
        return LayerWeights(
            qkv=self._product(parts, before.weight, scaled),
            qkv_bias=None if bias is None else bias.to(self.dtype),
            out=self._product([attention.o_proj]),
            gate_up=self._product([mlp.gate_proj, mlp.up_proj], behind.weight),
            down=self._product([mlp.down_proj]),
            epsilon=(float(before.variance_epsilon), float(behind.variance_epsilon)),
        )

    def _product(
        self, parts: Sequence[Any], norm: torch.Tensor | None = None, scales: Sequence[float] = ()
    ) -> Product:
        """Layers behind a norm whose weight is `norm` (in,), if any, as one product, each times its scale."""
        scales = scales or [1.0] * len(parts)
        beside = [
            adapters.low_rank(part) if self.dtype != torch.float32 and adapters.is_adapted(part) else None
            for part in parts
        ]
        rows = [
            part.weight if low else adapters.merged(part) for part, low in zip(parts, beside, strict=True)
        ]
        # Not times 1, which would copy the weights.
        rows = [row if scale == 1 else row * scale for row, scale in zip(rows, scales, strict=True)]
        ups = [
            (low[1] * scale).t() if low else torch.zeros(0, len(row), device=row.device)
            for row, low, scale in zip(rows, beside, scales, strict=True)
        ]
        rows += [low[0] for low in beside if low]
        stacked_weight = torch.cat(rows) if len(rows) > 1 else rows[0]
        weight = self._laid_out(stacked_weight if norm is None else stacked_weight * norm)
        # In blocks, so that each adapter reaches the columns of its own layer alone.
        return Product(weight, torch.block_diag(*ups).to(self.dtype) if any(beside) else None)

    def _laid_out(self, weight: torch.Tensor) -> torch.Tensor:
        """(out, in) as (in, out)."""
        turned = weight.to(self.dtype).t()
        # A CPU multiplies in bfloat16 as fast with either layout, and to lay out the weights takes as long as
        # several tokens.
        as_is = turned.device.type == "cpu" and self.dtype != torch.float32
        return turned if as_is else turned.contiguous()

    def rotary(self, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines (columns, 1, D) of positions from 0: `x·cos + roll(x)·sin` turns x."""
        position = torch.arange(columns, device=self.norm.device)[None]
        cos, sin = self.trunk.rotary_emb(self.norm, position)
        half = self.size // 2
        # With the sign of the rotation in the table, once per batch instead of once per token.
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        return cos[0, :, None].float(), sin[0, :, None].float()

    def step(self, run: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Logits (R, V) after one more token of each sequence of `run`, a `Decoding`. `x` (R, H) is the
        token's embedding, `cos` and `sin` (R, 1, D) are those of its position."""
        rows, turned = len(x), self.heads + self.key_heads
        for layer, layer_cache in zip(self.layers, run.cache.layers, strict=True):
            states = layer.qkv(normed(x, layer.epsilon[0]).to(self.dtype), layer.qkv_bias)
            # In float32, as the table of cosines and sines makes it under autocast.
            states = states.float().view(rows, turned + self.key_heads, self.size)
            both = states[:, :turned]
            both = (both * cos).addcmul_(both.roll(self.size // 2, -1), sin)
            keys, values = layer_cache.update(both[:, self.heads :, None], states[:, turned:, None])
            query = both[:, : self.heads].view(rows, self.key_heads, -1, self.size)
            attended = run.attention(layer_cache, query.to(keys.dtype), keys, values)
            x = self._added(x, attended.reshape(rows, -1), layer.out)
            states = layer.gate_up(normed(x, layer.epsilon[1]).to(self.dtype))
            gate, up = states.chunk(2, -1)
            x = self._added(x, F.silu(gate).mul_(up), layer.down)
        # The last norm stays apart: with it in the weights the head, the largest matrix, would be copied.
        return F.linear((normed(x, self.epsilon) * self.norm).to(self.dtype), self.head).float()

    def _added(self, x: torch.Tensor, states: torch.Tensor, product: Product) -> torch.Tensor:
        """x (R, H) plus the product with `states`. The residual stays in float32."""
        if self.dtype == torch.float32:
            # No `up` to add: in float32 an adapter is part of the weight.
            return torch.addmm(x, states, product.weight)
        return x + product(states.to(self.dtype)).float()


def normed(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """(R, H) over its root mean square. One pass over x and some operations on (R, 1)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    over: torch.Tensor = norm.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    return x * over


def fits(models: RoleModels) -> bool:
    """Whether a policy has a Llama's parts and is worth a copy. It does not check what they compute."""
    network = models.networks["policy"]
    trunk: Any = network.trunk
    if models.dtype == torch.float32 and sum(p.numel() for p in trunk.parameters()) > MOST_COPIED:
        return False
    if not plain(network.head) or getattr(network.head, "bias", None) is not None:
        return False
    names = {name for name, _ in trunk.named_children()}
    if names != {"embed_tokens", "layers", "norm", "rotary_emb"} or not isinstance(
        trunk.layers, nn.ModuleList
    ):
        return False
    if getattr(trunk.rotary_emb, "rope_type", None) not in UNMOVING or any_hooks(trunk):
        return False
    return root_mean_square(trunk.norm) and all(map(usual, trunk.layers))


def usual(layer: Any) -> bool:
    """Whether a layer has the parts of a Llama's, and no others."""
    from transformers.activations import SiLUActivation

    if {name for name, _ in layer.named_children()} != LAYER:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    if {name for name, _ in attention.named_children()} != ATTENTION:
        return False
    if {name for name, _ in mlp.named_children()} != MLP or not isinstance(
        mlp.act_fn, nn.SiLU | SiLUActivation
    ):
        return False
    biased = [attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    layers = [attention.q_proj, attention.k_proj, attention.v_proj, *biased]
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    return (
        all(map(plain, layers))
        and all(linear.bias is None for linear in biased)
        and all(map(root_mean_square, norms))
        and all(hasattr(attention, name) for name in ("scaling", "head_dim"))
    )


def plain(module: Any) -> bool:
    """Whether a layer is linear, maybe with an adapter of ours, and nothing else: no quantized weights."""
    return type(module) is nn.Linear or adapters.is_adapted(module)


def root_mean_square(norm: Any) -> bool:
    return hasattr(norm, "variance_epsilon") and set(dict(norm.named_parameters())) == {"weight"}


def any_hooks(trunk: nn.Module) -> bool:
    """Whether a module has hooks, which would not be called here."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in trunk.modules())
