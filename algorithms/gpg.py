"""GPG: the policy gradient itself, with a factor for the groups that say nothing."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise
from grpobench.algorithms.policy_gradient import Reinforce


@dataclass(frozen=True)
class GPG(Reinforce):
    """Group Policy Gradient (arXiv:2504.02546): centered rewards without ratio, clip or KL. Groups of
    equal rewards add zeros to the average; α makes up for them.

    Degenerate cases: groups of equal rewards and groups of one completion have advantage exactly 0, as
    has every row if no group has a signal; an empty completion has no loss term.
    """

    name = "gpg"
    paper = "GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning, arXiv:2504.02546"
    summary = "policy gradient on centered rewards, scaled up for the groups without a signal; no clip, no KL"
    claim = (
        "Plain policy gradient without surrogate loss, critic, reference and KL costs less than GRPO and "
        "is better, in text and in multimodal tasks (abstract, which gives no number)."
    )
    formula = (
        "A_i = α (r_i − mean r), α = B/(B − M), M rows of groups whose rewards are all equal;  "
        "loss = token mean of −A_i log π(o_t)"
    )
    departures = (
        "The paper also resamples a batch if the share of groups with a signal is below 0.6 (0.5 and 0.4 in "
        "the authors' scripts); modify.dynamic_sampling is similar. It makes one update per batch: set "
        "train.num_minibatches = 1. The authors take the token mean of each micro-batch. Their trainers for "
        'images average over each completion first (averaging = "sequence_mean"), and one of their two '
        "trainers for text has no α."
    )
    evidence = (
        "verified: the paper's text and the authors' table of settings (F_norm = 1, α = B/(B − M)); "
        "centered rewards, α and token mean in their trainer for text (AMAP-ML/GPG@e096da8, "
        "open-r1/src/open_r1/gpg_trainer.py, open-r1/train.sh)"
    )
    minimum_group = 2

    averaging: parts.Averaging = "token_mean"

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        telling = ~parts.group_equal(batch.reward, batch.group)
        alpha = len(batch) / telling.sum().clamp(min=1)
        return alpha * parts.centered(batch.reward, batch.group, parts.group_mean(batch.reward, batch.group))
