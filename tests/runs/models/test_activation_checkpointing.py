"""Activation checkpointing: layers run again in the backward pass, less is kept for it, no bit changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from helpers.toys import ARCHITECTURES, arithmetic_run, models_for, rollouts, tiny, trainer_for

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.ppo import PPO
from grpobench.runs.models.activation_checkpointing import checkpointed, layers_of
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.settings.config import TrainConfig

LAYERS = 2
"""Of each toy model."""


@pytest.fixture
def batch() -> Iterator[Batch]:
    yield rollouts([[6, 1, 9], [4, 4, 1], [8]])


def build(architecture: str, checkpointing: bool) -> RoleModels:
    return models_for(PPO(), architecture, activation_checkpointing=checkpointing)


def pass_through(models: RoleModels, batch: Batch) -> tuple[list[torch.Tensor], int, int]:
    """(gradients of policy and critic, layers run in forward and backward, bytes kept in between)."""
    bytes_by_address: dict[int, int] = {}
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        bytes_by_address[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    networks = [models.networks[role] for role in ("policy", "critic")]
    weights = {p.untyped_storage().data_ptr() for network in networks for p in network.parameters()}
    # A norm runs once in each run of its layer, however the layer was called.
    hooks = [
        next(
            m for name, m in layer.named_modules() if "norm" in name or name.startswith("ln_")
        ).register_forward_hook(count)
        for network in networks
        for layer in layers_of(network.trunk)
    ]
    models.clear()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = models.forward_train(("policy", "critic"), batch)
    (output["policy"].logp.sum() + output["critic"].value.square().sum()).backward()
    for hook in hooks:
        hook.remove()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for n in networks for p in n.parameters()]
    return gradients, calls, sum(size for address, size in bytes_by_address.items() if address not in weights)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_run_twice_keep_less_and_give_the_same_gradient_bit_for_bit(
    architecture: str, batch: Batch
) -> None:
    plain, once, everything = pass_through(build(architecture, False), batch)
    gradients, twice, less = pass_through(build(architecture, True), batch)
    assert (once, twice) == (2 * LAYERS, 4 * LAYERS)
    # What is left: the inputs of each layer, and the head's part outside of the layers.
    assert less < 0.5 * everything
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradients, plain, strict=True))
    assert any(gradient.any() for gradient in gradients)


def test_models_stay_in_evaluation_mode_and_a_copy_has_layers_of_its_own(batch: Batch) -> None:
    models = build("llama", True)
    models.forward_train(("policy",), batch)
    assert not any(module.training for module in models.language.modules())
    twin = copy.deepcopy(models.language)
    with torch.no_grad():
        for p in models.language.parameters():
            p.zero_()
    assert RoleModels(twin).forward("policy", batch).logp.std() > 0.1


def test_a_pass_without_gradient_runs_each_layer_once(batch: Batch) -> None:
    models, calls = build("llama", True), []
    for layer in layers_of(models.networks["policy"].trunk):
        layer.register_forward_hook(lambda *_: calls.append(1))
    models.forward("policy", batch)
    assert len(calls) == LAYERS


def test_a_replaced_forward_of_a_layer_is_put_back() -> None:
    trunk = tiny().base_model
    first, second = layers_of(trunk)
    mine = first.forward = first.forward  # as libraries that hook into a layer leave it
    with checkpointed(trunk):
        assert first.forward is not mine and "forward" in vars(second)
    assert vars(first)["forward"] is mine and "forward" not in vars(second)


def test_a_model_without_known_layers_is_refused_with_the_setting() -> None:
    with pytest.raises(ModelError, match=r"train\.activation_checkpointing = false"):
        layers_of(torch.nn.Linear(2, 2))


def test_a_run_with_the_setting_makes_the_same_updates() -> None:
    weights = []
    for checkpointing in (False, True):
        train = TrainConfig(steps=1, prompts_per_step=2, group_size=4, activation_checkpointing=checkpointing)
        trainer = trainer_for(arithmetic_run(GRPO(), train=train))
        assert trainer.models.activation_checkpointing is checkpointing
        trainer.step(1)
        weights.append(list(trainer.models.named_parameters("policy").values()))
    assert all(torch.equal(plain, other) for plain, other in zip(*weights, strict=True))
