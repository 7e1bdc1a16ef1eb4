"""Decoding: keeping a prompt once, or a conversation, changes no logit; a model that cannot be served so is
found out."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any

import pytest
import torch
from helpers.sampling import EXACT, PROMPTS, demand_same, flat, requests, sampler, six_steps
from helpers.toys import ARCHITECTURES, tiny
from hypothesis import given
from hypothesis import strategies as st

from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.cache_buffers import cache_argument
from grpobench.runs.sample.decoding import SHARED, Decoding, Groups, ways
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import Request


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes (rows, tokens) of all forward passes from now on."""
    forward, shapes = Decoding._forward, list[torch.Size]()

    def noted(self: Decoding, inputs: Any, mask: Any, position: torch.Tensor) -> torch.Tensor:
        shapes.append(position.shape)
        return forward(self, inputs, mask, position)

    monkeypatch.setattr(Decoding, "_forward", noted)
    return shapes


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prompts_kept_once_give_the_logits_of_prompts_repeated(architecture: str) -> None:
    models = RoleModels(tiny(architecture))
    assert ways(models, 0)[0]
    repeated, shared = (six_steps(models, share) for share in (False, True))
    assert [len(part) for part in shared] == [8, 8, 7, 5, 5, 3]
    for shared_step, other in zip(shared, repeated, strict=True):
        torch.testing.assert_close(shared_step, other, rtol=0, atol=EXACT)
    assert models.language.config._attn_implementation != SHARED


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_prompts_that_are_read_some_at_a_time_give_the_same(
    share: bool, remembers: bool, forwarded: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    def play() -> list[list[Rollout]]:
        source = sampler()
        source.shares = share
        with source.remembering() if remembers else contextlib.nullcontext():
            return conversation(source)

    unsplit = play()
    forwarded.clear()
    monkeypatch.setattr("grpobench.runs.sample.decoding.PREFILL", 2 * max(map(len, PROMPTS)))
    demand_same(play(), unsplit)
    assert len(forwarded) > 3 and max(shape.numel() for shape in forwarded) <= 60, "a few prompts at once"


def test_model_with_extra_attention_work_decodes_with_repeated_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.models.llama import modeling_llama

    plain = modeling_llama.ALL_ATTENTION_FUNCTIONS.get_interface

    def capped(name: str, default: Any) -> Any:
        """Every attention but the eager one, with its queries halved by the model itself."""
        function = plain("sdpa" if name == SHARED else name, default)
        return lambda module, query, *arguments, **more: function(module, query / 2, *arguments, **more)

    monkeypatch.setattr(modeling_llama.ALL_ATTENTION_FUNCTIONS, "get_interface", capped)
    # Of the prompt, sdpa sees nothing here: only what a sequence wrote is in `key`.
    assert ways(RoleModels(tiny()), 0) == (False, False)


# Conversations


def conversation(source: HFSampler) -> list[list[Rollout]]:
    """Three turns of six tokens at most behind prompts of 3 to 11 tokens. Between two turns stand one to
    three tokens; one request goes on from a turn without its last two tokens, and after the first turn one
    ends."""
    groups = []
    turn_requests = requests(2)
    for turn in range(3):
        answers = source.sample(turn_requests, 6, 1.0)
        groups += answers
        turn_requests = [
            Request(
                (*rollout.prompt, *rollout.completion[: -2 if i == 0 else None], *range(3, 4 + i % 3)), seeds
            )
            for i, rollout in enumerate(flat(answers))
            for seeds in [(100 * turn + i, 200 * turn + i) if i % 2 else (100 * turn + i,)]
        ]
        turn_requests = turn_requests[1:] if turn == 0 else turn_requests
    return groups


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("rows", [256, 3])
def test_remembered_turns_are_not_computed_again_and_change_nothing(
    architecture: str, share: bool, rows: int, forwarded: list[torch.Size]
) -> None:
    source = sampler(architecture)
    source.shares, source.token_budget.limit = share, rows
    plain = conversation(source)
    again = max(width for _, width in forwarded)
    forwarded.clear()
    with source.remembering():
        remembered = conversation(source)
    assert source.history is None
    prefills = [width for _, width in forwarded if width > 1]
    assert again > 20 and max(prefills) == max(map(len, PROMPTS)), "later turns compute what is new"
    demand_same(remembered, plain)


def test_prompts_that_go_on_from_nothing_are_computed_whole() -> None:
    source = sampler()
    with source.remembering():
        source.sample(requests(2), 6, 1.0)
        other = [Request((9, 8, 7), (5,)), Request((6,), (6,))]
        groups = source.sample(other, 6, 1.0)
    demand_same(groups, source.sample(other, 6, 1.0))


def test_nothing_is_remembered_beyond_the_conversation() -> None:
    """The weights change in between, as in a run."""
    source = sampler()
    with source.remembering():
        (answer, *_) = source.sample(requests(1), 6, 1.0)[0]
    with torch.no_grad():
        for p in source.models.language.parameters():
            p.mul_(1.1)
    next_requests = [Request((*answer.prompt, *answer.completion, 3), (4,))]
    with source.remembering():
        remembered = source.sample(next_requests, 6, 1.0)
    demand_same(remembered, source.sample(next_requests, 6, 1.0))


@given(owner=st.lists(st.integers(0, 4), min_size=1, max_size=12), data=st.data())
def test_gathering_into_groups_and_scattering_back_changes_nothing(owner: list[int], data: Any) -> None:
    prompts, index = torch.tensor(owner).unique(return_inverse=True)
    groups = Groups(index, len(prompts))
    repeat = data.draw(st.integers(1, 3))
    rows = torch.arange(len(owner) * 2 * repeat * 3.0).view(len(owner), 2, repeat, 3)
    grid = groups.gather(rows)
    assert grid.shape == (len(prompts), 2, groups.most * repeat, 3)
    assert groups.scatter(grid, repeat).equal(rows)
    for row, prompt_index in enumerate(index.tolist()):  # a row stands with its own prompt
        assert (grid[prompt_index, 0].view(-1, repeat, 3) == rows[row, 0]).all(-1).all(-1).any()


def test_the_cache_is_handed_over_by_the_name_that_the_model_has_for_it() -> None:
    """transformers until 5.23, and from 5.24 on, behind a decorator that takes the earlier name too."""

    class Earlier:
        def forward(self, input_ids: Any, past_key_values: Any = None) -> None: ...

    class Later:
        @functools.wraps(lambda self, input_ids, cache=None: None)
        def forward(self, *args: Any, **kwargs: Any) -> None: ...

    assert cache_argument(Earlier.forward) == "past_key_values"
    assert cache_argument(Later.forward) == "cache"
    for architecture in ARCHITECTURES:
        forward = type(tiny(architecture).base_model).forward
        assert cache_argument(forward) in inspect.signature(forward).parameters
