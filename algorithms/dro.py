"""DRO: REINFORCE with a quadratic pull of each token's log-probability to the old policy's."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, ModelOutput
from grpobench.algorithms.policy_gradient import GroupNormalized


@dataclass(frozen=True)
class DRO(GroupNormalized):
    """Direct Reward Optimization (arXiv:2405.19107) in the form that libraries give it: the square of the
    log ratio is taken for each token, and the group's mean replaces the paper's value function. `kimi` has
    the square of the whole completion's log ratio.

    Degenerate cases: on policy the gradient is REINFORCE's with the group's mean as baseline; with one
    token per completion it is `kimi`'s; groups of equal rewards and of one completion are only pulled back
    to π_old; an empty completion has no loss term.
    """

    name = "dro"
    paper = "Offline Regularised Reinforcement Learning for Large Language Models Alignment, arXiv:2405.19107"
    summary = "policy gradient with a squared log-ratio of each token as its trust region: no ratio, no clip"
    claim = (
        "Single rated completions are enough where others need pairs, and a squared error learns from them "
        "better than KTO: on UltraFeedback its answers win 63.4 % of comparisons with KTO's with a T5 of "
        "770M, and 57.5 % with one of 3B."
    )
    formula = (
        "loss = −1/Σ|o_i| Σ_i Σ_t { A_i log π_θ(o_it) − τ/2 (log π_θ(o_it) − log π_old(o_it))² };  "
        "A_i = r_i − mean r"
    )
    departures = (
        "The paper's square is that of the whole completion's log-ratio to a frozen reference, and its "
        "baseline a value function in a network of its own, trained with the policy on recorded single "
        "completions; verl's loss, which this is, has a square per token, of the ratio to π_old, and takes "
        "any advantage. The paper's τ is 1, the best of 0.1, 1 and 5, for a whole completion. verl demands "
        "a τ and has no default; 0.05 is the number in its unit test of the formula, which trains nothing. "
        'Advantages are not divided by a deviation (scale = "none"), as the paper\'s reward minus value is '
        "not; its rewards have mean 0 and variance 1 over the whole data set."
    )
    evidence = (
        "verified: loss and gradient equal verl's (verl-project/verl@1dda039, "
        "verl/trainer/ppo/core_algos.py: compute_policy_loss_dro; "
        "tests/trainer/ppo/test_dynamic_policy_losses_on_cpu.py); what differs from the paper was read in "
        "its sections 3 and 4"
    )
    off_policy = True
    metrics = (parts.LOG_RATIO_METRIC, *parts.KL_METRICS)

    averaging: parts.Averaging = "token_mean"
    scale: parts.Scale = "none"
    temperature: float = 0.05
    """τ: strength of the pull to the old policy, per token; verl's dro_beta."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(temperature=self.temperature)

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        square = (now.logp - batch.old_logp).square()
        terms = signal.advantage * now.logp - self.temperature / 2 * square
        return Loss(terms, {parts.LOG_RATIO_METRIC.name: square.detach()})
