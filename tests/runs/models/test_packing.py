"""Packing: what the packed forward pass says is what the plain model says, and nothing large is held.

The comparison is with the Hugging Face model on one unpadded sequence at a time. FP32 is the tolerance of
everything here: the same float32 numbers, summed in another order by attention over another width.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from helpers.toys import ARCHITECTURES, VOCABULARY, distance, norm, plain_logp, rollouts, text_of, tiny
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms.algorithm import Batch, Mixture
from grpobench.runs.models.head import token_statistics
from grpobench.runs.models.packing import PADDING, Cost, micro_batches, pack, replay
from grpobench.runs.models.roles import RoleModels

FP32: dict[str, float] = {"rtol": 1e-4, "atol": 2e-5}
"""Log-probabilities of a few nats from logits of some tens; float32 has 1e-7 of each."""
GRADIENT = 1e-4
"""Relative to the norm of the whole gradient, for the same reason, after a backward pass."""
CHEAP_PROMPTS = Cost(1.0, 0.0)
"""Attention costs nothing: a group is never split."""
DEAR_PAIRS = Cost(1.0, 0.5)
"""Attention between completions is dear: a group is split into sequences of its own."""


def ragged() -> Batch:
    """Groups of 4, 3 and 1 rows with prompts of 5, 3 and 7 tokens; empty and one-token completions."""
    return rollouts([[6, 0, 1, 9], [4, 4, 1], [8]])


def plain(models: RoleModels, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logp, entropy, critic's value), all (B, T), from one plain forward pass per row."""
    statistics = [torch.zeros(batch.completion_mask.shape) for _ in range(3)]
    critic = models.networks["critic"]
    for row in range(len(batch)):
        prompt, completion = text_of(batch, row)
        logps = plain_logp(models.language, prompt, completion, models.temperature)
        states = critic.trunk(input_ids=torch.cat([prompt, completion])[None]).last_hidden_state
        value = critic.value(states[0, len(prompt) - 1 : -1])[:, 0]
        logp = logps.gather(-1, completion[:, None])[:, 0]
        for out, part in zip(statistics, (logp, -(logps.exp() * logps).sum(-1), value), strict=True):
            out[row, : len(completion)] = part
    return statistics[0], statistics[1], statistics[2]


def build(architecture: str, **settings: Any) -> RoleModels:
    models = RoleModels(tiny(architecture), ("policy", "critic"), **settings)
    torch.manual_seed(2)
    torch.nn.init.normal_(models.networks["critic"].value.weight, std=0.3)
    return models


def scalar(batch: Batch, *parts: torch.Tensor) -> torch.Tensor:
    """One number that weighs every element differently, so that a mix-up shows in the gradient."""
    weights = torch.randn(
        (len(parts), *batch.completion_mask.shape), generator=torch.Generator().manual_seed(3)
    )
    return sum((weight * part).sum() for weight, part in zip(weights, parts, strict=True))


def gradient(models: RoleModels, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    parameters = {
        **models.named_parameters("policy"),
        **{f"critic.{n}": p for n, p in models.named_parameters("critic").items()},
    }
    for p in parameters.values():
        p.grad = None
    loss.backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("layout", ["shared", "padded", "split"])
def test_packed_readings_and_gradients_are_those_of_plain_forward_passes(
    architecture: str, layout: str
) -> None:
    models, batch = build(architecture, temperature=0.7, share=layout != "padded"), ragged()
    models.cost = DEAR_PAIRS if layout == "split" else CHEAP_PROMPTS
    sequences = {"shared": 3, "padded": 8, "split": 6}[layout]
    assert len(pack(batch, models.cost, models.share).tokens) == sequences
    expected = plain(models, batch)
    truth = gradient(models, scalar(batch, *expected))
    now = models.forward_train(("policy", "critic"), batch, differentiate_entropy=True)
    outputs = (now["policy"].logp, now["policy"].entropy, now["critic"].value)
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **FP32)
    inside = torch.arange(batch.completion_mask.shape[1]) < batch.length[:, None]
    assert not any(part[~inside].any() for part in outputs)
    assert norm(truth) > 1
    assert distance(gradient(models, scalar(batch, *outputs)), truth) < GRADIENT


def test_value_head_on_the_policys_trunk_reads_the_policys_states() -> None:
    models, batch = RoleModels(tiny(), ("policy", "value_head")), ragged()
    head = models.networks["policy"].value
    torch.manual_seed(2)
    torch.nn.init.normal_(head.weight, std=0.3)
    calls = []
    models.networks["policy"].trunk.register_forward_hook(lambda *_: calls.append(1))
    now = models.forward_train(("policy", "value_head"), batch)
    assert len(calls) == 1, "roles on one trunk share its forward pass"
    prompt, completion = text_of(batch, 3)
    tokens = torch.cat([prompt, completion])[None]
    states = models.networks["policy"].trunk(input_ids=tokens).last_hidden_state[0, len(prompt) - 1 : -1]
    torch.testing.assert_close(now["value_head"].value[3, : len(completion)], head(states)[:, 0], **FP32)


