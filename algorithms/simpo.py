"""SimPO: preference pairs by the policy's own mean log-probability, without a reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Role, Rowwise
from grpobench.algorithms.dpo import DPO


@dataclass(frozen=True)
class SimPO(DPO):
    """Simple Preference Optimization (arXiv:2405.14734): DPO whose implicit reward is the completion's mean
    log-probability, with a target margin.

    Degenerate cases: those of DPO; completions of one length and gamma = 0 equal DPO with β over that length
    and a uniform reference; an empty completion, which has no mean, counts 0, as if it were certain.
    """

    name = "simpo"
    label = "SimPO"
    paper = "SimPO: Simple Preference Optimization with a Reference-Free Reward, arXiv:2405.14734"
    summary = "preference pairs by length-normalized log-probabilities and a margin, without a reference"
    claim = (
        "Without a reference it is better than DPO by up to 6.4 points on AlpacaEval 2 and up to 7.5 on "
        "Arena-Hard, with answers that are hardly longer (abstract)."
    )
    formula = (
        "h = 1/|o| Σ_t log π(chosen) − 1/|o| Σ_t log π(rejected);  loss = mean over pairs of −log σ(βh − γ)  "
        "+ nll·(−1/|o| Σ_t log π(chosen))"
    )
    departures = (
        "The authors tune β and γ per model; the defaults are theirs for Llama-3-Base, β = 2 and γ/β = 0.5, "
        "which is where they advise to start. Their code has γ/β = 0.25. Pairs and temperature are those of "
        "`dpo`."
    )
    evidence = (
        "verified: loss and settings in the authors' code (princeton-nlp/SimPO@1b3e8f3, README.md; "
        "scripts/simpo_config.py); loss and gradient equal TRL 1.16's CPOTrainer with "
        'loss_type = "simpo" and cpo_alpha = 0; of the paper only the abstract was read'
    )
    cost = "none"

    beta: float = 2.0
    """Scale of the difference of mean log-probabilities, per nat."""
    gamma: float = 1.0
    """Target margin γ, which β times the difference has to exceed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(gamma=self.gamma)

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        return ()

    def gain(self, log_ratio: Rowwise, batch: Batch) -> Rowwise:
        return log_ratio / batch.completion_mask.sum(-1).clamp(min=1)

    def preference(self, h: Rowwise) -> Rowwise:
        return -torch.nn.functional.logsigmoid(self.beta * h - self.gamma)
