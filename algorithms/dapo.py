"""DAPO: clip-higher, token mean, dynamic sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from grpobench.algorithms import parts
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized


@dataclass(frozen=True)
class DAPO(GroupNormalized, ClippedRatio):
    """Decoupled Clip and Dynamic Sampling Policy Optimization (arXiv:2503.14476).

    Degenerate cases: groups of equal rewards that dynamic sampling could not replace have advantage
    exactly 0; on policy nothing is clipped and only the averaging differs from GRPO's.
    """

    name = "dapo"
    paper = "DAPO: An Open-Source LLM Reinforcement Learning System at Scale, arXiv:2503.14476"
    summary = "GRPO with a higher upper clip, a mean over all tokens and refilled groups of equal rewards"
    claim = (
        "50 points on AIME 2024 with Qwen2.5-32B, in half of the steps in which DeepSeek's R1-Zero "
        "training of the same base has 47. Dynamic sampling, the last of its changes, takes it from 42 to "
        "50."
    )
    formula = (
        "A_i = (r_i − mean r) / (std r + ε);  loss = −1/Σ|o_i| Σ_i Σ_t "
        "min(ρ_t A_i, clip(ρ_t, 1−clip_low, 1+clip_high) A_i);  a group of equal rewards is replaced by that "
        "of a further problem;  r_i += 0 if |o_i| ≤ L−c, (L−c−|o_i|)/c up to L, −1 beyond"
    )
    departures = (
        "Soft overlong punishment is off, since the paper's c = 4096 of L = 20480 has no meaning at another "
        "limit L; modify.overlong_buffer = L/5 is the same share. A completion ends at L, so the last case "
        "is the one that reaches L. A step draws at most 9 more times and then trains on what it has; the "
        "paper draws until the batch is full. Groups of equal rewards are replaced, which is the paper's 0 "
        "< #correct < G if the reward is the verdict alone. The paper makes 16 updates per rollout batch: "
        "set train.num_minibatches, since with one update the ratio is always 1. The paper leaves ddof "
        "open; it is 1 here. Its formula divides by the tokens of each problem's group (averaging = "
        '"prompt_mean"), its code by those of the minibatch, as here.'
    )
    evidence = (
        "verified: the paper's text; loss and gradient equal TRL 1.16's loss of this name, which has only "
        "the token mean and takes the clip range as an option"
    )
    cost = "further rollouts in place of groups of equal rewards"
    modifiers: ClassVar[Mapping[str, Any]] = {"dynamic_sampling": 9}

    averaging: parts.Averaging = "token_mean"
    clip_high: float = 0.28
