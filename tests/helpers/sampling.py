"""Prompts, requests and samplers of tiny models, and what holds for the completions of every sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats

from grpobench.algorithms.algorithm import Mixture
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.decoding import Decoding
from grpobench.runs.sample.fused import Fused
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import Request, Sampler
from helpers.toys import VOCABULARY, plain_logp, tiny

END = (1, 7, 11)
EXACT = 1e-5
"""Nats: the same float32 logits of some tens, by a cached and by a whole forward pass."""


PROMPTS = ((5, 9, 30, 7, 12), (8, 3), (22, 22, 4, 17, 31, 6, 2), (39,))


def sampler(architecture: str = "llama", temperature: float = 1.0, **settings: Any) -> HFSampler:
    options = {"end": END, "pad": 0, "rows": 64, "context": 128, **settings}
    return HFSampler(RoleModels(tiny(architecture), temperature=temperature), **options)


def requests(samples: int = 3) -> list[Request]:
    return [Request(prompt, tuple(100 * i + j for j in range(samples))) for i, prompt in enumerate(PROMPTS)]


def update(models: RoleModels) -> None:
    """A step of the policy's optimizer along a drawn gradient."""
    generator = torch.Generator().manual_seed(5)
    for parameter in models.named_parameters("policy").values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    models.step(("policy",), 1.0)


def same(first: Rollout, second: Rollout) -> bool:
    return (first.prompt, first.completion, first.stopped) == (
        second.prompt,
        second.completion,
        second.stopped,
    ) and np.allclose(first.sampler_logp, second.sampler_logp, rtol=0, atol=EXACT)


def flat(groups: Sequence[Sequence[Rollout]]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group]


def texts(groups: Sequence[Sequence[Rollout]]) -> list[list[tuple[int, ...]]]:
    """The completions of each group."""
    return [[rollout.completion for rollout in group] for group in groups]


def demand_same(ours: Sequence[Sequence[Rollout]], theirs: Sequence[Sequence[Rollout]]) -> None:
    """The same rollouts in the same groups, with entropies where the others have some."""
    assert list(map(len, ours)) == list(map(len, theirs))
    for rollout, other in zip(flat(ours), flat(theirs), strict=True):
        assert same(rollout, other)
        assert (rollout.entropy is None) == (other.entropy is None)
        if rollout.entropy is not None and other.entropy is not None:
            assert np.allclose(rollout.entropy, other.entropy, rtol=0, atol=10 * EXACT)


def logps(language: Any, rollout: Rollout, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of a rollout's tokens by one plain forward pass."""
    with torch.no_grad():
        logp = plain_logp(language, rollout.prompt, rollout.completion, temperature)
    return logp.gather(-1, torch.tensor(rollout.completion)[:, None])[:, 0]


@torch.inference_mode()
def six_steps(models: RoleModels, share: bool, fuse: bool = False, mixed: bool = False) -> list[torch.Tensor]:
    """Log-probabilities (R, V) at each of six steps of groups of three, three, one and one, whose rows do not
    stand next to one another. Whole groups and parts of one leave the batch, so that the steps have 8, 8, 7,
    5, 5 and 3 rows. If `mixed`, half of the tokens are fed as mixtures."""
    owner, leaving = torch.tensor([0, 1, 1, 2, 0, 3, 1, 0]), {1: [5], 2: [1, 3], 4: [0, 4]}
    stopped = torch.zeros(len(owner), dtype=torch.bool)
    run = Decoding(models, PROMPTS, owner, 7, 0, share, fused=Fused(models) if fuse else None)
    step_logp = [run.logits.log_softmax(-1)]
    for step in range(5):
        drawn = ((torch.arange(len(owner)) * 5 + step * 3) % VOCABULARY)[run.alive]
        token = torch.stack([drawn, (drawn + 7) % VOCABULARY], -1)
        weight = torch.tensor([0.75, 0.25]).expand(len(drawn), 2) * (drawn % 2)[:, None]
        stopped[leaving.get(step, [])] = True
        run.advance(drawn, stopped, Mixture(token, weight) if mixed else None)
        step_logp.append(run.logits.log_softmax(-1))
    return step_logp


# Of every sampler


def demand_frequencies(source: Sampler, language: Any, temperature: float, draws: int, often: int) -> None:
    """χ² over all 40 · 40 completions of two tokens, those expected less than five times taken together; more
    than `often` are expected as often. The seeds are fixed; a sampler without an error fails one choice of
    seeds in a thousand."""
    prompt = PROMPTS[1]
    ((*rollouts,),) = source.sample([Request(prompt, tuple(range(draws)))], 2, temperature)
    both = torch.cat([torch.tensor([prompt]).repeat(VOCABULARY, 1), torch.arange(VOCABULARY)[:, None]], -1)
    with torch.no_grad():
        logp = (language(input_ids=both).logits.double() / temperature).log_softmax(-1)
    table = logp[0, len(prompt) - 1, :, None].exp() * logp[:, -1].exp()  # (first, second)
    for end in END:  # ended after one token
        table[end] = 0
        table[end, 0] = logp[0, len(prompt) - 1, end].exp()
    counts = torch.zeros_like(table)
    for rollout in rollouts:
        counts[tuple([*rollout.completion, 0][:2])] += 1
    expected = table.flatten() * draws
    frequent = expected >= 5
    observed = [*counts.flatten()[frequent].tolist(), counts.flatten()[~frequent].sum().item()]
    assert sum(observed) == draws and int(frequent.sum()) > often
    theory = [*expected[frequent].tolist(), expected[~frequent].sum().item()]
    assert stats.chisquare(observed, theory, sum_check=False).pvalue > 1e-3


def demand_ends(source: Sampler) -> None:
    """A completion ends with its first end token, or at the limit."""
    kinds = set()
    for rollout in flat(source.sample(requests(16), 9, 1.0)):
        *body, last = rollout.completion
        assert not set(body) & set(END)
        assert rollout.stopped == (last in END)
        assert rollout.stopped or len(rollout.completion) == 9
        assert len(rollout.completion) == len(rollout.sampler_logp) <= 9
        kinds.add((rollout.stopped, len(rollout.completion) == 9))
    assert {(True, False), (False, True)} <= kinds


def demand_order(source: Sampler) -> None:
    """Groups keep their prompts and sizes in order."""
    sample_requests = [Request(PROMPTS[0], (1,)), Request(PROMPTS[1], ()), Request(PROMPTS[2], (4, 5, 6))]
    groups = source.sample(sample_requests, 4, 1.0)
    assert list(map(len, groups)) == [1, 0, 3] and source.sample([], 4, 1.0) == []
    assert all(r.prompt == w.prompt for w, group in zip(sample_requests, groups, strict=True) for r in group)
