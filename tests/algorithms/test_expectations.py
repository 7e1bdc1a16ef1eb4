"""What the algorithms that differ in their advantages do on average: expected gradients over all outcomes of
a small policy, closed forms of pass@k against all subsets, and what other groups of a batch change."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from helpers.toys import Fixed, close, rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.dr_grpo import DrGRPO
from grpobench.algorithms.maxrl import MaxRL
from grpobench.algorithms.passk import PassK, best_of
from grpobench.algorithms.remax import ReMax
from grpobench.algorithms.rloo import RLOO

pytestmark = pytest.mark.usefixtures("double")


# Expected gradients. A policy over three answers of one token; every group that it can sample is one group of
# a batch, weighed with its probability.

LOGITS = (1.0, -0.5, -1.1)
BINARY = (0.0, 1.0, 0.0)
GRADED = (0.6, 1.0, 0.0)


def expected_gradient(algorithm: Algorithm[Any], worth: Sequence[float], size: int) -> torch.Tensor:
    """E[1/G Σ_i A_i ∇log π(o_i)] with respect to the logits, over all groups of this size."""
    leaf = torch.tensor(LOGITS, requires_grad=True)
    logp = leaf.log_softmax(-1)
    answers = list(itertools.product(range(len(worth)), repeat=size))
    batch = rollouts([[1] * size] * len(answers), [[worth[a] for a in group] for group in answers])
    batch = dataclasses.replace(batch, greedy_reward=torch.full_like(batch.reward, worth[0]))
    advantage = algorithm.compute_signal(batch, Fixed()).advantage.view(-1, size)
    answer_logp = logp[torch.tensor(answers)]
    probability = answer_logp.detach().sum(-1).exp()
    return torch.autograd.grad((probability * (advantage * answer_logp).mean(-1)).sum(), leaf)[0]


def gradient(objective: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Gradient with respect to the logits of a function of the answers' probabilities."""
    leaf = torch.tensor(LOGITS, requires_grad=True)
    return torch.autograd.grad(objective(leaf.softmax(-1)), leaf)[0]


def mean_reward(worth: Sequence[float]) -> torch.Tensor:
    return gradient(lambda probability: probability @ torch.tensor(worth))


def best_reward(worth: Sequence[float], k: int) -> torch.Tensor:
    """Gradient of the expected best reward of k answers."""
    answers = list(itertools.product(range(len(worth)), repeat=k))
    best = torch.tensor([max(worth[a] for a in group) for group in answers])
    return gradient(lambda probability: probability[torch.tensor(answers)].prod(-1) @ best)


@pytest.mark.parametrize("worth", [BINARY, GRADED])
@pytest.mark.parametrize("size", [2, 4])
def test_leave_one_out_is_unbiased_and_centering_shrinks(worth: Sequence[float], size: int) -> None:
    close(expected_gradient(RLOO(), worth, size), mean_reward(worth))
    close(expected_gradient(DrGRPO(), worth, size), mean_reward(worth) * (size - 1) / size)


def test_greedy_baseline_is_unbiased() -> None:
    close(expected_gradient(ReMax(), GRADED, 3), mean_reward(GRADED))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_maxrl_adds_up_powers_of_failure(size: int) -> None:
    """(1 + (1−p) + … + (1−p)^(N−2)) ∇p: for two samples ∇p, for many ∇p/p = ∇log p."""
    p = torch.tensor(LOGITS).softmax(-1)[1].item()
    series = sum((1 - p) ** power for power in range(size - 1))
    close(
        expected_gradient(MaxRL(epsilon=1e-15), BINARY, size), series * mean_reward(BINARY), rtol=1e-9, atol=0
    )
    log_p = gradient(lambda probability: probability[1].log())
    close((1 - (1 - p) ** (size - 1)) * log_p, series * mean_reward(BINARY))


@pytest.mark.parametrize("worth", [BINARY, GRADED])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_subsets_follow_the_gradient_of_the_best_of_k(worth: Sequence[float], k: int) -> None:
    gradient = expected_gradient(PassK(k=k, divide=False), worth, 4)
    close(gradient, (1 / k - 1 / 4) * best_reward(worth, k))
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("worth", [BINARY, GRADED])
def test_best_only_credit_follows_gradient_of_expected_group_best(
    worth: Sequence[float],
) -> None:
    gradient = expected_gradient(PassK(form="best", divide=False), worth, 3)
    close(3 * gradient, best_reward(worth, 3))


def test_expectations_tell_objectives_apart() -> None:
    """Else the tests above could not fail."""
    directions = [mean_reward(GRADED), best_reward(GRADED, 2), best_reward(GRADED, 3)]
    for first, second in itertools.combinations(directions, 2):
        assert torch.nn.functional.cosine_similarity(first, second, 0) < 0.999


# Pass@k


@given(st.lists(st.sampled_from([-0.5, 0.0, 0.3, 1.0]), min_size=2, max_size=7), st.integers(1, 6))
def test_best_of_k_equals_that_over_all_subsets(reward: list[float], k: int) -> None:
    k = min(k, len(reward))
    subsets = list(itertools.combinations(range(len(reward)), k))
    best = torch.tensor([max(reward[row] for row in subset) for subset in subsets])
    mean, spread, holding = best_of(reward, k)
    assert mean == pytest.approx(best.mean().item(), abs=1e-12)
    assert spread == pytest.approx(best.std(correction=0).item(), abs=1e-7)  # a root of a difference
    for row, best_with_row in enumerate(holding):
        inside = torch.tensor([row in subset for subset in subsets])
        assert best_with_row == pytest.approx(best[inside].mean().item(), abs=1e-12)


@given(st.integers(2, 12), st.data())
def test_binary_rewards_have_closed_forms_in_number_of_wrong_samples(size: int, data: st.DataObject) -> None:
    wrong, k = data.draw(st.integers(1, size - 1)), data.draw(st.integers(1, size - 1))
    batch = rollouts([[1] * size], [[0.0] * wrong + [1.0] * (size - wrong)])
    advantage = PassK(k=k).compute_signal(batch, Fixed()).advantage[:, 0]
    mean = 1 - math.comb(wrong, k) / math.comb(size, k)
    sigma = math.sqrt(mean * (1 - mean)) + 1e-6
    right = (1 - mean) / sigma
    failed = (1 - mean - math.comb(wrong - 1, k - 1) / math.comb(size - 1, k - 1)) / sigma
    close(advantage, [failed] * wrong + [right] * (size - wrong), rtol=1e-8, atol=1e-8)  # rounding over ε
    if wrong < k:  # every subset holds a right one
        assert not advantage.any()


# Groups beside each other


COUPLED = ("lite_ppo", "gdpo", "bnpo", "gpg")
"""They have a deviation, success rates or a number of telling groups of the whole batch."""


@pytest.mark.parametrize(
    "name", [*COUPLED, "grpo", "dr_grpo", "rloo", "opo", "remax", "mc_grpo", "maxrl", "negative_grpo"]
)
def test_group_advantages_depend_on_other_groups_only_where_method_says(name: str) -> None:
    batch = rollouts([[3, 1, 5], [2, 4, 1], [1, 2]], [[1.0, 0.0, 0.5], [0.0, 1.0, 1.0], [1.0, 1.0]])
    algorithm = ALGORITHMS[name]()
    first = batch[batch.group == 0]
    together = algorithm.compute_signal(batch, Fixed()).advantage[: len(first)]
    alone = algorithm.compute_signal(first, Fixed()).advantage
    assert torch.allclose(together, alone, rtol=1e-12) == (name not in COUPLED)
