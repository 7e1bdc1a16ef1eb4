"""OTB: a baseline for each token, weighed by how large a gradient each completion has gathered by then."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Models, Rowwise, Tokenwise
from grpobench.algorithms.policy_gradient import ClippedRatio


@dataclass(frozen=True)
class OTB(ClippedRatio):
    """Optimal Token Baseline (arXiv:2602.07078). What a completion adds to the variance of the gradient at
    its token t grows with the squared norm of what it has added up to there, its realized energy W_t; the
    baseline of token t is the group's mean reward weighed by it. A token's own share is the squared norm of
    the gradient of its log-probability with respect to the logits, which needs no backward pass.

    Degenerate cases: a group of one sample gives advantage exactly 0, and so does one of equal rewards but
    where `zero_tail` leaves a reward that is not 0 without a baseline; at a token before which the policy
    never chose, so that no completion has any energy, the baseline is the mean reward of those that reach it.
    """

    name = "otb"
    paper = "The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL, arXiv:2602.07078"
    summary = "a baseline per token: the group's mean reward weighed by squared gradient norms until there"
    formula = (
        "w_it = 1 − 2π(o_it) + Σ_v π_v²;  W_it = Σ_{s≤t} w_is;  b_t = Σ_j W_jt r_j / Σ_j W_jt over the "
        "group's completions that reach token t;  A_it = r_i − b_t;  loss = token mean of "
        "−min(ρ_t A_it, clip(ρ_t, 1−clip_low, 1+clip_high) A_it)"
    )
    departures = (
        "A group of one sample has its plain reward as advantage in the code; here 0. Where energies are "
        "below 1e-8 the code's baseline falls to 0, ours not. The code multiplies w by the square of a "
        "correction of the sampler's probabilities; here none is known when advantages are made. t counts "
        "what the policy wrote, as in the code's form for several turns. The paper trains with one update "
        "per batch (train.num_minibatches = 1), where no clip matters; of its text the abstract was read."
    )
    evidence = (
        "verified: w, W, baseline, its place and the tail in the authors' code "
        "(verl-project/verl@1dda039, verl/trainer/ppo/core_algos.py: "
        "compute_optimal_token_baseline_advantage, compute_multi_turn_optimal_token_baseline_advantage; "
        "examples/otb_trainer/run_qwen3_8b_fsdp.sh); w against autograd, and that no other baseline of a "
        "first token gives less variance, by enumeration"
    )
    cost = "one forward pass of the policy for the sums of squared probabilities"
    minimum_group = 2
    metrics = (*parts.CLIP_METRICS, *parts.KL_METRICS)

    averaging: parts.Averaging = "token_mean"
    """How token terms are averaged; token_mean is the code's default."""
    zero_tail: bool = True
    """Whether tokens that only the longest completion of its group reaches have no baseline, as in the code;
    else they are their own, which gives them advantage 0."""

    def advantage(self, batch: Batch, models: Models) -> Tokenwise:
        said = models.forward("policy", batch, squares=True)
        assert said.squares is not None
        # Squared norm of the gradient with respect to the logits: ‖one-hot − π‖².
        share = (1 - 2 * said.logp.exp() + said.squares) * batch.completion_mask
        energy = share.cumsum(-1).to(batch.reward.dtype)
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

        own = reward[:, None].expand_as(energy)
        here = reached.to(reward.dtype)
        weights, count = total(energy), total(here)
        plain = total(own * here) / count.clamp(min=1)
        weighed = total(own * energy) / weights.where(weights > 0, torch.ones_like(weights))
        baseline = weighed.where(weights > 0, plain)
        # Rounding must not give rows of equal rewards a signal, nor a row that is compared with itself.
        alone = count <= 1
        baseline = own.where(parts.group_equal(reward, group)[:, None] | alone, baseline)
        if not self.zero_tail:
            return baseline
        tail = alone & (parts.group_size(group) > 1)[:, None]
        return baseline.masked_fill(tail, 0.0)
