"""M2PO: the clip range follows the second moment of the log ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, Metric, ModelOutput
from grpobench.algorithms.policy_gradient import GroupNormalized


@dataclass(frozen=True)
class M2PO(GroupNormalized):
    """Second-Moment Trust Policy Optimization (arXiv:2510.01161). Of the tokens that an update pushes further
    the way they have already gone, ratio above 1 with a positive advantage or below 1 with a negative one,
    those of the largest (log ρ)² are left out until the mean over the rest is no more than a threshold.

    Degenerate cases: on policy, and wherever the mean is below the threshold, nothing is left out and the
    gradient is that of GRPO without a clip; groups of equal rewards and of one completion have advantage
    exactly 0; an empty completion has no loss term; if even the smallest square is above the threshold, all
    such tokens are left out; equal squares are left out together.
    """

    name = "m2po"
    paper = (
        "Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?, "
        "arXiv:2510.01161"
    )
    summary = "instead of a clip, the most distant tokens are left out until a mean of (log ρ)² is in bounds"
    claim = (
        "Stale data teach as much as fresh ones if only the outliers among their ratios are left out: "
        "training with rollouts from 256 updates ago is stable and as good as on policy, with six models "
        "of 1.7B to 32B."
    )
    formula = (
        "T = {t: A_i > 0 and ρ_t > 1, or A_i < 0 and ρ_t < 1};  while mean over T of (log ρ_t)² > threshold: "
        "take the largest out of T and set M_t = 0;  loss = −1/Σ|o_i| Σ_i Σ_t M_t ρ_t A_i, "
        "A_i = (r_i − mean r)/(std r + ε)"
    )
    departures = (
        "The mean is over the tokens of each problem's group, whose completions are therefore computed in "
        "one micro-batch; the paper says all training tokens, and the authors' code takes those of each "
        "micro-batch, of up to 30,000 tokens, which would make the gradient depend on its size. Their code "
        'also has another rule, here rule = "cap". ε is 1e-4; theirs is 1e-6. They train on rollouts of '
        "256 updates ago, in four minibatches: set sampler.lag and train.num_minibatches, since with one "
        "update on fresh rollouts every ratio is 1."
    )
    evidence = (
        "verified: the paper's algorithm 1 and objective as reproduced in AReaL's documentation "
        "(inclusionAI/AReaL@4aef98d, docs/en/algorithms/m2po.md, docs/figures/m2po_masking.png) and the "
        "threshold of 0.04, GRPO's advantage and the token mean in the authors' code and script "
        "(Infini-AI-Lab/M2PO@af54a3e, verl/trainer/ppo/core_algos.py, "
        'train-scripts/m2po-qwen-math-7b-s256.sh); with rule = "cap", loss and gradient equal those of '
        "that code for a micro-batch of one problem; the rest of the paper was not read"
    )
    cost = "none, but the completions of a problem are computed in one micro-batch"
    metrics = (
        Metric("policy/moment_masked", "share of tokens", "tokens left out for their (log ρ)²"),
        parts.LOG_RATIO_METRIC,
        *parts.KL_METRICS,
    )

    averaging: parts.Averaging = "token_mean"
    threshold: float = 0.04
    """Greatest mean of (log ρ)² over the tokens that are pushed further away, in nats²."""
    rule: Literal["remove", "cap"] = "remove"
    """What the mean is over: what is left after the largest are left out (remove, the paper), or all, with
    the largest replaced by the largest square that is allowed (cap, the authors' code, which leaves out that
    one, too). With `cap` a token that is left out keeps the clipped ratio's value, as in PPO."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_positive(threshold=self.threshold)

    def row_groups(self, batch: Batch) -> torch.Tensor:
        return batch.group  # a problem's tokens are compared with each other

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        ratio = parts.importance_ratio(now.logp, batch.old_logp)
        # Detached: the squares select and bound tokens; the gradient is that of the ratio.
        square = (now.logp.detach() - batch.old_logp).square()
        away = torch.where(signal.advantage > 0, ratio > 1, (ratio < 1) & (signal.advantage < 0))
        least, allowed = (value[:, None] for value in self._bounds(square, away, batch.group))
        left_out = away & (square >= least)
        terms = ratio * signal.advantage
        if self.rule == "cap":
            bound = torch.where(signal.advantage > 0, allowed.sqrt(), -allowed.sqrt()).exp()
            terms = torch.where(left_out, bound * signal.advantage, terms)
        else:
            terms = terms.masked_fill(left_out, 0.0)
        return Loss(terms, {"policy/moment_masked": left_out.float(), parts.LOG_RATIO_METRIC.name: square})

    def _bounds(
        self, square: torch.Tensor, away: torch.Tensor, group: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The least square that is left out in each row's group, infinite if none is, and with `cap` the
        greatest that is allowed, both (B,)."""
        least = torch.full_like(square[:, 0], float("inf"))
        allowed = torch.full_like(least, float("inf"))
        for number in group.unique():
            rows = group == number
            values = square[rows][away[rows]].sort().values
            count = len(values)
            if not count or not values.mean() > self.threshold:
                continue
            sums = parts.running_sum(values)
            ranks = torch.arange(count, device=values.device)
            if self.rule == "cap":
                capped = (sums + values * (count - 1 - ranks)) / count
                within = int((capped < self.threshold).sum())
                allowed[rows] = values[within - 1] if within else 0.0
                num_kept = max(within - 1, 0)
            else:
                num_kept = int((sums / (ranks + 1) <= self.threshold).sum())
            # A mean that is above the threshold in one sum and rounds to it in the other: the largest goes.
            least[rows] = values[min(num_kept, count - 1)]
        return least, allowed
