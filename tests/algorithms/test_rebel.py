"""REBEL against pairs worked by hand and against RLOO's gradient."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from helpers.slopes import objective
from helpers.toys import Fixed, backward, distance, models_for, norm, off_policy, reading, rollouts

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.rebel import REBEL


def test_loss_is_the_mean_over_pairs_of_squared_differences() -> None:
    """η = 2, log-ratios 1, 0, −1 of rewards 1, 0, 0: d = −0.5, 0, −0.5; pairs 0.25, 0, 0.25, mean 1/6."""
    batch = rollouts([[1, 1, 1]], [[1.0, 0.0, 0.0]])
    loss = objective(REBEL(eta=2.0), batch, torch.tensor([[1.0], [0.0], [-1.0]]))
    d = [-0.5, 0.0, -0.5]
    by_hand = [(a - b) ** 2 for a, b in itertools.combinations(d, 2)]
    assert sum(by_hand) / 3 == pytest.approx(1 / 6)
    assert loss.item() == pytest.approx(1 / 6, rel=1e-6)  # float32


def test_every_problem_counts_the_same_whatever_its_group() -> None:
    """Rewards 1, 0 make one pair, 1; rewards 1, 0, 0, 0 six pairs, three of them 1: (1 + ½)/2."""
    batch = rollouts([[1, 2], [3, 1, 2, 1]], [[1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert objective(REBEL(), batch, batch.old_logp).item() == pytest.approx(3 / 4, rel=1e-6)  # float32


def test_a_kl_is_taken_from_the_rewards_of_whole_completions() -> None:
    """log π_old/π_ref of the first, two tokens of 0.4 and 1.6 (the third is no token of the policy), is 2:
    r = 1 − 0.1·2 = 0.8 against 0, one pair of 0.64. An equal reward is told apart by its KL."""
    batch = rollouts([[3, 1]], [[1.0, 0.0]], gaps={0: (1,)})
    reference = torch.tensor([[-0.4, -9.0, -1.6], [0.0, -9.0, -9.0]])  # old_logp is 0
    models = Fixed(reference=reading(reference))
    algorithm = REBEL(beta=0.1)
    assert algorithm.reference_roles == ("reference",) and REBEL().reference_roles == ()
    loss = objective(algorithm, batch, batch.old_logp, reference=reading(reference))
    assert loss.item() == pytest.approx(0.64, rel=1e-6)
    equal = dataclasses.replace(batch, reward=torch.ones(2))
    assert algorithm.compute_signal(equal, models).row_group.tolist() == [0, 0]
    assert REBEL().compute_signal(equal, models).row_group.tolist() == [-1, -1]


def test_gradient_on_policy_is_four_over_eta_times_that_of_rloo() -> None:
    """At ratio 1 the residual is the reward: 4/η · mean of (r_i − mean of the others) ∇ log π, with groups of
    one size, since RLOO's mean is over completions and REBEL's over problems."""
    rebel = REBEL(eta=0.5)
    models = models_for(rebel, "llama")
    batch = off_policy(rollouts([[7, 4, 2], [9, 5, 1]], [[1, 0, 0.5], [0, 1, 1]]), models, spread=0.0)
    ours, _ = backward(rebel, models, batch)
    rloo = ALGORITHMS["rloo"]()
    theirs, _ = backward(rloo, models, batch)
    assert norm(theirs) > 1e-3
    eight = {name: 8 * gradient for name, gradient in theirs.items()}
    assert distance(ours, eight) < 1e-4  # float32, sums in another order


def test_groups_of_equal_rewards_and_single_rows_are_left_out() -> None:
    batch = rollouts([[2, 3], [4], [1, 1]], [[1.0, 1.0], [0.0], [0.0, 1.0]])
    assert REBEL().compute_signal(batch, Fixed()).row_group.tolist() == [-1, -1, -1, 2, 2]
