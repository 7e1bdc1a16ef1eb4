"""FIPO against sums worked by hand and against the losses of its authors and of ms-swift, restated."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.slopes import close_loss, metrics, moved, objective
from helpers.toys import close, rollouts

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.fipo import FIPO

pytestmark = pytest.mark.usefixtures("double")
WIDE: dict[str, Any] = {"influence_low": 1.0, "influence_high": 1e6, "safety_ratio": 0.0}
"""Weights that nothing clips."""
SEEDS = (0, 1, 12)
"""Of random batches, in the last of which a completion has two tokens beyond a dual clip of 1.5."""


def weights(algorithm: FIPO, batch: Batch, logp: torch.Tensor) -> torch.Tensor:
    return metrics(algorithm, batch, logp)["policy/influence_weight"]


def test_weights_by_hand() -> None:
    """half_life = 1, so γ = ½; shifts 0.4, −0.2, 0.8: F = 0.4 + ½(−0.2 + ½·0.8) = 0.5, 0.2, 0.8. Clipped to
    [1, 1.2] all but the second are 1.2, e^0.2 = 1.2214 as well; to [0.5, 1.7] only e^0.8 is."""
    batch = rollouts([[3, 1]], [[1.0, 0.0]])
    logp = torch.tensor([[0.4, -0.2, 0.8], [-0.3, 0.0, 0.0]])
    influence = weights(FIPO(half_life=1.0, **WIDE), batch, logp)
    close(influence[0].log(), [0.5, 0.2, 0.8])
    close(influence[1, 0].log(), -0.3)
    close(weights(FIPO(half_life=1.0), batch, logp)[:, 0], [1.2, 1.0])
    middle = FIPO(half_life=1.0, influence_low=0.5, influence_high=0.7)
    close(weights(middle, batch, logp)[0], [math.exp(0.5), math.exp(0.2), 1.7])


def test_tool_output_neither_counts_nor_ages_what_follows() -> None:
    batch = rollouts([[5, 3]], [[1.0, 0.0]], gaps={0: (1, 2)})
    logp = torch.tensor([[0.4, 9.0, 9.0, -0.2, 0.8], [0.4, -0.2, 0.8, 0.0, 0.0]])
    influence = weights(FIPO(half_life=1.0, **WIDE), batch, logp)
    close(influence[0, [0, 3, 4]], influence[1, :3])


@pytest.mark.parametrize("length", [1, 2, 3, 7, 40])
def test_discounted_sums_are_those_of_the_recursion(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    value = torch.randn(3, length, generator=generator)
    written = torch.rand(3, length, generator=generator) < 0.7
    expected, following = torch.zeros_like(value), torch.zeros(3)
    for t in reversed(range(length)):
        following = torch.where(written[:, t], value[:, t] + 0.8 * following, following)
        expected[:, t] = following
    close(parts.discounted_to_go(value, written, 0.8), expected)
    wider = torch.nn.functional.pad(value, (0, 5), value=7.0), torch.nn.functional.pad(written, (0, 5))
    assert torch.equal(
        parts.discounted_to_go(*wider, 0.8)[:, :length], parts.discounted_to_go(value, written, 0.8)
    )


def test_ratios_beyond_the_dual_clip_do_not_enter_the_sums() -> None:
    """log 3 ≈ 1.1 is beyond a dual clip of 2 and counts as 0: F = 0.1 + ½·0 + ¼·0.2 = 0.15."""
    batch = rollouts([[3, 1]], [[1.0, 0.0]])
    logp = torch.tensor([[0.1, math.log(3.0), 0.2], [0.0, 0.0, 0.0]])
    influence = weights(FIPO(half_life=1.0, dual_clip=2.0, **WIDE), batch, logp)
    close(influence[0].log(), [0.15, 0.1, 0.2])
    unbounded = weights(FIPO(half_life=1.0, dual_clip=0.0, **WIDE), batch, logp)
    close(unbounded[0, 1].log(), math.log(3.0) + 0.1)


def theirs(
    batch: Batch,
    logp: torch.Tensor,
    dual: float,
    half_life: float,
    low: float,
    high: float,
    safety: float,
    drop: bool,
) -> torch.Tensor:
    """vukrosic/FIPO@1493daf (the authors' first commit), verl/trainer/ppo/core_algos.py:
    compute_policy_loss_future_kl, with GRPO's advantage and a token mean; `low` and `high` are the bounds of
    the weight. Without `drop` it is the loss of modelscope/ms-swift@3602360,
    swift/rlhf_trainers/grpo_trainer.py: _compute_fipo_influence and the clipped loss after it, which bounds
    the ratio by `delta` whatever the sign of the advantage (the same here: the clip is tighter for positive
    ones)."""
    written = batch.completion_mask.double()
    advantage = torch.zeros_like(logp)
    for number in batch.group.unique():
        rows = batch.group == number
        reward = batch.reward[rows]
        advantage[rows] = ((reward - reward.mean()) / (reward.std() + 1e-6))[:, None].expand_as(logp[rows])
    shift = logp - batch.old_logp
    ratio = shift.exp()
    counted = shift * written * (shift <= math.log(dual))
    position = torch.arange(logp.shape[1])
    distance = position[None, :] - position[:, None]  # (t, k)
    decay = (2.0 ** (-1 / half_life)) ** distance.clamp(min=0) * (distance >= 0)
    weight = (counted @ decay.T).exp().clamp(low, high).detach()
    weight = torch.where((advantage < 0) & (ratio > safety), weight.clamp(0.8, 1.0), weight)
    scaled = advantage * weight
    first = torch.maximum(-scaled * ratio, -scaled * ratio.clamp(0.8, 1.28))
    losses = torch.where(scaled < 0, torch.minimum(-scaled * dual, first), first)
    lost = ((advantage < 0) & (first > -scaled * dual) & (written > 0)).sum(1) > 1
    trained = written * ~lost[:, None] if drop else written
    return (losses * trained).sum() / written.sum()


@pytest.mark.parametrize("drop", [True, False], ids=["authors", "ms-swift"])
@pytest.mark.parametrize(
    "numbers",
    [(10.0, 32.0, 1.0, 1.2, 10.0), (10.0, 32.0, 0.8, 1.2, 3.0), (1.5, 2.0, 0.5, 1.9, 1.3)],
    ids=["32B", "7B", "tight"],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_loss_and_gradient_are_those_of_the_authors_and_of_ms_swift(
    drop: bool, numbers: tuple[float, ...], seed: int
) -> None:
    """The authors divide by the tokens of the completions that are left; here, as in the test, by all."""
    dual, half_life, low, high, safety = numbers
    batch, logp = moved(seed, spread=1.0)
    ours = FIPO(
        dual_clip=dual,
        half_life=half_life,
        influence_low=1 - low,
        influence_high=high - 1,
        safety_ratio=safety,
        drop_outliers=drop,
        epsilon=1e-6,
    )
    close_loss(ours, batch, logp, lambda leaf: theirs(batch, leaf, *numbers, drop))


def test_the_seeds_have_a_completion_that_is_left_out() -> None:
    """Or `drop` would have been tested by nothing."""
    tight: dict[str, Any] = {"dual_clip": 1.5, "half_life": 2.0}
    batches = [moved(seed, spread=1.0) for seed in SEEDS]
    pairs = [
        (objective(FIPO(**tight), batch, logp), objective(FIPO(**tight, drop_outliers=False), batch, logp))
        for batch, logp in batches
    ]
    assert any(not torch.equal(dropped, undropped) for dropped, undropped in pairs)