def test_group_that_is_not_contiguous_shares_one_prompt() -> None:
    batch = ragged()[torch.tensor([0, 4, 7, 3, 5, 2, 1, 6])]
    layout = pack(batch, CHEAP_PROMPTS)
    assert len(layout.tokens) == 3
    models = build("llama")
    models.cost = CHEAP_PROMPTS
    logp = models.forward_train(("policy",), batch)["policy"].logp
    torch.testing.assert_close(logp, plain(models, batch)[0], **FP32)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("cost", [CHEAP_PROMPTS, DEAR_PAIRS], ids=["whole", "split"])
def test_completions_that_branch_off_a_prompt_early_see_only_its_beginning(
    architecture: str, cost: Cost
) -> None:
    batch = rollouts([[6, 2, 1, 9, 3], [4, 4]], prompts=(7, 5))
    early = dataclasses.replace(batch, prompt_length=torch.tensor([7, 2, 4, 2, 1, 3, 3]))
    models = build(architecture)
    models.cost = cost
    layout = pack(early, cost)
    assert len(layout.tokens) == (2 if cost is CHEAP_PROMPTS else 5) and layout.reach is not None
    logp = models.forward_train(("policy",), early)["policy"].logp
    torch.testing.assert_close(logp, plain(models, early)[0], **FP32)
    models.budget = 10
    assert len(micro_batches(early, torch.arange(7), 10)) > 3
    parts = models.forward("policy", early).logp
    torch.testing.assert_close(parts, logp, **FP32)
    assert not parts.requires_grad
    assert pack(batch, cost).reach is None, "the usual mask costs no more than it did"


def test_layout_by_hand() -> None:
    batch = rollouts([[3, 0, 2]], prompts=(2,))
    layout = pack(batch, CHEAP_PROMPTS)
    p, c = batch.prompt[0].tolist(), batch.completion.tolist()
    # prompt, then each completion without its last token; positions go on from the prompt's end
    assert layout.tokens.tolist() == [[*p, c[0][0], c[0][1], c[2][0]]]
    assert layout.position.tolist() == [[0, 1, 2, 3, 2]]
    assert layout.segment.tolist() == [[0, 0, 1, 1, 3]]
    assert layout.source.tolist() == [1, 2, 3, 1, 4]  # the prompt's last state predicts every first token
    assert layout.target.tolist() == [*c[0][:3], *c[2][:2]]
    assert layout.flat_index.tolist() == [0, 1, 2, 6, 7]
    assert layout.fed.tolist() == [2, 3, 4]
    assert layout.fed_place.tolist() == [0, 1, 6]
    assert layout.mask()[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]


def test_padding_sees_itself_and_is_seen_by_nobody() -> None:
    layout = pack(rollouts([[4, 2], [1]]), CHEAP_PROMPTS)
    padding = layout.segment == PADDING
    assert padding.any()
    mask = layout.mask()[:, 0]
    observers = mask.sum(-2) - mask.diagonal(dim1=-2, dim2=-1).int()
    assert not observers[padding].any()
    assert mask.any(-1).all(), "a query without any key would give NaN"


# Chunked statistics


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_chunked_statistics_equal_whole_ones_with_their_gradient(architecture: str) -> None:
    batch = ragged()
    results = []
    for chunk in (10**9, 7 * VOCABULARY):
        models = build(architecture, chunk=chunk, temperature=0.7)
        now = models.forward_train(("policy", "critic"), batch, differentiate_entropy=True)
        parts = now["policy"].logp, now["policy"].entropy, now["critic"].value
        results.append((parts, gradient(models, scalar(batch, *parts))))
    (unchunked, slope), (chunked, chunked_slope) = results
    for ours, theirs in zip(chunked, unchunked, strict=True):
        torch.testing.assert_close(ours, theirs, **FP32)
    assert distance(chunked_slope, slope) < GRADIENT


def test_entropy_has_a_gradient_only_where_it_is_asked_for() -> None:
    models, batch = build("llama"), ragged()
    assert not models.forward_train(("policy",), batch)["policy"].entropy.requires_grad
    assert models.forward_train(("policy",), batch, True)["policy"].entropy.requires_grad


