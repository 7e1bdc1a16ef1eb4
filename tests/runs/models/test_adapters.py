"""LoRA: the roles share the policy's weights, only the adapter is trained and saved, nothing is ever merged
in place, and samplers, trainer and peft itself agree on what the adapted policy is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.sampling import demand_same, requests, sampler
from helpers.toys import ARCHITECTURES, plain_logp, rollouts, text_of, tiny
from safetensors.torch import save_file

from grpobench.runs.models import adapters
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.adapters import merged_weights
from grpobench.runs.models.base_policy import BasePolicy
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.sizes import shapes
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.sample.decoding import ways
from grpobench.runs.sample.fused import Fused, fits

SMALL = Adapter(rank=4, alpha=8.0)
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BATCH = rollouts([[3, 5], [4, 1]])


def adapted(
    architecture: str = "llama", adapter: Adapter = SMALL, size: float = 0.1, **more: Any
) -> RoleModels:
    """A policy whose adapter has moved: B is no longer nought."""
    models = RoleModels(tiny(architecture), ("policy",), adapter=adapter, **more)
    move(models, size)
    return models


def move(models: RoleModels, size: float = 0.1) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in models.named_parameters("policy").items():
            if "lora_B" in name:
                p.copy_(size * torch.randn(p.shape, generator=generator))


def dense(models: RoleModels) -> RoleModels:
    """The same policy in weights of its own, each W + (alpha / rank) · B @ A by plain matrix products."""
    language = tiny("llama")
    parameter_by_name = dict(models.language.named_parameters())
    with torch.no_grad():
        for name, p in language.named_parameters():
            layer = name.removesuffix(".weight")
            if f"{layer}.base_layer.weight" in parameter_by_name:
                a, b = (parameter_by_name[f"{layer}.lora_{side}.default.weight"] for side in "AB")
                p.copy_(parameter_by_name[f"{layer}.base_layer.weight"] + SMALL.alpha / SMALL.rank * (b @ a))
    return RoleModels(language)


# What is shared and what is trained


def test_reference_is_the_policy_to_the_bit_until_the_first_update_and_stays() -> None:
    models = RoleModels(tiny(), ("policy",), ("reference",), adapter=SMALL)
    before = models.forward("reference", BATCH).logp
    assert torch.equal(models.forward("policy", BATCH).logp, before)
    move(models)
    assert not torch.allclose(models.forward("policy", BATCH).logp, before, atol=1e-3)
    assert torch.equal(models.forward("reference", BATCH).logp, before)


def test_reference_critic_and_base_policy_hold_no_weights_of_their_own() -> None:
    models = RoleModels(tiny(), ("policy", "critic"), ("reference",), adapter=SMALL)
    weights = {p.data_ptr() for p in models.language.parameters()}
    for p in models.networks["reference"].parameters():
        assert p.data_ptr() in weights
    critic_parameters = [p for p in models.networks["critic"].parameters() if p.data_ptr() not in weights]
    assert critic_parameters == list(models.named_parameters("critic").values())
    base = BasePolicy(models, fixed_reference=False)
    assert base.cpu_copy is None and base.kl(BATCH) == 0.0
    move(models)
    assert base.kl(BATCH) > 0


@pytest.mark.parametrize("optimized", [("policy",), ("policy", "critic")])
def test_an_update_moves_adapters_and_value_head_and_not_a_bit_of_the_weights(
    optimized: tuple[Any, ...],
) -> None:
    models = RoleModels(tiny(), optimized, ("reference",), adapter=SMALL)
    before = {name: p.clone() for name, p in models.language.named_parameters() if "lora" not in name}
    models.optimize(dict.fromkeys(optimized, 1e-2), (0.9, 0.95), 0.0, 1.0)
    for _ in range(2):  # B is 0 at first, and so is the gradient of A
        now = models.forward_train(optimized, BATCH)
        total = now["policy"].logp.sum()
        if "critic" in now:
            total = total + (now["critic"].value - 1).square().sum()
        total.backward()
        models.step(optimized, 1.0)
    after = dict(models.language.named_parameters())
    assert all(torch.equal(after[name], p) for name, p in before.items())
    state = models.state()
    assert state.keys() == set(optimized)
    for role, tensors in state.items():
        assert all(".lora_" in name or (role == "critic" and "value." in name) for name in tensors)
        moved = {name: p for name, p in models.named_parameters(role).items() if p.detach().abs().sum() > 0}
        assert moved.keys() == models.named_parameters(role).keys()
    assert len(models.named_parameters("policy")) == 2 * 2 * len(LAYERS)


def test_the_first_arm_and_the_second_start_from_one_adapter() -> None:
    """A role more draws further random numbers, behind those of the policy's adapter."""
    drawn = []
    for roles in (("policy",), ("policy", "critic")):
        torch.manual_seed(5)
        drawn.append(RoleModels(tiny(), roles, adapter=SMALL).named_parameters("policy"))
    assert all(torch.equal(p, drawn[1][name]) for name, p in drawn[0].items())


