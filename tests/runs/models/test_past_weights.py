"""The policy's earlier weights: which ones are kept, that they come and go to the bit, and their memory."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.toys import tiny
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from grpobench.runs.models.past_weights import PastWeights
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError


def counter() -> dict[str, nn.Parameter]:
    """Parameters whose values are the number of updates so far."""
    return {"a": nn.Parameter(torch.zeros(2, 3)), "b": nn.Parameter(torch.zeros(()))}


def count_up(past: PastWeights) -> None:
    past.remember()
    with torch.no_grad():
        for p in past.parameters.values():
            p += 1


def only_value(past: PastWeights) -> float:
    with past.swapped_in():
        values = {v for p in past.parameters.values() for v in p.flatten().tolist()}
    (value,) = values
    return float(value)


@given(lag=st.integers(0, 5), updates=st.integers(0, 12))
def test_weights_are_of_so_many_updates_ago_or_the_initial_ones(lag: int, updates: int) -> None:
    past = PastWeights(counter(), lag)
    for _ in range(updates):
        count_up(past)
    assert only_value(past) == max(0, updates - lag)
    assert past.staleness == min(lag, updates)
    assert past.parameters["b"].item() == updates


@given(lag=st.integers(1, 4), before=st.integers(0, 6), behind=st.integers(0, 6))
def test_a_restored_ring_goes_on_as_the_one_that_was_saved(lag: int, before: int, behind: int) -> None:
    past = PastWeights(counter(), lag)
    for _ in range(before):
        count_up(past)
    other = PastWeights(copy.deepcopy(past.parameters), lag)
    other.restore({name: tensor.clone() for name, tensor in past.tensors().items()})
    for ring in (past, other):
        for _ in range(behind):
            count_up(ring)
    assert only_value(past) == only_value(other) == max(0, before + behind - lag)
    ours, theirs = past.tensors(), other.tensors()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_current_tensors_come_back_also_after_an_error() -> None:
    past = PastWeights(counter(), 1)
    count_up(past)
    tensors = {name: p.data_ptr() for name, p in past.parameters.items()}
    with pytest.raises(InterruptedError), past.swapped_in():
        assert past.parameters["a"].data_ptr() != tensors["a"]
        raise InterruptedError
    assert {name: p.data_ptr() for name, p in past.parameters.items()} == tensors


def test_a_full_ring_allocates_nothing_and_an_empty_one_copies_nothing() -> None:
    past = PastWeights(counter(), 2)
    for _ in range(2):
        count_up(past)
    addresses = {copy["a"].data_ptr() for copy in past.ring}
    for _ in range(5):
        count_up(past)
    assert {copy["a"].data_ptr() for copy in past.ring} == addresses and len(addresses) == 2
    none = PastWeights(counter(), 0)
    count_up(none)
    assert not none.ring and none.tensors() == {}


def trained(lag: int) -> RoleModels:
    models = RoleModels(tiny(), ("policy", "critic"))
    models.optimize({"policy": 1e-2, "critic": 1e-2}, (0.9, 0.95), 0.0, 1.0)
    models.keep_past(lag)
    return models


def update(models: RoleModels, role: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in models.optimizers[role].parameters.values():  # type: ignore[index]
        p.grad = torch.randn(p.shape, generator=generator)
    models.step((role,), 1.0)  # type: ignore[arg-type]


def test_updates_of_the_policy_age_the_ring_and_those_of_a_critic_do_not() -> None:
    models = trained(2)
    history = []
    for seed, role in enumerate(("policy", "critic", "policy", "critic", "policy", "critic")):
        if role == "policy":
            history.append([p.detach().clone() for p in models.language.parameters()])
        update(models, role, seed)
    assert models.past.staleness == 2
    with models.past.swapped_in():
        now = [p.detach().clone() for p in models.language.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(now, history[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(now, history[2], strict=True))


def test_checkpoint_of_more_copies_than_the_lag_is_refused() -> None:
    models = trained(2)
    for seed in range(2):
        update(models, "policy", seed)
    saved = models.state()
    with pytest.raises(ModelError, match=r"it holds 2 of them, and sampler\.lag is 1"):
        trained(1).restore(saved)
    lacking = saved | {"past": {k: v for k, v in saved["past"].items() if not k.startswith("2:lm_head")}}
    with pytest.raises(ModelError, match=r"do not fit sampler\.lag and this model .*2:lm_head"):
        trained(2).restore(lacking)


def test_copies_that_memory_does_not_hold_are_refused_with_their_bytes() -> None:
    """Seven numbers of four bytes each: 28 bytes a copy."""
    past = PastWeights(counter(), 4)
    past.demand_memory(updates=9, free=4 * 28)
    past.demand_memory(updates=2, free=2 * 28)  # a run of two updates never has four copies
    past.demand_memory(updates=9, free=None)
    with pytest.raises(ModelError, match=r"4 × 0\.00 MB = 0\.00 MB.* set sampler\.lag = 3 or lower"):
        past.demand_memory(updates=9, free=4 * 28 - 1)
    with pytest.raises(ModelError, match=r"set sampler\.lag = 0"):
        past.demand_memory(updates=9, free=27)
