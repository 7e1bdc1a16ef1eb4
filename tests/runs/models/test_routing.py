"""Routing replay: a pass's own experts change no bit, forced ones give the gradient of a model whose routers
are replaced by the formula, in every layout, and nothing but a mixture of experts is accepted."""

from __future__ import annotations

import copy
import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.toys import SIZES, close, distance, models_for, plain_logp, rollouts, text_of, tiny

from grpobench.algorithms.algorithm import Batch, Role, RoutedExperts
from grpobench.algorithms.ppo import PPO
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.packing import pack
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.routing import UNKNOWN, choosing, from_packed, routers_of, to_packed
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.train.recorded_routes import forward_recording

EXPERTS, CHOSEN, LAYERS = 4, 2, 2
SMALL = SIZES | {"intermediate_size": 24, "num_experts_per_tok": CHOSEN}
QWEN = {"moe_intermediate_size": 24, "num_experts": EXPERTS}
MIXTURES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": EXPERTS},
    "Qwen2Moe": {**QWEN, "shared_expert_intermediate_size": 24, "norm_topk_prob": False},
    "Qwen3Moe": {**QWEN, "head_dim": 8, "norm_topk_prob": True},
    "Olmoe": {"num_experts": EXPERTS, "norm_topk_prob": False},
    "GraniteMoe": {"num_local_experts": EXPERTS},
}
NORMALIZED = {"Mixtral", "Qwen3Moe", "GraniteMoe"}
"""Whose weights are divided by their sum: the formula of R3. The others keep the shares of all experts."""


@functools.cache
def built(name: str) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config")(**SMALL, **MIXTURES[name])
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(config).double().eval()


def mixture(name: str = "Mixtral") -> Any:
    """A random mixture of four experts, of which a token uses two, in float64."""
    return copy.deepcopy(built(name))


def models_of(name: str = "Mixtral", double: bool = True, **settings: Any) -> RoleModels:
    """In float64 by transformers' plainest code for experts, the only one that has it; in float32 by its
    default, one product over all experts."""
    language = mixture(name).float()
    if double:
        language.set_experts_implementation("eager")
    models = RoleModels(language, **{"budget": 10**9, **settings})
    if double:
        models.language.double()
    return models


@pytest.fixture
def batch() -> Batch:
    return rollouts([[6, 1, 9], [4, 4, 1], [8]])


def drawn_routes(batch: Batch, seed: int = 0, by_group: bool = True) -> RoutedExperts:
    """Random experts for every token, two different ones; a group shares those of its prompt."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int) -> torch.Tensor:
        scores = torch.rand(rows, columns, LAYERS, EXPERTS, generator=generator)
        return scores.topk(CHOSEN).indices.to(torch.int16)

    prompt = draw(len(batch), batch.prompt.shape[1])
    if by_group:
        prompt = prompt[batch.group]
    outside = torch.arange(batch.prompt.shape[1]) >= batch.prompt_length[:, None]
    completion = draw(*batch.completion.shape)
    return RoutedExperts(prompt.masked_fill(outside[..., None, None], UNKNOWN), completion)


def weighted(batch: Batch) -> torch.Tensor:
    """A number for each completion token, so that every one has a gradient of its own."""
    return torch.randn(batch.completion.shape, generator=torch.Generator().manual_seed(3)).double()


def gradient(models: RoleModels, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(log-probabilities, gradient by parameter) of the weighted sum of the log-probabilities."""
    logp = models.forward_train(("policy",), batch)["policy"].logp
    models.language.zero_grad()
    (logp * weighted(batch)).sum().backward()
    return logp.detach(), {n: p.grad.clone() for n, p in models.language.named_parameters()}


# Own experts, replayed


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("double", [True, False])
def test_replaying_the_own_choice_changes_no_bit(name: str, double: bool, batch: Batch) -> None:
    models = models_of(name, double)
    plain, expected = gradient(models, batch)
    logp, routes = forward_recording(models, batch)
    # Without gradients torch 2.9 adds in another order: one digit of float32.
    assert float((logp - plain).abs().max()) <= (0.0 if double else 1e-6)
    replayed_logp, replayed = gradient(models, dataclasses.replace(batch, routed_experts=routes))
    assert torch.equal(replayed_logp, plain)
    assert all(torch.equal(replayed[n], expected[n]) for n in expected)
    assert any(value.any() for n, value in replayed.items() if "gate.weight" in n or "router" in n)


