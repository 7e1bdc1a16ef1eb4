"""Dr. GRPO: GRPO without the two divisions that bias it."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import ClippedRatio


@dataclass(frozen=True)
class DrGRPO(ClippedRatio):
    """GRPO Done Right (arXiv:2503.20783): rewards are centered in their group without division by its
    standard deviation. The sum of token terms is divided by a constant instead of each response's length.

    Degenerate cases: groups of equal rewards and groups of one completion have advantage exactly 0; an
    empty completion has no loss term.
    """

    name = "dr_grpo"
    label = "Dr. GRPO"
    paper = "Understanding R1-Zero-Like Training: A Critical Perspective, arXiv:2503.20783"
    summary = "GRPO without the group's standard deviation and without 1/|o_i|: a constant divides"
    claim = (
        "Dividing by length and deviation makes GRPO's answers longer, wrong ones above all. Without it "
        "tokens are saved at equal accuracy, and a 7B base reaches 43.3 % on AIME 2024."
    )
    formula = (
        "A_i = r_i − mean r;  loss = "
        "−1/(B·L_max) Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) A_i)"
    )
    departures = (
        "None in the objective. The constant is the sampler's limit L_max. Other libraries' losses of this "
        "name may change only the divisor and keep the standard deviation."
    )
    evidence = "verified: the paper's text; loss and gradient equal TRL 1.16's without reward scaling"
    minimum_group = 2

    averaging: parts.Averaging = "constant"

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        return parts.centered(batch.reward, batch.group, parts.group_mean(batch.reward, batch.group))
