"""Corrections for the gap between the sampler's probabilities and the trainer's: their numbers by hand, and
that they reach the gradient of every algorithm as what they are."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from helpers.core import CORE
from helpers.toys import backward, distance, models_for, norm, rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.gspo import GSPO
from grpobench.algorithms.ppo import PPO
from grpobench.runs.settings.config import (
    SamplerConfig,
)
from grpobench.runs.train.corrections import Correction, correct

ROUNDING = {"rtol": 1e-6, "atol": 0}
"""A handful of float32 operations on numbers near one."""
LEVELS = ("token", "sequence", "geometric")
KINDS = ("tis", "mis", "rejection")
FORMS = (*(ALGORITHMS[name]() for name in CORE), PPO(critic="shared"))
"""Algorithms with terms of tokens and of rows, with other roles and with further losses."""


def settings(kind: str, level: str, cap: float = 2.0, floor: float = 0.0) -> SamplerConfig:
    chosen: Any = {"correction": kind, "correction_level": level}
    return SamplerConfig(**chosen, correction_cap=cap, correction_floor=floor)


def compared(ratios: list[list[float]], unwritten: list[tuple[int, int]] = ()) -> Batch:  # type: ignore[assignment]
    """A batch whose tokens have these ratios π_old/π_sampler."""
    batch = rollouts([[len(row) for row in ratios]])
    behavior, old = torch.full(batch.completion_mask.shape, -1.0), torch.zeros(batch.completion_mask.shape)
    for row, values in enumerate(ratios):
        for column, ratio in enumerate(values):
            old[row, column] = -1.0 + math.log(ratio)
    written = batch.completion_mask.clone()
    for row, column in unwritten:
        written[row, column] = False
    return dataclasses.replace(batch, sampler_logp=behavior, old_logp=old, completion_mask=written)


def make_correction(batch: Batch, *args: Any) -> Correction:
    correction = correct(batch, settings(*args))
    assert correction is not None
    return correction


# By hand


def test_token_weights_are_the_ratios_cut_at_the_cap() -> None:
    batch = compared([[0.5, 1.0, 4.0], [3.0]])
    tis = make_correction(batch, "tis", "token")
    torch.testing.assert_close(tis.token[0], torch.tensor([0.5, 1.0, 2.0]), **ROUNDING)
    torch.testing.assert_close(tis.row, torch.tensor([3.5 / 3, 2.0]), **ROUNDING)
    assert tis.metrics(batch.completion_mask) == pytest.approx(
        {"correction/weight_mean": 5.5 / 4, "correction/clipped": 2 / 4}, rel=1e-6
    )
    floored = make_correction(batch, "mis", "token", 3.5, 0.8)
    assert floored.metrics(batch.completion_mask)["correction/clipped"] == 2 / 4


def test_sequence_weight_is_the_product_and_geometric_its_root() -> None:
    batch = compared([[0.5, 3.0, 0.8], [4.0, 4.0]])  # products 1.2 and 16, roots 1.2^⅓ and 4
    tis = make_correction(batch, "tis", "sequence")
    torch.testing.assert_close(tis.row, torch.tensor([1.2, 2.0]), **ROUNDING)
    torch.testing.assert_close(tis.token, tis.row[:, None].expand(2, 3), **ROUNDING)
    geometric = make_correction(batch, "tis", "geometric", 5.0)
    assert geometric.row.tolist() == pytest.approx([1.2 ** (1 / 3), 4.0])
    # of five tokens two stand in the sequence that is cut
    assert tis.metrics(batch.completion_mask)["correction/clipped"] == pytest.approx(2 / 5)


def test_only_written_tokens_count() -> None:
    batch = compared([[0.5, 90.0, 3.0], [90.0]], unwritten=[(0, 1), (1, 0)])
    for kind, level in itertools.product(KINDS, LEVELS):
        correction = make_correction(batch, kind, level, 5.0)
        row = {"token": 1.75, "sequence": 1.5, "geometric": math.sqrt(1.5)}[level]
        row = 1.0 if kind == "rejection" else row
        assert correction.row.tolist() == pytest.approx([row, 1.0]), "nothing written: weight 1"
        assert correction.metrics(batch.completion_mask)["correction/clipped"] == 0


def test_huge_ratios_are_cut_and_never_become_nan() -> None:
    batch = compared([[1e30] * 9])  # the product overflows
    for level in LEVELS:
        assert make_correction(batch, "tis", level).row.tolist() == [2.0]
        assert make_correction(batch, "mis", level).row.tolist() == [0.0]
        assert make_correction(batch, "rejection", level).row.tolist() == [0.0]


@given(
    st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(KINDS),
    st.sampled_from(LEVELS),
    st.floats(1, 4),
    st.floats(0, 1),
)
def test_weights_are_plain_arithmetic(
    logs: list[list[float]], kind: str, level: str, cap: float, floor: float
) -> None:
    """Against the definition in double precision; ratios within rounding of a bound are left alone."""
    correction = make_correction(
        compared([[math.exp(x) for x in row] for row in logs]), kind, level, cap, floor
    )
    for row, values in enumerate(logs):
        sequence_log_ratio = sum(values) / (len(values) if level == "geometric" else 1)
        ratios = [math.exp(x if level == "token" else sequence_log_ratio) for x in values]
        if any(abs(r / bound - 1) < 1e-4 for r in ratios for bound in (cap, floor or 1e9)):
            continue
        expected = {
            "tis": [max(min(r, cap), floor) for r in ratios],
            "mis": [r if floor <= r <= cap else 0.0 for r in ratios],
            "rejection": [float(floor <= r <= cap) for r in ratios],
        }[kind]
        assert correction.token[row, : len(values)].tolist() == pytest.approx(expected, rel=1e-4)
        assert correction.row[row].item() == pytest.approx(sum(expected) / len(expected), rel=1e-4)


def test_corrected_expectation_is_that_under_the_trainer_policy() -> None:
    """Σ_a μ(a) w(a) f(a) = Σ_a π(a) f(a) over all answers of two tokens, with no cap in reach: per sequence
    for any f; per token for f that depends on the first token alone, whose own weight it is."""
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 5, generator=generator), torch.randn(2, 5, 5, generator=generator)
    mu, pi = ((first[i].log_softmax(0), second[i].log_softmax(1)) for i in range(2))
    answers = list(itertools.product(range(5), repeat=2))
    batch = dataclasses.replace(
        rollouts([[2] * 25]),
        sampler_logp=torch.tensor([[mu[0][a], mu[1][a, b]] for a, b in answers]),
        old_logp=torch.tensor([[pi[0][a], pi[1][a, b]] for a, b in answers]),
    )
    value = torch.randn(25, generator=generator)
    probability = batch.sampler_logp.sum(-1).exp()
    truth = (batch.old_logp.sum(-1).exp() * value).sum()
    sequence_weight = make_correction(batch, "tis", "sequence", 1e6).row
    torch.testing.assert_close((probability * sequence_weight * value).sum(), truth, rtol=1e-5, atol=1e-6)
    assert (probability * value).sum() != pytest.approx(float(truth), rel=0.05), "it does correct something"
    of_first = value[:5].repeat_interleave(5)
    token = make_correction(batch, "tis", "token", 1e6).token[:, 0]
    corrected, truth = (probability * token * of_first).sum(), (pi[0].exp() * value[:5]).sum()
    torch.testing.assert_close(corrected, truth, rtol=1e-5, atol=1e-6)


# In the gradient of every algorithm


def prepared(algorithm: Any, budget: int = 10**9) -> tuple[Any, Batch]:
    models = models_for(algorithm, "llama", budget=budget)
    batch = rollouts([[5, 3, 6, 1, 2, 3], [4, 4, 2, 7, 5, 1]], [[1, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0]])
    old = models.forward("policy", batch).logp
    return models, dataclasses.replace(batch, old_logp=old, sampler_logp=old)


@pytest.mark.parametrize("algorithm", FORMS, ids=str)
def test_the_gradient_is_scaled_by_a_ratio_that_all_tokens_have(algorithm: Any) -> None:
    """Equal probabilities change no bit of it. A ratio of 1.5 at every token makes it 1.5 times as large,
    or as large as a lower cap says, or 0 if everything is masked; normalized, it stays the same."""
    models, batch = prepared(algorithm)
    plain, _ = backward(algorithm, models, batch)
    assert norm(plain) > 0
    for kind, level in zip(KINDS, LEVELS, strict=True):
        correction = make_correction(batch, kind, level, 2.0, 0.5)
        for applied in (correction, dataclasses.replace(correction, normalize=True)):
            corrected, _ = backward(algorithm, models, batch, correction=applied)
            assert all(torch.equal(plain[name], corrected[name]) for name in plain)
    skewed = dataclasses.replace(batch, sampler_logp=batch.old_logp - math.log(1.5))
    for level, kind, cap, factor in (
        ("token", "tis", 2.0, 1.5),
        ("token", "tis", 1.25, 1.25),
        ("geometric", "mis", 2.0, 1.5),
        ("token", "mis", 1.25, 0.0),
    ):
        correction = make_correction(skewed, kind, level, cap)
        corrected, _ = backward(algorithm, models, skewed, correction=correction)
        expected = {name: factor * slope for name, slope in plain.items()}
        assert distance(corrected, expected) < 1e-5 if factor else norm(corrected) == 0
        normal = dataclasses.replace(correction, normalize=True)
        corrected, _ = backward(algorithm, models, skewed, correction=normal)
        assert distance(corrected, plain) < 1e-5 if factor else norm(corrected) == 0


@pytest.mark.parametrize("level", LEVELS)
def test_micro_batches_change_no_corrected_gradient(level: str) -> None:
    gradients = []
    for budget in (10**9, 12):
        models, batch = prepared(GSPO(), budget)
        noise = torch.randn(batch.completion_mask.shape, generator=torch.Generator().manual_seed(3))
        skewed = dataclasses.replace(batch, sampler_logp=batch.old_logp + 0.5 * noise)
        tis = dataclasses.replace(make_correction(skewed, "tis", level), normalize=True)
        gradients.append(backward(GSPO(), models, skewed, correction=tis)[0])
    assert distance(*gradients) < 1e-5  # only the order of float32 sums differs


def test_weights_carry_no_gradient() -> None:
    batch = compared([[0.5, 1.5]])
    moving = dataclasses.replace(batch, old_logp=batch.old_logp.clone().requires_grad_())
    correction = make_correction(moving, "tis", "token")
    assert not correction.token.requires_grad and not correction.row.requires_grad


# In recipes
