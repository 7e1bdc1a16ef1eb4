"""TOPR: positive completions are imitated, negative ones unlearned only while they are still likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, Metric, ModelOutput, Models, Rowwise
from grpobench.algorithms.policy_gradient import PolicyGradient, SignedAdvantages


@dataclass(frozen=True)
class TOPR(PolicyGradient):
    """Tapered Off-Policy REINFORCE (arXiv:2503.14286). A completion whose reward is not below the baseline
    gets the gradient of REINFORCE without any importance weight, as in supervised training. One below it is
    weighted by its ratio π/π_old, truncated at 1: pushing down stops once the policy no longer writes it.

    Degenerate cases: on policy every weight is 1 and the gradient is REINFORCE's; a reward equal to the
    baseline trains nothing; groups play no part, so groups of equal rewards and of one completion train like
    any other; an empty completion has no loss term.
    """

    name = "topr"
    paper = (
        "Tapered Off-Policy REINFORCE: Stable and efficient reinforcement learning for LLMs, arXiv:2503.14286"
    )
    summary = "no weight on good completions, truncated importance weights on bad ones; no groups, no KL"
    claim = (
        "Good and bad completions of another policy teach stably without a KL penalty if only the bad ones "
        "are weighed down. On GSM8K and MATH models of 8B get as good as one of 70B (abstract)."
    )
    formula = (
        "A_i = r_i − c;  w_i = 1 if A_i ≥ 0, min(1, Π_t ρ_t) if A_i < 0;  "
        "loss = −1/B Σ_i Σ_t sg[w_i] A_i log π_θ(o_it)"
    )
    departures = (
        "The paper's rewards are 1 and −1 and its baseline is 0; those of the tasks here are 1 and 0, so "
        "that c = 0.5 is the same up to a factor of 2. The paper samples a large data set, trains on it "
        "and samples again; here the recipe says how often a batch is used (train.num_minibatches, "
        'train.epochs) or replays rollouts of the base policy (sampler.kind = "replay"). Its choice of the '
        "share of negative examples, by their number in the data set, is not here; the baseline does the "
        "same in expectation. ROLL and Trinity-RFT truncate the ratio of each token instead: level = "
        '"token".'
    )
    evidence = (
        "verified: token level: loss and gradient equal the losses of ROLL (alibaba/ROLL@8eb27cc, "
        "roll/pipeline/rlvr/actor_pg_worker.py) and Trinity-RFT (yanxi-chen/Trinity-RFT@5b77c08, "
        "trinity/algorithm/policy_loss_fn/topr_policy_loss.py); reconstruction: the "
        "sequence level, which is the default, rewards and baseline, as two summaries and ROLL's comment "
        "quote the paper's equation 8 (weight 1 where R ≥ 0, the sequence's ratio clipped to [0, 1] "
        "elsewhere); of the paper itself only the abstract was read"
    )
    off_policy = True
    credits_turns = False  # its weights go by the sign of the completion's advantage
    metrics = (
        Metric("policy/tapered_weight", "factor", "mean of w over written tokens, 1 on policy"),
        *parts.KL_METRICS,
    )

    averaging: parts.Averaging = "sequence_sum"
    offset: float = 0.5
    """c, the baseline: a constant for every problem. A lower one shifts weight to positive examples."""
    level: Literal["sequence", "token"] = "sequence"
    """Whether the ratio that is truncated is that of the whole completion or of each token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_finite(offset=self.offset)

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        return batch.reward - self.offset

    def compute_signal(self, batch: Batch, models: Models) -> SignedAdvantages:
        return SignedAdvantages.of(self, batch, models)

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        assert isinstance(signal, SignedAdvantages)
        # Detached: the weight multiplies log π, which alone carries the gradient.
        log_ratio = (now.logp.detach() - batch.old_logp) * batch.completion_mask
        if self.level == "sequence":
            log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
        # Truncated before the exponential, which would overflow for a completion that became likelier.
        weight = log_ratio.clamp(max=0.0).exp().where(signal.negative[:, None], 1.0)
        return Loss(weight * signal.advantage * now.logp, {"policy/tapered_weight": weight})
