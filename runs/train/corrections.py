"""Corrections for the gap between the sampler's probabilities and the trainer's, for any algorithm."""

# Completions are drawn from the sampler's μ, but an objective is derived for draws from π_old, the trainer's
# policy with the same weights. The ratio w = π_old/μ corrects for it (importance sampling): it multiplies the
# terms of the loss and carries no gradient.
#
# - Truncated, TIS: w clamped to [floor, cap], less variance for some bias (Yao et al., "On the
#   Rollout-Training Mismatch in Modern RL Systems", 2025; there per token, no floor, cap 2).
# - Masked, MIS: w where floor ≤ w ≤ cap, else 0 (after Liu et al., "When Speed Kills Stability", 2025). Per
#   token with floor 0.5 and cap 5 it is IcePop (arXiv:2510.18855); per token without a floor and with cap 5
#   the behavior weight π_prox/π_behav of decoupled PPO (arXiv:2505.24298) as AReaL's code has it.
# - Rejection: 1 where floor ≤ w ≤ cap, else 0.
#
# What is cut still counts in the averaging weights, as in an importance-sampling estimate. Normalized, the
# weights of an update keep the sum that they have without a correction: a self-normalized estimate, which
# with rejection divides by what is left.
#
# The ratio is that of each token, of a whole sequence (the product over the tokens that the policy wrote), or
# the geometric mean over a sequence, which does not grow with its length. Equal probabilities give weights of
# exactly 1 at every level, so that no bit of the gradient changes; so does a sequence without such a token.

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms.algorithm import (
    Batch,
    Rows,
    Rowwise,
    Tokenwise,
)
from grpobench.runs.settings.config import SamplerConfig


@dataclass(frozen=True)
class Correction(Rows):
    """The factors of the loss terms of a batch."""

    token: Tokenwise
    """For terms of shape (B, T)."""
    row: Rowwise
    """For terms of shape (B,): the sequence's weight, or the mean of its tokens' weights."""
    cut: torch.Tensor
    """Bool (B, T): the cap or the floor took effect."""
    normalize: bool = False
    """Whether averaging weights keep their sum."""

    def of(self, weights: torch.Tensor) -> torch.Tensor:
        """Averaging weights of a whole minibatch, (B, T) or (B,), times the correction."""
        corrected = weights * (self.token if weights.dim() == 2 else self.row)
        if not self.normalize:
            return corrected
        total = corrected.sum()
        # Of equal sums the quotient is exactly 1; where everything is cut there is nothing to scale.
        return corrected * torch.where(total > 0, weights.sum() / total, torch.ones_like(total))

    def metrics(self, completion_mask: torch.Tensor) -> dict[str, float]:
        """Means over the tokens that the policy wrote, (B, T)."""
        return {
            # float64: a float32 sum over so many tokens loses digits.
            "correction/weight_mean": self.token[completion_mask].double().mean().item(),
            "correction/clipped": self.cut[completion_mask].double().mean().item(),
        }


def correct(batch: Batch, settings: SamplerConfig) -> Correction | None:
    """The weights of a batch whose `old_logp` is the trainer's; None if the settings ask for none."""
    if settings.correction == "none":
        return None
    completion_mask = batch.completion_mask
    # Masked to a log ratio of 0, a factor of 1: padding and replies were not sampled.
    log_ratio = (batch.old_logp - batch.sampler_logp).detach().masked_fill(~completion_mask, 0.0)
    count = completion_mask.sum(-1)
    if settings.correction_level == "token":
        token, cut = bound(log_ratio.exp(), settings)
        row = (token * completion_mask).sum(-1) / count  # 0/0 in a row without tokens, filled below
        return Correction(token, row.masked_fill(count == 0, 1.0), cut, settings.correction_normalize)
    total = log_ratio.sum(-1)
    if settings.correction_level == "geometric":
        total = total / count.clamp(min=1)  # no 0/0 in a row without tokens
    row, cut = bound(total.exp(), settings)
    token, cut = row[:, None].expand_as(log_ratio), cut[:, None].expand_as(completion_mask)
    return Correction(token, row, cut, settings.correction_normalize)


def bound(ratio: torch.Tensor, settings: SamplerConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, mask of the weights that are not the ratio itself)."""
    floor, cap = settings.correction_floor, settings.correction_cap
    cut = (ratio < floor) | (ratio > cap)
    if settings.correction == "tis":
        return ratio.clamp(floor, cap), cut
    weights = ratio if settings.correction == "mis" else torch.ones_like(ratio)
    return weights.masked_fill(cut, 0.0), cut
