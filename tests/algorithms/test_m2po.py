"""M2PO against the paper's loop, numbers worked by hand, and the authors' code, restated."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.slopes import close_loss, metrics, moved, slope
from helpers.toys import close, rollouts

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.m2po import M2PO

pytestmark = pytest.mark.usefixtures("double")
FREE = GRPO(clip_low=1.0, clip_high=math.inf, averaging="token_mean")
"""GRPO with the same average and without a clip."""


def masked(algorithm: M2PO, batch: Batch, logp: torch.Tensor) -> torch.Tensor:
    return metrics(algorithm, batch, logp)["policy/moment_masked"] * batch.completion_mask


def by_loop(batch: Batch, logp: torch.Tensor, advantage: torch.Tensor, threshold: float) -> torch.Tensor:
    """Algorithm 1 of the paper, as AReaL's documentation shows it, for the tokens of each problem."""
    left_out = torch.zeros_like(logp)
    shift = logp - batch.old_logp
    for number in batch.group.unique():
        trusted = {
            (i, t): shift[i, t].item() ** 2
            for i in (batch.group == number).nonzero().flatten().tolist()
            for t in range(logp.shape[1])
            if batch.completion_mask[i, t] and advantage[i, t] * shift[i, t] > 0
        }
        while trusted and sum(trusted.values()) / len(trusted) > threshold:
            worst = max(trusted, key=lambda token: trusted[token])
            left_out[worst] = 1
            del trusted[worst]
    return left_out


def test_mask_and_gradient_by_hand() -> None:
    """Shifts 0.1, 0.3, −0.9 of the good completion and −0.2, 0.9 of the bad one: pushed further are 0.1, 0.3
    and −0.2, squares 0.01, 0.09, 0.04, mean 0.0467. Without 0.09 the mean is 0.025 ≤ 0.04. What moved against
    its advantage, 0.9 and −0.9, stays, however far."""
    batch = rollouts([[3, 2]], [[1.0, 0.0]])
    logp = torch.tensor([[0.1, 0.3, -0.9], [-0.2, 0.9, 0.0]])
    close(masked(M2PO(), batch, logp), [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    half = M2PO(scale="none")
    e = math.exp
    by_hand = [[-e(0.1) / 10, 0.0, -e(-0.9) / 10], [e(-0.2) / 10, e(0.9) / 10, 0.0]]
    close(slope(half, batch, logp), by_hand)
    # 0.05 is above the mean: the gradient of GRPO without a clip
    close(slope(M2PO(threshold=0.05), batch, logp), slope(FREE, batch, logp))
    # 0.01 leaves the smallest alone, whose square is 0.01 (but for rounding); 0.009 not even that
    close(masked(M2PO(threshold=0.0101), batch, logp), [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    close(masked(M2PO(threshold=0.009), batch, logp), [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize("threshold", [0.002, 0.01, 0.04, 0.1])
@pytest.mark.parametrize("seed", range(2))
def test_the_mask_is_that_of_the_loop_of_the_paper(threshold: float, seed: int) -> None:
    batch, logp = moved(seed)
    algorithm = M2PO(threshold=threshold)
    advantage = GRPO().compute_signal(batch, None).advantage  # type: ignore[arg-type]
    expected = by_loop(batch, logp, advantage, threshold)
    close(masked(algorithm, batch, logp), expected)
    close(slope(algorithm, batch, logp), slope(FREE, batch, logp) * (1 - expected))


def authors(batch: Batch, logp: torch.Tensor, budget: float) -> torch.Tensor:
    """Infini-AI-Lab/M2PO@af54a3e, verl/trainer/ppo/core_algos.py: the harmful tokens' squares in ascending
    order, the first place at which replacing all later ones by it reaches the budget, and the square before
    it as τ²; then PPO's loss with the clip [e^−τ, e^τ] and a mean over tokens. Squares:
    `_get_trust_region_tokens_delta_sq`, bounds: `kpo_clip_harmful_tokens`, loss:
    `compute_m2po_policy_loss` without its least clip."""
    reward, written = batch.reward, batch.completion_mask
    advantage = ((reward - reward.mean()) / (reward.std() + 1e-6))[:, None] * written
    ratio = (logp - batch.old_logp).exp()
    harmful = ((advantage > 0) & (ratio > 1)) | ((advantage < 0) & (ratio < 1))
    squares = (batch.old_logp - logp).detach().square()[harmful & written].sort().values
    low, high, count = 0.0, 100000.0, len(squares)
    if count and squares.mean() > budget:
        for index in range(count):
            reached = squares[index] * (count - index - 1) + squares[: index + 1].sum()
            if reached >= budget * count - 1e-12:
                tau = 0.0 if index == 0 else math.sqrt(squares[index - 1].item() - 1e-12)
                low, high = math.exp(-tau), math.exp(tau)
                break
    surrogate = torch.minimum(advantage * ratio, advantage * ratio.clamp(low, high))
    return -(surrogate * written).sum() / written.sum()


@pytest.mark.parametrize("budget", [0.0001, 0.002, 0.01, 0.04, 0.1])
@pytest.mark.parametrize("seed", range(2))
def test_with_a_cap_loss_and_gradient_are_those_of_the_code_of_the_authors(budget: float, seed: int) -> None:
    full_batch, logp = moved(seed)
    batch, logp = full_batch[full_batch.group == 0], logp[full_batch.group == 0]
    ours = M2PO(rule="cap", threshold=budget, epsilon=1e-6)
    # their 1e-12 below τ²
    close_loss(ours, batch, logp, lambda leaf: authors(batch, leaf, budget), rtol=1e-6, atol=1e-7)


def test_equal_squares_are_left_out_together_and_problems_do_not_mix() -> None:
    batch = rollouts([[2, 2], [1, 1]], [[1.0, 0.0], [1.0, 0.0]])
    logp = torch.tensor([[0.5, 0.5], [-0.1, 0.0], [0.1, 0.0], [0.0, 0.0]])
    close(masked(M2PO(), batch, logp), [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert M2PO().compute_signal(batch, None).row_group.tolist() == [0, 0, 1, 1]  # type: ignore[arg-type]
