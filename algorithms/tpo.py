"""TPO: preference pairs without a reference, and imitation of gold answers beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch, Loss, Metric, ModelOutput, Role
from grpobench.algorithms.dpo import DPO

GOLD_METRIC = Metric(
    "expert/nll",
    "nats/token",
    "mean of −log π over the tokens of the expert answers, before the update step",
    "lower",
)


@dataclass(frozen=True)
class TPO(DPO):
    """Triple Preference Optimization (arXiv:2405.16681): of a gold, a better and a worse completion the first
    is imitated, and the others form a pair without a reference.

    Degenerate cases: those of DPO; a step without pairs makes no update, and imitates nothing either; with
    gold = 0 and completions of one length it is DPO with a uniform reference.
    """

    name = "tpo"
    paper = (
        "Triple Preference Optimization: Achieving Better Alignment using a Single Step Optimization, "
        "arXiv:2405.16681"
    )
    summary = "preference pairs without a reference, and imitation of the task's reference answers"
    claim = (
        "One step with gold answers is better than DPO by up to 7.0 points on Arena-Hard and 19.0 on GSM8K, "
        "with hardly longer answers and less data, for models of Mistral and Llama 3 (abstract)."
    )
    formula = (
        "h = Σ_t log π(chosen) − Σ_t log π(rejected);  loss = mean over pairs of −log σ(βh) + "
        "gold·(−1/Σ|y| Σ_y Σ_t log π(y_t)) over gold answers y"
    )
    departures = (
        "The paper's gold answer belongs to the prompt of its pair. Here gold answers are expert completions "
        "of other problems (train.experts: the task's reference answers or a file), expert_answers in each "
        "step, dealt to its updates. The mean over tokens is TRL's. The "
        "length-normalized TPO-L, with a margin, is `simpo` with gold answers and not here. Pairs and "
        "temperature are those of `dpo`."
    )
    evidence = (
        "verified: value and gradient of the loss, with gold answers, equal TRL 1.16's TPOTrainer with its "
        'default loss_type = "sigmoid", whose defaults for β and the gold weight are ours; of the paper only '
        "the abstract was read"
    )
    cost = "a forward and a backward pass over expert_answers answers per step"
    off_policy = True
    metrics = (*DPO.metrics, GOLD_METRIC)

    beta: float = 0.01
    """Scale of the difference of log-probabilities, per nat."""
    gold: float = 1.0
    """Weight of the gold answers' mean negative log-likelihood, TRL's tpo_alpha."""
    expert_answers: int = 16
    """Gold answers per step, dealt to its minibatches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(gold=self.gold)
        parts.demand_count(expert_answers=self.expert_answers)

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        return ()

    def expert_loss(self, batch: Batch, now: Mapping[Role, ModelOutput]) -> Loss:
        logp = now["policy"].logp
        return Loss(-self.gold * logp, {GOLD_METRIC.name: -logp.detach()})

    def expert_weights(self, batch: Batch) -> torch.Tensor:
        return parts.average(batch, "token_mean")
