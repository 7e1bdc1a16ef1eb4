"""RGRA: GRPO's advantage in plain REINFORCE."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms.policy_gradient import GroupNormalized, Reinforce


@dataclass(frozen=True)
class RGRA(GroupNormalized, Reinforce):
    """REINFORCE with Group Relative Advantage (arXiv:2603.18756): what remains of GRPO without the ratio to
    the old policy and without the clip. Completions below the group's mean are discouraged as in GRPO.

    Degenerate cases: groups of equal rewards and groups of one completion have advantage exactly 0; an
    empty completion has no loss term; at ratio 1, as in the only update of a batch, it is GRPO.
    """

    name = "rgra"
    paper = "Are complicated loss functions necessary for teaching LLMs to reason?, arXiv:2603.18756"
    summary = "GRPO's group-normalized advantages in plain REINFORCE: no ratio, no clip"
    claim = (
        "Of GRPO's parts the negative advantages are needed, ratio and clip are not: without them it can "
        "be better than GRPO in math (abstract, which gives no number)."
    )
    formula = (
        "A_i = (r_i − mean r) / (std r + ε);  loss = −1/B Σ_i 1/|o_i| Σ_t { A_i log π_θ(o_it) − β·KL_t }"
    )
    departures = (
        "The paper keeps GRPO's penalty of the KL to the reference. Its weight could not be read: β is 0 "
        "here, as in `grpo`, so that the two differ in the ratio and the clip alone. Averaging, ε and ddof "
        "are those of `grpo`, for the same reason. With one update per rollout batch it has GRPO's "
        "gradient: set train.num_minibatches, train.epochs or sampler.lag to tell them apart."
    )
    evidence = (
        "reconstruction: from the paper's abstract and a second-hand summary (group-relative advantage and "
        "KL kept, ratio and clip removed, negative advantages kept); the paper's formula and settings were "
        "not read, and no library has it"
    )
