"""Evolution strategies against the authors' loop, restated, and a smoothed quadratic's gradient; runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.slopes import slope
from helpers.toys import Fixed, characters, close, rollouts
from helpers.whole_runs import configure, resumed, run, transcript
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from grpobench.algorithms.algorithm import Batch, WeightNoise
from grpobench.algorithms.es import ES
from grpobench.algorithms.grpo import GRPO
from grpobench.runs.models.weight_noise import NoisyWeights
from grpobench.runs.settings.config import EvaluateConfig, TrainConfig
from grpobench.runs.settings.rules import incompatible

double = pytest.mark.usefixtures("double")


def answered(rewards: Sequence[Sequence[float]]) -> Batch:
    """A completion of 1 to 3 tokens of each member to each problem, given their rewards by problem."""
    lengths = [[1 + (i + k) % 3 for k in range(len(members))] for i, members in enumerate(rewards)]
    return rollouts(lengths, rewards)


def scores(algorithm: ES, batch: Batch) -> list[float]:
    """What the noise of each member is weighed by, times K."""
    density = slope(algorithm, batch, batch.old_logp)
    tokens = batch.completion_mask.sum(-1, keepdim=True)
    by_row = (density / tokens.clamp(min=1)).sum(-1)  # in equal parts at the tokens
    members = int(batch.member.max()) + 1
    total = torch.zeros(members).index_add(0, batch.member, by_row)
    return (-total * members / algorithm.sigma).tolist()


def weights() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(5)
    return {name: nn.Parameter(torch.randn(*size, generator=generator)) for name, size in SIZES.items()}


SIZES = {"a": (3, 2), "b": (4,)}


def moved(algorithm: ES, batch: Batch, rate: float) -> tuple[dict[str, nn.Parameter], NoisyWeights]:
    """The weights after an update by gradient descent, and their noise."""
    parameters = weights()
    noise = NoisyWeights(parameters, algorithm.weight_noise, seed=1)
    tokens = batch.completion_mask.sum(-1, keepdim=True).clamp(min=1)
    by_row = (slope(algorithm, batch, batch.old_logp) / tokens).sum(-1)
    noise.add_gradient(batch.step, batch.member, by_row)
    torch.optim.SGD(parameters.values(), lr=rate).step()
    return parameters, noise


@double
@pytest.mark.parametrize("mirrored", [False, True])
def test_an_update_equals_the_authors_loop(mirrored: bool) -> None:
    """VsonicV/es-fine-tuning-paper@04d4075, countdown/es_fine-tuning_countdown.py: rewards_normalized, then
    for each parameter the sum over the population of noise times score, over its size, times ALPHA."""
    rewards, alpha = [[1.0, 0.0, 0.25, 0.5], [0.0, 0.0, 1.0, 0.75], [1.0, 1.0, 0.0, 0.0]], 0.05
    parameters, noise = moved(ES(mirrored=mirrored), answered(rewards), alpha)
    fitness = np.array(rewards).mean(0)
    normalized = (fitness - fitness.mean()) / (fitness.std() + 1e-8)
    for name, before in weights().items():
        update = torch.zeros_like(before)
        for member in range(4):
            update += noise.draw(1, member, name).double() * float(normalized[member])
        close(parameters[name].detach(), (before + alpha * update / 4).detach())
        drawn = [noise.draw(1, member, name) for member in range(4)]
        assert all(torch.equal(drawn[k], -drawn[k + 1]) == mirrored for k in (0, 2))
        assert not torch.equal(noise.draw(2, 0, name), drawn[0])


@double
def test_in_expectation_an_update_is_the_gradient_of_the_smoothed_objective() -> None:
    """Of f(θ) = −½ θᵀHθ + bᵀθ the mean over θ + σε is f(θ) − ½ σ² tr H, with the gradient b − Hθ. With
    centered rewards the mean of ε_k·(f_k − mean f)/σ is (1 − 1/K) times it."""
    population, draws, sigma = 8, 1500, 0.5
    generator = torch.Generator().manual_seed(0)
    square = torch.randn(3, 3, generator=generator)
    hessian, offset = square @ square.T, torch.randn(3, generator=generator)
    parameter = nn.Parameter(torch.randn(3, generator=generator))
    exact = (offset - hessian @ parameter).detach() * (1 - 1 / population)
    noise = NoisyWeights({"θ": parameter}, WeightNoise(sigma), seed=3)
    estimates = []
    for step in range(1, 1 + draws):
        fitness = []
        for member in range(population):
            with noise.added(step, member):
                fitness.append((offset @ parameter - parameter @ hessian @ parameter / 2).item())
        batch = dataclasses.replace(answered([fitness]), step=step)
        by_member = torch.tensor(scores(ES(sigma=sigma), batch)) * batch.reward.std(correction=0)
        parameter.grad = None
        noise.add_gradient(step, torch.arange(population), by_member / population)
        estimates.append(parameter.grad.clone())
    stacked = torch.stack(estimates)
    error = stacked.std(0) / math.sqrt(draws)
    # 4 standard errors in three numbers: a chance of 2e-4 for a right one to fail, with these seeds none.
    assert ((stacked.mean(0) - exact).abs() < 4 * error).all() and (error < 0.1 * exact.norm()).all()


rewarded = st.integers(2, 6).flatmap(
    lambda members: st.lists(
        st.lists(st.integers(-8, 8), min_size=members, max_size=members), min_size=1, max_size=4
    )
)


@double
@given(rewarded, st.integers(-20, 20))
def test_a_shift_of_rewards_changes_no_update(rewards: list[list[int]], shift: int) -> None:
    before, later = (
        scores(ES(), answered([[float(r + by) for r in members] for members in rewards])) for by in (0, shift)
    )
    # Scores of equal members are exactly 0; others are of order 1, from sums of a few whole numbers.
    assert later == pytest.approx(before, abs=1e-6)
    fitness = np.array(rewards).sum(0)
    assert any(before) == bool((fitness != fitness[0]).any())


@double
@given(st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_mirrored_members_with_equal_rewards_leave_no_trace(pairs: list[float]) -> None:
    rewards = [[reward for reward in (*pairs, 0.5) for _ in range(2)]]
    parameters, _ = moved(ES(mirrored=True), answered(rewards), 1.0)
    for name, before in weights().items():
        close(parameters[name].detach(), before.detach(), rtol=0, atol=1e-6)  # noise is float32


@double
def test_members_that_were_not_graded_and_completions_without_tokens() -> None:
    """Of member 2 nothing is left; member 1 has an empty completion, whose reward counts all the same."""
    batch = rollouts([[2, 0, 1], [1, 3, 1]], [[1.0, 1.0, 9.0], [0.0, 0.0, 9.0]])
    batch = batch[batch.member < 2]
    assert scores(ES(), batch) == [0.0, 0.0]
    batch = rollouts([[2, 0], [1, 3]], [[1.0, 0.5], [0.5, 0.0]])
    assert scores(ES(), batch) == pytest.approx([1.0, -1.0])
    algorithm = ES()
    signal = algorithm.compute_signal(batch, Fixed())
    assert algorithm.observe(batch, signal) == {"es/fitness_std": pytest.approx(0.25)}


def test_weights_are_restored_bit_for_bit_after_an_error() -> None:
    parameters = weights()
    before = {name: p.detach().clone() for name, p in parameters.items()}
    noise = NoisyWeights(parameters, WeightNoise(0.1), seed=0)
    with pytest.raises(ZeroDivisionError), noise.added(1, 0):
        assert not any(torch.equal(before[name], p) for name, p in parameters.items())
        raise ZeroDivisionError
    assert all(torch.equal(before[name], p) for name, p in parameters.items())


STILL = EvaluateConfig(0, 0, 0, 0)


def sized(steps: int, prompts: int = 4, members: int = 4, rate: float = 1e-2) -> TrainConfig:
    return TrainConfig(
        steps=steps, prompts_per_step=prompts, group_size=members, learning_rate={"policy": rate}
    )


def test_a_run_goes_on_as_if_never_stopped_and_costs_no_backward_pass(policy: str, tmp_path: Path) -> None:
    config = configure(policy, ES(sigma=0.02), train=sized(3), evaluate=STILL)
    assert not incompatible(config)
    uninterrupted, _ = resumed(config, tmp_path, 2)
    rows = run(dataclasses.replace(config, algorithm=GRPO()), tmp_path / "grpo")
    first_prompts = [
        [(group["prompt"], len(group["completions"])) for group in transcript(tmp_path / folder, 1)]
        for folder in ("whole", "grpo")
    ]
    assert first_prompts[0] == first_prompts[1]
    # Sampling takes 2 operations for each weight and token, learning 6 more, and every prompt is sampled from
    # once by a group of GRPO's and four times by four members.
    per_token = [r[-1]["cost/flops"] / r[-1]["cost/generated_tokens"] for r in (uninterrupted, rows)]
    assert per_token[0] < per_token[1] / 2


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy of 1,264 weights: of K noises in D dimensions the gradient's part is about √(K/D)."""
    return characters(
        tmp_path_factory.mktemp("small"),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.3,
    )


