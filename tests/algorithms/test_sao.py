"""SAO: its range against a reproduction by others, its advantages against the paper's equations, VAPO."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from helpers.toys import Fixed, close, reading, rollouts

from grpobench.algorithms.algorithm import Batch, ModelOutput
from grpobench.algorithms.ppo import CriticTargets
from grpobench.algorithms.sao import SAO
from grpobench.algorithms.vapo import VAPO

pytestmark = pytest.mark.usefixtures("double")


def drawn(seed: int, spread: float = 1.0) -> torch.Tensor:
    return spread * torch.randn(5, 8, generator=torch.Generator().manual_seed(seed))


def batch() -> Batch:
    """Two turns in rows 0 and 3, and one in the others; the sampler is not the old policy."""
    made = rollouts(
        [[7], [4], [1], [8], [3]], [[1.0], [0.0], [1.0], [0.5], [0.0]], gaps={0: (2, 3), 3: (1, 2, 3)}
    )
    return dataclasses.replace(made, sampler_logp=drawn(1), old_logp=drawn(2))


def signal_of(algorithm: VAPO, made: Batch, value: torch.Tensor) -> CriticTargets:
    return algorithm.compute_signal(made, Fixed(critic=reading(value[:, :0], value)))


def loss_of(algorithm: VAPO, made: Batch, logp: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    made = dataclasses.replace(made, step=99)  # behind the critic's warm-up
    now = {"policy": reading(logp), "critic": ModelOutput(value[:, :0], value[:, :0], value)}
    loss = algorithm.loss(made, signal_of(algorithm, made, drawn(3)), now)
    return (loss.terms * algorithm.loss_weights(made)).sum()


def reproduction(
    log_weight: torch.Tensor, advantage: torch.Tensor, written: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """TorchTrade/torchtrade@5b1f72d, torchtrade/losses/sao_loss.py: within the open range the gain is ratio
    times advantage, and outside nothing; averaged over all tokens, those outside included."""
    bounds = math.log(1 - low), math.log(1 + high)
    inside = (bounds[0] < log_weight) & (log_weight < bounds[1])
    gain = log_weight.clamp(*bounds).exp() * advantage * inside
    return -gain[written].mean()


@pytest.mark.parametrize(("low", "high"), [(0.3, 5.0), (0.8, 3.0), (0.05, 0.1)])
def test_range_and_gradient_equal_a_reproduction(low: float, high: float) -> None:
    made, value = batch(), drawn(4)
    algorithm = SAO(clip_low=low, clip_high=high)
    logp = (made.sampler_logp + drawn(5, spread=2.0)).requires_grad_()
    loss = loss_of(algorithm, made, logp, value)
    (gradient,) = torch.autograd.grad(loss, logp)
    leaf = logp.detach().clone().requires_grad_()
    advantage = signal_of(algorithm, made, drawn(3)).advantage
    expected = reproduction(leaf - made.sampler_logp, advantage, made.completion_mask, low, high)
    (theirs,) = torch.autograd.grad(expected, leaf)
    close(gradient, theirs)
    silent = made.completion_mask & (gradient == 0)
    assert silent.any() and gradient.any()
    # The equation's form, with the calibrated ratio as a constant weight of log π, has the same gradient.
    ratio = (logp - made.sampler_logp).exp().detach()
    weight = ratio * ((ratio > 1 - low) & (ratio < 1 + high)) * advantage / made.completion_mask.sum()
    close(gradient, -weight)


def test_advantages_skip_replies_and_have_a_trace_by_length() -> None:
    """Equations 4 and 5, row by row over what the policy wrote: the last token of a turn looks at the first
    of the next one. λ = 1 − 1/(1.5·length) for the policy; the critic learns the reward to go (λ = 1)."""
    made, value = batch(), drawn(3)
    signal = signal_of(SAO(), made, value)
    for row in range(len(made)):
        written = made.completion_mask[row].nonzero().flatten().tolist()
        trace = max(0.0, 1 - 1 / (1.5 * len(written)))
        following, after = 0.0, 0.0
        for number, t in reversed(list(enumerate(written))):
            reward = float(made.reward[row]) if number == len(written) - 1 else 0.0
            delta = reward + after - float(value[row, t])
            following, after = delta + trace * following, float(value[row, t])
            close(signal.advantage[row, t], following)
            close(signal.returns[row, t], float(made.reward[row]))
    assert not signal.advantage[~made.completion_mask].any()
    one_token = signal.advantage[2, 0]
    close(one_token, 1.0 - float(value[2, 0]))


def test_in_range_it_is_vapo_without_clip_and_imitation() -> None:
    settings = {"length_scale": 1.5, "nll": 0.0, "whiten": False, "value_clip": 0.0, "clip_high": math.inf}
    made = batch()
    made = dataclasses.replace(made, old_logp=made.sampler_logp)
    logp, value = made.sampler_logp + drawn(5), drawn(4)
    ours = loss_of(SAO(clip_low=1.0, clip_high=math.inf), made, logp, value)
    close(ours, loss_of(VAPO(clip_low=1.0, **settings), made, logp, value).item())
    assert not torch.allclose(ours, loss_of(SAO(), made, logp, value))


def test_a_ratio_that_overflows_leaves_no_trace() -> None:
    made = batch()
    logp = (made.sampler_logp + 1000.0).requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(SAO(), made, logp, drawn(4)), logp)
    assert not gradient.any() and gradient.isfinite().all()
