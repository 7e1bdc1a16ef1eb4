"""ExPPO: within a group, credit goes from what the policy does often to what it does rarely."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized


@dataclass(frozen=True)
class ExPPO(GroupNormalized, ClippedRatio):
    """Exploration-Preserving Policy Optimization (arXiv:2610.04011): of equally rewarded responses those that
    surprise the policy more get more credit, by a bounded factor, so that no sign changes, and the group's
    sum of |A| stays what it was.

    Degenerate cases: with strength = 0 it is GRPO; so it is where the responses of a group are all equally
    improbable per token; groups of equal rewards and of one completion have advantage exactly 0; an empty
    completion counts as a sure one, of surprisal 0.
    """

    name = "exppo"
    label = "ExPPO"
    paper = "Exploration-Preserving Policy Optimization, arXiv:2610.04011"
    summary = "GRPO that gives rarer responses of a group more credit, with the group's sum of |A| unchanged"
    claim = (
        "Equal advantages for equal rewards give modes of answers credit in proportion to how often they are "
        "sampled. Credit by surprisal and pass rate keeps rare right ones: coverage with 128 samples is 51.0 "
        "where it was 44.3 (numbers second-hand, whose model and task are not said)."
    )
    formula = (
        "s_i = −1/|o_i| Σ_t log π_old(o_it);  z_i = (s_i − mean s)/(std s + ε) in the group;  q_i = pass "
        "rate where A_i > 0, else 1 − pass rate;  u_i = 1 + strength·q_i·sign(A_i)·tanh z_i;  "
        "A'_i = A_i u_i · Σ_j |A_j| / Σ_j |A_j| u_j;  loss as GRPO's"
    )
    departures = (
        "Unknown: no formula of the paper was read. Surprisal per token relative to the prompt, the pass "
        "rate, a bound that keeps signs and the sum of |A| are the paper's; tanh, the product with the share "
        "of responses that have the same verdict, the same rule for wrong responses and strength are our "
        "choice. The pass rate is the share of the group with a positive advantage."
    )
    evidence = (
        "reconstruction: only accounts of the abstract were read, and the authors' code "
        "(jinhangzhan/ExPPO) could not be. Value and gradient equal the formula above, restated in the tests "
        "response by response; they say nothing about the authors'"
    )

    strength: float = 0.5
    """How far the factor of an advantage may be from 1, below 1; 0 is GRPO."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.strength < 1:
            raise ValueError("strength: must be at least 0 and below 1, or signs could change")

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        plain, group = super().advantage(batch, models), batch.group
        surprisal = -parts.sequence_mean(batch.old_logp, batch.completion_mask)
        # Centered, so that equal surprisals give exactly 0 and no rounding that a division would blow up.
        apart = parts.centered(surprisal, group, parts.group_mean(surprisal, group))
        rarity = (apart / (parts.group_std(surprisal, group, self.ddof) + self.epsilon)).tanh()
        passed = parts.group_mean((plain > 0).to(plain.dtype), group)
        share = torch.where(plain > 0, passed, 1 - passed)
        shaped = plain * (1 + self.strength * share * plain.sign() * rarity)
        before, after = (parts.group_mean(value.abs(), group) for value in (plain, shaped))
        # 0/0 where all advantages of the group are 0.
        return shaped * torch.where(after > 0, before / after, torch.ones_like(after))
