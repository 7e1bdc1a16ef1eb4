"""The protocol of samplers: requests in, rollouts with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from grpobench.algorithms.algorithm import Mixer
from grpobench.runs.sample.rollouts import Rollout
from grpobench.tasks.data.tables import DataError

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


class Sampler(Protocol):
    """Draws completions from the policy."""

    exact: bool
    """Whether its log-probabilities may be used as log π_old; else the trainer computes it."""
    max_logprob_gap: float
    """Largest mean |Δ log p| in nats per token from the trainer with the same weights. Beyond it something is
    broken."""

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        """Completions of each request, in order. `limit` is the longest completion in tokens; temperature 0
        is greedy. Raises DataError for a prompt that leaves no room for `limit` tokens."""
        ...

    def sync(self) -> dict[str, float]:
        """Load the trainer's weights after an update or a restart. Returns metrics of the transfer."""
        ...

    def close(self) -> None:
        """Release the sampler's resources."""
        ...


def demand_room(requests: Sequence[Request], limit: int, context: int, remedy: str = "") -> None:
    """Raises DataError for a prompt that leaves no room for `limit` tokens; `remedy` is one more."""
    longest = max((len(request.prompt) for request in requests), default=0)
    if longest + limit > context:
        raise DataError(
            f"a prompt of {longest} tokens and {limit} new ones exceed the model's "
            f"context of {context}; lower sampler.max_completion_tokens{remedy} or take another model"
        )
