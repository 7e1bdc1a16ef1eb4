"""RLOO: REINFORCE against the mean of the other samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import Reinforce


@dataclass(frozen=True)
class RLOO(Reinforce):
    """REINFORCE Leave-One-Out (arXiv:2402.14740): a whole completion is one action; the baseline is the
    mean reward of the prompt's other completions. It does not depend on the sample, so the gradient is
    unbiased: G/(G − 1) times that of the centered reward.

    Degenerate cases: groups of equal rewards and groups of one completion have advantage exactly 0; an
    empty completion has no loss term.
    """

    name = "rloo"
    paper = (
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs, "
        "arXiv:2402.14740"
    )
    summary = "REINFORCE on whole completions with the mean of the other samples as baseline"
    claim = (
        "For human preferences PPO is more than is needed: REINFORCE with the other samples as baseline is "
        "better than PPO and than DPO and RAFT, at less cost (abstract, which gives no number)."
    )
    formula = "A_i = r_i − 1/(G−1) Σ_{j≠i} r_j;  loss = −1/B Σ_i A_i Σ_t log π(o_t)"
    departures = (
        "No KL penalty by default; the paper subtracts one from the reward (set beta). The paper samples up "
        "to 4 completions per prompt and makes one update: set train.num_minibatches = 1, since nothing "
        "corrects for a policy that has moved."
    )
    evidence = (
        "verified: the paper's text; advantages equal TRL 1.16's; the gradient is equal on policy (TRL "
        "clips the ratio of whole sequences)"
    )
    minimum_group = 2

    averaging: parts.Averaging = "sequence_sum"
    kl_placement: Literal["loss", "reward", "advantage"] = "reward"

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        others = parts.group_baseline(batch.reward, batch.group, "leave_one_out")
        return parts.centered(batch.reward, batch.group, others)
