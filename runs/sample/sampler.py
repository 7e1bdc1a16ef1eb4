"""The protocol of samplers: requests in, rollouts with their log-probabilities out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from grpobench.algorithms.algorithm import Mixer
from grpobench.runs.models.token_budgets import TokenBudget
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.settings.truncation import FULL, Truncation
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem

Weights: TypeAlias = "Mapping[str, torch.Tensor]"  # a text, so that an import loads no torch
"""Of the policy, by name."""
GREEDY = -1
"""Instead of a seed: this completion is decoded greedily. Derived seeds are never negative."""


@dataclass(frozen=True)
class Mixing:
    """How tokens are fed mixed while decoding, and until when."""

    mixer: Mixer
    over: Callable[[Sequence[int]], bool] | None = None
    """Given the last tokens of a completion, at most `TAIL`: whether plain tokens are fed from here on. None:
    never."""


@dataclass(frozen=True)
class Request:
    """One prompt and a derived seed for each completion wanted of it."""

    prompt: tuple[int, ...]
    seeds: tuple[int, ...]
    truncation: Truncation = FULL
    """Of sampled completions. A call of the sampler has one for all of its requests."""


def shared_truncation(requests: Sequence[Request]) -> Truncation:
    """The truncation of all requests. Raises ValueError if they have several."""
    truncations = {request.truncation for request in requests} or {FULL}
    if len(truncations) > 1:
        raise ValueError(f"a call of the sampler has one truncation, not {len(truncations)}")
    return truncations.pop()


@dataclass(frozen=True)
class StepRequest:
    """All completions of one training step."""

    problems: tuple[Problem, ...]
    seeds: tuple[tuple[int, ...], ...]
    """Of the completions of each problem."""
    limit: int
    """Most tokens of a completion."""
    temperature: float
    version: int
    """Of the weights: the updates of the policy before them, since this attempt began."""


class Sampler:
    """Draws completions from the policy.

    A subclass needs `exact`, `max_logprob_gap` and `sample`; what else stands here is right for a sampler
    that reads the trainer's weights and holds no resources.
    """

    exact: bool
    """Whether its log-probabilities may be used as log π_old; else the trainer computes it."""
    max_logprob_gap: float
    """Largest mean |Δ log p| in nats per token from the trainer with the same weights. Beyond it the sampler
    is broken, or the weights are."""
    reads_trainer_weights: bool = False
    """Whether it computes with the trainer's own weights, so that it cannot have others."""
    deterministic: bool = False
    """Whether log-probabilities depend on the policy, the request and the settings alone, so that runs may
    share the evaluation of a base policy. Those of an engine depend on its cache, too."""
    mixes_greedy: bool = False
    """Whether one request may have sampled and greedy completions (a seed of `GREEDY`)."""

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        """Completions of each request, in order. `limit` is the longest completion in tokens; temperature 0
        is greedy. Raises DataError for a prompt that leaves no room for `limit` tokens."""
        raise NotImplementedError

    def sync(self) -> dict[str, float]:
        """Load the trainer's weights after an update or a restart. Returns metrics of the transfer."""
        return {}

    def close(self) -> None:
        """Release the sampler's resources."""

    def sleep(self) -> None:
        """Free memory for the trainer, which samples nothing before the next `sync`."""

    def wake(self) -> None:
        """Have the weights here, as they are now. Every rank calls this."""

    @property
    def language(self) -> Any | None:
        """The model with the weights that are decoded; None if it is the trainer's."""
        return None

    @property
    def provenance(self) -> dict[str, Any]:
        """What provenance.json says about the sampler; empty: nothing."""
        return {}

    @property
    def token_budgets(self) -> dict[str, TokenBudget]:
        """Limits that memory may lower, by the name under which a checkpoint keeps them."""
        return {}

    @property
    def episodes_at_once(self) -> int | None:
        """Most episodes of several turns to play at once; None if the sampler splits its batches itself."""
        return None

    def remembering(self) -> AbstractContextManager[None]:
        """Within, a prompt may begin with a completion of the call before, whose keys and values the sampler
        may reuse: the weights do not change."""
        return contextlib.nullcontext()

    def rollout_weights(self) -> AbstractContextManager[None]:
        """Within, completions are rollouts for training, which may have other weights than evaluations."""
        return contextlib.nullcontext()

    def begin_next(self, request: StepRequest, weights: Weights) -> None:
        """Begin to sample the next step beside training. Most samplers do nothing."""

    def take_next(self, request: StepRequest, weights: Callable[[], Weights]) -> list[list[Rollout]] | None:
        """The rollouts of a step from a sampler that works beside training, which has the `weights` from
        before; None if the step must call `sample`."""
        return None


def demand_room(requests: Sequence[Request], limit: int, context: int, remedy: str = "") -> None:
    """Raises DataError for a prompt that leaves no room for `limit` tokens; `remedy` is one more."""
    longest = max((len(request.prompt) for request in requests), default=0)
    if longest + limit > context:
        raise DataError(
            f"a prompt of {longest} tokens and {limit} new ones exceed the model's "
            f"context of {context}; lower sampler.max_completion_tokens{remedy} or take another model"
        )
