"""Ends completions after strings of the recipe."""

# A completion's random numbers belong to its tokens' indices. So a completion that is cut off here is the one
# that a sampler that watched for the strings would have written, whichever sampler it is.

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Sequence

from grpobench.runs.sample.rollouts import Rollout


def end_after(rollout: Rollout, strings: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Rollout:
    """The rollout of one turn up to the token that completes the first of the strings, as one that the policy
    ended; unchanged if its text has none of them."""

    def complete(count: int) -> bool:
        text = decode(rollout.completion[:count])
        return any(string in text for string in strings)

    if not complete(len(rollout.completion)):
        return rollout
    # Bisection, because a longer text has the strings of a shorter one.
    count = bisect.bisect_left(range(len(rollout.completion)), True, key=complete)
    mixture, routes = rollout.mixture, rollout.routed_experts
    return dataclasses.replace(
        rollout,
        completion=rollout.completion[:count],
        sampler_logp=rollout.sampler_logp[:count],
        stopped=True,
        completion_mask=rollout.completion_mask[:count],
        mixture=None if mixture is None else (mixture[0][:count], mixture[1][:count]),
        routed_experts=None if routes is None else (routes[0], routes[1][:count]),
        entropy=None if rollout.entropy is None else rollout.entropy[:count],
    )
