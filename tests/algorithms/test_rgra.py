"""RGRA against numbers worked by hand and against GRPO at ratio 1."""

from __future__ import annotations

import pytest
import torch
from helpers.slopes import slope
from helpers.toys import close, rollouts

from grpobench.algorithms.gpg import GPG
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.rgra import RGRA


@pytest.mark.usefixtures("double")
def test_gradient_by_hand_whatever_the_ratio() -> None:
    """Rewards 1 and 0: A = ±½/√½ = ±0.70711 but for ε. Two completions of 1 and 2 tokens: −A/(2·1) and
    A/(2·2), at ratio 1 and at ratios of e and 1/e, where GRPO has clipped or scaled them."""
    batch = rollouts([[1, 2]], [[1.0, 0.0]])
    rgra = RGRA(epsilon=1e-12)
    half = 0.5**0.5
    by_hand = [[-half / 2, 0.0], [half / 4, half / 4]]
    moved = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    for logp in (batch.old_logp, moved):
        close(slope(rgra, batch, logp), by_hand, rtol=1e-10, atol=1e-10)  # ε
    assert slope(GRPO(), batch, moved)[0, 0] == 0  # ratio e above 1.2


@pytest.mark.usefixtures("double")
def test_it_is_gpg_but_for_the_deviation_the_average_and_the_factor() -> None:
    """Every group has a signal, so GPG's factor is 1; without the deviation and with the token mean both are
    the same."""
    batch = rollouts([[3, 1, 5], [2, 4]], [[1.0, 0.0, 0.5], [0.0, 1.0]])
    twin = RGRA(scale="none", averaging="token_mean")
    logp = -torch.rand(batch.completion_mask.shape, generator=torch.Generator().manual_seed(0))
    close(slope(twin, batch, logp), slope(GPG(), batch, logp))


def test_both_signs_train_and_groups_without_a_signal_do_not() -> None:
    batch = rollouts([[2, 2], [1, 3], [0, 2], [4]], [[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0]])
    gradient = slope(RGRA(), batch, batch.old_logp)
    assert (gradient[0, :2] < 0).all() and (gradient[1, :2] > 0).all()
    assert not gradient[2:4].any()  # equal rewards
    assert not gradient[4].any() and (gradient[5, :2] > 0).all()  # an empty completion, and one against it
    assert not gradient[6].any()  # alone in its group
