"""ORPO: imitation of chosen completions and an odds ratio against rejected ones, without a reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from grpobench.algorithms.algorithm import Batch, Role, Rowwise
from grpobench.algorithms.dpo import DPO


@dataclass(frozen=True)
class ORPO(DPO):
    """Odds Ratio Preference Optimization (arXiv:2403.07691).

    A completion's probability p is the geometric mean of those of its tokens.
    Degenerate cases: those of DPO; an empty completion, which has no mean, counts with log odds 0 and is not
    imitated; p = 1, whose odds are infinite, counts as the largest number below 1 and has no gradient in the
    odds ratio.
    """

    name = "orpo"
    paper = "ORPO: Monolithic Preference Optimization without Reference Model, arXiv:2403.07691"
    summary = "log-likelihood of the chosen completion and odds ratio of a pair, without a reference"
    claim = (
        "A small penalty for the rejected style makes supervised training an alignment, in one stage and "
        "without a reference: Mistral 7B reaches 12.20 % on AlpacaEval 2.0 and 7.32 on MT-Bench "
        "(abstract)."
    )
    formula = (
        "log p = 1/|o| Σ_t log π;  h = log p/(1 − p)(chosen) − log p/(1 − p)(rejected);  "
        "loss = mean over pairs of nll·(−log p(chosen)) − β·log σ(h);  β is the paper's λ"
    )
    departures = (
        "The log-likelihood is the mean over pairs of the mean over a completion's tokens; the authors' and "
        "TRL's is one mean over the tokens of a batch, prompts included unless the authors' setting "
        "disable_prompt_loss leaves them out. nll weighs it: 1 is the paper's. β is 0.1, that of the "
        "authors' script for Mistral; their code's default is 1. Pairs and temperature are those of `dpo`."
    )
    evidence = (
        "verified: the loss in the authors' code (xfactlab/orpo@0f0abfe, src/orpo_trainer.py), its settings "
        "(src/args.py at aee01ae and 0593165) and β (scripts/run_mistral_orpo_beta.sh at a077535); "
        "the odds ratio's loss and gradient equal TRL 1.16's; of the paper only the abstract was read"
    )
    cost = "none"

    beta: float = 0.1
    """Weight of the odds ratio, λ in the paper."""
    nll: float = 1.0
    """Weight of the chosen completion's mean negative log-likelihood."""

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        return ()

    def gain(self, log_ratio: Rowwise, batch: Batch) -> Rowwise:
        length = batch.completion_mask.sum(-1)
        mean = log_ratio / length.clamp(min=1)
        # Below 0 by a rounding step: at 0 the odds and their gradient are infinite.
        mean = mean.clamp(max=-torch.finfo(mean.dtype).eps)
        return torch.where(length > 0, mean - log_complement(mean), torch.zeros_like(mean))

    def preference(self, h: Rowwise) -> Rowwise:
        return -self.beta * torch.nn.functional.logsigmoid(h)


def log_complement(logp: Rowwise) -> Rowwise:
    """log(1 − p) from log p < 0, elementwise."""
    # Each form loses digits where the other does not (Mächler, 2012); ½ is near where they are equally good.
    # The unused form gets a harmless number, or its gradient could be NaN.
    near = logp > -math.log(2)
    half = torch.full_like(logp, -math.log(2))
    close_to_one = (-torch.expm1(torch.where(near, logp, half))).log()
    far_from_one = torch.log1p(-torch.where(near, half, logp).exp())
    return torch.where(near, close_to_one, far_from_one)
