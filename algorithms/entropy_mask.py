"""80/20: gradient only on the tokens of highest entropy."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Models, Tokenwise
from grpobench.algorithms.dapo import DAPO


@dataclass(frozen=True)
class EntropyMask(DAPO):
    """DAPO on the minority of tokens at which the policy was least certain (arXiv:2506.01939).

    Degenerate cases: with top_fraction = 1 it is DAPO; ties at the threshold are all kept, so a policy of
    equal entropies is trained on every token.
    """

    name = "entropy_mask"
    label = "entropy mask"
    paper = (
        "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM "
        "Reasoning, arXiv:2506.01939"
    )
    summary = "DAPO with gradient only on the fifth of tokens at which the policy's entropy is highest"
    claim = (
        "The few uncertain tokens carry the gain. Training on the fifth of highest entropy is as good as "
        "on all with Qwen3-8B and better with Qwen3-32B, by 11.04 points on AIME 2025 and 7.71 on AIME "
        "2024."
    )
    formula = (
        "DAPO's loss with A_it = A_i·[H_t ≥ the (1 − top_fraction) quantile of H over the batch's tokens];  "
        "still divided by all tokens"
    )
    departures = (
        "The entropies are those of π_old over the whole rollout batch, computed once per step; TRL's "
        "option uses the current policy over each micro-batch. A KL in the loss covers all tokens. The "
        "departures of `dapo` apply too."
    )
    evidence = (
        "verified: the paper's formula; loss and gradient equal TRL 1.16's top_entropy_quantile if one "
        "micro-batch is the batch"
    )
    cost = "one forward pass of the policy for the entropies; " + DAPO.cost

    top_fraction: float = 0.2
    """Share of tokens that are trained on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_fraction(top_fraction=self.top_fraction)

    def compute_signal(self, batch: Batch, models: Models) -> Advantage:
        plain = super().compute_signal(batch, models)
        forks = self._forks(models.forward("policy", batch).entropy, batch)
        return dataclasses.replace(plain, advantage=plain.advantage * forks)

    def _forks(self, entropy: Tokenwise, batch: Batch) -> Tokenwise:
        inside = entropy[batch.completion_mask]
        if not len(inside):
            return batch.completion_mask
        # The tokens from the quantile up: a linear quantile lies between two of them, or on one.
        rank = math.ceil(round((1 - self.top_fraction) * (len(inside) - 1), 6)) + 1
        # Not `kthvalue`, which a GPU refuses under deterministic operators.
        return (entropy >= inside.sort().values[rank - 1]) & batch.completion_mask
