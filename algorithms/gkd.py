"""Generalized knowledge distillation: a divergence to the teacher over the whole vocabulary as the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import (
    Advantage,
    Batch,
    Loss,
    Metric,
    ModelOutput,
    Models,
    Role,
    Rowwise,
)
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized

DIVERGENCE_METRIC = Metric(
    "distill/divergence",
    "nats/token",
    "mean over written tokens of the divergence that is trained on, over the whole vocabulary",
    "lower",
)


@dataclass(frozen=True)
class Distillation(GroupNormalized, ClippedRatio):
    """What methods with a teacher share: it stands beside GRPO's objective of the task, which may count 0."""

    metrics = (*ClippedRatio.metrics, DIVERGENCE_METRIC)

    averaging: parts.Averaging = "token_mean"
    distill_weight: float = 1.0
    """Weight of what the teacher says."""
    task_weight: float = 0.0
    """Weight of the task's group-normalized reward; 0 learns from the teacher alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(distill_weight=self.distill_weight, task_weight=self.task_weight)

    @property
    def minimum_group(self) -> int:  # type: ignore[override]
        return 2 if self.task_weight else 1

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        read = super().reference_roles
        return read if self.teacher_role in (*read, "policy") else (*read, self.teacher_role)

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        return self.task_weight * super().advantage(batch, models)


@dataclass(frozen=True)
class GKD(Distillation):
    """Generalized Knowledge Distillation (arXiv:2306.13649) on the policy's own completions. The recipe names
    the teacher: `model.teacher`.

    The gradient goes through the divergence at each visited state and not through the states' own
    probabilities. With divergence_beta 1 its expectation is that of `opd` with
    discount 0, without the noise of the sampled token.
    Degenerate cases: a policy equal to its teacher has a gradient of 0; a group of one or of equal rewards
    still learns from the teacher; an empty completion has no term.
    """

    name = "gkd"
    paper = (
        "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes, arXiv:2306.13649"
    )
    summary = "forward, reverse or mixed KL to a teacher at every token, differentiated over the vocabulary"
    claim = (
        "A student that learns on its own texts what the teacher thinks of them does better than one that "
        "is taught on fixed texts, in summarization, translation and arithmetic, with T5 models (abstract, "
        "which gives no number)."
    )
    formula = (
        "loss = 1/Σ|o_i| Σ_i Σ_t { distill_weight·D_β(π_teacher‖π)(o_<t) − task_weight·clipped objective of "
        "GRPO };  D_0 = KL(π_teacher‖π), D_1 = KL(π‖π_teacher), D_β = β·KL(π_teacher‖m) + (1−β)·KL(π‖m) "
        "with m = β·π_teacher + (1−β)·π"
    )
    departures = (
        "All completions are the policy's own (the paper's λ = 1); mixing in a fixed data set is not here. "
        "The paper leaves the divergence open, since the best one depends on the task; the default here is "
        "the reverse KL, as in TRL's DistillationTrainer. Its divergence is a mean over each completion "
        '(averaging = "sequence_mean"), ours over all tokens. Beside a task\'s reward the paper weighs the '
        "expected reward with 1 − α and the divergence with α (eq. 5); here these are task_weight, of GRPO's "
        "clipped objective, and distill_weight. The paper samples at temperature 1; here both distributions "
        "have the sampling temperature."
    )
    evidence = (
        "verified: value and gradient of all divergences equal TRL 1.16's generalized_jsd_loss and, "
        "restated in a test, verl's (volcengine/verl@3baac34, verl/trainer/distillation/losses.py), which "
        "cite the paper's eq. 1; the paper's sections 2 and 3 were read in a translation with its equations"
    )
    cost = "one forward pass of the teacher in each update, and its logits"

    divergence_beta: float = 1.0
    """β of the divergence: 0 is the forward KL, 1 the reverse KL, between them the generalized
    Jensen-Shannon divergence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_unit(divergence_beta=self.divergence_beta)

    @property
    def teacher_divergence(self) -> float | None:
        return self.divergence_beta

    def loss(self, batch: Batch, signal: Advantage, now: Mapping[Role, ModelOutput]) -> Loss:
        task = super().loss(batch, signal, now)
        divergence = now["policy"].divergence
        assert divergence is not None
        return Loss(
            task.terms + self.distill_weight * divergence,
            {**task.metrics, DIVERGENCE_METRIC.name: divergence.detach()},
        )
