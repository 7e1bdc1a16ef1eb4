"""GRPO, with every option that papers and libraries disagree on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Models
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized


@dataclass(frozen=True)
class GRPO(GroupNormalized, ClippedRatio):
    """Group Relative Policy Optimization (arXiv:2402.03300).

    Degenerate cases: groups of equal rewards and groups of one completion have advantage exactly 0,
    unless `whiten` shifts them; an empty completion has no loss term.
    """

    name = "grpo"
    paper = (
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models, arXiv:2402.03300"
    )
    summary = "group-normalized advantages, token-level clipped ratio, mean over each sequence, no critic"
    claim = (
        "Comparison inside a group replaces the critic, which saves memory and compute. DeepSeekMath "
        "Instruct 7B goes from 82.9 to 88.2 % on GSM8K and from 46.8 to 51.7 % on MATH, whose problems it "
        "trains on, and from 84.6 to 88.8 % on CMATH, on which it does not."
    )
    formula = (
        "A_i = (r_i − mean r) / (std r + ε);  loss = −1/B Σ_i 1/|o_i| Σ_t "
        "{ min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) A_i) − β·KL_t };  ρ_t = π_θ/π_old per token"
    )
    departures = (
        "β is 0 by default, like most current practice; the paper has 0.04 with k3 in the loss. The paper "
        "leaves ddof open; it is 1 here. The expected gradient of k3 is not that of the KL; k3_unbiased "
        "corrects this."
    )
    evidence = "verified: the paper's text; loss and gradient equal TRL 1.16's with the same options"

    whiten: bool = False
    """Whether advantages then get zero mean and unit variance over the batch's tokens. This also shifts
    groups of equal rewards."""

    def compute_signal(self, batch: Batch, models: Models) -> Advantage:
        signal = super().compute_signal(batch, models)
        if not self.whiten:
            return signal
        return dataclasses.replace(signal, advantage=parts.whiten(signal.advantage, batch.completion_mask))
