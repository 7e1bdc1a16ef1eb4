"""Completions of another's sampler that are not as asked are refused with its line and what is expected."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grpobench.algorithms.returned import ReturnError
from grpobench.runs.sample.drawn import demand_sampler, draw
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import Request, Sampler

REQUESTS = [Request((1, 2), (7, 8)), Request((3,), (9,))]


def rollout(*tokens: Any, logp: Any = None) -> Rollout:
    return Rollout((1,), tokens, np.full(len(tokens), -0.5, np.float32) if logp is None else logp, True)


class Mine(Sampler):
    """A sampler that returns what it is given."""

    exact, max_logprob_gap = True, 0.0

    def __init__(self, returned: Any = None) -> None:
        self.returned = returned

    def sample(self, requests: Any, limit: int, temperature: float, mixing: Any = None) -> Any:
        return self.returned


GOOD = [[rollout(4, 5), rollout()], [rollout(6)]]
WRONG: list[tuple[Any, str]] = [
    (None, "None of type NoneType, expected a list for each of 2 requests"),
    (GOOD[:1], "1 lists, expected a list for each of 2 requests"),
    ([GOOD[0], []], "0 completions for request 1, expected 1, one for each seed"),
    ([GOOD[0], ["text"]], "'text' of type str for request 1, expected a Rollout"),
    (
        [GOOD[0], [rollout("a")]],
        "a completion with something that is no token id for request 1, expected whole",
    ),
    ([GOOD[0], [rollout(1, 2, 3, 4)]], "a completion of 4 tokens for request 1, expected at most 3"),
    (
        [GOOD[0], [rollout(1, logp=np.zeros(2))]],
        "sampler_logp (2,) for request 1, expected a NumPy array (1,)",
    ),
    ([GOOD[0], [rollout(1, logp=[0.0])]], "sampler_logp [0.0] of type list for request 1, expected a NumPy"),
    (
        [GOOD[0], [rollout(1, logp=np.array([np.nan]))]],
        "sampler_logp from nan to nan for request 1, expected fin",
    ),
    (
        [GOOD[0], [rollout(1, logp=np.array([0.7]))]],
        "sampler_logp from 0.7 to 0.7 for request 1, expected finite",
    ),
]


@pytest.mark.parametrize(("returned", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_what_is_not_as_asked_is_refused(returned: Any, message: str) -> None:
    with pytest.raises(ReturnError) as caught:
        draw(Mine(returned), REQUESTS, 3, 1.0)
    line = Mine.sample.__code__.co_firstlineno
    assert str(caught.value).startswith(f"test_drawn.py:{line} Mine.sample returned {message}")


def test_what_is_as_asked_passes() -> None:
    assert draw(Mine(GOOD), REQUESTS, 3, 1.0) is GOOD


class NoSample(Sampler):
    exact, max_logprob_gap = True, 0.0


class NoGap(Sampler):
    exact, sample = True, Mine.sample


def test_what_is_no_sampler_is_refused_with_what_a_sampler_needs() -> None:
    def engine(config: Any, models: Any, loaded: Any) -> Any: ...

    demand_sampler(Mine(), engine)
    line = engine.__code__.co_firstlineno
    for made in (None, SimpleNamespace(exact=True, max_logprob_gap=0.0), NoSample(), NoGap()):
        with pytest.raises(
            ReturnError,
            match=rf"test_drawn\.py:{line} .*engine made .*, expected a subclass of .*Sampler with",
        ):
            demand_sampler(made, engine)
