"""FlowRL against its authors' loss, and against the distribution that it shall match."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from helpers.slopes import objective
from helpers.toys import reading, rollouts

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.flowrl import FlowRL

DOUBLE = {"rtol": 1e-12, "atol": 1e-14}


def total(
    algorithm: FlowRL, batch: Batch, reference: torch.Tensor, logp: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    outputs = {"reference": reading(reference), "value_head": reading(logp[:, :0], value)}
    return objective(algorithm, batch, logp, **outputs)


def test_loss_by_hand() -> None:
    """Rewards 1 and 0 have deviation 1/2 (ddof 0) and r̂ = ±1; β = 2. Mean log π/π_ref of the first, two
    tokens of 1 and 3, is 2, log Z 0.5 at its first token: δ = 0.5 + 2 − 2 = 0.5. Second: δ = 0.5 + 0 + 2 =
    2.5. The first is e² as probable as it was, above the cap of 2: (2·0.25 + 6.25)/2 = 3.375."""
    batch = rollouts([[2, 1]], [[1.0, 0.0]])
    batch = dataclasses.replace(batch, old_logp=torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    algorithm = FlowRL(reward_scale=2.0, ratio_cap=2.0, ddof=0)
    logp, value = torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.tensor([[0.5, 9.0], [0.5, 9.0]])
    loss = total(algorithm, batch, torch.zeros(2, 2), logp, value)
    assert loss.item() == pytest.approx(3.375, rel=1e-5)  # epsilon beside a deviation of 1/2
    uncapped_loss = total(
        dataclasses.replace(algorithm, ratio_cap=math.inf), batch, torch.zeros(2, 2), logp, value
    )
    assert uncapped_loss.item() == pytest.approx((math.exp(2) * 0.25 + 6.25) / 2, rel=1e-5)


def authors(
    logp: torch.Tensor,
    reference: torch.Tensor,
    old: torch.Tensor,
    log_z: torch.Tensor,
    advantage: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """verl-project/verl-recipe@48ea0a7, flowrl/flowrl_actor.py, compute_flowrl: masked means over tokens, β =
    15, a weight without gradient that is at most 10, a mean over responses. `advantage` (B, T) is GRPO's. The
    loss of Xuekai-Zhu/FlowRL@decbc57, dp_actor.py, compute_flowrl_objective, has the weight without bound."""

    def mean(value: torch.Tensor) -> torch.Tensor:
        return (value * mask).sum(1) / mask.sum(1)

    delta = log_z + mean(logp) - 15.0 * mean(advantage) - mean(reference)
    weight = ((logp - old) * mask).sum(1).exp().detach().clamp(max=10)
    return (weight * delta.square()).mean()


def test_value_and_gradients_equal_those_of_the_authors_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = rollouts([[3, 1, 4], [2, 5]], [[1.0, 0.0, 0.5], [0.0, 1.0]], gaps={2: (1,)})
    old, start, reference = (torch.randn(5, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    batch = dataclasses.replace(batch, old_logp=old, reward=batch.reward.double())
    value = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    ours, our_value = start.clone().requires_grad_(), value.clone().requires_grad_()
    loss = total(FlowRL(), batch, reference, ours, our_value)
    theirs, their_value = start.clone().requires_grad_(), value.clone().requires_grad_()
    advantage = torch.zeros_like(start)
    for rows in (batch.group == 0, batch.group == 1):  # verl's GRPO: Bessel's correction and 1e-6
        reward = batch.reward[rows]
        advantage[rows] = ((reward - reward.mean()) / (reward.std() + 1e-6))[:, None]
    expected = authors(theirs, reference, old, their_value[:, 0], advantage, batch.completion_mask)
    loss.backward()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, **DOUBLE)
    torch.testing.assert_close(our_value.grad, their_value.grad, **DOUBLE)


def test_the_target_distribution_has_loss_and_gradient_zero() -> None:
    """All responses to a problem, one token each: π ∝ π_ref exp(β r̂), with log Z the log of its sum (of
    opposite sign in the equation, where it stands beside the policy)."""
    reward = torch.tensor([1.0, 0.0, 0.5, 0.25], dtype=torch.float64)
    batch = rollouts([[1, 1, 1, 1]], [reward.tolist()])
    batch = dataclasses.replace(batch, reward=reward)
    algorithm = FlowRL(reward_scale=1.5)
    reference = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log()
    scaled = 1.5 * (reward - reward.mean()) / (reward.std() + 1e-6)
    log_z = (reference + scaled).logsumexp(0)
    logp = (reference + scaled - log_z)[:, None].requires_grad_()
    assert logp.exp().sum().item() == pytest.approx(1.0)
    value = log_z.expand(4, 1).clone().requires_grad_()
    loss = total(algorithm, batch, reference[:, None], logp, value)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-24)
    assert logp.grad is not None and value.grad is not None
    assert logp.grad.abs().max() < 1e-12 and value.grad.abs().max() < 1e-12


def test_equal_rewards_and_single_responses_pull_to_the_reference() -> None:
    """Both problems have r̂ = 0, so that δ is log π/π_ref: 1, 1 and −2; gradients 2δ/3."""
    batch = rollouts([[1, 1], [1]], [[1.0, 1.0], [1.0]])
    logp = torch.tensor([[1.0], [1.0], [-2.0]], requires_grad=True)
    batch = dataclasses.replace(batch, old_logp=logp.detach())
    total(FlowRL(), batch, torch.zeros(3, 1), logp, torch.zeros(3, 1)).backward()
    assert logp.grad is not None
    assert logp.grad.squeeze(-1).tolist() == pytest.approx([2 / 3, 2 / 3, -4 / 3])


def test_an_empty_response_has_no_term_but_its_reward_counts() -> None:
    batch = rollouts([[1, 0]], [[1.0, 0.0]])
    value = torch.tensor([[0.0], [7.0]], requires_grad=True)
    algorithm = FlowRL(reward_scale=1.0, ddof=0)
    loss = total(algorithm, batch, torch.zeros(2, 1), torch.zeros(2, 1), value)
    loss.backward()
    assert loss.item() == pytest.approx(0.5, rel=1e-5)  # δ = −1 of the first of two
    assert value.grad is not None and value.grad[1].item() == 0
