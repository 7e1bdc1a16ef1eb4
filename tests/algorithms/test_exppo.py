"""ExPPO against its formula, restated response by response, and against GRPO."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
import torch
from helpers.slopes import close_loss, slope
from helpers.toys import Fixed, close, rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.exppo import ExPPO
from grpobench.algorithms.grpo import GRPO

pytestmark = pytest.mark.usefixtures("double")
FLOAT64 = {"rtol": 1e-12, "atol": 1e-14}
"""float64 on both sides; only the order of sums differs."""


REWARDS = [[1.0, 0.0, 1.0, 1.0], [0.0, 0.25, 1.0], [1.0, 1.0], [1.0]]


def drawn(
    rewards: list[list[float]] = REWARDS, gaps: dict[int, tuple[int, ...]] | None = None
) -> tuple[Batch, torch.Tensor]:
    lengths = [[(5 * i + 3 * group) % 6 + 1 for i in range(len(r))] for group, r in enumerate(rewards)]
    batch = rollouts(lengths, rewards, gaps=gaps)
    generator = torch.Generator().manual_seed(3)
    old, step = (torch.randn(batch.completion_mask.shape, generator=generator) for _ in range(2))
    return dataclasses.replace(batch, old_logp=-old.abs()), -old.abs() + 0.3 * step


def restated(batch: Batch, strength: float, epsilon: float) -> list[float]:
    """The advantages, in Python's floats."""
    surprisal = [
        -statistics.fmean(logp[written].tolist()) if written.any() else 0.0
        for logp, written in zip(batch.old_logp, batch.completion_mask, strict=True)
    ]
    shaped = [0.0] * len(batch)
    for group in batch.group.unique().tolist():
        rows = (batch.group == group).nonzero().flatten().tolist()
        rewards = [float(batch.reward[row]) for row in rows]
        if len(rows) < 2 or len(set(rewards)) == 1:
            continue
        mean, spread = statistics.fmean(rewards), statistics.stdev(rewards) + epsilon
        plain = [(reward - mean) / spread for reward in rewards]
        passed = sum(value > 0 for value in plain) / len(rows)
        of_group = [surprisal[row] for row in rows]
        center, deviation = statistics.fmean(of_group), statistics.stdev(of_group) + epsilon
        tilted = []
        for value, bits in zip(plain, of_group, strict=True):
            tilt = strength * math.tanh((bits - center) / deviation)
            tilted.append(value * (1 + passed * tilt) if value > 0 else value * (1 - (1 - passed) * tilt))
        scale = math.fsum(map(abs, plain)) / math.fsum(map(abs, tilted))
        for row, value in zip(rows, tilted, strict=True):
            shaped[row] = scale * value
    return shaped


@pytest.mark.parametrize("strength", [0.3, 0.5, 0.99])
def test_value_and_gradient_equal_the_formula(strength: float) -> None:
    batch, logp = drawn(gaps={0: (0,), 2: (1, 2)})  # the first completion is empty

    def formula(leaf: torch.Tensor) -> torch.Tensor:
        total = torch.tensor(0.0)
        for row, advantage in enumerate(restated(batch, strength, 1e-4)):
            written = batch.completion_mask[row]
            if written.any():
                ratio = (leaf - batch.old_logp)[row][written].exp()
                total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        return total / len(batch)

    gradient = close_loss(ExPPO(strength=strength), batch, logp, formula, **FLOAT64)
    assert not torch.allclose(gradient, slope(GRPO(), batch, logp))


def test_by_hand() -> None:
    """Two right and two wrong responses of one token, advantages ±a: the rare right one has u = 1 + ½·½·t and
    the common one 1 − ½·½·t, t = tanh(√¾/(1 + ε/σ)); wrong ones mirror it, so that the sum of |A| is kept."""
    batch = rollouts([[1, 1, 1, 1]], [[1.0, 1.0, 0.0, 0.0]])
    batch = dataclasses.replace(batch, old_logp=torch.tensor([[-3.0], [-1.0], [-3.0], [-1.0]]))
    advantage = ExPPO(epsilon=1e-12).advantage(batch, Fixed())
    plain, tilt = math.sqrt(3) / 2, 0.25 * math.tanh(math.sqrt(3) / 2)
    close(
        advantage,
        [plain * (1 + tilt), plain * (1 - tilt), -plain * (1 - tilt), -plain * (1 + tilt)],
        rtol=0,
        atol=1e-9,
    )


verdicts = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=7)


@given(st.lists(verdicts, min_size=1, max_size=3), st.floats(0, 0.99))
def test_signs_and_the_sum_of_each_group_stay(rewards: list[list[float]], strength: float) -> None:
    batch, _ = drawn(rewards)
    plain, shaped = (ExPPO(strength=s).advantage(batch, Fixed()) for s in (0.0, strength))
    assert torch.equal(plain.sign(), shaped.sign())
    for group in batch.group.unique():
        rows = batch.group == group
        close(shaped[rows].abs().sum(), plain[rows].abs().sum())


def test_with_equal_surprisals_it_is_grpo() -> None:
    batch, logp = drawn()
    batch = dataclasses.replace(batch, old_logp=torch.full_like(batch.old_logp, -0.7))
    close(slope(ExPPO(), batch, logp), slope(GRPO(), batch, logp), **FLOAT64)


def test_equal_rewards_and_lone_responses_have_no_signal() -> None:
    batch, logp = drawn()
    assert not ExPPO().advantage(batch, Fixed())[7:].any()
    assert not slope(ExPPO(), batch, logp)[7:].any()
