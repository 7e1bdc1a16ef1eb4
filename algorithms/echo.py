"""ECHO: GRPO that also learns to predict what the environment replies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, Metric, ModelOutput, Role
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized

REPLY_METRIC = Metric(
    "policy/reply_nll",
    "nats/token",
    "mean over episodes with replies of −log π of the environment's tokens, before the update step",
    "lower",
)


@dataclass(frozen=True)
class ECHO(GroupNormalized, ClippedRatio):
    """Environment Cross-entropy Hybrid Objective (arXiv:2605.24517), for tasks of several turns: the
    environment's replies are imitated, whatever became of the episode.

    Degenerate cases: with reply_weight = 0, in tasks of one turn and for episodes that end after their first
    turn it is GRPO with these settings; groups of equal rewards have advantage 0 and learn from the replies
    alone; an episode without replies counts as one whose replies are certain, unless tokens are averaged.
    """

    name = "echo"
    label = "ECHO"
    paper = "ECHO: Terminal Agents Learn World Models for Free, arXiv:2605.24517"
    summary = "GRPO with cross-entropy on the environment's replies, which teach in failed episodes too"
    claim = (
        "What a terminal answers is supervision that every episode has: pass@1 on TerminalBench-2.0 rises "
        "from 2.70 to 5.17 % for Qwen3-8B and from 5.17 to 10.79 % for Qwen3-14B against the same GRPO, "
        "whose best results are reached in 1.5 to 2.3 times fewer steps."
    )
    formula = (
        "A_i = (r_i − mean r)/(std r + ε);  loss = −1/B Σ_i 1/|o_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1−clip_low, "
        "1+clip_high) A_i), over what the policy wrote, − reply_weight/B Σ_i 1/|e_i| Σ_t log π(e_it), over "
        "the environment's tokens e_i"
    )
    departures = (
        "Both terms are averaged by `averaging`, each over its own tokens. The paper's formula divides the "
        "policy's term by the tokens of all episodes, its recipe says per sequence, as here. It leaves out "
        "warnings of its harness, which still count in |e_i|; here all that stands between two turns is a "
        "reply, the marks of a chat template included. The authors' filters of episodes are not here. "
        'sampler.correction_level = "sequence" weighs the replies of an episode like its turns.'
    )
    evidence = (
        "verified: the paper's text (equations 1 to 3, algorithm 1, its λ); value and gradient equal "
        "prime-rl (PrimeIntellect-ai/prime-rl@559b447, src/prime_rl/trainer/rl/loss.py: compute_loss, "
        "ce_loss_fn) and, with a mean over sequences, a copy of the authors' code "
        "(leon2k2k2k/echo-rl@3066734, echo_rl/world_modeling/loss.py), both restated in the tests; "
        "log-probabilities of replies and the gradient through a model equal transformers'"
    )
    cost = "the output head over the environment's tokens"
    metrics = (*parts.CLIP_METRICS, *parts.KL_METRICS, REPLY_METRIC)

    reply_weight: float = 0.05
    """λ, weight of the replies' mean negative log-likelihood. The authors' useful range is from 0.01 to 0.05;
    prime-rl has 0.1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(reply_weight=self.reply_weight)

    @property
    def learns_replies(self) -> bool:
        return self.reply_weight > 0

    def loss(self, batch: Batch, signal: Advantage, now: Mapping[Role, ModelOutput]) -> Loss:
        plain, logp, replies = super().loss(batch, signal, now), now["policy"].logp, batch.replies
        if replies is None:
            undefined = torch.full_like(batch.reward, math.nan)
            return Loss(plain.terms, {**plain.metrics, REPLY_METRIC.name: undefined})
        # 0/0 where an episode has no reply, which leaves it out of the mean.
        nll = -(logp.detach() * replies).sum(-1) / replies.sum(-1)
        terms = torch.where(replies, -self.reply_weight * logp, plain.terms)
        return Loss(terms, {**plain.metrics, REPLY_METRIC.name: nll})

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        weights = super().loss_weights(batch)
        if batch.replies is None:
            return weights
        of_replies = dataclasses.replace(batch, completion_mask=batch.replies)
        return weights + super().loss_weights(of_replies)
