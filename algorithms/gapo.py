"""GAPO: an upper clip bound of each response, wider the rarer right responses of its group are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, Metric, ModelOutput, Models, Rowwise
from grpobench.algorithms.policy_gradient import GroupNormalized

HEADROOM_METRIC = Metric(
    "policy/headroom", "ratio", "mean over responses of positive advantage of how far above 1 theirs may rise"
)


@dataclass(frozen=True)
class Headroom(Advantage):
    """Advantages with the upper clip bound of each response."""

    high: Rowwise
    """How far above 1 the ratio may rise."""


@dataclass(frozen=True)
class GAPO(GroupNormalized):
    """Group Adaptive Clipping Policy Optimization (arXiv:2609.00444): the ratio that a trust region allows
    grows with the advantage, so the only right response of a group may move further than one of many.

    Degenerate cases: with clip_high = clip_low it is GSPO with these settings; the only right response of a
    group has the bound clip_high, and a group of right ones alone clip_low; wrong responses have clip_low,
    which bounds nothing that they do; a group of one response has advantage 0.
    """

    name = "gapo"
    label = "GAPO"
    paper = "Group Adaptive Clipping Policy Optimization, arXiv:2609.00444"
    summary = "GSPO's ratio with an upper clip bound by group: wide where right responses are rare"
    claim = (
        "One bound for all holds rare right responses back as much as common ones. Bounds by group improve "
        "pass@1 without a loss of pass@k: 17.9 on AIME 2024 with Qwen2.5-Math-1.5B where GSPO has 16.2, over "
        "three seeds 1.72 points (numbers second-hand)."
    )
    formula = (
        "A_i = r_i − mean r;  ε_i = clip_low + (clip_high − clip_low)·min(1, max(0, r_i − mean_{j≠i} r_j)), "
        "whose last factor is (k − c)/(k − 1) for a right response of c in k;  s_i = exp(1/|o_i| Σ_t log "
        "ρ_t);  loss = −1/B Σ_i min(s_i A_i, clip(s_i, 1 − clip_low, 1 + ε_i) A_i)"
    )
    departures = (
        "The paper has verdicts of 0 and 1, of which ε_i is written by c; for other rewards our form is a "
        "choice. Its ranges are 0.003 and 0.005, the defaults, 7e-5 and 3e-4 for a distilled model, and 0.2 "
        'and 0.28 with ratios of tokens (level = "token"). It makes four updates per rollout batch '
        "(train.num_minibatches = 4), since with one the ratio is always 1."
    )
    evidence = (
        "reconstruction: equations and settings from a summary of the paper, which another's code agrees "
        "with; the authors' code (Sheng-J/GAPO) could not be read. Value and gradient equal those equations, "
        "restated in the tests by counting"
    )
    metrics = (*parts.CLIP_METRICS, *parts.KL_METRICS, HEADROOM_METRIC)

    scale: parts.Scale = "none"
    level: Literal["sequence", "token"] = "sequence"
    """Ratios of whole responses, as in GSPO, or of tokens, as in GRPO."""
    clip_low: float = 3e-3
    """Lower clip range, and upper one where all responses of a group are right."""
    clip_high: float = 5e-3
    """Upper clip range of the only right response of a group."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_clip(self.clip_low, self.clip_high)
        if not self.clip_low <= self.clip_high < math.inf:
            raise ValueError("clip_high: must be finite and at least clip_low")
        if self.level == "sequence" and self.averaging != "sequence_mean":
            raise ValueError('averaging: must be sequence_mean with level = "sequence"')

    def compute_signal(self, batch: Batch, models: Models) -> Headroom:
        plain = super().compute_signal(batch, models)
        # Of the whole group, which a micro-batch may split.
        others = parts.group_baseline(batch.reward, batch.group, "leave_one_out")
        rarity = (batch.reward - others).clamp(0, 1)
        high = self.clip_low + (self.clip_high - self.clip_low) * rarity
        return Headroom(plain.row_group, plain.advantage, plain.ref_logp, high)

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        assert isinstance(signal, Headroom)
        right = (signal.advantage > 0).any(-1)
        return {HEADROOM_METRIC.name: signal.high[right].double().mean().item()}

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        assert isinstance(signal, Headroom)
        advantage, log_ratio, high = signal.advantage, now.logp - batch.old_logp, signal.high
        if self.level == "sequence":
            # A response has one advantage, unless a KL is subtracted per token: then take their mean.
            advantage = parts.sequence_mean(advantage, batch.completion_mask)
            log_ratio = parts.sequence_mean(log_ratio, batch.completion_mask)
        else:
            high = high[:, None]
        ratio = log_ratio.exp()
        bounded = torch.minimum(ratio.clamp(min=1 - self.clip_low), 1 + high)
        terms = torch.minimum(ratio * advantage, bounded * advantage)
        shares = {
            "policy/clip_low": ((ratio < 1 - self.clip_low) & (advantage < 0)).float(),
            "policy/clip_high": ((ratio > 1 + high) & (advantage > 0)).float(),
        }
        if self.level == "sequence":  # a clipped response is a clipped token at each of its positions
            shares = {name: share[:, None].expand_as(now.logp) for name, share in shares.items()}
        return Loss(terms, shares)

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return parts.per_sequence(batch) if self.level == "sequence" else super().loss_weights(batch)
