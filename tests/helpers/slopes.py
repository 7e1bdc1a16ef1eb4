"""Gradients with respect to log π itself, so that a token's gradient is the factor that its ∇log π gets."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from grpobench.algorithms.algorithm import Algorithm, Batch
from helpers.toys import Fixed, reading, rollouts


def objective(algorithm: Algorithm[Any], batch: Batch, logp: torch.Tensor) -> torch.Tensor:
    """The weighted loss of a batch; the reference is the old policy."""
    with torch.no_grad():
        signal = algorithm.compute_signal(batch, Fixed(reference=reading(batch.old_logp)))
    loss = algorithm.loss(batch, signal, {"policy": reading(logp)})
    return (loss.terms * algorithm.loss_weights(batch)).sum()


def slope(algorithm: Algorithm[Any], batch: Batch, logp: torch.Tensor) -> torch.Tensor:
    """The loss's gradient with respect to log π, (B, T)."""
    leaf = logp.clone().requires_grad_()
    return torch.autograd.grad(objective(algorithm, batch, leaf), leaf)[0]


def metrics(algorithm: Algorithm[Any], batch: Batch, logp: torch.Tensor) -> dict[str, torch.Tensor]:
    """The loss's unreduced metrics."""
    signal = algorithm.compute_signal(batch, Fixed(reference=reading(batch.old_logp)))
    return dict(algorithm.loss(batch, signal, {"policy": reading(logp)}).metrics)


def moved(seed: int = 0, spread: float = 0.3) -> tuple[Batch, torch.Tensor]:
    """Two groups of completions of 3, 1, 5 and 2, 4 tokens with random old log-probabilities, and log-
    probabilities of now around them."""
    batch = rollouts([[3, 1, 5], [2, 4]], [[1.0, 0.0, 0.5], [0.0, 1.0]], seed=seed)
    old, step = (
        torch.randn(batch.completion_mask.shape, generator=torch.Generator().manual_seed(seed + i))
        for i in (1, 2)
    )
    old = -old.abs() * batch.completion_mask
    return dataclasses.replace(batch, old_logp=old), old + spread * step * batch.completion_mask
