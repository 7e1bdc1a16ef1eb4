"""Corrections for the gap between the sampler's probabilities and the trainer's, for any algorithm.

Completions are drawn from the sampler's μ, while an objective is written for draws from π_old, the trainer's
policy with the same weights. The ratio w = π_old/μ makes up for it (importance sampling): it multiplies the
terms of the loss and carries no gradient.

- Truncated, TIS: min(w, cap), less variance for some bias (Yao et al., "On the Rollout-Training Mismatch in
  Modern RL Systems", 2025; there per token, cap 2).
- Masked, MIS: w where floor ≤ w ≤ cap, else 0 (after Liu et al., "When Speed Kills Stability", 2025). What
  is masked still counts in the averaging weights, as in an importance-sampling estimate; rejection sampling
  would divide by what is left.

The ratio is that of each token, of a whole sequence (the product over its written tokens), or the geometric
mean over a sequence, which does not grow with its length. Equal probabilities give weights of exactly 1 at
every level, so that no bit of the gradient changes; so does a sequence without a written token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms.algorithm import Batch, Rows, Rowwise, Tokenwise
from grpobench.runs.settings.config import SamplerConfig


@dataclass(frozen=True)
class Correction(Rows):
    """What the terms of a batch are multiplied by."""

    token: Tokenwise
    """For terms of shape (B, T)."""
    row: Rowwise
    """For terms of shape (B,): the sequence's weight, or the mean of its tokens' weights."""
    cut: torch.Tensor
    """Bool (B, T): the cap or the floor took effect."""

    def of(self, weights: torch.Tensor) -> torch.Tensor:
        """Averaging weights, (B, T) or (B,), times these."""
        return weights * (self.token if weights.dim() == 2 else self.row)

    def metrics(self, written: torch.Tensor) -> dict[str, float]:
        """Means over the tokens that the policy wrote, (B, T)."""
        return {
            "correction/weight_mean": self.token[written].double().mean().item(),
            "correction/clipped": self.cut[written].double().mean().item(),
        }


def correct(batch: Batch, settings: SamplerConfig) -> Correction | None:
    """The weights of a batch whose `old_logp` the trainer has read; None where the settings ask for none."""
    if settings.correction == "none":
        return None
    written = batch.completion_mask
    log_ratio = (batch.old_logp - batch.sampler_logp).detach().masked_fill(~written, 0.0)
    count = written.sum(-1)
    if settings.correction_level == "token":
        token, cut = bound(log_ratio.exp(), settings)
        row = (token * written).sum(-1) / count
        return Correction(token, row.masked_fill(count == 0, 1.0), cut)
    total = log_ratio.sum(-1)
    if settings.correction_level == "geometric":
        total = total / count.clamp(min=1)
    row, cut = bound(total.exp(), settings)
    return Correction(row[:, None].expand_as(log_ratio), row, cut[:, None].expand_as(written))


def bound(ratio: torch.Tensor, settings: SamplerConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, where they are not the ratio itself)."""
    cut = ratio > settings.correction_cap
    if settings.correction == "tis":
        return ratio.clamp(max=settings.correction_cap), cut
    cut = cut | (ratio < settings.correction_floor)
    return ratio.masked_fill(cut, 0.0), cut