def test_unknown_experts_are_those_that_the_router_chooses(batch: Batch) -> None:
    models = models_of()
    plain, _ = gradient(models, batch)
    nobody = drawn_routes(batch)
    nobody = RoutedExperts(nobody.prompt.fill_(UNKNOWN), nobody.completion.fill_(UNKNOWN))
    logp, _ = gradient(models, dataclasses.replace(batch, routed_experts=nobody))
    assert torch.equal(logp, plain)


# Forced experts, against the formula


def by_formula(
    name: str, batch: Batch, routes: RoutedExperts
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The same as `gradient`, by transformers' own model, one whole text after the other. Its routers are
    replaced by the formula g_i = [i in I] exp(s_i) / Σ_{j in I} exp(s_j), or with Σ over all experts."""
    language = mixture(name)
    language.set_experts_implementation("eager")
    forced: list[torch.Tensor] = []

    def route(router: Any, number: int, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = F.linear(hidden.reshape(-1, hidden.shape[-1]), router.weight)
        chosen = forced[number]
        among = (
            F.one_hot(chosen, EXPERTS).sum(1).bool() if name in NORMALIZED else torch.ones_like(scores).bool()
        )
        weights = scores.masked_fill(~among, float("-inf")).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return scores, weights.gather(-1, chosen), chosen

    routers = [module for module in language.modules() if type(module).__name__.endswith("TopKRouter")]
    assert len(routers) == LAYERS
    for number, router in enumerate(routers):
        router.forward = functools.partial(route, router, number)
    rows = []
    for row in range(len(batch)):
        prompt, completion = text_of(batch, row)
        fed = torch.cat([routes.prompt[row, : len(prompt)], routes.completion[row, : len(completion)]]).long()
        forced[:] = [fed[:, number] for number in range(LAYERS)]
        logp = plain_logp(language, prompt, completion).gather(-1, completion[:, None]).squeeze(-1)
        rows.append(F.pad(logp, (0, batch.completion.shape[1] - len(completion))))
    batch_logp = torch.stack(rows)
    (batch_logp * weighted(batch)).sum().backward()
    return batch_logp.detach(), {n: p.grad.clone() for n, p in language.named_parameters()}


@pytest.mark.parametrize("name", MIXTURES)
def test_forced_experts_give_the_gradient_of_the_formula(name: str, batch: Batch) -> None:
    routes = drawn_routes(batch)
    expected, expected_gradient = by_formula(name, batch, routes)
    logp, replayed_gradient = gradient(models_of(name), dataclasses.replace(batch, routed_experts=routes))
    # Routers and norms compute in float32 within a model of float64.
    close(logp, expected, rtol=1e-6, atol=1e-6)
    assert distance(replayed_gradient, expected_gradient) < 1e-6


@pytest.mark.parametrize("by_group", [True, False])
def test_layouts_and_micro_batches_give_the_same(by_group: bool, batch: Batch) -> None:
    """Also where rows of a group have unlike experts for the same prompt, which they then cannot share."""
    routes = drawn_routes(batch, by_group=by_group)
    forced = dataclasses.replace(batch, routed_experts=routes)
    expected, expected_gradient = by_formula("Mixtral", batch, routes)
    for settings in ({}, {"share": False}, {"budget": 12}):
        models = models_of(**settings)
        close(models.forward("policy", forced).logp, expected, rtol=1e-6, atol=1e-6)
        if "budget" not in settings:
            assert distance(gradient(models, forced)[1], expected_gradient) < 1e-6


def test_checkpointed_layers_choose_the_same_experts_again(batch: Batch) -> None:
    forced = dataclasses.replace(batch, routed_experts=drawn_routes(batch))
    plain, expected = gradient(models_of(), forced)
    logp, again = gradient(models_of(activation_checkpointing=True), forced)
    assert torch.equal(logp, plain)
    assert all(torch.equal(again[n], expected[n]) for n in expected)


def test_an_adapter_beside_frozen_weights_replays(batch: Batch) -> None:
    models = models_of("Qwen3Moe", adapter=Adapter(rank=2, targets=("q_proj",)), reads=("reference",))
    routes = drawn_routes(batch)
    expected, _ = by_formula("Qwen3Moe", batch, routes)  # an adapter begins at nought
    forced = dataclasses.replace(batch, routed_experts=routes)
    close(models.forward("policy", forced).logp, expected, rtol=1e-6, atol=1e-6)
    reference_logp = models.forward("reference", batch).logp
    assert torch.equal(models.forward("reference", forced).logp, reference_logp)


def test_only_the_policy_and_heads_on_it_replay(batch: Batch) -> None:
    """Reference and critic are models of their own, with experts of their own."""
    forced = dataclasses.replace(batch, routed_experts=drawn_routes(batch))
    both: Any = SimpleNamespace(trained_roles=("policy", "critic"), reference_roles=("reference",))
    models = models_for(both, "qwen3_moe")
    roles: tuple[Role, ...] = ("reference", "critic")
    assert models.networks.keys() == {"policy", *roles}
    for role in roles:
        plain, replayed = (models.forward(role, routed_batch) for routed_batch in (batch, forced))
        assert torch.equal(plain.logp, replayed.logp) and torch.equal(plain.value, replayed.value)
    shared = models_for(PPO(critic="shared"), "qwen3_moe")
    plain, replayed = (shared.forward("value_head", routed_batch).value for routed_batch in (batch, forced))
    assert not torch.allclose(plain, replayed)


# Layouts


def test_routes_survive_packing(batch: Batch) -> None:
    routes = drawn_routes(batch)
    layout = pack(batch, RoleModels(tiny()).cost)
    unpacked = from_packed(to_packed(routes, layout), layout, batch)
    assert torch.equal(unpacked.prompt, routes.prompt)
    fed = torch.arange(batch.completion.shape[1]) < batch.length[:, None] - 1
    assert torch.equal(unpacked.completion[fed], routes.completion[fed])
    assert (unpacked.completion[~fed] == UNKNOWN).all()


# What is refused, and what is left behind


def test_a_dense_model_is_refused_with_the_remedy() -> None:
    with pytest.raises(ModelError, match=r'LlamaModel has no router .* set sampler\.router_replay = "none"'):
        RoleModels(tiny(), router_replay="R3")


def test_a_router_that_chooses_otherwise_is_refused() -> None:
    """Phi-3.5-MoE's sparse mixer masks the largest score and takes the next: no `topk`."""
    import transformers

    config = transformers.PhimoeConfig(**SMALL, num_local_experts=EXPERTS, sliding_window=None)
    with pytest.raises(ModelError, match="PhimoeTopKRouter chooses experts by 0 calls of topk"):
        RoleModels(transformers.PhimoeForCausalLM(config).eval(), router_replay="R2")


def test_the_proof_accepts_each_mixture_and_leaves_nothing_behind() -> None:
    for name in MIXTURES:
        models = RoleModels(mixture(name).float(), router_replay="R3")
        pairs = routers_of(models.networks["policy"].trunk)
        assert len(pairs) == LAYERS
        assert not any("forward" in vars(module) for pair in pairs for module in pair)


def test_routes_of_another_model_are_refused(batch: Batch) -> None:
    models, routes = models_of(), drawn_routes(batch)
    fewer = RoutedExperts(routes.prompt[:, :, :1], routes.completion[:, :, :1])
    with pytest.raises(
        ModelError, match="routes of 1 routers cannot be replayed in MixtralModel, which has 2"
    ):
        models.forward("policy", dataclasses.replace(batch, routed_experts=fewer))
    single = RoutedExperts(routes.prompt[..., :1], routes.completion[..., :1])
    with pytest.raises(ModelError, match=r"routes of shape \(\d+, 1\) cannot be replayed"):
        models.forward("policy", dataclasses.replace(batch, routed_experts=single))


def test_an_inner_choice_is_given_that_of_the_outer_one(batch: Batch) -> None:
    """So that what a sampler records are the experts that another's code has chosen."""
    models, matches = models_of(), list[torch.Tensor]()
    trunk = models.networks["policy"].trunk

    def last(number: int, scores: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        return scores.topk(CHOSEN, largest=False).indices

    def note(number: int, scores: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        matches.append((choice == scores.argsort(-1)[:, :CHOSEN]).all())
        return choice

    with choosing(trunk, last), choosing(trunk, note):
        models.forward("policy", batch)
    assert len(matches) == LAYERS and all(matches)
