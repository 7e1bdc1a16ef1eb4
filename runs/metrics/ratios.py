"""Distances between two readings of the same tokens, and the tail of their ratio."""

from __future__ import annotations

import math

import torch

from grpobench.algorithms.algorithm import Rowwise, Tokenwise
from grpobench.analysis.tools.metrics import EXTREME, FEWEST, TAIL


def departures(prefix: str, log_ratio: Tokenwise, completion_mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Unreduced, of log ratios (B, T): per token what is reduced to the tail index, whether it is extreme,
    and its position if it is (else NaN); per row the slope (NaN for fewer than two tokens).

    A mean says little of a ratio r between two policies: a few tokens carry most of the variance of
    importance weights. d = |log r| is a token's distance in nats, and exp d = max(r, 1/r). A token is extreme
    if its ratio is above 2 or below 1/2."""
    distance = log_ratio.abs()
    position = relative_positions(completion_mask).to(distance.dtype)
    extreme = distance > math.log(EXTREME)
    return {
        f"{prefix}tail": distance,
        f"{prefix}extreme": extreme.to(distance.dtype),
        f"{prefix}extreme_at": position.masked_fill(~extreme, math.nan),
        f"{prefix}growth": slopes(distance, position, completion_mask),
    }


def relative_positions(completion_mask: torch.Tensor) -> torch.Tensor:
    """(i − ½)/n of each written token, (B, T).

    The mean over any completion is exactly ½."""
    count = completion_mask.sum(-1, keepdim=True)
    return (completion_mask.cumsum(-1) - 0.5) / count.clamp(min=1)


def slopes(distance: Tokenwise, position: Tokenwise, completion_mask: torch.Tensor) -> Rowwise:
    """Least-squares slope of `distance` over `position` for each row, (B,)."""
    # Positions average ½, so the mean distance drops out of the covariance.
    centered = (position - 0.5).masked_fill(~completion_mask, 0.0)
    covariance = (centered * distance.masked_fill(~completion_mask, 0.0)).sum(-1)
    slope: Rowwise = covariance / centered.square().sum(-1)
    return slope.masked_fill(completion_mask.sum(-1) < 2, math.nan)


def tail_index(distance: torch.Tensor) -> float:
    """Hill's estimate of the tail index of exp(distance), from its largest twentieth; `distance` is (N,).

    Hill's estimator ("A simple general approach to inference about the tail of a distribution", 1975) for exp
    d: with d₍₁₎ ≥ d₍₂₎ ≥ … it is k / Σ_{i ≤ k} (d₍ᵢ₎ − d₍ₖ₊₁₎), where k is a twentieth of the tokens: the
    inverse of the mean excess over the 95th percentile. If P(exp d > x) falls like x^(−a), it estimates a,
    with a standard error of about a/√k; for a ≤ 2 the variance is infinite, for a ≤ 1 the mean."""
    count = len(distance) // TAIL
    if count < FEWEST:
        return math.nan
    largest = distance.double().topk(count + 1).values
    excess = (largest[:-1] - largest[-1]).mean().item()
    # With a threshold of 0 fewer tokens differ than belong to the tail, and zeros would be part of it.
    return 1 / excess if excess > 0 and largest[-1] > 0 else math.nan
