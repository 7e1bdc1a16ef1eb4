"""The sampler: what it says about its samples is true, and a sample depends on its own seed alone."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from helpers.sampling import (
    END,
    EXACT,
    PROMPTS,
    demand_ends,
    demand_frequencies,
    demand_order,
    demand_same,
    flat,
    logps,
    requests,
    same,
    sampler,
    texts,
)
from helpers.toys import ARCHITECTURES, VOCABULARY
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from grpobench.algorithms.algorithm import Batch, Mixture
from grpobench.runs.sample import draws
from grpobench.runs.sample.draws import draw, invert, uniforms
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups, pad_rows
from grpobench.runs.sample.sampler import Mixing, Request
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Verdict


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_behavior_logp_is_that_of_a_fresh_forward_pass_at_the_temperature(
    architecture: str, temperature: float
) -> None:
    source = sampler(architecture)
    rollouts = flat(source.sample(requests(), 15, temperature))
    assert len({len(rollout.completion) for rollout in rollouts}) > 1, "some must leave the batch early"
    for rollout in rollouts:
        expected = logps(source.models.language, rollout, temperature)
        np.testing.assert_allclose(rollout.sampler_logp, expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("mixes", [False, True])
def test_the_trainer_gives_the_samplers_probabilities_and_entropies(
    architecture: str, temperature: float, mixes: bool
) -> None:
    """Of the very distributions that the tokens were drawn from, mixed inputs and all."""
    source = sampler(architecture, temperature)
    groups = source.sample(requests(), 15, temperature, Mixing(half_mixed) if mixes else None)
    batch = packed(groups)
    sampler_entropy = pad_rows([r.entropy for r in flat(groups)], 0.0, np.float32)
    now = source.models.forward("policy", batch)
    torch.testing.assert_close(now.logp, batch.sampler_logp, rtol=0, atol=EXACT)
    torch.testing.assert_close(now.entropy, sampler_entropy, rtol=0, atol=EXACT)
    assert batch.sampler_logp.abs().max() > 1
    assert 0.1 < sampler_entropy[batch.completion_mask].mean() < math.log(VOCABULARY)
    if mixes:
        share = (batch.mixture.weight.sum(-1) > 0)[batch.completion_mask].double().mean()
        assert 0.3 < share < 0.7
        plain = dataclasses.replace(batch, mixture=None)
        assert (source.models.forward("policy", plain).logp - now.logp).abs().max() > 0.1


def test_greedy_decoding_draws_from_nothing_and_tells_no_entropy() -> None:
    ((rollout,),) = sampler().sample([Request(PROMPTS[0], (1,))], 5, 0.0)
    assert rollout.entropy is None


def packed(sampled: Sequence[Sequence[Rollout]]) -> Batch:
    groups = [
        Group(Problem("p", "", None), rollouts, [Verdict({}, None)] * len(rollouts), [0.0] * len(rollouts))
        for rollouts in sampled
    ]
    return pack_groups(groups, 15, 1, 0)


# Independence of a sample from what is sampled with it


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_sample_depends_on_nothing_but_its_seed_and_prompt(architecture: str) -> None:
    source = sampler(architecture)
    all_requests = requests()
    together = source.sample(all_requests, 15, 1.0)
    for i, request in enumerate(all_requests):
        for j, seed in enumerate(request.seeds):
            (alone,), *_ = source.sample([Request(request.prompt, (seed,))], 15, 1.0)
            assert same(alone, together[i][j])
    backwards = source.sample([Request(r.prompt, r.seeds[::-1]) for r in all_requests[::-1]], 15, 1.0)
    demand_same([group[::-1] for group in backwards[::-1]], together)
    for rows in (1, 2, 5):
        demand_same(sampler(architecture, rows=rows).sample(all_requests, 15, 1.0), together)
    # one shorter limit: the same beginning
    shorter = source.sample(all_requests, 6, 1.0)
    assert texts(shorter) == [[r.completion[:6] for r in group] for group in together]


def test_global_generators_are_neither_read_nor_moved() -> None:
    source = sampler()
    torch.manual_seed(1)
    first = source.sample(requests(), 10, 1.0)
    before = torch.get_rng_state()
    torch.manual_seed(2)
    second = source.sample(requests(), 10, 1.0)
    torch.manual_seed(1)
    assert torch.equal(before, torch.get_rng_state())
    demand_same(second, first)


# The distribution


def test_draw_inverts_the_cumulative_distribution() -> None:
    logp = torch.tensor([[0.0, 0.25, 0.25, 0.0, 0.5, 0.0]]).log().repeat(6, 1)
    points = torch.tensor([0.0, 0.2499, 0.25, 0.4999, 0.5, 1 - 2**-53], dtype=torch.float64)
    # intervals [0, ¼) → 1, [¼, ½) → 2, [½, 1) → 4; tokens of probability 0 are never drawn
    drawn, entropy = draw(logp, points)
    assert drawn.tolist() == [1, 1, 2, 2, 4, 4]
    # ¼ ln 4 + ¼ ln 4 + ½ ln 2, whatever has probability 0; the logarithms are float32
    assert entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 6, rel=1e-7)


def test_rows_that_are_inverted_in_parts_are_drawn_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: a row's sums do not depend on the rows beside it."""
    generator = torch.Generator().manual_seed(0)
    logp = torch.randn(7, 300, generator=generator).mul_(5).log_softmax(-1)
    uniform = torch.rand(7, dtype=torch.float64, generator=generator)
    sizes = []

    def counted(logp: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(len(logp))
        return invert(logp, uniform)

    monkeypatch.setattr(draws, "CACHED", 650)  # two rows
    monkeypatch.setattr(draws, "invert", counted)
    drawn, entropy = draw(logp, uniform)
    assert sizes == [2, 2, 2, 1]
    together = invert(logp, uniform)
    assert torch.equal(drawn, together[0]) and torch.equal(entropy, together[1])


@given(
    logits=st.lists(st.floats(-30, 30) | st.just(-math.inf), min_size=1, max_size=30),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_a_draw_is_the_quantile_of_exact_sums(logits: list[float], uniform: float) -> None:
    """Against fractions. Where a token begins or ends within the last bits of its number, either may come."""
    assume(max(logits) > -math.inf)
    logp = torch.tensor([logits]).log_softmax(-1)
    drawn = int(draw(logp, torch.tensor([uniform], dtype=torch.float64))[0])
    shares = [Fraction(p) for p in logp[0].clamp(min=-1e4).double().exp().tolist()]
    assert shares[drawn] > 0, "never a token without probability"
    bounds = [sum(shares[:count]) for count in range(len(shares) + 1)]
    point, width = Fraction(uniform) * bounds[-1], Fraction(len(shares), 2**52)
    assert bounds[drawn] - width <= point <= bounds[drawn + 1] + width


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_frequencies_of_two_token_completions_are_their_probabilities(temperature: float) -> None:
    source = sampler(rows=4000)
    demand_frequencies(source, source.models.language, temperature, draws=4000, often=50)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_decoding_is_that_of_generate(architecture: str) -> None:
    source = sampler(architecture)
    language = source.models.language
    for request, (rollout,) in zip(requests(1), source.sample(requests(1), 12, 0.0), strict=True):
        tokens = torch.tensor([request.prompt])
        generated = language.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=list(END),
        )
        assert rollout.completion == tuple(generated[0, len(request.prompt) :].tolist())
        # without a temperature the log-probabilities are those of temperature 1
        np.testing.assert_allclose(rollout.sampler_logp, logps(language, rollout), rtol=0, atol=EXACT)


# Where completions end


def test_completion_ends_with_its_first_end_token_or_at_the_limit() -> None:
    demand_ends(sampler())


def test_end_token_at_the_very_limit_counts_as_stopped() -> None:
    source = sampler(end=range(VOCABULARY))  # whatever is drawn ends the completion
    for group in source.sample(requests(2), 1, 1.0):
        assert all(rollout.stopped and len(rollout.completion) == 1 for rollout in group)


def test_groups_keep_their_prompts_and_sizes_in_order() -> None:
    demand_order(sampler())


def test_prompt_without_room_for_the_limit_names_the_remedy() -> None:
    source = sampler(context=20)
    assert source.sample([Request(tuple(range(2, 12)), (1,))], 10, 1.0)
    with pytest.raises(
        DataError, match=r"prompt of 11 tokens and 10 new ones.*context of 20.*max_completion_tokens"
    ):
        source.sample([Request(tuple(range(2, 13)), (1,))], 10, 1.0)


# Mixing


def half_mixed(anchor: torch.Tensor, logits: torch.Tensor, uniform: torch.Tensor) -> Mixture:
    """Blends the anchor with the two likeliest tokens, for the half of the tokens whose number is below ½."""
    best = logits.topk(2).indices
    token = torch.cat([anchor[:, None], best], -1)
    weight = logits.gather(-1, token).softmax(-1)
    return Mixture(token, weight * (uniform < 0.5)[:, None])


def test_mixing_leaves_the_random_numbers_of_the_tokens_alone() -> None:
    """A mixer that never mixes changes nothing; the numbers it gets are not those that chose the tokens."""
    mixer_uniforms = []

    def never(anchor: torch.Tensor, logits: torch.Tensor, uniform: torch.Tensor) -> Mixture:
        mixer_uniforms.append(uniform)
        return Mixture(anchor[:, None], torch.zeros(len(anchor), 1))

    source = sampler()
    plain_groups = source.sample(requests(), 15, 1.0)
    demand_same(source.sample(requests(), 15, 1.0, Mixing(never)), plain_groups)
    numbers = torch.cat(mixer_uniforms)
    assert ((numbers >= 0) & (numbers < 1)).all() and len(numbers.unique()) > 30
    first = uniforms([seed for r in sorted(requests(), key=lambda r: len(r.prompt)) for seed in r.seeds], 1)
    assert len(mixer_uniforms[0]) > 5 and not torch.isin(mixer_uniforms[0], first[:, 0]).any()


def test_greedy_decoding_does_not_mix() -> None:
    source = sampler()
    mixing = source.sample(requests(1), 8, 0.0, Mixing(half_mixed))
    demand_same(mixing, source.sample(requests(1), 8, 0.0))
    assert all(r.mixture is None for (r,) in mixing)


class Waits(TorchDispatchMode):
    """Counts what a GPU has to be waited for: a number taken to Python, a shape that depends on values."""

    NAMES = ("item", "_local_scalar_dense", "nonzero", "is_nonzero", "unique", "_unique2", "bincount")

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().removeprefix("aten::").partition(".")[0]
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        masks = [index for index in indices if index is not None]
        if name in self.NAMES or any(mask.dtype == torch.bool for mask in masks):
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


class Slow(TorchDispatchMode):
    """Counts what a GPU with deterministic operators refuses (a running sum of floats) or sorts (values
    assigned to an index)."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().removeprefix("aten::").partition(".")[0].rstrip("_")
        options = kwargs or {}
        output = function(*args, **options)
        refused = name == "cumsum" and output.is_floating_point()
        if refused or name in ("index_put", "_index_put_impl", "put", "scatter", "index_copy", "index_add"):
            self.counts[name] += 1
        return output


@pytest.mark.parametrize("interval", [1, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_needs_no_operator_that_is_slow_or_refused_where_order_is_fixed(
    temperature: float, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpobench.runs.sample.in_process.CHECK_INTERVAL_CPU", interval)
    counted, lengths = [], set[int]()
    for tokens in (2, 30):
        with Slow() as slow:
            groups = sampler().sample(requests(), tokens, temperature)
        lengths = {rollout.length for rollout in flat(groups)}
        assert not slow.counts["cumsum"]
        counted.append(slow.counts.total())
    assert len(lengths) > 2, "rows leave the batch, each time with a new layout of the groups"
    assert counted[1] - counted[0] <= 2 * (len(requests()) * 3)


@pytest.mark.parametrize("fuses", [True, False])
def test_decoding_waits_for_a_device_now_and_then_and_not_at_every_token(
    fuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sampler(end=[VOCABULARY + 1])  # no sequence ends, so that no row leaves the batch
    assert source.fuses
    source.fuses = fuses
    monkeypatch.setattr("grpobench.runs.sample.in_process.CHECK_INTERVAL_CPU", 8)  # as on a GPU
    counted = []
    for tokens in (9, 41):
        with Waits() as waits:
            source.sample(requests(), tokens, 1.0)
        counted.append(waits.counts.total())
    assert 0 < counted[1] - counted[0] <= 2 * (41 - 9) // 8


def test_how_often_a_batch_is_asked_who_has_ended_changes_no_completion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    often = sampler().sample(requests(), 30, 1.0)
    monkeypatch.setattr("grpobench.runs.sample.in_process.CHECK_INTERVAL_CPU", 7)
    seldom = sampler().sample(requests(), 30, 1.0)
    assert len({rollout.length for rollout in flat(often)}) > 2
    demand_same(seldom, often)
