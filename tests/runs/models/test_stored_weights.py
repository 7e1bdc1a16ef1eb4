"""bfloat16 weights: tiny updates are not lost, by a float32 copy or on average, and nothing depends on chance
that a checkpoint does not hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from helpers.toys import ARCHITECTURES, rollouts, tiny
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from grpobench.runs.models.optimizer import Optimizer
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.stored_weights import (
    MasterWeights,
    RoundedWeights,
    StoredWeights,
    cast_weights,
    round_stochastically,
    stored,
)

TINY = 2.0**-13
"""A step that bfloat16 has no room for beside 1: below 1 its numbers are 2^-8 apart."""


def bfloat16(values: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(values.to(torch.bfloat16))


def descent(weights: StoredWeights, rate: float = 1.0, most: float = math.inf) -> Optimizer:
    return Optimizer(weights, torch.optim.SGD(list(weights.targets.values()), lr=rate), rate, most)


def updates(optimizer: Optimizer, count: int, gradient: float = TINY) -> None:
    """So many updates with the same gradient for all weights."""
    for _ in range(count):
        for p in optimizer.parameters.values():
            (p.float() * gradient).sum().backward()
        optimizer.clip()
        optimizer.update(1.0)
        optimizer.clear()


def test_five_hundred_tiny_updates_are_lost_without_master_weights_and_exact_with_them() -> None:
    plain, exact = {"w": bfloat16(torch.ones(4))}, {"w": bfloat16(torch.ones(4))}
    updates(descent(StoredWeights(plain)), 512)
    updates(descent(MasterWeights(exact)), 512)
    assert plain["w"].tolist() == [1.0] * 4
    assert exact["w"].tolist() == [1 - 512 * TINY] * 4  # 0.9375, a number of bfloat16


def test_master_weights_add_micro_batches_up_in_float32() -> None:
    """1 + 2^-13 sixteen times: in bfloat16 the small ones vanish beside the 1."""
    parameters = {"w": bfloat16(torch.ones(3))}
    weights = MasterWeights(parameters)
    (parameters["w"].sum()).backward()
    for _ in range(16):
        (parameters["w"] * TINY).sum().backward()
    assert parameters["w"].grad is None
    master = weights.targets["w"]
    assert master.grad is not None and master.grad.dtype == torch.float32
    assert master.grad.tolist() == [1 + 16 * TINY] * 3
    weights.clear()
    assert master.grad is None


@given(st.floats(-(2.0**127), 2.0**127, width=32), st.integers(0, 2**32))
def test_rounding_goes_to_a_neighbor_and_numbers_of_bfloat16_stay(value: float, seed: int) -> None:
    values = torch.full((8,), value)
    rounded = round_stochastically(values, torch.Generator().manual_seed(seed))
    down = (values.view(torch.int32) & -(2**16)).view(torch.float32)
    up = ((values.view(torch.int32) & -(2**16)) + 2**16).view(torch.float32)
    assert rounded.dtype == torch.bfloat16
    assert ((rounded.float() == down) | (rounded.float() == up)).all()
    exact = values.to(torch.bfloat16)
    assert torch.equal(round_stochastically(exact.float(), torch.Generator().manual_seed(seed)), exact)


@pytest.mark.parametrize("value", [1.003, -1.003, 3e-5, 1234.5, 1e-39])
def test_rounding_is_unbiased(value: float) -> None:
    """The chance of the upper neighbor is the fraction p of the way to it: a binomial frequency."""
    draws = 200_000
    values = torch.full((draws,), value)
    rounded = round_stochastically(values, torch.Generator().manual_seed(0)).double()
    low, high = rounded.min().item(), rounded.max().item()
    exact = values[0].double().item()
    p = (exact - low) / (high - low)
    assert 0 < p < 1
    deviation = (high - low) * math.sqrt(p * (1 - p) / draws)
    assert abs(rounded.mean().item() - exact) < 5 * deviation  # by chance once in 1.7 million times


def test_what_is_not_finite_stays_so() -> None:
    odd = torch.tensor([math.inf, -math.inf, math.nan])
    rounded = round_stochastically(odd, torch.Generator().manual_seed(0))
    assert rounded[0] == math.inf and rounded[1] == -math.inf and rounded[2].isnan()


def test_tiny_updates_with_stochastic_rounding_are_exact_on_average() -> None:
    """Each rounding keeps the mean, so that of w is 1 − 64 · 2^-13. One rounding between numbers 2^-8 apart
    has a variance of at most (2^-8)²/4, and 64 of them one after the other of at most 64 times that."""
    count = 2**16
    parameters = {"w": bfloat16(torch.ones(count))}
    updates(descent(RoundedWeights(parameters, seed=1)), 64)
    weights = parameters["w"].double()
    deviation = math.sqrt(64 * 2.0**-16 / 4 / count)
    assert abs(weights.mean().item() - (1 - 64 * TINY)) < 5 * deviation
    assert 25 * deviation < 64 * TINY  # which a lost update would be away
    assert len(weights.unique()) > 2


def test_rounded_updates_depend_on_seed_and_number_of_the_update_alone() -> None:
    def moved(seed: int, first: int, noise: int) -> torch.Tensor:
        parameters = {"a": bfloat16(torch.ones(50, 3)), "b": bfloat16(torch.full((7,), -2.0))}
        optimizer = descent(RoundedWeights(parameters, seed))
        optimizer.updates = first
        torch.manual_seed(noise)
        before = torch.get_rng_state()
        updates(optimizer, 1, gradient=1e-3)
        assert torch.equal(torch.get_rng_state(), before)
        return torch.cat([p.detach().flatten() for p in parameters.values()])

    same = moved(1, 5, noise=0)
    assert torch.equal(same, moved(1, 5, noise=9))
    assert not torch.equal(same, moved(1, 6, noise=0))
    assert not torch.equal(same, moved(2, 5, noise=0))


def test_rounded_weights_take_an_optimizers_whole_update_and_hold_no_copy_in_between() -> None:
    """One step of Adam from nothing moves every weight by the rate, whatever its gradient is; weights in
    float32 are updated beside them, once."""
    parameters = {"a": bfloat16(torch.ones(40, 5)), "b": nn.Parameter(torch.zeros(3))}
    weights = RoundedWeights(parameters, seed=0)
    inner = torch.optim.AdamW(list(weights.targets.values()), lr=0.25, weight_decay=0.0, fused=True)
    optimizer = Optimizer(weights, inner, 0.25, math.inf)
    updates(optimizer, 1, gradient=3.0)
    assert torch.allclose(parameters["a"].float(), torch.full((40, 5), 0.75), atol=2**-8)
    assert torch.allclose(parameters["b"], torch.full((3,), -0.25), atol=1e-6)  # float32
    assert weights.targets["a"].untyped_storage().nbytes() == 4 and weights.targets["a"].grad is None
    state = inner.state[weights.targets["a"]]
    assert state["exp_avg"].dtype == torch.float32 and state["step"] == 1


def test_a_rounded_gradient_is_clipped_as_torch_clips() -> None:
    parameters = {"a": bfloat16(torch.zeros(2)), "b": nn.Parameter(torch.zeros(2))}
    optimizer = descent(RoundedWeights(parameters, seed=0), most=1.0)
    parameters["a"].grad = torch.tensor([3.0, 0.0], dtype=torch.bfloat16)
    parameters["b"].grad = torch.tensor([0.0, 4.0])
    assert optimizer.clip() == 5.0
    optimizer.update(1.0)
    assert parameters["a"].tolist()[0] == pytest.approx(-0.6, rel=2**-7)
    assert parameters["b"].tolist()[1] == pytest.approx(-0.8, rel=1e-5)  # the norm has 1e-6 added


STORES: dict[str, Callable[[dict[str, nn.Parameter]], StoredWeights]] = {
    "master": stored,
    "rounded": lambda parameters: stored(parameters, "policy", master=False, seed=4),
    "on the CPU": lambda parameters: stored(parameters, offload=True),
}


@pytest.mark.parametrize("kind", STORES)
def test_a_restored_optimizer_goes_on_byte_for_byte(kind: str) -> None:
    def made() -> Optimizer:
        weights = STORES[kind]({"w": bfloat16(torch.linspace(-1, 1, 300))})
        adam = torch.optim.AdamW(list(weights.targets.values()), lr=1e-3, fused=True)
        return Optimizer(weights, adam, 1e-3, 1.0)

    undisturbed, first, second = made(), made(), made()
    updates(undisturbed, 6)
    updates(first, 4)
    stored_tensors = {name: tensor.clone() for name, tensor in first.tensors().items()}
    plain = json.loads(json.dumps(first.plain()))
    with torch.no_grad():
        second.parameters["w"].copy_(stored_tensors["w"])
    second.restore(stored_tensors, plain)
    updates(second, 2)
    tensors, expected = second.tensors(), undisturbed.tensors()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert ("optimizer:master:w" in stored_tensors) == (kind != "rounded")
    assert second.plain() == undisturbed.plain()


def test_float32_weights_need_no_copy() -> None:
    parameters = {"w": nn.Parameter(torch.ones(2))}
    for weights in (stored(parameters), stored(parameters, master=False)):
        assert type(weights) is StoredWeights
    assert stored(parameters, offload=True).targets["w"] is parameters["w"]  # they lie on the CPU already


def small(architecture: str = "llama") -> RoleModels:
    language = tiny(architecture)
    cast_weights(language, torch.bfloat16)
    return RoleModels(language, ("policy", "critic"), ("reference",), dtype="bfloat16")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_role_is_stored_in_bfloat16_and_close_to_float32(architecture: str) -> None:
    batch = rollouts([[6, 1, 9], [4, 4]])
    models = small(architecture)
    for role in ("policy", "critic", "reference"):
        trunk = models.networks[role].trunk
        assert {p.dtype for p in trunk.parameters()} == {torch.bfloat16}
        assert all(b.dtype != torch.bfloat16 for b in trunk.buffers())
    assert {p.dtype for p in models.networks["critic"].value.parameters()} == {torch.float32}
    expected = RoleModels(tiny(architecture)).forward("policy", batch).logp
    gap = (models.forward("policy", batch).logp - expected).abs().mean().item()
    assert 0 < gap < 0.1  # nats: logits of some tens with three digits


def test_a_reference_that_follows_in_small_steps_gets_there() -> None:
    """ref = policy − (1 − mix)^n · distance. In bfloat16 a step of a thousandth would be rounded away."""
    models = small()
    models.optimize({"policy": 0.0, "critic": 0.0}, (0.9, 0.95), 0.0, 1.0)
    ours, theirs = (
        dict(models.networks[role].trunk.named_parameters())["norm.weight"]
        for role in ("reference", "policy")
    )
    with torch.no_grad():
        ours.fill_(1.0)
        theirs.fill_(2.0)
    for step in range(200):
        models.optimizers["policy"].updates = step
        models.follow(1e-3)
    expected = 2 - 0.999**200
    # 200 roundings between numbers 2^-7 apart, of 32 weights.
    assert ours.float().mean().item() == pytest.approx(expected, abs=5 * math.sqrt(200 * 2.0**-14 / 4 / 32))
    models.follow(1.0)
    assert torch.equal(ours, theirs)
