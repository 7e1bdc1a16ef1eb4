"""RFT: supervised training on the policy's own correct completions, as a control."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Algorithm, Batch, Loss, Metric, ModelOutput, Models, Role, Signal


@dataclass(frozen=True)
class RFT(Algorithm[Signal]):
    """Rejection-sampling fine-tuning (arXiv:2308.01825): negative log-likelihood of the completions whose
    reward reaches a threshold; the others are left out. It is a control for what an algorithm's negative
    examples and weights add.

    Degenerate cases: without a correct completion there is no update; a group of equal, correct
    completions is trained on like any other; an empty completion has no loss term.
    """

    name = "rft"
    paper = (
        "Scaling Relationship on Learning Mathematical Reasoning with Large Language Models, arXiv:2308.01825"
    )
    summary = "control: supervised training on completions whose reward reaches a threshold"
    claim = (
        "A model's own right solutions are training data, the better the more they differ: with samples of "
        "several models LLaMA 7B has 49.3 % on GSM8K, where supervised training has 35.9 % (abstract)."
    )
    formula = "loss = token mean of −log π(o_t) over the completions with r ≥ threshold"
    departures = (
        "Completions come from the policy of every step. The paper samples 100 for each problem once, at "
        "temperature 0.7, from a fine-tuned model, and trains the base model again on them and on the "
        'original answers (set sampler.kind = "replay" for one round of base rollouts). It keeps one '
        "completion of each list of equations and drops those with a wrong calculation; here all with enough "
        "reward stay."
    )
    evidence = (
        "verified: the paper's section 3.3; the loss in closed form. It is a control with a plain SFT "
        "objective"
    )
    off_policy = True
    metrics = (
        Metric("rft/nll", "nats/token", "mean of −log π over the tokens that are trained on", "lower"),
        Metric("rft/kept", "share of rows", "completions whose reward reaches the threshold", "higher"),
    )

    threshold: float = 1.0
    """Least reward of a completion that is trained on."""
    averaging: parts.Averaging = "token_mean"
    """How token terms are averaged: sequence_mean (GRPO), sequence_sum (log-probabilities of whole
    completions), token_mean (DAPO), turn_mean (over each turn's tokens, then over turns), prompt_mean (over
    each group's tokens, then over groups; ScaleRL, arXiv:2510.13786) or constant (Dr. GRPO)."""

    def __post_init__(self) -> None:
        parts.demand_finite(threshold=self.threshold)

    def compute_signal(self, batch: Batch, models: Models) -> Signal:
        return Signal(parts.rows(batch).masked_fill(batch.reward < self.threshold, -1))

    def observe(self, batch: Batch, signal: Signal) -> dict[str, float]:
        return {"rft/kept": (signal.row_group >= 0).double().mean().item() if len(batch) else math.nan}

    def loss(self, batch: Batch, signal: Signal, now: Mapping[Role, ModelOutput]) -> Loss:
        terms = -now["policy"].logp
        return Loss(terms, {"rft/nll": terms.detach()})

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return parts.average(batch, self.averaging)
