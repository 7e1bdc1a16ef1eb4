"""IW-OPD against TRL's trainer in value and gradient, and against numbers worked by hand."""

from __future__ import annotations

import dataclasses
import types
from collections import defaultdict

import pytest
import torch
from helpers.slopes import objective
from helpers.toys import Fixed, close, reading, rollouts
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms.iw_opd import IWOPD

pytestmark = pytest.mark.usefixtures("double")

VOCABULARY = 7
FLOAT64 = {"rtol": 1e-12, "atol": 1e-14}
"""float64 on both sides; only the order of sums differs."""


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("prefix_weight", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_value_and_gradient_equal_trl(prefix_weight: float, temperature: float) -> None:
    """TRL differentiates −log π times the advantage; ours has the ratio, which is 1 here, so that the
    gradients are equal and the values differ by the factor log π of each token."""
    from trl.experimental.iw_opd.iw_opd_trainer import IWOPDTrainer

    batch = rollouts([[4, 2, 6], [5, 1, 3]])
    rows, length = batch.completion.shape
    tokens = batch.completion % VOCABULARY
    logits = drawn(rows, length, VOCABULARY, seed=1).requires_grad_()
    teacher = drawn(rows, length, VOCABULARY, seed=2).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    logp = (logits / temperature).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    batch = dataclasses.replace(batch, old_logp=logp.detach())
    trainer = types.SimpleNamespace(
        temperature=temperature,
        iw_opd_gamma=prefix_weight,
        iw_opd_epsilon=1e-8,
        model=types.SimpleNamespace(training=True),
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    labels = tokens.masked_fill(~batch.completion_mask, -100)
    theirs = IWOPDTrainer._compute_iw_opd_loss(trainer, logits, tokens, labels, teacher)
    (expected,) = torch.autograd.grad(theirs, logits, retain_graph=True)
    algorithm = IWOPD(prefix_weight=prefix_weight)
    signal = algorithm.compute_signal(batch, Fixed(teacher=reading(teacher)))
    weights = algorithm.loss_weights(batch)
    close(-(signal.advantage * logp * weights).sum().detach(), theirs.detach(), **FLOAT64)
    ours = objective(algorithm, batch, logp, teacher=reading(teacher))
    (gradient,) = torch.autograd.grad(ours, logits)
    close(gradient, expected, **FLOAT64)
    assert gradient.abs().max() > 1e-3
    (mean_weight,) = trainer._metrics["train"]["iw_opd/mean_weight"]
    assert algorithm.observe(batch, signal)["distill/token_weight"] == pytest.approx(mean_weight, rel=1e-12)


def test_weights_by_hand_skip_what_the_policy_did_not_write() -> None:
    """Gains 1, −2 and 1 with a reply of two tokens behind the first: 0, 1 and 3 of 4 nats lie before."""
    batch = rollouts([[5]], gaps={0: (1, 2)})
    teacher = batch.old_logp + torch.tensor([[1.0, 9.0, 9.0, -2.0, 1.0]])
    algorithm = IWOPD(prefix_weight=0.5)
    weights = [1.5, 0, 0, 1 + 0.5 * 3 / 4, 1 + 0.5 * 1 / 4]
    advantage = algorithm.compute_signal(batch, Fixed(teacher=reading(teacher))).advantage
    close(advantage, [[weights[0], 0, 0, -2 * weights[3], weights[4]]])


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=8), st.floats(0, 5))
def test_weights_fall_from_first_to_last_token_within_their_range(
    gains: list[float], prefix_weight: float
) -> None:
    weights = IWOPD(prefix_weight=prefix_weight).token_weights(torch.tensor([gains]))[0]
    assert weights[0] == 1 + prefix_weight
    # A rounding step of sums of up to 240 nats, times the weight.
    assert (weights.diff() <= 1e-12).all() and (weights >= 1 - 1e-12).all()