def test_a_moving_reference_is_refused() -> None:
    models = RoleModels(tiny(), ("policy",), ("reference",), adapter=SMALL)
    with pytest.raises(ModelError, match=r"shares the policy's weights.*modify\.reference_every = 0"):
        models.follow(1.0)


# What is computed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_adapted_policy_is_the_sum_of_weights_and_adapter(dtype: str) -> None:
    models = adapted(dtype=dtype)
    expected = dense(models).forward("policy", BATCH)
    output = models.forward("policy", BATCH)
    tolerance = 1e-5 if dtype == "float32" else 0.3  # nats; bfloat16 rounds logits of some tens
    torch.testing.assert_close(output.logp, expected.logp, rtol=0, atol=tolerance)


def test_merged_weights_are_new_tensors_under_the_names_of_the_plain_model() -> None:
    models = adapted()
    merged, theirs = merged_weights(models.language), dict(dense(models).language.named_parameters())
    assert merged.keys() == theirs.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, theirs[name].detach(), rtol=0, atol=1e-6)
    weights = {p.data_ptr() for p in models.language.parameters()}
    changed = [name for name, tensor in merged.items() if tensor.data_ptr() not in weights]
    assert len(changed) == 2 * len(LAYERS)
    plain = tiny()
    assert all(merged_weights(plain)[name] is not None for name, _ in plain.named_parameters())


def test_adapters_of_a_model_in_half_precision_are_float32() -> None:
    language = tiny().bfloat16()
    adapters.attach(language, SMALL)
    assert {p.dtype for p in adapters.trained(language).values()} == {torch.float32}
    merged = adapters.merged(language.model.layers[0].self_attn.q_proj)
    assert merged.dtype == torch.float32


def test_flops_of_an_update_leave_out_the_gradient_of_frozen_weights() -> None:
    models = RoleModels(tiny(), ("policy", "critic"), adapter=SMALL)
    plain = RoleModels(tiny(), ("policy", "critic"))
    added = sum(p.numel() for p in models.named_parameters("policy").values())
    for role in ("policy", "critic"):
        assert models.flops.frozen[role] == plain.flops.weights[role]
        assert models.flops.weights[role] == plain.flops.weights[role] + added
    tokens = 3 + 5 + 4 + 1 + 5 + 3  # completions, and each prompt once
    with models.flops.counting():
        models.flops.add_update(("policy",), BATCH)
    assert models.flops.total == (4 * plain.flops.weights["policy"] + 6 * added) * tokens


# Decoding


@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj"), ("v_proj", "up_proj", "o_proj")])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_fused_decoding_follows_the_adapter(architecture: str, targets: tuple[str, ...]) -> None:
    fused_sampler, other = (sampler(architecture) for _ in range(2))
    for source in (fused_sampler, other):
        source.models = adapted(architecture, Adapter(4, 8.0, targets))
    other.fuses = False
    assert fused_sampler.fuses and fits(fused_sampler.models)
    for size in (0.1, 0.3):
        for source in (fused_sampler, other):
            move(source.models, size)
        demand_same(*(source.sample(requests(), 15, 1.0) for source in (fused_sampler, other)))


