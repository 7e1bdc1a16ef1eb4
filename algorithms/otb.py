"""OTB: a baseline for each token, weighed by how large a gradient each completion has gathered by then."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise, Tokenwise
from grpobench.algorithms.policy_gradient import ClippedRatio


@dataclass(frozen=True)
class OTB(ClippedRatio):
    """Optimal Token Baseline (arXiv:2602.07078). What a completion adds to the variance of the gradient
    at token t grows with its realized energy W_t, the squared norm of what it has added up to there. The
    baseline of token t is the group's mean reward weighted by W_t. A token's share is the squared norm of
    the gradient of its log-probability with respect to the logits, which needs no backward pass. Over
    several turns W_t adds up over the whole trajectory, replies left out.

    Degenerate cases: a group of one completion has advantage exactly 0; so has a group of equal rewards,
    unless `zero_tail` leaves a nonzero reward without a baseline. Where no completion has any energy yet,
    because the policy never had a choice, the baseline is the mean reward of the completions that reach
    the token.
    """

    name = "otb"
    paper = "The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL, arXiv:2602.07078"
    summary = "a baseline per token: the group's mean reward weighed by squared gradient norms until there"
    claim = (
        "The baseline of least variance for each token keeps training from collapsing, and groups of 4 do "
        "as well as groups of 32, which saves over 65 % of the tokens (abstract)."
    )
    formula = (
        "w_it = 1 − 2π(o_it) + Σ_v π_v²;  W_it = Σ_{s≤t} w_is;  b_t = Σ_j W_jt r_j / Σ_j W_jt over the "
        "group's completions that reach token t;  A_it = r_i − b_t;  loss = token mean of "
        "−min(ρ_t A_it, clip(ρ_t, 1−clip_low, 1+clip_high) A_it)"
    )
    departures = (
        "The authors' code gives a group of one completion its plain reward as advantage; here it has 0. "
        "Where energies are below 1e-8 their baseline falls to 0; ours does not. They multiply w by the "
        "square of a correction of the sampler's probabilities, which is unknown here when advantages are "
        "computed. t counts only tokens that the policy wrote, like their form for several turns. The paper "
        "makes one update per batch (train.num_minibatches = 1), where no clip matters. Only the paper's "
        "abstract was read."
    )
    evidence = (
        "verified: w, W, the baseline, its position and the tail in the authors' code "
        "(verl-project/verl@1dda039, verl/trainer/ppo/core_algos.py: "
        "compute_optimal_token_baseline_advantage, compute_multi_turn_optimal_token_baseline_advantage; "
        "examples/otb_trainer/run_qwen3_8b_fsdp.sh), whose form for several turns is restated in a test; w "
        "against autograd; by enumeration, no other baseline of a first token gives less variance"
    )
    cost = "one forward pass of the policy for the sums of squared probabilities"
    minimum_group = 2
    credits_turns = False  # its baseline is one of each token

    averaging: parts.Averaging = "token_mean"
    zero_tail: bool = True
    """Whether tokens that only the longest completion of a group reaches have no baseline, like the
    authors' code; otherwise their advantage is 0."""

    def advantage(self, batch: Batch, models: Models) -> Tokenwise:
        policy_output = models.forward("policy", batch, squares=True)
        assert policy_output.squares is not None
        # Squared norm of the gradient with respect to the logits: ‖one-hot − π‖².
        share = (1 - 2 * policy_output.logp.exp() + policy_output.squares) * batch.completion_mask
        energy = parts.running_sum(share).to(batch.reward.dtype)
        # Tokens are compared by their number among those that the policy wrote.
        order = (~batch.completion_mask).to(torch.int8).argsort(dim=-1, stable=True)
        reached = batch.completion_mask.gather(-1, order)
        baseline = self._baseline(batch.reward, energy.gather(-1, order) * reached, reached, batch.group)
        return (batch.reward[:, None] - baseline).gather(-1, order.argsort(-1))

    def _baseline(
        self, reward: Rowwise, energy: Tokenwise, reached: torch.Tensor, group: torch.Tensor
    ) -> Tokenwise:
        """What rewards (B,) are compared with at each token, (B, T), given the energies of the completions
        that reach it."""
        numbers, inverse = group.unique(return_inverse=True)

        def total(value: Tokenwise) -> Tokenwise:
            """Sum over each row's group."""
            return value.new_zeros(len(numbers), value.shape[1]).index_add(0, inverse, value)[inverse]

        token_reward = reward[:, None].expand_as(energy)
        here = reached.to(reward.dtype)
        weights, count = total(energy), total(here)
        plain = total(token_reward * here) / count.clamp(min=1)
        weighed = total(token_reward * energy) / weights.where(weights > 0, torch.ones_like(weights))
        baseline = weighed.where(weights > 0, plain)
        # Rounding must not give rows of equal rewards a signal, nor a row that is compared with itself.
        alone = count <= 1
        baseline = token_reward.where(parts.group_equal(reward, group)[:, None] | alone, baseline)
        if not self.zero_tail:
            return baseline
        tail = alone & (parts.group_size(group) > 1)[:, None]
        return baseline.masked_fill(tail, 0.0)
