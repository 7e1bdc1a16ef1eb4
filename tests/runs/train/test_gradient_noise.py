"""The noise of the policy's gradient: unbiased estimates, of the gradient that the update would use."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from helpers.toys import arithmetic_run, trainer_for
from helpers.whole_runs import configure, timeless, training

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.parts import group_advantage
from grpobench.algorithms.ppo import PPO
from grpobench.runs.settings import trl
from grpobench.runs.settings.config import RunConfig, TrainConfig
from grpobench.runs.train.gradient_noise import estimate

NOISE = ("grad/variance", "grad/signal", "grad/noise_to_signal")


def test_two_gradients_by_hand() -> None:
    """(3, 0) and (1, 0): mean (2, 0), sample variance 2, of their mean 1; and 3 of |mean|² = 4 is signal."""
    noise = estimate([{"w": torch.tensor([3.0]), "b": torch.tensor([0.0])}, {"w": torch.tensor([1.0])}])
    assert noise is not None and (noise.variance, noise.signal) == pytest.approx((1.0, 3.0))
    assert estimate([{"w": torch.ones(1)}]) is None and estimate([]) is None


def test_estimates_are_unbiased_over_every_outcome_of_a_bandit() -> None:
    """A softmax over three answers, of which the first is right, and a group of two as the part: all 9 groups
    and all 729 triples of groups are counted out. The expected gradient is autograd's of the success rate."""
    theta = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    answers = list(itertools.product(range(3), repeat=2))
    logp = theta.log_softmax(0)
    chance = [float((logp[a] + logp[b]).exp().detach()) for a, b in answers]
    gradients = []
    for pair in answers:
        reward = torch.tensor([float(answer == 0) for answer in pair], dtype=torch.float64)
        advantage = group_advantage(reward, torch.zeros(2, dtype=torch.long), "leave_one_out", "none", 1, 0.0)
        (gradient,) = torch.autograd.grad((advantage * logp[list(pair)]).mean(), theta, retain_graph=True)
        gradients.append(gradient)
    (expected,) = torch.autograd.grad(logp[0].exp(), theta)
    spread = sum(p * float((g - expected).square().sum()) for p, g in zip(chance, gradients, strict=True))
    variance = signal = 0.0
    for triple in itertools.product(range(9), repeat=3):
        noise = estimate([{"theta": gradients[i]} for i in triple])
        assert noise is not None
        share = math.prod(chance[i] for i in triple)
        variance, signal = variance + share * noise.variance, signal + share * noise.signal
    assert variance == pytest.approx(spread / 3, rel=1e-10)
    assert signal == pytest.approx(float(expected.square().sum()), rel=1e-10)


def measured(algorithm: Any = None, **train: Any) -> RunConfig:
    config = arithmetic_run(algorithm or GRPO())
    train_settings = {"gradient_noise": 1, "gradient_noise_parts": 2} | train
    return training(config, **train_settings)


def test_signal_and_variance_add_up_to_the_gradient_of_the_update() -> None:
    """Two parts of two groups each, averaged over sequences: the mean of their gradients is the gradient of
    the whole step, whose norm the update logs."""
    row = trainer_for(measured()).step(1)
    assert row["grad/variance"] > 0
    assert row["grad/variance"] + row["grad/signal"] == pytest.approx(row["grad_norm/policy"] ** 2, rel=1e-4)


def test_the_ratio_is_of_the_steps_so_far_and_survives_a_checkpoint() -> None:
    trainer = trainer_for(measured())
    first, second = trainer.step(1), trainer.step(2)
    for rows in ([first], [first, second]):
        signal = sum(row["grad/signal"] for row in rows)
        expected_ratio = sum(row["grad/variance"] for row in rows) / signal if signal > 0 else math.nan
        assert rows[-1]["grad/noise_to_signal"] == pytest.approx(expected_ratio, nan_ok=True)
    later = trainer_for(measured())
    later.restore({name: dict(part) for name, part in trainer.models.state().items()}, trainer.state())
    assert (later.noise.variance, later.noise.signal) == (trainer.noise.variance, trainer.noise.signal)


@pytest.mark.parametrize("name", ["grpo", "ppo", "dpo", "gkd"])
def test_measuring_changes_no_byte_of_a_run(name: str, policy: str) -> None:
    algorithm = ALGORITHMS[name]()
    group = 4 if algorithm.minimum_group <= 4 else 2 * algorithm.minimum_group
    plain = TrainConfig(
        steps=2, prompts_per_step=4, group_size=group, num_minibatches=2, learning_rate={"policy": 1e-3}
    )
    trainers, logged_rows, noise = [], [], []
    for every in (0, 1):
        train = dataclasses.replace(plain, gradient_noise=every)
        trainers.append(trainer_for(configure(policy, algorithm, train=train)))
        rows = [timeless(trainers[-1].step(step)) for step in (1, 2)]
        noise.append([{key: row.pop(key) for key in NOISE if key in row} for row in rows])
        logged_rows.append(repr(rows))  # NaN is NaN there
    assert logged_rows[0] == logged_rows[1], "tokens, FLOPs and gradient norms too"
    for without, measured in zip(*(trainer.models.state().values() for trainer in trainers), strict=True):
        assert all(torch.equal(tensor, measured[key]) for key, tensor in without.items())
    due = "policy" in algorithm.updated_roles(2)  # else it warms up its critic
    assert noise[0] == [{}, {}] and set(noise[1][1]) == (set(NOISE) if due else set())


def test_only_the_policy_is_measured_and_only_where_it_is_updated() -> None:
    """The critic's warm-up updates no policy; afterwards the critic's own gradient does not count."""
    trainer = trainer_for(measured(PPO(critic_warmup=1, averaging="sequence_mean")))
    assert "grad/variance" not in trainer.step(1)
    row = trainer.step(2)
    assert row["grad/variance"] + row["grad/signal"] == pytest.approx(row["grad_norm/policy"] ** 2, rel=1e-3)
    assert row["grad_norm/critic"] > 0


def test_every_third_step_and_no_single_group() -> None:
    trainer = trainer_for(measured(gradient_noise=3, prompts_per_step=1))
    assert [step for step in range(1, 8) if trainer.noise.due(step)] == [1, 4, 7]
    assert "grad/variance" not in trainer.step(1)


def test_trl_refuses_it() -> None:
    config = measured(backend="trl")
    assert any("train.gradient_noise is 1; set it to 0" in fault for fault in trl.refusals(config))
