"""Routing replay: a mixture's choice of experts for each token, recorded in one pass and forced in
another."""

# A router scores all experts and chooses the k best. Rounding is enough for sampler and trainer to choose
# differently, and another expert is another function: a small error of a score becomes a large one of the
# probabilities. Replay forces the choice and nothing else (R3, arXiv:2510.11370, and what verl, slime and
# NeMo-RL compute): with the scores s of the pass that replays and the recorded set I, the weights are g_i =
# [i in I] · exp(s_i) / Σ_{j in I} exp(s_j), as the model defines them, and gradients flow through s.
#
# No router is rewritten. A router of transformers calls `topk` once, on its scores, and computes the weights
# from what that returns: here the call returns the forced experts and their scores. Where these are the
# router's own, not a bit changes.

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from grpobench.algorithms.algorithm import Batch, RoutedExperts
from grpobench.runs.models.activation_checkpointing import layers_of, replaced_forward
from grpobench.runs.models.packing import Pack
from grpobench.runs.models.proof import ProbedModels, demand_equal, plainly, probe
from grpobench.runs.models.token_budgets import ModelError

ROUTER = "TopKRouter"
"""What the names of transformers' router classes end with, if the router itself chooses the experts."""
UNKNOWN = -1
"""In place of an expert: the router's own choice."""
Choose = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""(number of the router from 0, scores (N, experts), its own choice (N, k)) -> the choice (N, k)."""


class Choosing(TorchFunctionMode):
    """Within, `topk` returns the entries that `choose` says, given the scores and the k largest."""

    def __init__(self, choose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.choose, self.calls = choose, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        # Both spellings, torch.topk(x) and x.topk(), arrive here as functions of their own.
        if func not in (torch.topk, torch.Tensor.topk):
            return result
        self.calls += 1
        scores = args[0]
        chosen = self.choose(scores.detach(), result.indices)
        if chosen is result.indices:
            return result
        # Gathered from the scores with their gradient: a replay forces the choice, not the weights.
        return torch.return_types.topk((scores.gather(-1, chosen), chosen))


def routers_of(trunk: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """(layer, router) of each router that chooses experts, in the order of the layers. Raises ModelError for
    a model without any."""
    routers = [module for module in trunk.modules() if type(module).__name__.endswith(ROUTER)]
    if not routers:
        raise ModelError(
            f"sampler.router_replay replays the choices of a mixture of experts, and {type(trunk).__name__} "
            f"has no router that makes them (no module whose class ends with {ROUTER}); set "
            'sampler.router_replay = "none"'
        )
    layers = layers_of(trunk)
    owner = {id(module): layer for layer in layers for module in layer.modules()}
    return [(owner[id(router)], router) for router in routers]


@contextlib.contextmanager
def choosing(trunk: nn.Module, choose: Choose) -> Iterator[None]:
    """Within, the routers of a trunk send tokens where `choose` says. Several may be nested: an inner one is
    given the choice of the outer ones as the router's own.

    A layer that activation checkpointing runs again in the backward pass, maybe outside, chooses likewise:
    what is replaced is the layer's forward pass, which `checkpointed` wraps.
    """
    # Left backwards: the second router of a layer has stored the wrapper of the first one.
    with contextlib.ExitStack() as stack:
        for number, (layer, router) in enumerate(routers_of(trunk)):
            choice = functools.partial(choose, number)
            routed = functools.partial(_run_layer, layer.forward, router, choice)
            stack.enter_context(replaced_forward(layer, routed))
        yield


def _run_layer(forward: Any, router: nn.Module, choose: Any, *args: Any, **kwargs: Any) -> Any:
    with replaced_forward(router, functools.partial(_run_router, router.forward, router, choose)):
        return forward(*args, **kwargs)


def _run_router(forward: Any, router: nn.Module, choose: Any, *args: Any, **kwargs: Any) -> Any:
    with Choosing(choose) as mode:
        result = forward(*args, **kwargs)
    if mode.calls != 1:
        raise ModelError(
            f"{type(router).__name__} chooses experts by {mode.calls} calls of topk, and a replay knows "
            'routers with one; set sampler.router_replay = "none"'
        )
    return result


@contextlib.contextmanager
def recorded(trunk: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Within, the choices (N, k) of one forward pass are appended, router after router."""
    choices: list[torch.Tensor] = []

    def choose(number: int, scores: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        choices.append(choice)
        return choice

    with choosing(trunk, choose):
        yield choices


def stacked(choices: list[torch.Tensor]) -> torch.Tensor:
    """The choices of one forward pass, int16 (N, routers, k)."""
    # A quarter of int64: rollouts keep these for every token. −1 needs a sign.
    return torch.stack(choices, 1).to(torch.int16)


def replayed(trunk: nn.Module, target: torch.Tensor) -> contextlib.AbstractContextManager[None]:
    """Within, the N tokens of every forward pass go to the experts `target` (N, routers, k); where that is
    `UNKNOWN`, to those that the router chooses itself. Raises ModelError for another number of routers or of
    experts per token."""
    routers = len(routers_of(trunk))
    if target.shape[1] != routers:
        raise ModelError(
            f"routes of {target.shape[1]} routers cannot be replayed in {type(trunk).__name__}, which has "
            f"{routers}: sampler and trainer must be the same model"
        )

    def choose(number: int, scores: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        forced = target[:, number].to(choice.dtype)
        if forced.shape != choice.shape:
            raise ModelError(
                f"routes of shape {tuple(forced.shape)} cannot be replayed where a router chooses "
                f"{tuple(choice.shape)} (tokens, experts of each): sampler and trainer must be the same model"
            )
        return torch.where(forced == UNKNOWN, choice, forced)

    return choosing(trunk, choose)


def to_packed(routes: RoutedExperts, layout: Pack) -> torch.Tensor:
    """The experts of every token of a packed micro-batch, (S · L, routers, k); `UNKNOWN` for padding."""
    sequences, length = layout.tokens.shape
    packed = routes.prompt.new_full((sequences, length, *routes.prompt.shape[2:]), UNKNOWN)
    # Prompts are padded to the longest of the batch, which this micro-batch may not hold.
    columns = min(length, routes.prompt.shape[1])
    packed[:, :columns] = routes.prompt[layout.trunk][:, :columns]
    # Prompts first: completions lie in the columns of their padding and overwrite it.
    packed = packed.flatten(0, 1)
    return packed.index_copy(0, layout.fed, routes.completion.flatten(0, 1)[layout.fed_place])


def from_packed(packed: torch.Tensor, layout: Pack, batch: Batch) -> RoutedExperts:
    """The inverse: the experts of each row's tokens, of the choices (S · L, routers, k) of a pass."""
    (rows, width), routes_shape = batch.prompt.shape, packed.shape[1:]
    sequences, length = layout.tokens.shape
    columns = min(length, width)
    prompt = packed.new_full((rows, width, *routes_shape), UNKNOWN)
    prompt[:, :columns] = packed.view(sequences, length, *routes_shape)[layout.sequence][:, :columns]
    # Behind its own prompt a row would find tokens of others in these columns.
    beyond = torch.arange(width, device=packed.device) >= batch.prompt_length[:, None]
    completion = packed.new_full((batch.completion.numel(), *routes_shape), UNKNOWN)
    completion = completion.index_copy(0, layout.fed_place, packed[layout.fed])
    return RoutedExperts(
        prompt.masked_fill(beyond[:, :, None, None], UNKNOWN),
        completion.view(*batch.completion.shape, *routes_shape),
    )


class RoutedModels(ProbedModels, Protocol):
    """The models of a run as far as the proof below needs them."""

    networks: dict[str, Any]


def demand_replay(models: RoutedModels) -> None:
    """Raises ModelError if the experts of the policy's tokens cannot be recorded and forced: replaying a
    pass's own must give its log-probabilities, and replaying others other ones."""
    batch, trunk = probe(models), models.networks["policy"].trunk
    # In float32, so that rounding alone sends no token elsewhere.
    with plainly(models), torch.no_grad():
        with recorded(trunk) as choices:
            plain = models.forward_train(("policy",), batch)["policy"].logp
        chosen_experts = stacked(choices)
        with replayed(trunk, chosen_experts):
            same = models.forward_train(("policy",), batch)["policy"].logp
        demand_equal(models, plain, same, "tokens whose own experts are replayed")
        experts = int(chosen_experts.max()) + 1
        # Shifted by one, every choice is another expert, and the experts of a token stay different.
        with replayed(trunk, (chosen_experts + 1) % max(experts, 2)):
            other = models.forward_train(("policy",), batch)["policy"].logp
    if torch.equal(plain, other):
        raise ModelError(
            f"{type(models.language).__name__} computes the same with other experts forced, so that no "
            'choice is replayed; set sampler.router_replay = "none"'
        )