class Allocations(torch.utils._python_dispatch.TorchDispatchMode):
    """The largest tensor that any operation makes, forward or backward."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, torch.Tensor):
                self.largest = max(self.largest, part.numel())
        return out


def test_no_tensor_of_all_tokens_by_vocabulary_exists_when_chunked() -> None:
    vocabulary, tokens, rows = 5000, 400, 20
    head = torch.nn.Linear(8, vocabulary, bias=False)
    hidden = torch.randn(tokens, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    target = torch.arange(tokens)
    for chunk, most in ((rows * vocabulary, rows * vocabulary), (10**9, tokens * vocabulary)):
        with Allocations() as allocations:
            logp, _ = token_statistics(hidden, head, target, 1.0, chunk, False)
            logp.sum().backward()
        assert allocations.largest == most


# Micro-batches


@st.composite
def assigned(draw: st.DrawFn) -> tuple[Batch, torch.Tensor, int]:
    """(batch, unit, budget): up to five groups whose rows are dealt to units or left out."""
    groups = draw(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6), min_size=1, max_size=5))
    prompts = draw(st.lists(st.integers(1, 9), min_size=5, max_size=5))
    batch = rollouts(groups, prompts=prompts, seed=draw(st.integers(0, 9)))
    wish = [draw(st.integers(-1, 3)) for _ in range(len(batch))]
    unit = [u if u < 0 else 10 * g + u for u, g in zip(wish, batch.group.tolist(), strict=True)]
    order = torch.tensor(draw(st.permutations(range(len(batch)))))
    return batch[order], torch.tensor(unit)[order], draw(st.integers(1, 60))


@given(assigned())
def test_micro_batches_keep_units_whole_and_hold_every_used_row_once(
    case: tuple[Batch, torch.Tensor, int],
) -> None:
    batch, unit, budget = case
    parts = micro_batches(batch, unit, budget)
    assert sorted(torch.cat([*parts, unit.new_empty(0)]).tolist()) == (unit >= 0).nonzero()[:, 0].tolist()
    for number in unit[unit >= 0].unique():
        assert sum(bool((unit[rows] == number).any()) for rows in parts) == 1


@given(assigned())
def test_micro_batches_fit_the_budget_unless_one_unit_exceeds_it(
    case: tuple[Batch, torch.Tensor, int],
) -> None:
    batch, unit, budget = case
    for rows in micro_batches(batch, unit, budget):
        cells = pack(batch[rows], CHEAP_PROMPTS).tokens.numel()
        assert cells <= budget or len(unit[rows].unique()) == 1


def test_two_parts_of_one_group_do_not_meet_in_a_micro_batch() -> None:
    """Prompts of 1 token. Rows of 52 stand alone under a budget of 60; the three rows of 9 between them would
    be one sequence of 28 together, and four sequences of 28 are 112 tokens."""
    batch = rollouts([[9, 52, 9, 52, 9], [9], [9], [9]], prompts=(1,))
    parts = micro_batches(batch, torch.arange(8), 60)
    assert [sorted(rows.tolist()) for rows in parts[:2]] == [[1], [3]]
    assert all(pack(batch[rows], CHEAP_PROMPTS).tokens.numel() <= 60 for rows in parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(8))


def test_large_budget_makes_one_micro_batch_and_a_small_one_a_unit_each() -> None:
    batch = ragged()
    pairs = torch.tensor([0, 0, 1, 1, 2, 2, -1, 3])
    assert len(micro_batches(batch, pairs, 10**9)) == 1
    assert sorted(sorted(rows.tolist()) for rows in micro_batches(batch, pairs, 1)) == [
        [0, 1],
        [2, 3],
        [4, 5],
        [7],
    ]


# Mixtures


def mixed(batch: Batch) -> Batch:
    """The batch with a random blend of two tokens in place of about half of the fed ones."""
    generator = torch.Generator().manual_seed(8)
    shape = (*batch.completion_mask.shape, 2)
    weight = torch.rand(shape, generator=generator)
    weight = weight / weight.sum(-1, keepdim=True)
    weight = weight * (torch.rand((*shape[:2], 1), generator=generator) < 0.5)
    return dataclasses.replace(
        batch, mixture=Mixture(torch.randint(2, VOCABULARY, shape, generator=generator), weight)
    )


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_mixtures_take_the_place_of_the_tokens_that_were_fed(architecture: str) -> None:
    models, batch = build(architecture), mixed(ragged())
    table = models.language.get_input_embeddings()
    logp = models.forward_train(("policy",), batch)["policy"].logp
    assert (logp - models.forward_train(("policy",), ragged())["policy"].logp).abs().max() > 0.1
    for row in range(len(batch)):
        prompt, completion = text_of(batch, row)
        if not len(completion):
            continue
        embeddings = [table(prompt)]
        for t in range(len(completion) - 1):
            weight = batch.mixture.weight[row, t]
            blend = (weight[:, None] * table(batch.mixture.token[row, t])).sum(0, keepdim=True)
            embeddings.append(blend if weight.sum() else table(completion[t : t + 1]))
        logits = models.language(inputs_embeds=torch.cat(embeddings)[None]).logits[0, len(prompt) - 1 :]
        logps = logits.log_softmax(-1).gather(-1, completion[:, None])[:, 0]
        torch.testing.assert_close(logp[row, : len(completion)], logps, **FP32)


def test_replay_without_any_mixed_token_is_the_plain_embedding() -> None:
    models, batch = build("llama"), ragged()
    zero = torch.zeros(*batch.completion_mask.shape, 2)
    batch = dataclasses.replace(batch, mixture=Mixture(zero.long(), zero))
    layout = pack(batch, CHEAP_PROMPTS)
    trunk = models.networks["policy"].trunk
    embedded = trunk.get_input_embeddings()(layout.tokens)
    assert torch.equal(replay(embedded, trunk, layout, batch), embedded)
