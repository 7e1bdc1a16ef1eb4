"""What a critic, and a group's baseline, explain of returns: against numbers by hand and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.toys import Fixed, reading, rollouts

from grpobench.algorithms import parts
from grpobench.algorithms.ppo import PPO


def test_explained_variance_by_hand() -> None:
    written = torch.tensor([[True, True, True, False]])
    returns = torch.tensor([[1.0, 2.0, 3.0, 99.0]])  # variance 2/3
    perfect, constant = returns.clone(), torch.full((1, 4), 7.0)
    half = torch.tensor([[1.0, 1.0, 2.0, 0.0]])  # errors 0, 1, 1: variance 2/9
    shares = [parts.explained_variance(returns, value, written) for value in (perfect, constant, half)]
    assert shares == pytest.approx([1.0, 0.0, 2 / 3])
    assert parts.explained_variance(returns, -returns, written) == pytest.approx(-3.0)  # errors 2, 4, 6
    assert math.isnan(parts.explained_variance(constant, returns, written))
    assert math.isnan(parts.explained_variance(returns, returns, written & False))


def test_what_the_group_explains_stands_beside_what_the_critic_explains() -> None:
    batch = rollouts([[2, 2, 2], [2, 2, 2], [2]], [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0]])
    outcomes = batch.reward[:, None].expand(7, 2)
    metrics = PPO(trace=1.0).observe(
        batch, PPO(trace=1.0).compute_signal(batch, Fixed(critic=reading(outcomes, outcomes)))
    )
    # Means of the others ½, ½, 1 | ½, ½, 0: errors ½, ½, −1, −½, −½, 1 of variance ½ where rewards have ¼.
    # Without the lone row, whose own reward is no forecast: 1 − ½/¼.
    assert metrics["critic/group_explained"] == pytest.approx(-1.0)
    assert metrics["critic/explained_variance"] == pytest.approx(1.0)  # a critic that knows every outcome
    assert metrics["critic/outcome_explained"] == pytest.approx(1.0)


@pytest.mark.parametrize("trace", [1.0, 0.95, 0.5])
@pytest.mark.parametrize("right", [[4, 4, 4], [2, 4, 6], [0, 3, 8]])
def test_what_the_group_explains_is_the_closed_form_of_leaving_one_out(
    right: list[int], trace: float
) -> None:
    """Leaving one out turns a deviation d from the group's mean into n/(n − 1)·d, so the share is
    1 − (n/(n − 1))²·(variance within groups)/(all variance), whatever λ and the critic's values are."""
    n, tokens = 8, 5
    outcomes = [[1.0] * count + [0.0] * (n - count) for count in right]
    batch = rollouts([[tokens] * n] * len(right), outcomes)
    flat = torch.full((n * len(right), tokens), 0.5)
    ppo = PPO(trace=trace)
    metrics = ppo.observe(batch, ppo.compute_signal(batch, Fixed(critic=reading(flat, flat))))
    within = sum(count / n * (1 - count / n) for count in right) / len(right)
    mean = sum(right) / (n * len(right))
    share = 1 - (n / (n - 1)) ** 2 * within / (mean * (1 - mean))
    assert metrics["critic/group_explained"] == pytest.approx(share, abs=1e-5)  # float32 sums
    assert metrics["critic/outcome_explained"] == pytest.approx(0.0, abs=1e-5)  # a constant explains nothing


def test_where_rewards_are_all_equal_returns_vary_with_the_critics_own_values_alone() -> None:
    """Two tokens, γ = 1: R_1 = λr + (1 − λ)V_2 and R_2 = r. With V_2 = ±1, r = 0 and λ = ½, R_1 = ±½ and
    R_2 = 0 have the variance ⅛. With V_1 = 0 the errors ±½ and ∓1 have ⅝, five times as much: 1 − 5."""
    value = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    batch = rollouts([[2, 2]], [[0.0, 0.0]])
    ppo = PPO(trace=0.5)
    metrics = ppo.observe(batch, ppo.compute_signal(batch, Fixed(critic=reading(value, value))))
    assert metrics["critic/explained_variance"] == pytest.approx(-4.0)
    assert math.isnan(metrics["critic/outcome_explained"])  # there is no outcome to explain
