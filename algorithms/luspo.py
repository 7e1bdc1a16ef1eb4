"""LUSPO: GSPO with every response weighed by its length."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, ModelOutput
from grpobench.algorithms.policy_gradient import GroupNormalized


@dataclass(frozen=True)
class LUSPO(GroupNormalized):
    """Length-Unbiased Sequence Policy Optimization (arXiv:2602.05261).

    The gradient of GSPO's ratio s_i carries 1/|o_i|, so each token of a long response counts less; the
    factor |o_i| removes this. Degenerate cases: an empty response has no loss term; if all responses have
    one length, it is GSPO times that length.
    """

    name = "luspo"
    paper = (
        "Length-Unbiased Sequence Policy Optimization: Revealing and Controlling Response Length Variation "
        "in RLVR, arXiv:2602.05261"
    )
    summary = "GSPO whose responses are weighed by their length, so that every token counts alike"
    claim = (
        "GSPO counts the tokens of long responses less, so that responses shrink. Weighed by length they "
        "do not, and results are better than with GRPO and GSPO in math and in multimodal reasoning "
        "(abstract, which gives no number)."
    )
    formula = (
        "s_i = exp(1/|o_i| Σ_t log ρ_t);  loss = −1/B Σ_i |o_i|·min(s_i A_i, clip(s_i, 1−clip_low, "
        "1+clip_high) A_i)"
    )
    departures = (
        "None known; the paper was not read. β > 0 adds a KL penalty summed over each response. Set "
        "train.num_minibatches: with one update per rollout batch the ratio is always 1."
    )
    evidence = (
        "verified: loss and gradient equal TRL 1.16's, whose documentation gives the paper's clip range"
    )
    metrics = (*parts.CLIP_METRICS, *parts.KL_METRICS)

    averaging: parts.Averaging = "sequence_sum"
    """sequence_sum makes the factor |o_i|; sequence_mean would be GSPO."""
    clip_low: float = 2e-3
    """Lower clip range of the sequence ratio."""
    clip_high: float = 2.5e-3
    """Upper clip range of the sequence ratio."""
    dual_clip: float = 0.0
    """Largest ratio that counts if the advantage is negative (dual clip, arXiv:1912.09729, with 3; also
    called two-sided clipping); 0 sets no bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_clip(self.clip_low, self.clip_high)
        parts.demand_dual_clip(self.dual_clip, self.clip_high)

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        ratio = parts.sequence_mean(now.logp - batch.old_logp, batch.completion_mask).exp()[:, None]
        terms = parts.clipped_objective(
            ratio, signal.advantage, self.clip_low, self.clip_high, self.dual_clip
        )
        return Loss(terms, parts.clip_shares(ratio, signal.advantage, self.clip_low, self.clip_high))