def test_a_run_learns(small: str, tmp_path: Path) -> None:
    """More characters below "P", which four of ten completions have before."""
    config = configure(small, ES(sigma=0.3), train=sized(16, 12, 24, 0.15), evaluate=STILL)
    reward = [row["reward/mean"] for row in run(config, tmp_path)[1:]]
    # 36 members of 12 problems: a standard error of 0.03 in each of the two means.
    assert np.mean(reward[-3:]) > np.mean(reward[:3]) + 0.15


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("train", {"num_minibatches": 2}, "train.num_minibatches"),
        ("train", {"epochs": 2}, "train.epochs"),
        ("train", {"gradient_noise": 1}, "train.gradient_noise"),
        ("train", {"group_size": 5}, "train.group_size = 6"),
        ("sampler", {"lag": 1}, "sampler.lag"),
        ("sampler", {"correction": "token"}, "sampler.correction"),
        ("modify", {"entropy_bonus": 0.1}, "modify.entropy_bonus"),
    ],
)
def test_what_needs_other_weights_is_refused(
    policy: str, section: str, changes: dict[str, Any], words: str
) -> None:
    config = configure(policy, ES(mirrored=True), train=sized(3))
    changed = dataclasses.replace(getattr(config, section), **changes)
    (message,) = incompatible(dataclasses.replace(config, **{section: changed}))
    assert words in message