def test_fused_decoding_changes_no_weight() -> None:
    models = adapted()
    before = {name: p.clone() for name, p in models.language.named_parameters()}
    with torch.inference_mode():
        Fused(models)
    assert all(torch.equal(p, before[name]) for name, p in models.language.named_parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_samplers_own_probe_accepts_a_policy_whose_adapter_has_moved(dtype: str) -> None:
    assert ways(adapted(dtype=dtype), 0) == (True, True)


def test_in_bfloat16_fused_products_keep_an_adapter_that_the_rounded_sum_would_lose() -> None:
    """Weights as a file in bfloat16 holds them, and an adapter that moves each by about a thousandth."""
    models = adapted(size=1e-4, dtype="bfloat16")
    layer = models.language.model.layers[0].mlp.down_proj
    with torch.inference_mode():
        layer.base_layer.weight.copy_(layer.base_layer.weight.bfloat16())
        product = Fused(models).layers[0].down
        down, up = adapters.low_rank(layer)
        exact, rounded = up @ down, adapters.merged(layer).bfloat16().float() - layer.weight
    assert product.up is not None and product.weight.shape == (48, 32 + 4)
    assert torch.equal(product.weight[:, :32].float().T, layer.weight)
    product_delta = (product.weight[:, 32:].float() @ product.up.float()).T
    assert (product_delta - exact).norm() < 0.01 * exact.norm()
    assert (rounded - exact).norm() > 0.5 * exact.norm()


# What is refused


def test_a_layer_that_the_policy_does_not_have_is_named() -> None:
    with pytest.raises(ModelError, match=r"targets: LlamaModel has no linear layer 'q_porj'.*mean 'q_proj'"):
        RoleModels(tiny(), adapter=Adapter(targets=("q_porj",)))


def test_a_policy_without_linear_layers_is_refused() -> None:
    with pytest.raises(ModelError, match=r'no layers of type torch.nn.Linear.*model.adapter = "none"'):
        RoleModels(tiny("gpt2"), adapter=SMALL)


def test_dropout_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"^dropout: must be 0: .*π/π_old would differ from 1"):
        Adapter(dropout=0.1)


# peft itself


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - {"gpt2"}))
def test_peft_reads_the_adapter_and_gives_the_same_logits(architecture: str, tmp_path: Path) -> None:
    from peft import PeftModel

    models = adapted(architecture)
    text, tensors = adapters.as_peft(models.language, "some/model", torch.float32)
    (tmp_path / adapters.CONFIG).write_text(text)
    save_file(tensors, tmp_path / adapters.WEIGHTS)
    theirs: Any = PeftModel.from_pretrained(tiny(architecture), tmp_path).eval()
    tokens = torch.tensor([[5, 7, 11, 13, 17]])
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, models.language(tokens).logits)
        with theirs.disable_adapter():
            assert torch.equal(theirs(tokens).logits, models.plain(tokens).logits)
    assert theirs.peft_config["default"].base_model_name_or_path == "some/model"


def test_gradients_are_those_that_peft_gives_the_adapter() -> None:
    from peft import LoraConfig, get_peft_model

    models = adapted()
    theirs: Any = get_peft_model(tiny(), LoraConfig(r=4, lora_alpha=8, target_modules=list(LAYERS)))
    ours = models.named_parameters("policy")
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            if "lora" in name:
                p.copy_(ours[name.removeprefix(adapters.PEFT_PREFIX)])
    theirs.eval()
    models.forward_train(("policy",), BATCH)["policy"].logp[BATCH.completion_mask].sum().backward()
    total: Any = 0
    for row in range(len(BATCH)):
        prompt, completion = text_of(BATCH, row)
        total = total + plain_logp(theirs, prompt, completion).gather(-1, completion[:, None]).sum()
    total.backward()
    for name, p in theirs.named_parameters():
        if "lora" in name:
            grad = ours[name.removeprefix(adapters.PEFT_PREFIX)].grad
            torch.testing.assert_close(grad, p.grad, rtol=1e-3, atol=1e-4)


def test_the_size_of_an_adapter_is_known_from_the_files_of_the_model(tmp_path: Path) -> None:
    language = tiny()
    language.save_pretrained(tmp_path)
    tensor_shapes = shapes(sorted(tmp_path.glob("*.safetensors")))
    for adapter in (SMALL, Adapter(2, 4.0, ("q_proj", "up_proj"))):
        models = RoleModels(tiny(), adapter=adapter)
        assert adapter.elements(tensor_shapes) == sum(
            p.numel() for p in models.named_parameters("policy").values()
        )
