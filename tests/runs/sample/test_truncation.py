"""Draws from truncated distributions: which tokens are survivors, what is recorded of them, on every path."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from helpers.sampling import EXACT, demand_same, flat, requests, same, sampler, texts
from helpers.toys import plain_logp
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpobench.runs.sample.draws import truncate
from grpobench.runs.sample.graphs import Graphs
from grpobench.runs.sample.sampler import GREEDY, Request
from grpobench.runs.settings.truncation import FULL, Truncation

LIMIT = 40
TRUNCATIONS = (
    Truncation(top_k=3),
    Truncation(top_p=0.6),
    Truncation(min_p=0.2),
    Truncation(top_k=4, top_p=0.7),
    Truncation(top_k=4, min_p=0.3),
)


def warped(logp: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """As transformers truncates and renormalizes."""
    tokens: Any = None
    if truncation.top_k:
        logp = TopKLogitsWarper(truncation.top_k)(tokens, logp)
    if truncation.top_p < 1:
        logp = TopPLogitsWarper(truncation.top_p)(tokens, logp)
    if truncation.min_p:
        logp = MinPLogitsWarper(truncation.min_p)(tokens, logp)
    return logp.log_softmax(-1)


@pytest.mark.parametrize("truncation", [*TRUNCATIONS, Truncation(top_k=10**6), Truncation(top_p=1e-6)])
@pytest.mark.parametrize("sharpness", [0.1, 3.0, 60.0])
def test_truncated_log_probabilities_are_those_of_transformers(
    truncation: Truncation, sharpness: float
) -> None:
    logits = torch.randn(20, 500, generator=torch.Generator().manual_seed(3)) * sharpness
    logp = logits.log_softmax(-1)
    ours, theirs = truncate(logp, truncation), warped(logp, truncation)
    assert torch.equal(ours.isinf(), theirs.isinf())
    survivors = ~ours.isinf()
    # Both are float32, and log_softmax rounds log-probabilities as large as the greatest logits.
    assert torch.allclose(ours[survivors], theirs[survivors], rtol=0, atol=2e-6 * max(1.0, sharpness))


def test_equal_probabilities_are_kept_together_whatever_their_order() -> None:
    logp = torch.tensor([[0.2, 0.4, 0.2, 0.1, 0.1]]).log()
    expected = [[True, True, True, False, False]]
    for truncation in (Truncation(top_k=2), Truncation(top_p=0.5), Truncation(min_p=0.4)):
        assert (~truncate(logp, truncation).isinf()).tolist() == expected, truncation


def requested(truncation: Truncation, samples: int = 3) -> list[Request]:
    return [dataclasses.replace(request, truncation=truncation) for request in requests(samples)]


@pytest.mark.parametrize("truncation", TRUNCATIONS)
def test_rollouts_record_the_distribution_that_they_were_drawn_from(truncation: Truncation) -> None:
    """And the entropy of the whole one."""
    source = sampler(temperature=0.7)
    for rollout in flat(source.sample(requested(truncation), LIMIT, 0.7)):
        with torch.no_grad():
            full = plain_logp(source.models.language, rollout.prompt, rollout.completion, 0.7)
        chosen = torch.tensor(rollout.completion)[:, None]
        expected = warped(full, truncation).gather(-1, chosen).squeeze(-1)
        assert torch.allclose(torch.from_numpy(rollout.sampler_logp), expected, rtol=0, atol=10 * EXACT)
        entropy = -(full.exp() * full).sum(-1)
        assert torch.allclose(torch.from_numpy(rollout.entropy), entropy, rtol=0, atol=10 * EXACT)


@pytest.mark.parametrize("truncation", TRUNCATIONS[2:4])
def test_recorded_fused_and_plain_steps_draw_the_same(truncation: Truncation) -> None:
    batch = requested(truncation, 5)
    batch[1] = dataclasses.replace(batch[1], seeds=(GREEDY, *batch[1].seeds))
    plain, fused, static = sampler(), sampler(), sampler()
    plain.shares = plain.fuses = False
    static.graphs = Graphs(static.models)
    expected = plain.sample(batch, LIMIT, 1.0)
    for source in (fused, static):
        demand_same(source.sample(batch, LIMIT, 1.0), expected)
    assert static.graphs.batches, "the static step was used"
    assert texts(sampler().sample(requests(5), LIMIT, 1.0)) != texts(expected)


def test_greedy_answers_are_not_truncated() -> None:
    """Neither by a seed among samples nor by temperature 0."""
    for temperature in (0.0, 1.0):
        answers = [
            sampler().sample([Request((5, 9), (GREEDY, 3), truncation)], LIMIT, temperature)[0][0]
            for truncation in (FULL, Truncation(top_k=1))
        ]
        assert same(*answers)


def test_a_call_has_one_truncation() -> None:
    with pytest.raises(ValueError, match="one truncation, not 2"):
        sampler().sample([*requests(), Request((3,), (1,), TRUNCATIONS[0])], LIMIT, 1.0)
