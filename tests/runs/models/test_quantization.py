"""Weights of 8 and 4 bits: the numbers of torch's own quantizers and of the formats' grids, and a model that
is left as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.toys import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.quantization import linear_weights, quantize, quantized
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError

FORMATS = ("int8", "int4", "fp8")


def matrix(seed: int, rows: int, columns: int) -> torch.Tensor:
    """Rows of sizes from 1e-6 to 1e3, as far apart as those of no model."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (torch.rand(rows, 1, generator=generator) * 9 - 6)
    return torch.randn(rows, columns, generator=generator) * sizes


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 40), columns=st.integers(1, 70))
@pytest.mark.parametrize(("form", "most"), [("int8", 127), ("int4", 7)])
def test_integers_are_those_of_torch_per_output_channel(
    form: str, most: int, seed: int, rows: int, columns: int
) -> None:
    weight = matrix(seed, rows, columns)
    scale = weight.abs().amax(-1) / most
    zero = torch.zeros(rows, dtype=torch.int32)
    expected = torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -most, most)
    # To the bit: torch multiplies by the reciprocal of the scale, too.
    assert torch.equal(quantize(weight, form), expected)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 40), columns=st.integers(1, 70))
def test_fp8_is_on_the_grid_of_e4m3_by_the_scale_of_the_tensor(seed: int, rows: int, columns: int) -> None:
    """By definition of the format, in NumPy: 3 binary digits behind the first, exponents from −6, ties to
    even. To the bit, because a product with a power of two is exact."""
    weight = matrix(seed, rows, columns)
    scale = np.float32(weight.abs().max().item()) / np.float32(448)
    scaled = weight.numpy() * (np.float32(1) / scale)
    spacing = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(scaled), 2.0**-40))), -6) - 3)
    expected = (np.rint(scaled / spacing) * spacing).astype(np.float32) * scale
    assert np.array_equal(quantize(weight, "fp8").numpy(), expected)


@pytest.mark.parametrize("form", FORMATS)
def test_largest_weight_stays_zeros_stay_and_the_error_is_half_a_step(form: str) -> None:
    weight = torch.tensor([[4.0, -1.0, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0]])
    rounded = quantize(weight, form)
    # The largest number is exact up to the product of its scale.
    assert rounded[0, 0].item() == pytest.approx(4.0, rel=1e-6) and not rounded[1].any()
    # Integers: half a step, 4/127 and 4/7. e4m3: a sixteenth of the number itself.
    most = {"int8": 2 / 127, "int4": 2 / 7, "fp8": 1 / 16}[form]
    assert (rounded - weight).abs().max() <= most * 1.001


def test_experts_are_rounded_one_by_one_along_their_inputs() -> None:
    experts = torch.stack([matrix(1, 6, 5), 100 * matrix(2, 6, 5)])
    for form in FORMATS:
        each = torch.stack([quantize(expert, form) for expert in experts])
        assert torch.equal(quantize(experts, form), each)
    # The same weights stored as (experts, in, out).
    turned = quantize(experts.mT, "int8", input_dim=-2)
    assert torch.equal(turned.mT, quantize(experts, "int8"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_type_stays(dtype: torch.dtype) -> None:
    assert quantize(torch.ones(2, 3, dtype=dtype), "int8").dtype == dtype


def changed(models: RoleModels, form: str) -> set[str]:
    """The parameters that differ while the policy is quantized; behind it all are the same tensors again."""
    parameters = dict(models.language.named_parameters())
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in parameters.items()}
    with quantized(models.networks["policy"].trunk, form):
        names = {name for name, p in parameters.items() if not torch.equal(p, before[name][1])}
    for name, p in parameters.items():
        assert p.data_ptr() == before[name][0] and torch.equal(p, before[name][1])
    return names


@pytest.mark.parametrize("form", FORMATS)
def test_linear_layers_of_the_trunk_alone_are_rounded_and_come_back(form: str) -> None:
    models = RoleModels(tiny(), ("policy",))
    parts = ("self_attn", "mlp")
    expected = {
        name
        for name, p in models.language.named_parameters()
        if p.dim() == 2 and any(part in name for part in parts)
    }
    assert changed(models, form) == expected and len(expected) == len(
        linear_weights(models.networks["policy"].trunk)
    )


def test_routers_stay_and_experts_are_rounded() -> None:
    names = changed(RoleModels(tiny("mixtral"), ("policy",)), "int8")
    assert any("experts" in name for name in names) and not any("gate.weight" in name for name in names)


def test_an_adapter_stays_beside_rounded_weights() -> None:
    torch.manual_seed(0)
    names = changed(RoleModels(tiny(), ("policy",), adapter=Adapter(rank=4, alpha=8.0)), "int4")
    assert names and all("base_layer" in name for name in names)


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(
        ModelError, match=r'no layers of type torch\.nn\.Linear.*sampler\.weights = "trainer"'
    ):
        linear_weights(tiny("gpt2").base_model)
