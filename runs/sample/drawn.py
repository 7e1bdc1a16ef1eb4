"""Completions of a sampler of others, checked where it returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grpobench.algorithms.returned import ReturnError, described, line_of
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import Mixing, Request, Sampler


def demand_sampler(sampler: object, made_by: object) -> None:
    """Raises ReturnError if what a class or factory made is no sampler."""
    needed = [name for name in ("exact", "max_logprob_gap") if not hasattr(sampler, name)]
    # The protocol's own `sample` only raises NotImplementedError.
    if isinstance(sampler, Sampler) and type(sampler).sample is not Sampler.sample and not needed:
        return
    name = getattr(made_by, "__qualname__", str(made_by))
    line = line_of(made_by) if callable(made_by) else ""
    expected = "a subclass of grpobench.runs.sample.sampler.Sampler with exact, max_logprob_gap and sample"
    raise ReturnError(f"{line} {name} made {described(sampler)}, expected {expected}".lstrip())


def draw(
    sampler: Sampler,
    requests: Sequence[Request],
    limit: int,
    temperature: float,
    mixing: Mixing | None = None,
) -> list[list[Rollout]]:
    """The sampler's completions of each request. Raises ReturnError for those of another's sampler that are
    not as asked: their number, their lengths, their log-probabilities."""
    rollouts = (
        # A sampler of somebody else need not know `mixing`.
        sampler.sample(requests, limit, temperature, mixing)
        if mixing is not None
        else sampler.sample(requests, limit, temperature)
    )
    # Samplers of the suite have its tests, and to look at every token takes time.
    if not type(sampler).__module__.startswith("grpobench."):
        demand(sampler, requests, limit, rollouts)
    return rollouts


def demand(sampler: Sampler, requests: Sequence[Request], limit: int, returned: Any) -> None:
    """Check the completions of each request."""
    if miscount := miscounted(returned, len(requests), "lists"):
        raise refusal(sampler, miscount, f"a list for each of {len(requests)} requests")
    for number, (request, request_rollouts) in enumerate(zip(requests, returned, strict=True)):
        where = f"for request {number}"
        if miscount := miscounted(request_rollouts, len(request.seeds), "completions"):
            raise refusal(sampler, f"{miscount} {where}", f"{len(request.seeds)}, one for each seed")
        for rollout in request_rollouts:
            if flaw := flaw_of(rollout, limit):
                raise refusal(sampler, f"{flaw[0]} {where}", flaw[1])


def miscounted(returned: object, count: int, members: str) -> str:
    """What was returned in place of a list of `count` members; empty if it is one."""
    if not isinstance(returned, list | tuple):
        return described(returned)
    return "" if len(returned) == count else f"{len(returned)} {members}"


def flaw_of(rollout: object, limit: int) -> tuple[str, str] | None:
    """(what is wrong with a completion of at most `limit` tokens, what is expected); None if nothing is."""
    if not isinstance(rollout, Rollout):
        return described(rollout), "a Rollout"
    length, logp = len(rollout.completion), rollout.sampler_logp
    if not all(isinstance(token, int | np.integer) for token in rollout.completion):
        return "a completion with something that is no token id", "whole numbers"
    if length > limit:
        return f"a completion of {length} tokens", f"at most {limit}"
    if not isinstance(logp, np.ndarray) or logp.shape != (length,):
        shape = logp.shape if isinstance(logp, np.ndarray) else described(logp)
        return f"sampler_logp {shape}", f"a NumPy array ({length},), a log-probability for each token"
    # Rounding may leave the log-probability of a certain token a little above 0.
    if not np.isfinite(logp).all() or (logp > 1e-3).any():
        return f"sampler_logp from {logp.min()} to {logp.max()}", "finite log-probabilities, at most 0"
    return None


def demand_routes(sampler: Sampler, sampled: Sequence[Sequence[Rollout]]) -> None:
    """Raises ReturnError for rollouts without the experts of each of their tokens."""
    for rollout in (rollout for rollouts in sampled for rollout in rollouts):
        routes = rollout.routed_experts
        if routes is None:
            flaw, remedy = "a rollout without routed_experts", 'set sampler.router_replay = "none"'
            raise refusal(
                sampler, flaw, f"those of each token, which sampler.router_replay replays; {remedy}"
            )
        expected = len(rollout.prompt), len(rollout.completion)
        if tuple(map(len, routes)) != expected or any(part.ndim != 3 for part in routes):
            shapes = " and ".join(str(part.shape) for part in routes)
            raise refusal(
                sampler, f"routed_experts {shapes}", f"{expected} tokens × routers × experts of each"
            )


def refusal(sampler: Sampler, returned: str, expected: str) -> ReturnError:
    statement = f"{line_of(sampler.sample)} {type(sampler).__name__}.sample returned {returned}"
    return ReturnError(f"{statement}, expected {expected}".lstrip())
