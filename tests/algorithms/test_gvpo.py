"""GVPO against the authors' loss, REBEL's pairs and RLOO's gradient."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.slopes import close_loss, objective
from helpers.toys import backward, distance, models_for, norm, off_policy, rollouts

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.gvpo import GVPO
from grpobench.algorithms.rebel import REBEL


def test_loss_of_three_responses_by_hand() -> None:
    """β = 1/2, log-ratios 2, 0, −2 of rewards 1, 0, −1 agree: β(S − mean S) = r − mean r, loss 0. Without a
    change of the policy the errors are 1, 0, −1: (1 + 0 + 1)/(2·2) = 1/2."""
    batch = rollouts([[1, 1, 1]], [[1.0, 0.0, -1.0]])
    algorithm = GVPO(temperature=0.5)
    assert objective(algorithm, batch, torch.tensor([[2.0], [0.0], [-2.0]])).item() == pytest.approx(
        0, abs=1e-12
    )
    assert objective(algorithm, batch, torch.zeros(3, 1)).item() == pytest.approx(0.5)
    # a constant log-ratio of every response is the partition function, and changes nothing
    assert objective(algorithm, batch, torch.full((3, 1), 7.0)).item() == pytest.approx(0.5)


def authors(
    old: torch.Tensor, logp: torch.Tensor, mask: torch.Tensor, reward: torch.Tensor, beta: float
) -> torch.Tensor:
    """jszkc/GVPO@627a25e, GVPO/gvpo_core_algos.py, compute_policy_loss_gvpo, for the n responses of one
    problem: implicit rewards, less their mean without gradient, against advantages that are rewards less
    their mean (norm_adv_by_std_in_grpo=False); half the squares, added up and divided by n − 1."""
    implicit = beta * ((logp * mask).sum(-1) - (old * mask).sum(-1))
    advantage = reward - reward.mean()
    return 0.5 * (implicit - implicit.detach().mean() - advantage).square().sum() / (len(reward) - 1)


def test_value_and_gradient_equal_those_of_the_authors_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = rollouts([[3, 1, 4], [2, 5]], [[1.0, 0.0, 0.5], [0.0, 1.0]], gaps={2: (1,)})
    old, start = (torch.randn(5, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    batch = dataclasses.replace(batch, old_logp=old, reward=batch.reward.double())

    def theirs(leaf: torch.Tensor) -> torch.Tensor:
        problems = [
            authors(old[rows], leaf[rows], batch.completion_mask[rows], batch.reward[rows], 0.3)
            for rows in (batch.group == 0, batch.group == 1)
        ]
        return torch.stack(problems).mean()

    close_loss(GVPO(temperature=0.3), batch, start, theirs, rtol=1e-12, atol=1e-14)


def test_gradient_is_a_quarter_of_that_of_rebel_and_on_policy_beta_times_that_of_rloo() -> None:
    """REBEL's mean over pairs is 2/(G − 1) Σ (S/η − r − mean)², with η = 1/β four times GVPO's loss."""
    gvpo = GVPO(temperature=0.4)
    models = models_for(gvpo, "llama")
    plain = rollouts([[7, 4, 2], [9, 5, 1]], [[1, 0, 0.5], [0, 1, 1]])
    moved = off_policy(plain, models)
    ours, _ = backward(gvpo, models, moved)
    rebel, _ = backward(REBEL(eta=2.5), models, moved)
    assert norm(ours) > 1e-3
    assert distance({name: 4 * gradient for name, gradient in ours.items()}, rebel) < 1e-5  # float32
    still = off_policy(plain, models, spread=0.0)
    ours, _ = backward(gvpo, models, still)
    rloo, _ = backward(ALGORITHMS["rloo"](), models, still)
    assert distance(ours, {name: 0.4 * gradient for name, gradient in rloo.items()}) < 1e-4


def test_equal_rewards_only_pull_back_and_one_response_does_nothing() -> None:
    """Log-ratios 1 and −1 of equal rewards: β² (1 + 1)/(2·1) = 0.01, whose gradient leads back to 0."""
    logp = torch.tensor([[1.0], [-1.0], [5.0]], requires_grad=True)
    batch = rollouts([[1, 1], [1]], [[1.0, 1.0], [1.0]])
    loss = objective(GVPO(), batch, logp)
    loss.backward()
    assert logp.grad is not None
    assert loss.item() == pytest.approx(0.01 / 2)  # a mean over two problems
    assert logp.grad.squeeze(-1).tolist() == pytest.approx([0.005, -0.005, 0.0])


def test_an_empty_response_counts_in_the_mean_of_its_group() -> None:
    """Rewards 1, 0, 0, the last one empty, log-ratios 3, 0, 0, β = 1: errors (2 − 2/3), (−1 + 1/3) of the two
    that have a token; gradients are errors over G − 1."""
    logp = torch.tensor([[3.0], [0.0], [0.0]], requires_grad=True)
    objective(GVPO(temperature=1.0), rollouts([[1, 1, 0]], [[1.0, 0.0, 0.0]]), logp).backward()
    assert logp.grad is not None
    assert logp.grad.squeeze(-1).tolist() == pytest.approx([2 / 3, -1 / 3, 0.0])
