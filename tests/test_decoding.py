"""Decoding: keeping a prompt once changes no logit, and a model that cannot be served so is found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_sampler import EXACT, PROMPTS, requests, sampler
from toys import ARCHITECTURES, VOCABULARY, tiny

from grpobench.runs.decoding import SHARED, Decoding, Groups, serves
from grpobench.runs.models import Models

OWNER = (0, 1, 1, 2, 0, 3, 1, 0)
"""Groups of three, three, one and one, their rows not next to one another."""


@torch.inference_mode()
def logits(models: Models, share: bool, end: Callable[[int], list[int]]) -> list[torch.Tensor]:
    """Log-probabilities (R, V) at each of six steps; the rows that `end` names at a step leave the batch."""
    stopped = torch.zeros(len(OWNER), dtype=torch.bool)
    run = Decoding(models, PROMPTS, torch.tensor(OWNER), 7, 0, share)
    found = [run.logits.log_softmax(-1)]
    for step in range(5):
        tokens = (torch.arange(len(OWNER)) * 5 + step * 3) % VOCABULARY
        drawn = tokens[run.alive]
        stopped[end(step)] = True
        run.advance(drawn, stopped, None)
        found.append(run.logits.log_softmax(-1))
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prompts_kept_once_give_the_logits_of_prompts_repeated(architecture: str) -> None:
    models = Models(tiny(architecture))
    assert serves(models, 0)
    leaving = {1: [5], 2: [1, 3], 4: [0, 4]}  # whole groups and parts of one
    repeated = logits(models, False, lambda step: leaving.get(step, []))
    shared = logits(models, True, lambda step: leaving.get(step, []))
    assert [len(part) for part in shared] == [8, 8, 7, 5, 5, 3]
    for one, other in zip(shared, repeated, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=EXACT)
    assert models.language.config._attn_implementation != SHARED


def test_model_that_does_more_in_its_attention_decodes_with_repeated_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.models.llama import modeling_llama

    plain = modeling_llama.ALL_ATTENTION_FUNCTIONS.get_interface

    def capped(name: str, default: Any) -> Any:
        """Every attention but the eager one, with its queries halved by the model itself."""
        function = plain("sdpa" if name == SHARED else name, default)
        return lambda module, query, *rest, **more: function(module, query / 2, *rest, **more)

    monkeypatch.setattr(modeling_llama.ALL_ATTENTION_FUNCTIONS, "get_interface", capped)
    # Of the prompt, sdpa sees nothing here: only what a sequence wrote is in `key`.
    assert not serves(Models(tiny()), 0)


def test_sampler_without_sharing_samples_the_same() -> None:
    shared, repeated = sampler(), sampler()
    repeated.shares = False
    ours, theirs = (source.sample(requests(), 15, 1.0) for source in (shared, repeated))
    assert shared.shares
    assert [[r.completion for r in group] for group in ours] == [
        [r.completion for r in group] for group in theirs
    ]


@given(owner=st.lists(st.integers(0, 4), min_size=1, max_size=12), data=st.data())
def test_gathering_into_groups_and_scattering_back_changes_nothing(owner: list[int], data: Any) -> None:
    prompts, index = torch.tensor(owner).unique(return_inverse=True)
    groups = Groups(index, len(prompts))
    repeat = data.draw(st.integers(1, 3))
    rows = torch.arange(len(owner) * 2 * repeat * 3.0).view(len(owner), 2, repeat, 3)
    grid = groups.gather(rows)
    assert grid.shape == (len(prompts), 2, groups.most * repeat, 3)
    assert groups.scatter(grid, repeat).equal(rows)
    for row, place in enumerate(index.tolist()):  # a row stands with its own prompt
        assert (grid[place, 0].view(-1, repeat, 3) == rows[row, 0]).all(-1).all(-1).any()
