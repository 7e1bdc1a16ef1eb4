"""Rollouts that end after strings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.stop_strings import end_after

PIECES = ("", "ab", "c", "\n", "\n\nd", "e")


def decode(tokens: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


def rollout(*tokens: int) -> Rollout:
    numbers = np.arange(len(tokens), dtype=np.float32)
    mixture = np.stack([numbers] * 2, -1), np.stack([numbers] * 2, -1)
    routes = np.zeros((3, 1, 2), np.int16), np.zeros((len(tokens), 1, 2), np.int16)
    return Rollout((5,), tokens, numbers, False, (), mixture, routes, numbers)


@pytest.mark.parametrize(
    ("strings", "tokens", "expected"),
    [
        (("c",), (1, 2, 5, 2), (1, 2)),
        (("bc",), (2, 1, 2, 5), (2, 1, 2)),
        (("\n\n",), (1, 3, 4, 5), (1, 3, 4)),
        (("e", "c"), (1, 2, 5), (1, 2)),
        (("e",), (1, 2, 5), (1, 2, 5)),
    ],
)
def test_a_rollout_ends_with_the_token_that_completes_the_first_string(
    strings: tuple[str, ...], tokens: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    ended = end_after(rollout(*tokens), strings, decode)
    assert (ended.completion, ended.stopped) == (expected, True)
    assert ended.mixture and ended.routed_experts and ended.entropy is not None
    columns = ended.sampler_logp, ended.entropy, *ended.mixture, ended.routed_experts[1]
    assert {len(column) for column in columns} == {len(expected)}
    assert len(ended.routed_experts[0]) == 3


def test_a_rollout_without_the_strings_is_unchanged() -> None:
    before = rollout(1, 2, 3)
    assert end_after(before, ("x", "cab"), decode) is before
