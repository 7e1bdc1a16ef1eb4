"""The protocol of samplers: requests in, rollouts with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from grpobench.algorithms.algorithm import Mixer
from grpobench.runs.sample.rollouts import Rollout
from grpobench.tasks.data.tables import DataError

GREEDY = -1
"""In the place of a seed: this completion is decoded greedily. Derived seeds are never negative."""


@dataclass(frozen=True)
class Mixing:
    """How tokens are fed mixed while decoding, and until when."""

    mixer: Mixer
    over: Callable[[Sequence[int]], bool] | None = None
    """Whether with the last of these tokens, at most the last `TAIL` of a completion, a part begins in which
    plain tokens are fed; None: there is no such part."""


@dataclass(frozen=True)
class Request:
    """One prompt and a derived seed for each completion wanted of it."""

    prompt: tuple[int, ...]
    seeds: tuple[int, ...]


class Sampler(Protocol):
    """Draws completions from the policy."""

    exact: bool
    """Whether its log-probabilities may stand for log π_old, which else the trainer reads."""
    max_logprob_gap: float
    """Mean |Δ log p| in nats per token from the trainer, on the same weights, above which something is
    broken."""

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixing: Mixing | None = None
    ) -> list[list[Rollout]]:
        """Completions of each request, in order. `limit` is the longest completion in tokens; temperature 0
        is greedy. Raises DataError for a prompt that leaves no room for `limit` tokens."""
        ...

    def sync(self) -> dict[str, float]:
        """Take over the trainer's weights after an update or a restart; metrics of doing so."""
        ...

    def close(self) -> None:
        """Give back what the sampler holds."""
        ...


def demand_room(requests: Sequence[Request], limit: int, context: int, remedy: str = "") -> None:
    """Raises DataError for a prompt that leaves no room for `limit` tokens; `remedy` is one more."""
    longest = max((len(request.prompt) for request in requests), default=0)
    if longest + limit > context:
        raise DataError(
            f"a prompt of {longest} tokens and {limit} new ones exceed the model's "
            f"context of {context}; lower sampler.max_completion_tokens{remedy} or take another model"
        )
