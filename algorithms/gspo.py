"""GSPO: one importance ratio per response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, ModelOutput
from grpobench.algorithms.policy_gradient import GroupNormalized


@dataclass(frozen=True)
class GSPO(GroupNormalized):
    """Group Sequence Policy Optimization (arXiv:2507.18071), eq. 5–7, and its token form, eq. 13–14.

    Degenerate cases: a one-token response has GRPO's ratio; an empty one has ratio 1 and no gradient; on
    policy every ratio is 1 and only the averaging differs from GRPO's. A clip range like GRPO's 0.2 never
    clips, because the ratio is a geometric mean over the response.
    """

    name = "gspo"
    paper = "Group Sequence Policy Optimization, arXiv:2507.18071"
    summary = "group-normalized advantages, one length-normalized ratio per sequence, tight clip range"
    claim = (
        "With ratios of whole sequences training is more stable and efficient than with GRPO, most of all "
        "with mixtures of experts, which need no routing replay any more. The paper shows curves; in them "
        "it clips about a hundred times more tokens and learns faster."
    )
    formula = (
        "s_i = exp(1/|o_i| Σ_t log ρ_t);  loss = "
        "−1/B Σ_i min(s_i A_i, clip(s_i, 1−clip_low, 1+clip_high) A_i);  "
        "token form: s_it = sg[s_i]·π_θ/sg[π_θ], averaged over each sequence"
    )
    departures = (
        "None in the objective. The paper makes four updates per rollout batch: set train.num_minibatches = "
        "4, since with one update the ratio is always 1. β > 0 adds a mean per-token KL penalty that the "
        "paper does not have."
    )
    evidence = "verified: the paper's text; loss and gradient equal TRL 1.16's at both levels"
    metrics = (*parts.CLIP_METRICS, *parts.KL_METRICS)

    level: Literal["sequence", "token"] = "sequence"
    """One term per response, or the token form (equal unless advantages vary by token)."""
    clip_low: float = 3e-4
    """Lower clip range of the sequence ratio."""
    clip_high: float = 4e-4
    """Upper clip range of the sequence ratio."""
    dual_clip: float = 0.0
    """Largest ratio that counts if the advantage is negative (dual clip, arXiv:1912.09729, with 3; also
    called two-sided clipping); 0 sets no bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_clip(self.clip_low, self.clip_high)
        parts.demand_dual_clip(self.dual_clip, self.clip_high)
        if self.level == "sequence" and self.averaging != "sequence_mean":
            raise ValueError('averaging: must be sequence_mean with level = "sequence"')

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        log_ratio = parts.sequence_mean(now.logp - batch.old_logp, batch.completion_mask)
        if self.level == "sequence":
            # A response has one advantage, unless a KL is subtracted per token: then take their mean.
            advantage, ratio = parts.sequence_mean(signal.advantage, batch.completion_mask), log_ratio.exp()
        else:
            advantage = signal.advantage
            # sg[s_i]·π/sg[π]: the value is the sequence's ratio, the gradient is the token's own.
            ratio = log_ratio.detach().exp()[:, None] * (now.logp - now.logp.detach()).exp()
        terms = parts.clipped_objective(ratio, advantage, self.clip_low, self.clip_high, self.dual_clip)
        metrics = parts.clip_shares(ratio, advantage, self.clip_low, self.clip_high)
        if self.level == "sequence":  # a clipped response is a clipped token at each of its positions
            metrics = {name: share[:, None].expand_as(now.logp) for name, share in metrics.items()}
        return Loss(terms, metrics)

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return parts.per_sequence(batch) if self.level == "sequence" else super().loss_weights(batch)
