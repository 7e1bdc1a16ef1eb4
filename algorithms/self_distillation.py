"""What methods share whose teacher is the policy itself, or was, and reads more than the policy does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import (
    Advantage,
    Batch,
    Loss,
    ModelOutput,
    Models,
    Role,
    Tokenwise,
)
from grpobench.algorithms.gkd import DIVERGENCE_METRIC, Distillation

LARGEST_GAP = 20.0
"""Most nats between π and π_old of a token in a ratio, so that it stays finite."""

Teacher = Literal["policy", "average", "initial", "model"]
ROLES: Mapping[Teacher, Role] = {
    "policy": "policy",
    "average": "reference",
    "initial": "reference",
    "model": "teacher",
}


@dataclass(frozen=True)
class SelfDistillation(Distillation):
    """A divergence to a teacher with a prompt of its own, beside GRPO's objective of the task, which may
    count 0."""

    averaging: parts.Averaging = "sequence_mean"
    template: str = "{prompt}"
    """The teacher's prompt: ``{prompt}`` is replaced with the problem's prompt, ``{demonstration}`` with the
    answer that the teacher sees."""
    teacher: Teacher = "average"
    """The teacher's weights: the policy's at that moment (policy), their exponential moving average
    (average), those that the run began with (initial), or those of `model.teacher` (model)."""
    teacher_rate: float = 0.05
    """How far the average moves toward the policy after each step."""
    divergence_beta: float = 1.0
    """β of the divergence: 0 is the forward KL(teacher‖policy), 1 the reverse KL, between them the
    generalized Jensen-Shannon divergence."""
    ratio_cap: float = 0.0
    """Largest π/π_old that multiplies the divergence of a token, without a gradient of its own; 0 leaves the
    ratio out. In the first update of a step it is 1."""
    skip_tokens: int = 0
    """Tokens at the beginning of a completion that are left out of the loss, since a teacher that has read
    an example may begin otherwise than an answer should."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{prompt}" not in self.template:
            raise ValueError("template: must contain {prompt}, which stands for the problem's prompt")
        parts.demand_fraction(teacher_rate=self.teacher_rate)
        parts.demand_unit(divergence_beta=self.divergence_beta)
        if not self.ratio_cap >= 0:
            raise ValueError("ratio_cap: must not be negative")
        parts.demand_not_negative(skip_tokens=self.skip_tokens)
        if self.beta and self.teacher == "average":
            raise ValueError(
                "beta: the reference is the teacher, which moves; set beta = 0, or teacher to another choice"
            )

    @property
    def teacher_role(self) -> Role:
        return ROLES[self.teacher]

    @property
    def teacher_divergence(self) -> float | None:
        return self.divergence_beta

    def synchronize(self, step: int) -> float:
        return self.teacher_rate if self.teacher == "average" else 0.0

    def compute_signal(self, batch: Batch, models: Models) -> Advantage:
        signal = super().compute_signal(batch, models)
        if self.task_weight:
            return signal
        # What no teacher reads has no term, and averages are over the others.
        return dataclasses.replace(signal, row_group=signal.row_group.masked_fill(~taught(batch), -1))

    def loss(self, batch: Batch, signal: Advantage, now: Mapping[Role, ModelOutput]) -> Loss:
        task = super().loss(batch, signal, now)
        policy, read = now["policy"], taught(batch)[:, None]
        divergence = policy.divergence
        assert divergence is not None
        weighed = divergence * self.ratio(batch, policy) if self.ratio_cap else divergence
        terms = task.terms + self.distill_weight * weighed.where(read, torch.zeros_like(weighed))
        plain = divergence.detach()
        # NaN is left out of a metric's mean.
        shown = plain.where(read & self.counted(batch), torch.full_like(plain, math.nan))
        return Loss(terms, {**task.metrics, DIVERGENCE_METRIC.name: shown})

    def ratio(self, batch: Batch, policy: ModelOutput) -> Tokenwise:
        """π/π_old of each token, at most `ratio_cap`, without gradient."""
        gap = (policy.logp.detach() - batch.old_logp).clamp(-LARGEST_GAP, LARGEST_GAP)
        return gap.exp().clamp(max=self.ratio_cap)

    def counted(self, batch: Batch) -> torch.Tensor:
        """Bool (B, T): tokens of the policy's behind the first `skip_tokens`."""
        written = batch.completion_mask
        return written & (written.long().cumsum(-1) > self.skip_tokens)

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return super().loss_weights(dataclasses.replace(batch, completion_mask=self.counted(batch)))


def taught(batch: Batch) -> torch.Tensor:
    """Bool (B,): whether the teacher reads a row."""
    if batch.teacher_prompt_length is None:
        return torch.ones_like(batch.stopped)
    return batch.teacher_prompt_length > 0


def demand_demonstration(template: str) -> None:
    """Raise ValueError for a template that shows the teacher no answer."""
    if "{demonstration}" not in template:
        raise ValueError(
            "template: must contain {demonstration}, which stands for the answer that the teacher is shown"
        )
