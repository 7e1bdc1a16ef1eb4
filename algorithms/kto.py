"""KTO: single completions, desirable or not, against a reference point shared by the batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
class Labeled(Signal):
    """Rows with labels of their own; each is a row group."""

    sign: Rowwise
    """+1 for a desirable completion, −1 for an undesirable one."""
    reference: Rowwise
    """log π_ref of the whole completion."""
    point: Rowwise
    """z_ref in nats, the same number in every row."""


@dataclass(frozen=True)
class KTO(Algorithm[Labeled]):
    """Kahneman-Tversky Optimization (arXiv:2402.01306).

    A completion is desirable if its reward reaches a threshold: online from the policy's rollouts, or from
    base rollouts (sampler.kind = "replay") or a preference file (sampler.kind = "preferences"), whose chosen
    completions have reward 1 and whose rejected ones have 0. No pairs are made.
    Degenerate cases: groups of equal rewards, single rows and batches of one label train like any other,
    since labels are not compared; an empty completion has log-ratio 0 and no gradient; at π = π_ref z_ref
    is 0 and the gradient is ∓β·λ/4·∇log π.
    """

    name = "kto"
    paper = "KTO: Model Alignment as Prospect Theoretic Optimization, arXiv:2402.01306"
    summary = "desirable and undesirable completions, unpaired, against a shared KL; online or offline"
    claim = (
        "A label of each completion, good or bad, is enough: without pairs it is as good as or better than "
        "methods that learn from preferences, from 1B to 30B (abstract)."
    )
    formula = (
        "d = Σ_t log π/π_ref(o);  loss = mean over completions of desirable_weight·(1 − σ(β(d − z))) if "
        "r ≥ threshold, otherwise undesirable_weight·(1 − σ(β(z − d)));  z = max(0, mean of "
        "Σ_t log π_old/π_ref over completions under prompts of other problems), without gradient;  rollouts: "
        "under their own prompts"
    )
    departures = (
        "Labels come from rewards, by a threshold. z is estimated once per step from its whole batch and the "
        "policy before the update; the authors and TRL estimate it in every forward pass from the "
        "policy's current weights. Each completion is matched once with a prompt of another problem, in an "
        "order of texts, where the authors take the next completion and TRL the previous one of a shuffled "
        "batch, which may answer the same problem. Matches that are longer than the batch's longest prompt "
        "and completion, which might not fit into the model's context, and empty completions are left out "
        "of z; without any match, as in a batch of one problem, z is 0. Log-probabilities are those at the "
        "sampling temperature."
    )
    evidence = (
        "verified: loss, z and weights in the authors' code (ContextualAI/HALOs@4831988, train/trainers.py, "
        "train/dataloader.py, config/loss/kto.yaml); loss and gradient equal TRL 1.16's; of the paper only "
        "the abstract was read"
    )
    cost = (
        "one forward pass of the reference over the rollouts; mismatched: two more, of the reference and of "
        "the policy"
    )
    off_policy = True
    metrics = (
        Metric("kto/desirable_gain", "nats", "mean of d over desirable completions", "higher"),
        Metric("kto/undesirable_gain", "nats", "mean of d over undesirable completions", "lower"),
        Metric("kto/desirable", "share of rows", "completions whose reward reaches the threshold", "higher"),
        Metric("kto/reference_point", "nats", "z, the estimated KL that gains are compared with", "lower"),
    )

    beta: float = 0.1
    """How fast the value of a gain saturates: low values let the policy leave the reference."""
    desirable_weight: float = 1.0
    """Weight of desirable completions, λ_D in the paper."""
    undesirable_weight: float = 1.0
    """Weight of undesirable completions, λ_U in the paper."""
    threshold: float = 1.0
    """Least reward of a desirable completion. With less than a right answer earns, a wrong one of the right
    format may count as desirable."""
    reference_point: Literal["mismatched", "rollouts", "zero"] = "mismatched"
    """Where z comes from: completions under prompts of other problems (mismatched, the authors' estimate for
    completions that the policy did not write), the batch's own completions (rollouts, an unbiased estimate
    of the KL if the policy has just written them, and no KL if another did), or nowhere (zero)."""

    def __post_init__(self) -> None:
        parts.demand_positive(beta=self.beta)
        parts.demand_not_negative(
            desirable_weight=self.desirable_weight, undesirable_weight=self.undesirable_weight
        )
        parts.demand_finite(threshold=self.threshold)

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        return ("reference",)

    def compute_signal(self, batch: Batch, models: Models) -> Labeled:
        reference = (models.forward("reference", batch).logp * batch.completion_mask).sum(-1)
        ones = torch.ones_like(batch.reward)
        sign = torch.where(batch.reward >= self.threshold, ones, -ones)
        point = ones * self.kl(batch, models, reference)
        return Labeled(parts.rows(batch), sign, reference, point)

    def kl(self, batch: Batch, models: Models, reference: Rowwise) -> torch.Tensor:
        """z_ref, a scalar."""
        gain = reference.new_zeros(0)
        if self.reference_point == "rollouts":
            gain = (batch.old_logp * batch.completion_mask).sum(-1) - reference
        elif self.reference_point == "mismatched":
            prompts, completions = mismatch(batch)
            if len(prompts):
                crossed = cross(batch, prompts, completions)
                policy, frozen = (models.forward(role, crossed).logp for role in ("policy", "reference"))
                gain = ((policy - frozen) * crossed.completion_mask).sum(-1)
        return gain.mean().clamp(min=0) if len(gain) else reference.new_zeros(())

    def observe(self, batch: Batch, signal: Labeled) -> dict[str, float]:
        if not len(batch):
            return {"kto/desirable": math.nan, "kto/reference_point": math.nan}
        return {
            "kto/desirable": (signal.sign > 0).double().mean().item(),
            "kto/reference_point": signal.point[0].item(),
        }

    def loss(self, batch: Batch, signal: Labeled, now: Mapping[Role, ModelOutput]) -> Loss:
        gain = (now["policy"].logp * batch.completion_mask).sum(-1) - signal.reference
        desirable = signal.sign > 0
        weight = torch.where(
            desirable,
            torch.full_like(gain, self.desirable_weight),
            torch.full_like(gain, self.undesirable_weight),
        )
        # 1 − σ(x) as σ(−x), which does not round to 0
        terms = weight * torch.sigmoid(-self.beta * signal.sign * (gain - signal.point))
        plain = gain.detach()
        missing = torch.full_like(plain, float("nan"))  # NaN is left out of a metric's mean
        metrics = {
            "kto/desirable_gain": torch.where(desirable, plain, missing),
            "kto/undesirable_gain": torch.where(desirable, missing, plain),
        }
        return Loss(terms, metrics)

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return parts.per_sequence(batch)


def mismatch(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows whose prompts, rows whose completions) are put together, both (N,): every completion that is not
    empty at most once, with the prompt of another problem. Texts decide, so that the order of rows and the
    numbers of groups do not."""
    written = [
        tuple(completion[mask].tolist())
        for completion, mask in zip(batch.completion, batch.completion_mask, strict=True)
    ]
    groups: dict[int, list[int]] = {}
    for row, number in enumerate(batch.group.tolist()):
        if written[row]:
            groups.setdefault(number, []).append(row)
    prompt_length, length = batch.prompt_length.tolist(), batch.length.tolist()

    def text(rows: list[int]) -> tuple[list[int], list[tuple[int, ...]]]:
        prompt: list[int] = batch.prompt[rows[0], : prompt_length[rows[0]]].tolist()
        return prompt, [written[row] for row in rows]

    ordered = sorted((sorted(rows, key=lambda row: written[row]) for rows in groups.values()), key=text)
    ring = [row for rows in ordered for row in rows]
    # A step of the largest group leaves every group, unless it holds more than half of the rows.
    step = max((len(rows) for rows in ordered), default=0)
    room = max((prompt_length[row] + length[row] for row in ring), default=0)
    number = batch.group.tolist()
    pairs = [
        (row, other)
        for row, other in zip(ring, ring[step:] + ring[:step], strict=True)
        if number[row] != number[other] and prompt_length[row] + length[other] <= room
    ]
    chosen = torch.tensor(pairs, dtype=torch.long, device=batch.group.device).view(-1, 2)
    return chosen[:, 0], chosen[:, 1]


def cross(batch: Batch, prompts: torch.Tensor, completions: torch.Tensor) -> Batch:
    """The completions of some rows under the prompts of others, to be read by a model."""
    prompt_rows = batch[prompts]
    return dataclasses.replace(
        batch[completions],
        prompt=prompt_rows.prompt,
        prompt_length=prompt_rows.prompt_length,
        group=prompt_rows.group,
    )
