"""DRO against a number worked by hand, verl's loss restated, and Kimi's for single tokens."""

from __future__ import annotations

import pytest
import torch
from helpers.slopes import close_loss, metrics, moved, objective, slope
from helpers.toys import close, rollouts

from grpobench.algorithms.dro import DRO
from grpobench.algorithms.kimi import Kimi

pytestmark = pytest.mark.usefixtures("double")


def test_loss_and_gradient_by_hand() -> None:
    """A = ±½, τ = 0.2, log π_old = 0: log π = 1 and −2, 3. A log π − 0.1 (log π)² is 0.4 and 0.6, −2.4; their
    mean over three tokens is −1.4/3. Its slope is A − 0.2 log π: 0.3 and −0.1, −1.1."""
    batch = rollouts([[1, 2]], [[1.0, 0.0]])
    logp = torch.tensor([[1.0, 0.0], [-2.0, 3.0]])
    dro = DRO(temperature=0.2)
    close(objective(dro, batch, logp), 1.4 / 3)
    close(slope(dro, batch, logp), [[-0.3 / 3, 0.0], [0.1 / 3, 1.1 / 3]])
    square = metrics(dro, batch, logp)["policy/log_ratio_square"]
    close(square[batch.completion_mask], [1.0, 4.0, 9.0])


@pytest.mark.parametrize("averaging", ["token_mean", "sequence_mean"])
def test_loss_and_gradient_are_those_of_verl(averaging: str) -> None:
    """verl-project/verl@1dda039, verl/trainer/ppo/core_algos.py: compute_policy_loss_dro with GRPO's
    advantage (compute_grpo_outcome_advantage) and loss_agg_mode token-mean or seq-mean-token-mean."""
    batch, logp = moved()
    written, beta = batch.completion_mask.double(), 0.05
    advantage = torch.zeros_like(logp)
    for number in batch.group.unique():
        rows = batch.group == number
        reward = batch.reward[rows]
        advantage[rows] = ((reward - reward.mean()) / (reward.std() + 1e-6))[:, None] * written[rows]

    def theirs(leaf: torch.Tensor) -> torch.Tensor:
        losses = -(leaf * advantage - 0.5 * beta * (leaf - batch.old_logp).square())
        if averaging == "token_mean":
            return (losses * written).sum() / written.sum()
        return ((losses * written).sum(-1) / (written.sum(-1) + 1e-8)).mean()

    ours = DRO(scale="group", epsilon=1e-6, averaging=averaging)  # type: ignore[arg-type]
    close_loss(ours, batch, logp, theirs, rtol=1e-7, atol=1e-9)  # their 1e-8 in the length


def test_with_one_token_per_completion_it_is_kimi_and_with_more_it_is_not() -> None:
    """Σ_t (log ρ_t)² and (Σ_t log ρ_t)² are the same for a single token."""
    settings = {"temperature": 0.7, "averaging": "sequence_sum"}
    batch, logp = moved()
    assert not torch.allclose(slope(DRO(**settings), batch, logp), slope(Kimi(**settings), batch, logp))
    single = rollouts([[1, 1, 1]], [[1.0, 0.0, 0.25]])
    logp = torch.tensor([[0.3], [-0.2], [0.9]])
    close(slope(DRO(**settings), single, logp), slope(Kimi(**settings), single, logp))


def test_groups_without_a_signal_are_pulled_back_to_the_old_policy() -> None:
    batch = rollouts([[1, 1], [1]], [[1.0, 1.0], [1.0]])
    logp = torch.tensor([[0.5], [-0.5], [1.0]])
    close(slope(DRO(temperature=0.3), batch, logp), 0.3 * logp / 3)
    assert not slope(DRO(), batch, batch.old_logp).any()
