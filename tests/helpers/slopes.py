"""Gradients with respect to log π itself, so that a token's gradient is the factor that its ∇log π gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from grpobench.algorithms.algorithm import Algorithm, Batch, ModelOutput
from helpers.toys import Fixed, close, reading, rollouts


def objective(
    algorithm: Algorithm[Any], batch: Batch, logp: torch.Tensor, **outputs: ModelOutput
) -> torch.Tensor:
    """The weighted loss of the rows that are trained on. `outputs` are those of other roles, and of the
    policy before; the reference is the old policy unless it is one of them."""
    outputs = {"reference": reading(batch.old_logp), **outputs}
    with torch.no_grad():
        signal = algorithm.compute_signal(batch, Fixed(**outputs))
    rows = signal.row_group >= 0
    now: Any = {role: output[rows] for role, output in (outputs | {"policy": reading(logp)}).items()}
    loss = algorithm.loss(batch[rows], signal[rows], now)
    return (loss.terms * algorithm.loss_weights(batch[rows])).sum()


def slope(
    algorithm: Algorithm[Any], batch: Batch, logp: torch.Tensor, **outputs: ModelOutput
) -> torch.Tensor:
    """The loss's gradient with respect to log π, (B, T)."""
    leaf = logp.detach().clone().requires_grad_()
    return torch.autograd.grad(objective(algorithm, batch, leaf, **outputs), leaf)[0]


def metrics(algorithm: Algorithm[Any], batch: Batch, logp: torch.Tensor) -> dict[str, torch.Tensor]:
    """The loss's unreduced metrics."""
    signal = algorithm.compute_signal(batch, Fixed(reference=reading(batch.old_logp)))
    return dict(algorithm.loss(batch, signal, {"policy": reading(logp)}).metrics)


def close_loss(
    algorithm: Algorithm[Any],
    batch: Batch,
    logp: torch.Tensor,
    theirs: Callable[[torch.Tensor], torch.Tensor],
    **tolerance: float,
) -> torch.Tensor:
    """The gradient of another loss of log π, after a check that its value and gradient are ours."""
    leaf = logp.detach().clone().requires_grad_()
    expected = theirs(leaf)
    (gradient,) = torch.autograd.grad(expected, leaf)
    close(objective(algorithm, batch, logp).detach(), expected.detach(), **tolerance)
    close(slope(algorithm, batch, logp), gradient, **tolerance)
    return gradient


def moved(seed: int = 0, spread: float = 0.3) -> tuple[Batch, torch.Tensor]:
    """Two groups of completions of 3, 1, 5 and 2, 4 tokens with random old log-probabilities, and log-
    probabilities of now around them."""
    batch = rollouts([[3, 1, 5], [2, 4]], [[1.0, 0.0, 0.5], [0.0, 1.0]], seed=seed)
    return surrounded(batch, seed + 1, spread)


def surrounded(batch: Batch, seed: int = 1, spread: float = 0.3) -> tuple[Batch, torch.Tensor]:
    """The batch with random old log-probabilities, and log-probabilities of now around them."""
    old, step = (
        torch.randn(batch.completion_mask.shape, generator=torch.Generator().manual_seed(seed + i))
        for i in (0, 1)
    )
    old = -old.abs() * batch.completion_mask
    return dataclasses.replace(batch, old_logp=old), old + spread * step * batch.completion_mask
