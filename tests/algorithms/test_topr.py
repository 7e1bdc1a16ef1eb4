"""TOPR against numbers worked by hand and against the losses of ROLL and Trinity-RFT, restated."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.slopes import close_loss, metrics, moved, slope
from helpers.toys import Fixed, close, reading, rollouts

from grpobench.algorithms.rft import RFT
from grpobench.algorithms.topr import TOPR

pytestmark = pytest.mark.usefixtures("double")


def test_gradient_by_hand() -> None:
    """c = ½: A = ½ and −½, −½. The first is never weighted. The second's tokens have ratios ½ and ½, together
    ¼; the third's have 2 and ¾, together 1½, truncated at 1. A mean over three completions."""
    batch = rollouts([[2, 2, 2]], [[1.0, 0.0, 0.0]])
    ratio = torch.tensor([[9.0, 9.0], [0.5, 0.5], [2.0, 0.75]])
    gradient = slope(TOPR(), batch, ratio.log())
    close(gradient, [[-1 / 6] * 2, [1 / 24] * 2, [1 / 6] * 2])
    # by token: ½ each, and min(1, 2) and ¾
    gradient = slope(TOPR(level="token"), batch, ratio.log())
    close(gradient, [[-1 / 6] * 2, [1 / 12] * 2, [1 / 6, 1 / 8]])
    weight = metrics(TOPR(), batch, ratio.log())["policy/tapered_weight"]
    close(weight, [[1.0] * 2, [0.25] * 2, [1.0] * 2])


def test_rewards_of_one_and_minus_one_without_a_baseline_are_twice_as_steep() -> None:
    batch, logp = moved()
    binary = dataclasses.replace(batch, reward=(batch.reward > 0.4).double())
    signed = dataclasses.replace(batch, reward=2 * binary.reward - 1)
    close(slope(TOPR(offset=0.0), signed, logp), 2 * slope(TOPR(), binary, logp))


def test_positive_examples_alone_are_supervised_training() -> None:
    """A baseline of 0 leaves completions of reward 0 without a gradient: RFT on those of reward 1."""
    batch, logp = moved()
    binary = dataclasses.replace(batch, reward=(batch.reward > 0.7).double())
    successes = binary[binary.reward == 1]
    imitated = slope(RFT(averaging="sequence_sum"), successes, logp[binary.reward == 1])
    gradient = slope(TOPR(offset=0.0), binary, logp)
    close(gradient[binary.reward == 1], imitated * len(successes) / len(binary))
    assert not gradient[binary.reward == 0].any()


def test_a_negative_completion_that_became_likelier_or_impossible_has_a_finite_gradient() -> None:
    batch = rollouts([[3, 3]], [[0.0, 0.0]])
    logp = torch.tensor([[400.0] * 3, [-400.0] * 3])
    close(slope(TOPR(), batch, logp), [[0.25] * 3, [0.0] * 3])


def test_the_sign_is_that_of_the_reward_whatever_a_kl_takes_from_the_tokens() -> None:
    """log π_old − log π_ref = 2 to the end: A = ½ − 1·2 is below 0, but the reward was not: no weight."""
    batch = rollouts([[1, 1]], [[1.0, 0.0]])
    algorithm = TOPR(beta=1.0, kl_placement="advantage")
    signal = algorithm.compute_signal(batch, Fixed(reference=reading(torch.full((2, 1), -2.0))))
    close(signal.advantage, [[-1.5], [-2.5]])
    assert signal.negative.tolist() == [False, True]


def test_token_level_is_the_loss_of_roll() -> None:
    """alibaba/ROLL@8eb27cc, roll/pipeline/rlvr/actor_pg_worker.py (pg_variant = topr, both weights 1): each
    token's loss is −A log π of completions with a score above 0, and −min(1, ρ) A log π of the others, ρ
    without gradient. Here A = r − ½, and the scores are those differences."""
    batch, logp = moved()
    scores = batch.reward - 0.5
    assert (scores == 0).any()  # ROLL counts these as negative, we as positive; their advantage is 0
    good = (scores > 0)[:, None].double()

    def roll(leaf: torch.Tensor) -> torch.Tensor:
        ratio = (leaf - batch.old_logp).exp()
        terms = -scores[:, None] * leaf * good
        terms = terms - ratio.clamp(0, 1).detach() * scores[:, None] * leaf * (1 - good)
        return (terms * batch.completion_mask).sum() / batch.completion_mask.sum()

    close_loss(TOPR(level="token", averaging="token_mean"), batch, logp, roll)


def test_token_level_without_a_baseline_is_the_loss_of_trinity() -> None:
    """yanxi-chen/Trinity-RFT@5b77c08, trinity/algorithm/policy_loss_fn/topr_policy_loss.py with the advantage
    of advantage_fn/reinforce_advantage.py, the reward: α is min(1, ρ) where the reward is at most 0."""
    batch, logp = moved()
    batch = dataclasses.replace(batch, reward=batch.reward - 0.6)
    reward = batch.reward[:, None].expand_as(logp)

    def trinity(leaf: torch.Tensor) -> torch.Tensor:
        alpha = torch.where(reward <= 0, (leaf - batch.old_logp).exp().clamp(max=1), torch.ones_like(leaf))
        return -(alpha.detach() * reward * leaf)[batch.completion_mask].mean()

    close_loss(TOPR(level="token", averaging="token_mean", offset=0.0), batch, logp, trinity)
