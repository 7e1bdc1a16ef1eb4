"""BPO against a trainer that others wrote for TRL, and against the binary KL that its weight comes from."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from helpers.slopes import close_loss, metrics, slope
from helpers.toys import Fixed, close, rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.bpo import BPO

pytestmark = pytest.mark.usefixtures("double")
FLOAT64 = {"rtol": 1e-12, "atol": 1e-14}
"""float64 on both sides; only the order of operations differs."""


def probable(*shape: int, seed: int) -> torch.Tensor:
    """log-probabilities of tokens from nearly impossible to nearly sure."""
    return torch.nn.functional.logsigmoid(
        3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    )


def drawn() -> tuple[Batch, torch.Tensor]:
    """Rewards of three groups, of which one has no signal; gaps are what an environment wrote."""
    batch = rollouts(
        [[3, 1, 6], [5, 2], [4, 4]], [[1.0, 0.0, 0.5], [0.0, 1.0], [1.0, 1.0]], gaps={2: (2, 3), 3: (1,)}
    )
    shape = batch.completion_mask.shape
    batch = dataclasses.replace(
        batch, sampler_logp=probable(*shape, seed=1), old_logp=probable(*shape, seed=2)
    )
    return batch, probable(*shape, seed=3)


def trl(
    logp: torch.Tensor,
    sampled: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    bounds: tuple[float, float],
    smoothing: float,
    cap: float,
) -> torch.Tensor:
    """behroozazarkhalili/trl@a1cc53e, trl/experimental/bpo/bpo_trainer.py: _compute_loss, in its order: the
    detached weight, the mask by sign, the cap, the mean over tokens and then over completions."""
    omega = ((1 + smoothing - sampled.exp()) / (1 + smoothing - logp.exp())).detach()
    advantages = advantages[:, None]
    clipped = ((omega < 1 - bounds[0]) & (advantages < 0)) | ((omega > 1 + bounds[1]) & (advantages > 0))
    loss = -advantages * ~clipped * torch.clamp(omega, max=cap) * logp
    return ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()


@pytest.mark.parametrize(
    ("low", "high", "smoothing", "cap"),
    [(0.2, 0.2, 0.1, 3.0), (0.2, 0.28, 0.05, 2.0), (1.0, math.inf, 0.3, 1.1)],
)
def test_value_and_gradient_equal_a_trainer_for_trl(
    low: float, high: float, smoothing: float, cap: float
) -> None:
    batch, logp = drawn()
    algorithm = BPO(clip_low=low, clip_high=high, smoothing=smoothing, ratio_cap=cap)
    # GRPO's: of rewards 1, 0, ½ and 0, 1 with Bessel's correction and ε = 1e-4; equal ones have none
    pair = 0.5 / (math.sqrt(0.5) + 1e-4)
    advantage = torch.tensor([0.5 / 0.5001, -0.5 / 0.5001, 0.0, -pair, pair, 0.0, 0.0])
    mask = batch.completion_mask.double()

    def theirs(leaf: torch.Tensor) -> torch.Tensor:
        return trl(leaf, batch.sampler_logp, advantage, mask, (low, high), smoothing, cap)

    close_loss(algorithm, batch, logp, theirs, **FLOAT64)
    shares = metrics(algorithm, batch, logp)
    assert shares["policy/weight_truncated"].any()
    assert (shares["policy/clip_low"].any() and shares["policy/clip_high"].any()) == (low < 1)


def test_weight_is_the_gradient_of_the_binary_kl() -> None:
    """Without smoothing, mask and cap a token's gradient is −A/(B·|o|) times that of log π + KL(μ‖π) over the
    token against all others, by autograd."""
    batch, logp = drawn()
    algorithm = BPO(clip_low=1.0, clip_high=math.inf, smoothing=1e-13, ratio_cap=1e9)
    leaf = logp.clone().requires_grad_()
    mu, pi = batch.sampler_logp.exp(), leaf.exp()
    kl = mu * (mu / pi).log() + (1 - mu) * ((1 - mu) / (1 - pi)).log()
    (pull,) = torch.autograd.grad((leaf + kl).sum(), leaf)
    advantage = algorithm.compute_signal(batch, Fixed()).advantage
    # smoothing of 1e-13 beside complements of 1e-3 or more
    close(
        slope(algorithm, batch, logp),
        -advantage * pull * algorithm.loss_weights(batch),
        rtol=1e-8,
        atol=1e-12,
    )


def one_token(mu: float, pi: float, reward: float, **settings: float) -> float:
    """The factor of −A/2·∇log π of a completion of one token beside one of the other reward."""
    batch = rollouts([[1, 1]], [[reward, 1.0 - reward]])
    logp = torch.tensor([[math.log(pi)], [-1.0]])
    batch = dataclasses.replace(batch, sampler_logp=torch.tensor([[math.log(mu)], [-1.0]]))
    algorithm = BPO(**settings)  # type: ignore[arg-type]
    advantage = algorithm.compute_signal(batch, Fixed()).advantage[0, 0]
    return float(slope(algorithm, batch, logp)[0, 0] / -(advantage / 2))


def test_weights_by_hand() -> None:
    assert one_token(0.5, 0.9, 0.0) == pytest.approx(3.0)  # (1.1 − 0.5)/(1.1 − 0.9)
    assert one_token(0.1, 0.95, 0.0) == pytest.approx(3.0)  # 6.7 before the cap, and A < 0 masks only below
    assert one_token(0.1, 0.95, 1.0) == 0.0  # masked by the weight before the cap
    assert one_token(0.9, 0.5, 0.0) == 0.0  # 0.33
    assert one_token(0.9, 0.5, 1.0) == pytest.approx(1 / 3)
    assert one_token(0.001, 0.01, 1.0) == pytest.approx(1.099 / 1.09)  # the ratio is 10


@given(st.floats(1e-9, 1.0), st.floats(1e-9, 1.0), st.floats(0.01, 2.0))
def test_weight_is_finite_and_grows_with_the_policys_probability(
    mu: float, pi: float, smoothing: float
) -> None:
    free = {"clip_low": 1.0, "clip_high": math.inf, "ratio_cap": 1e9, "smoothing": smoothing}
    weight = one_token(mu, pi, 1.0, **free)
    assert 0 < weight <= (1 + smoothing) / smoothing * (1 + 1e-9)
    assert weight <= one_token(mu, min(1.0, 1.1 * pi), 1.0, **free) * (1 + 1e-9)
    assert one_token(pi, pi, 1.0, **free) == pytest.approx(1.0, rel=1e-12)
