"""IPO: DPO with a squared error, which does not push a preference to certainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grpobench.algorithms.algorithm import Batch, Rowwise
from grpobench.algorithms.dpo import DPO


@dataclass(frozen=True)
class IPO(DPO):
    """Identity Preference Optimization (arXiv:2310.12036), eq. 17.

    Degenerate cases: those of DPO; a pair with h = 1/(2β) has no gradient, and one beyond it is pulled
    back.
    """

    name = "ipo"
    paper = "A General Theoretical Paradigm to Understand Learning from Human Preferences, arXiv:2310.12036"
    summary = "preference pairs whose log-ratio difference is regressed on a constant; online or offline"
    claim = (
        "Where preferences are certain, DPO forgets its KL constraint and overfits. A constant to regress "
        "on keeps the policy near the reference; shown by theory and on small bandits, not with a language "
        "model."
    )
    formula = (
        "h = Σ_t log π/π_ref(chosen) − Σ_t log π/π_ref(rejected);  loss = mean over pairs of (h − 1/(2β))²  "
        "+ nll·(−1/|o| Σ_t log π(chosen));  β is the paper's τ;  per token: each of the two sums divided by "
        "its completion's length"
    )
    departures = (
        'compare = "completion" is eq. 17; TRL divides by lengths (compare = "token") and reports that the '
        "authors did too. The paper leaves β open; it is 0.1 here. Pairs and temperature are those of "
        "`dpo`."
    )
    evidence = "verified: the paper's text; loss and gradient equal TRL 1.16's with compare = \"token\""

    compare: Literal["completion", "token"] = "completion"
    """Log-ratios of whole completions, or their means over tokens."""

    def gain(self, log_ratio: Rowwise, batch: Batch) -> Rowwise:
        return (
            log_ratio / batch.completion_mask.sum(-1).clamp(min=1) if self.compare == "token" else log_ratio
        )

    def preference(self, h: Rowwise) -> Rowwise:
        return (h - 1 / (2 * self.beta)).square()
