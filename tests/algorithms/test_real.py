"""REAL against its authors' loss and ms-swift's, both restated, and against numbers worked by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from helpers.slopes import close_loss, metrics, slope
from helpers.toys import close, rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.real import REAL, log_one_plus_sum

pytestmark = pytest.mark.usefixtures("double")

FLOAT64 = {"rtol": 1e-12, "atol": 1e-14}
"""float64 on both sides; only the order of sums differs."""


def moved(rewards: list[list[float]], seed: int = 0) -> tuple[Batch, torch.Tensor]:
    """Groups of responses of one to six tokens, and log-probabilities about a nat away from the old ones."""
    lengths = [[(7 * i + 3 * group + seed) % 6 + 1 for i in range(len(r))] for group, r in enumerate(rewards)]
    batch = rollouts(lengths, rewards, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    old, step = (torch.randn(batch.completion_mask.shape, generator=generator) for _ in range(2))
    return dataclasses.replace(batch, old_logp=old), old + step


def scores(batch: Batch, logp: torch.Tensor) -> list[torch.Tensor]:
    written = batch.completion_mask
    return [(logp - batch.old_logp)[row][written[row]].mean() for row in range(len(batch))]


def authors(batch: Batch, logp: torch.Tensor, tau: float) -> torch.Tensor:
    """Red-RL/REAL@1c30726, verl/verl/trainer/ppo/core_algos.py, compute_policy_loss_real: rewards 1 and 0 are
    the classes, problems without both count 0, and the sum is divided by the number of all problems."""
    score, total = scores(batch, logp), torch.tensor(0.0)
    for number in batch.group.unique().tolist():
        rows = [row for row in range(len(batch)) if batch.group[row] == number]
        right = [score[row] for row in rows if batch.reward[row] == 1]
        wrong = [score[row] for row in rows if batch.reward[row] == 0]
        if right and wrong:
            total = total + (1 + sum((-s / tau).exp() for s in right)).log()
            total = total + (1 + sum((s / tau).exp() for s in wrong)).log()
    return total / len(batch.group.unique())


def swift(batch: Batch, logp: torch.Tensor, tau: float) -> torch.Tensor:
    """modelscope/ms-swift@3602360, swift/rlhf_trainers/grpo_trainer.py, loss_type real: the classes are
    rewards above the group's mean and the others; log-sum-exp with a zero beside the scores."""
    score, losses = torch.stack(scores(batch, logp)) / tau, []
    for number in batch.group.unique():
        rows = batch.group == number
        above = batch.reward[rows] - batch.reward[rows].mean() > 0
        zero = torch.zeros(1)
        if above.any() and not above.all():
            wrong = torch.cat([score[rows][~above], zero]).logsumexp(0)
            losses.append(wrong + torch.cat([-score[rows][above], zero]).logsumexp(0))
    return torch.stack(losses).sum() / len(batch.group.unique())


@pytest.mark.parametrize("theirs", [authors, swift])
@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_value_and_gradient_equal_the_authors_and_ms_swifts(theirs: Any, tau: float) -> None:
    rewards = [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    batch, logp = moved(rewards)
    gradient = close_loss(
        REAL(temperature=tau), batch, logp, lambda leaf: theirs(batch, leaf, tau), **FLOAT64
    )
    assert gradient[:4].abs().max() > 1e-3 and not gradient[4:8].any() and not gradient[12:].any()


def test_gradient_before_the_first_update_by_hand() -> None:
    """Two right responses of 1 and 2 tokens and one wrong one of 4, τ = ½: each right one has the weight
    1/(½·3) = 2/3 and the wrong one 1/(½·2) = 1, over its tokens."""
    batch = rollouts([[1, 2, 4]], [[1.0, 1.0, 0.0]])
    gradient = slope(REAL(), batch, batch.old_logp)
    close(gradient, [[-2 / 3, 0, 0, 0], [-1 / 3, -1 / 3, 0, 0], [0.25] * 4])
    margin = metrics(REAL(), batch, batch.old_logp + 0.1)["policy/label_margin"]
    close(margin, [0.1, 0.1, -0.1])


@given(st.floats(-50, 50), st.floats(0.05, 5), st.booleans())
def test_weight_is_bounded_and_grows_with_the_mistake(log_ratio: float, tau: float, right: bool) -> None:
    """The paper's weight with C = 1: 1/τ · 1/(1 + e^(±s/τ)); one response beside one of the other class."""
    batch = rollouts([[1, 1]], [[1.0, 0.0] if right else [0.0, 1.0]])

    def weight(moved_by: float) -> float:
        shift = torch.tensor([[moved_by], [0.0]])
        return float(slope(REAL(temperature=tau), batch, batch.old_logp + shift)[0, 0].abs())

    mistake = -log_ratio if right else log_ratio
    expected = (1 / tau) / (1 + math.exp(min(700, -mistake / tau)))
    # log π + s − log π loses up to 1e-14 of s, which τ magnifies twentyfold.
    assert weight(log_ratio) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    worse = log_ratio - 1 if right else log_ratio + 1
    assert weight(log_ratio) <= weight(worse) + 1e-12 <= 1 / tau + 2e-12


def test_large_log_ratios_overflow_nowhere() -> None:
    value = torch.tensor([2000.0, 1000.0, -2000.0], requires_grad=True)
    total = log_one_plus_sum(value, torch.tensor([True, True, False]), torch.zeros(3, dtype=torch.long))
    (gradient,) = torch.autograd.grad(total.sum(), value)
    assert total.tolist() == [2000.0] * 3 and gradient.tolist() == [3.0, 0.0, 0.0]


def test_empty_responses_are_in_no_class_and_rewards_are_divided_by_the_threshold() -> None:
    batch, logp = moved([[0.4, 0.6, 0.1], [1.0, 0.0]])
    assert not slope(REAL(), batch, logp)[:3].any()  # all below 1
    gradient = slope(REAL(threshold=0.5), batch, logp)
    assert (gradient[1] <= 0).all() and (gradient[0] >= 0).all() and (gradient[2] >= 0).all()
    lone = rollouts([[0, 3]], [[0.0, 1.0]])
    assert not slope(REAL(), lone, lone.old_logp).any()  # the only wrong response is empty
