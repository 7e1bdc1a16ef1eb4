"""DPO, online from groups or offline from recorded rollouts and preference data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import (
    Algorithm,
    Batch,
    Loss,
    Metric,
    ModelOutput,
    Models,
    Role,
    Rowwise,
    Signal,
)


@dataclass(frozen=True)
class Paired(Signal):
    """Rows that form pairs: both rows of a pair have its number as `row_group`."""

    sign: Rowwise
    """+1 for the chosen row, −1 for the rejected one, 0 for a row left out."""
    reference: Rowwise
    """log π_ref of the whole completion; 0 if no reference is read."""


@dataclass(frozen=True)
class DPO(Algorithm[Paired]):
    """Direct Preference Optimization (arXiv:2305.18290), eq. 7.

    Pairs come from the completions of a problem: the policy's own rollouts (online), one round of base
    rollouts (sampler.kind = "replay") or a preference file (sampler.kind = "preferences").
    Degenerate cases: a group of equal rewards makes no pair and is left out; a step without pairs makes
    no update.
    """

    name = "dpo"
    paper = "Direct Preference Optimization: Your Language Model is Secretly a Reward Model, arXiv:2305.18290"
    summary = "pairs of better and worse completions against a frozen reference; online or offline"
    claim = (
        "A classification loss on preference pairs solves the problem of RLHF without a reward model and "
        "without sampling. It controls sentiment better than PPO, and is as good or better in summarization "
        "and dialogue of one turn, with models of up to 6B."
    )
    formula = (
        "h = Σ_t log π/π_ref(chosen) − Σ_t log π/π_ref(rejected);  loss = mean over pairs of −log σ(βh)  "
        "+ nll·(−1/|o| Σ_t log π(chosen))"
    )
    departures = (
        "Pairs are built from scored completions: in each group the best with the worst by reward, never "
        "ties, each completion in at most one pair. Among equal rewards the k-th shortest chosen completion "
        "meets the k-th shortest rejected one, so that length says little about preference. "
        "Log-probabilities are those at the sampling temperature."
    )
    evidence = "verified: the paper's text; loss and gradient equal TRL 1.16's"
    cost = "one forward pass of the reference over the paired completions"
    off_policy = True
    minimum_group = 2
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("preference/chosen_logp", "nats", "mean log π of chosen completions", "higher"),
        Metric("preference/rejected_logp", "nats", "mean log π of rejected completions", "lower"),
        Metric("preference/margin", "nats", "mean of β·h over pairs", "higher"),
        Metric("preference/accuracy", "share of pairs", "pairs with h > 0", "higher"),
        Metric(
            "preference/pairs", "pairs per update step", "pairs trained on, epochs counted", "higher", "sum"
        ),
    )

    beta: float = 0.1
    """Inverse strength of the pull to the reference."""
    nll: float = 0.0
    """Weight of the chosen completion's mean negative log-likelihood; Iterative RPO (arXiv:2404.19733)
    uses 1."""
    pairs_per_group: int = 0
    """Most pairs from one problem; 0 takes all."""

    def __post_init__(self) -> None:
        parts.demand_positive(beta=self.beta)
        parts.demand_not_negative(nll=self.nll, pairs_per_group=self.pairs_per_group)

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        return ("reference",)

    def compute_signal(self, batch: Batch, models: Models) -> Paired:
        rows = zip(batch.completion, batch.completion_mask, strict=True)
        texts = [completion[written].tolist() for completion, written in rows]
        row_group, sign = pair_up(batch.reward, texts, batch.group, self.pairs_per_group)
        reference = torch.zeros_like(batch.reward)
        used = (row_group >= 0).nonzero().squeeze(-1)
        if len(used) and self.reference_roles:  # the reference reads only rows in pairs
            chosen = batch[used]
            reference[used] = (models.forward("reference", chosen).logp * chosen.completion_mask).sum(-1)
        return Paired(row_group, sign, reference)

    def loss(self, batch: Batch, signal: Paired, now: Mapping[Role, ModelOutput]) -> Loss:
        logp = (now["policy"].logp * batch.completion_mask).sum(-1)
        preferred = signal.sign > 0
        # A micro-batch holds whole pairs, whose numbers have gaps: renumber them from 0.
        pair, _ = parts.numbered(signal.row_group)
        gain = signal.sign * self.gain(logp - signal.reference, batch)
        h = torch.zeros_like(logp).index_add(0, pair, gain).index_select(0, pair)
        terms = 0.5 * self.preference(h)  # each of a pair's two rows carries half of its loss
        if self.nll:
            terms = terms - self.nll * preferred * logp / batch.completion_mask.sum(-1).clamp(min=1)
        plain, margin = logp.detach(), self.beta * h.detach()
        missing = torch.full_like(plain, float("nan"))  # NaN is left out of a metric's mean
        metrics = {
            "preference/chosen_logp": torch.where(preferred, plain, missing),
            "preference/rejected_logp": torch.where(preferred, missing, plain),
            "preference/margin": margin,
            "preference/accuracy": (margin > 0).float(),
            "preference/pairs": preferred.float(),
        }
        return Loss(terms, metrics)

    def gain(self, log_ratio: Rowwise, batch: Batch) -> Rowwise:
        """What h compares, given log π/π_ref of each whole completion."""
        return log_ratio

    def preference(self, h: Rowwise) -> Rowwise:
        """Loss of pairs with the difference h."""
        return -torch.nn.functional.logsigmoid(self.beta * h)

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        # 2/B: a batch of B rows holds B/2 pairs, over which the paper averages.
        return 2 * parts.per_sequence(batch)


def pair_up(
    reward: Rowwise, texts: Sequence[Sequence[int]], group: torch.Tensor, most: int
) -> tuple[torch.Tensor, Rowwise]:
    """(row_group, sign) of each row, both (B,): pairs of a better and a worse row of one group. The tokens of
    the rows break ties of length, so that the order of rows decides nothing."""
    row_group = torch.full_like(group, -1)
    sign = torch.zeros_like(reward)
    values = reward.tolist()
    members: dict[int, list[int]] = {}
    for row, number in enumerate(group.tolist()):
        members.setdefault(number, []).append(row)
    pairs = 0
    for rows in members.values():
        best = sorted(rows, key=lambda row: (-values[row], len(texts[row]), texts[row]))
        worst = sorted(rows, key=lambda row: (values[row], len(texts[row]), texts[row]))
        count = sum(values[b] > values[w] for b, w in zip(best[: len(rows) // 2], worst, strict=False))
        for chosen, rejected in list(zip(best, worst, strict=True))[: min(count, most or count)]:
            row_group[chosen], row_group[rejected] = pairs, pairs
            sign[chosen], sign[rejected] = 1.0, -1.0
            pairs += 1
    return row_group, sign
