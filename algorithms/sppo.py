"""SPPO: log-ratios of the best and worst completion are regressed on their win probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms.algorithm import Batch, Loss, Metric, ModelOutput, Models, Role, Rowwise
from grpobench.algorithms.dpo import DPO, Paired


@dataclass(frozen=True)
class Contested(Paired):
    """Pairs with the probability that each row wins."""

    win: Rowwise
    """P(o ≻ π_ref), estimated from the group."""


@dataclass(frozen=True)
class SPPO(DPO):
    """Self-Play Preference Optimization (arXiv:2405.00675), eq. 4.7.

    The reference is the policy of the current iteration, which also drew the completions: one round of base
    rollouts (sampler.kind = "replay") is the first iteration, and `modify.reference_every` begins another one
    after so many steps.
    Degenerate cases: those of DPO; a completion whose log-ratio is η(P − ½) has no gradient. At
    π = π_ref the gradient is −η(P − ½)·∇log π, a policy gradient with the win probability as advantage.
    """

    name = "sppo"
    paper = "Self-Play Preference Optimization for Language Model Alignment, arXiv:2405.00675"
    summary = "squared error of log-ratios against win probabilities in the group; online or offline"
    claim = (
        "Self-play with 60,000 prompts and a preference model of 0.4B takes Mistral 7B Instruct to a "
        "length-controlled win rate of 28.53 % against GPT-4 Turbo on AlpacaEval 2.0, above iterative DPO "
        "and IPO (abstract)."
    )
    formula = (
        "d = Σ_t log π/π_ref(o);  loss = mean over pairs of ½ Σ_{chosen, rejected} (d − (P − ½)/β)²  "
        "+ nll·(−1/|o| Σ_t log π(chosen));  P(o_i) = mean over the group's j of P(o_i ≻ o_j), "
        "σ(r_i − r_j) or, hard, [r_i > r_j] + ½[r_i = r_j];  β is 1/η of the paper"
    )
    departures = (
        "Preferences are made from rewards; the paper asks a model (PairRM). "
        'win = "sigmoid" is what the authors\' code makes of scores: with rewards of 0 and 1 no P leaves '
        '(0.269, 0.731), where win = "hard" gives 0 to 1. The reference is the initial policy until '
        "`modify.reference_every` replaces it; the paper begins three iterations. Of a group only the best "
        "and the worst completion are trained on, as the authors do (pairs_per_group = 1); they take the "
        "first of equal ones, here `dpo` says which. TRL's sppo_hard, which knows the pair alone, is "
        'opponents = "pair" with win = "hard" times two, since it adds the two errors up; its β is 0.1. '
        "Temperature is that of `dpo`."
    )
    evidence = (
        "verified: loss, win probabilities and β = 0.001 in the authors' code (uclaml/SPPO@5e61c4e, "
        "sppo/trainer.py, scripts/compute_prob.py, scripts/pipeline.sh); loss and gradient equal TRL 1.16's "
        'with loss_type = "sppo_hard"; of the paper only the abstract was read; TRL cites eq. 4.7'
    )
    metrics = (
        *(metric for metric in DPO.metrics if metric.name != "preference/margin"),
        Metric("sppo/error", "nats", "mean of |d − (P − ½)/β| over paired completions", "lower"),
        Metric("sppo/win", "probability", "mean of P over chosen completions", "neither"),
    )

    beta: float = 0.001
    """1/η: a completion that always wins is asked for 1/(2β) nats more than the reference gives it."""
    pairs_per_group: int = 1
    """Most pairs from one problem; 0 takes all."""
    win: Literal["sigmoid", "hard"] = "sigmoid"
    """Probability that a reward beats another: the sigmoid of their difference (Bradley-Terry), or 1, ½ for
    equal ones and 0."""
    opponents: Literal["group", "pair"] = "group"
    """Whom a completion has to beat: its whole group, itself included, or the other of its pair."""

    def compute_signal(self, batch: Batch, models: Models) -> Contested:
        paired = super().compute_signal(batch, models)
        win = torch.full_like(batch.reward, 0.5)
        unit = batch.group if self.opponents == "group" else paired.row_group
        for number in unit[paired.row_group >= 0].unique():
            rows = unit == number
            win[rows] = self.chances(batch.reward[rows])
        return Contested(paired.row_group, paired.sign, paired.reference, win)

    def chances(self, reward: Rowwise) -> Rowwise:
        """The probability of each of N rewards to win, (N,)."""
        difference = reward[:, None] - reward
        chance = difference.sigmoid() if self.win == "sigmoid" else 0.5 * (1 + difference.sign())
        if self.opponents == "group":
            return chance.mean(-1)
        return chance.sum(-1) - 0.5  # of two, without itself

    def loss(self, batch: Batch, signal: Paired, now: Mapping[Role, ModelOutput]) -> Loss:
        assert isinstance(signal, Contested)
        plain = super().loss(batch, signal, now)
        gain = (now["policy"].logp * batch.completion_mask).sum(-1) - signal.reference
        error = gain - (signal.win - 0.5) / self.beta
        # Half of the pair's loss in each row, as in DPO, whose weights are 2/B.
        terms = plain.terms + 0.5 * error.square()
        metrics = {name: value for name, value in plain.metrics.items() if name != "preference/margin"}
        missing = torch.full_like(signal.win, float("nan"))
        metrics["sppo/error"] = error.detach().abs()
        metrics["sppo/win"] = torch.where(signal.sign > 0, signal.win, missing)
        return Loss(terms, metrics)

    def preference(self, h: Rowwise) -> Rowwise:
        """Nothing: the loss compares each completion with its own target."""
        return torch.zeros_like(h)
