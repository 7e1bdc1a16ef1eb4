"""GAPO against its equations, restated by counting right responses, and against GSPO."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.slopes import close_loss, metrics
from helpers.toys import Fixed, close, rollouts

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.gapo import GAPO

pytestmark = pytest.mark.usefixtures("double")
FLOAT64 = {"rtol": 1e-12, "atol": 1e-14}
"""float64 on both sides; only the order of sums differs."""
VERDICTS = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0]]


def moved(spread: float) -> tuple[Batch, torch.Tensor]:
    lengths = [[(5 * i + 3 * group) % 6 + 1 for i in range(len(r))] for group, r in enumerate(VERDICTS)]
    batch = rollouts(lengths, VERDICTS)
    generator = torch.Generator().manual_seed(3)
    old, step = (torch.randn(batch.completion_mask.shape, generator=generator) for _ in range(2))
    return dataclasses.replace(batch, old_logp=old), old - spread * step


def equations(batch: Batch, logp: torch.Tensor, low: float, high: float, level: str) -> torch.Tensor:
    """The objective and the schedule by c of k, as summaries of the paper have them, response by response:
    max(−A·s, −A·clip(s)), and ε(c) = ε_lo + (ε_hi − ε_lo)·(k − c)/(k − 1) for right ones."""
    total = torch.tensor(0.0)
    for row in range(len(batch)):
        verdicts = batch.reward[batch.group == batch.group[row]].tolist()
        size, right = len(verdicts), sum(verdicts)
        upper = low
        if batch.reward[row] == 1:
            upper = low + (high - low) * (size - right) / (size - 1)
        advantage = float(batch.reward[row]) - right / size
        log_ratio = (logp - batch.old_logp)[row][batch.completion_mask[row]]
        ratio = log_ratio.mean().exp() if level == "sequence" else log_ratio.exp()
        clipped = ratio.clamp(1 - low, 1 + upper)
        total = total + torch.maximum(-advantage * ratio, -advantage * clipped).mean()
    return total / len(batch)


@pytest.mark.parametrize(
    ("level", "low", "high", "spread"),
    [("sequence", 3e-3, 5e-3, 0.02), ("token", 0.2, 0.28, 0.5), ("sequence", 0.1, 0.4, 0.5)],
)
def test_value_and_gradient_equal_the_equations(level: str, low: float, high: float, spread: float) -> None:
    batch, logp = moved(spread)
    algorithm = GAPO(level=level, clip_low=low, clip_high=high)  # type: ignore[arg-type]
    close_loss(algorithm, batch, logp, lambda leaf: equations(batch, leaf, low, high, level), **FLOAT64)
    shares = metrics(algorithm, batch, logp)
    assert shares["policy/clip_high"].any() and shares["policy/clip_low"].any()


def test_bounds_by_hand() -> None:
    """Of four responses the only right one may rise by 0.28; of three right ones each by 0.2 + 0.08/3."""
    batch, _ = moved(0.1)
    algorithm = GAPO(clip_low=0.2, clip_high=0.28)
    signal = algorithm.compute_signal(batch, Fixed())
    third = 0.2 + 0.08 / 3
    close(signal.high, [0.28, *[0.2] * 3, *[third] * 3, 0.2, *[0.2] * 4, 0.2, 0.28])
    assert algorithm.observe(batch, signal)["policy/headroom"] == pytest.approx((2 * 0.28 + 3 * third) / 5)
