"""The updates of a step: minibatches, micro-batches, gradients, and what is left out of them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from grpobench.algorithms import returned
from grpobench.algorithms.algorithm import Batch, Role, Signal
from grpobench.runs.metrics.rollout_metrics import MetricAccumulator, gap_metrics
from grpobench.runs.models.optimizer import NonFinite
from grpobench.runs.models.roles import Ruined
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.corrections import Correction
from grpobench.runs.train.parts import Parts

Fresh = list[tuple[torch.Tensor, Batch]]
"""Rows of a first minibatch, with the log-probabilities (b, T) that the trainer reads before any update."""


@dataclass
class Updated:
    """What the updates of a step came to."""

    row: dict[str, float] = field(default_factory=dict)
    left_out: int = 0
    """Updates whose loss, rewards or gradient were not finite."""
    ruined: str = ""
    """Why the weights are of no use any more; empty: they are finite."""


@dataclass
class Differentiated:
    """What the micro-batches of a minibatch came to, whose gradients are added up in the models."""

    loss: torch.Tensor
    """A scalar."""
    tally: MetricAccumulator
    fresh: Fresh = field(default_factory=list)
    tokens: int = 0
    """That were trained on."""


class Updater:
    """Turns batches with their signals into updates of the models."""

    def __init__(self, config: RunConfig, parts: Parts) -> None:
        self.config, self.algorithm, self.models = config, parts.algorithm, parts.models
        self.source, self.sampler, self.clock = parts.source, parts.sampler, parts.clock
        self.schedule = parts.schedule
        self.trained = 0
        """Tokens that were trained on so far."""
        self.begun = False
        """Whether the step under way may have changed weights."""

    def update(
        self,
        batch: Batch,
        signal: Signal,
        tally: MetricAccumulator,
        step: int,
        correction: Correction | None = None,
    ) -> Updated:
        """All optimizer updates of a step."""
        algorithm = self.algorithm
        scale = self.schedule.scale(step)
        roles = algorithm.updated_roles(step)
        norms: dict[str, list[float]] = {}
        made = Updated()
        fresh: Fresh | None = [] if "policy" in roles and self.source.on_policy else None
        anew = "policy" in roles and self._layout_matters()
        plan = [*self._minibatches(batch, signal, step)]
        later = self._old_logp_of(batch, signal, plan[1:]) if anew else []
        for place, rows in enumerate(plan):
            weight = None if correction is None else correction[rows]
            part = batch[rows]
            if anew and place:
                part = dataclasses.replace(part, old_logp=later[place - 1])
            layout = self.models.budget
            loss = self.accumulate(part, signal[rows], roles, tally, fresh, weight, anew and not place)
            if anew and not place and self.models.budget != layout:
                later = self._old_logp_of(batch, signal, plan[1:])
            if fresh:  # the first minibatch read the very weights that sampled
                made.row |= check_gap(gap_metrics(fresh), self.sampler.max_logprob_gap)
                fresh = None
            with self.clock("optimize"):
                try:
                    demand_finite(loss, batch.reward[rows])
                    self.begun = True
                    for name, norm in self.models.step(roles, scale).items():
                        norms.setdefault(name, []).append(norm)
                except NonFinite:
                    self.models.clear()
                    made.left_out += 1
                except Ruined as error:
                    made.ruined = f"{error} after an update of step {step}"
                    break
        made.row |= {name: sum(values) / len(values) for name, values in norms.items()}
        for role in roles:
            made.row[f"learning_rate/{role}"] = self.models.optimizers[role].learning_rate * scale
        made.row["grad/nonfinite"] = float(made.left_out)
        return made

    def _layout_matters(self) -> bool:
        """Whether log π_old is the trainer's in a precision in which it depends on what is read together, so
        that each update needs it as the update itself reads it: else ratios are not 1 where nothing moved."""
        rounded = self.models.dtype != torch.float32
        return rounded and self.source.on_policy and self.config.sampler.old_logp != "sampler"

    def _old_logp_of(self, batch: Batch, signal: Signal, plan: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """log π_old (b, T) of each minibatch, before any update, all with one budget of tokens."""
        with self.clock("forward"):
            while True:
                layout = self.models.budget
                found = [
                    self.models.forward("policy", batch[rows], signal.row_group[rows]).logp for rows in plan
                ]
                if self.models.budget == layout:
                    return found

    def _minibatches(self, batch: Batch, signal: Signal, step: int) -> Iterator[torch.Tensor]:
        """Rows of every update of a step."""
        for epoch in range(self.config.train.epochs):
            seed = derive(self.config.seed, "minibatch", step, epoch)
            yield from minibatches(batch, signal.row_group, self.config.train.num_minibatches, seed)

    def accumulate(
        self,
        batch: Batch,
        signal: Signal,
        roles: Sequence[Role],
        tally: MetricAccumulator,
        fresh: Fresh | None,
        correction: Correction | None = None,
        first: bool = False,
    ) -> torch.Tensor:
        """Gradients of one minibatch; its loss, a scalar. Its weights are made before it is split, which so
        changes nothing. The `first` of a step reads log π_old itself: nothing has been updated yet. What
        memory does not hold is done again in smaller parts, and is counted once."""
        weights = returned.loss_weights(self.algorithm, batch)
        weights = weights if correction is None else correction.of(weights)
        made = self.models.in_micro_batches(
            batch,
            signal.row_group,
            lambda parts: self._differentiate(
                Differentiated(batch.reward.new_zeros(()), MetricAccumulator(tally.catalog)),
                *(batch, signal, weights, roles, parts, first),
            ),
            self.models.clear,
        )
        tally.take(made.tally)
        if fresh is not None:
            fresh += made.fresh
        self.trained += made.tokens
        return made.loss

    def _differentiate(
        self,
        made: Differentiated,
        batch: Batch,
        signal: Signal,
        weights: torch.Tensor,
        roles: Sequence[Role],
        parts: Iterable[torch.Tensor],
        first: bool,
    ) -> Differentiated:
        """Add the gradients of a minibatch's micro-batches, the rows of which are `parts`, and to `made` what
        they come to."""
        algorithm = self.algorithm
        for rows in parts:
            micro = batch[rows]
            with self.clock("forward"):
                now = self.models.forward_train(roles, micro, algorithm.differentiates_entropy)
                if first:
                    micro = dataclasses.replace(micro, old_logp=now["policy"].logp.detach())
                weight = weights[rows]
                loss = returned.loss(algorithm, micro, signal[rows], now, weight)
                total = (loss.terms * weight).sum()
            with self.clock("backward"):
                total.backward()
            point("update")
            made.loss += total.detach()
            made.tally.add(loss.metrics, micro.completion_mask)
            if "policy" in now:
                reading = now["policy"]
                made.tally.add({"trained/entropy": reading.entropy}, micro.completion_mask)
                if self.source.on_policy:
                    made.tally.add(movement(reading.logp.detach(), micro.old_logp), micro.completion_mask)
                made.fresh.append((reading.logp.detach(), micro))
            made.tokens += int(micro.completion_mask.sum())
        return made


def check_gap(gap: dict[str, float], largest: float) -> dict[str, float]:
    """The gap's metrics. Raises RuntimeError where it is larger than the sampler may have it."""
    if gap.get("gap/mean", 0.0) > largest:
        raise RuntimeError(
            f"the sampler and the trainer disagree by {gap['gap/mean']:.2g} nats per token on the same "
            "weights; this model does not give the same probabilities in both"
        )
    return gap


def demand_finite(loss: torch.Tensor, reward: torch.Tensor) -> None:
    """Raises NonFinite for a loss (a scalar) or rewards (B,) that are not finite numbers."""
    if not bool(loss.isfinite() & reward.isfinite().all()):
        raise NonFinite(f"the loss is {loss.item()}, the rewards are from {reward.min()} to {reward.max()}")


def minibatches(batch: Batch, unit: torch.Tensor, count: int, seed: int) -> list[torch.Tensor]:
    """Rows of each minibatch: whole groups in a derived order, spread evenly; rows with unit −1 are left
    out, and so is a minibatch that would be empty."""
    groups: dict[int, list[int]] = {}
    for row, (group, number) in enumerate(zip(batch.group.tolist(), unit.tolist(), strict=True)):
        if number >= 0:
            groups.setdefault(group, []).append(row)
    order = list(groups.values())
    random.Random(seed).shuffle(order)
    dealt = [[row for rows in order[i::count] for row in rows] for i in range(count)]
    return [torch.tensor(rows, device=batch.completion.device) for rows in dealt if rows]


def movement(logp: torch.Tensor, old: torch.Tensor) -> dict[str, torch.Tensor]:
    """Per token: the distance from the policy that sampled, and the ratio to it."""
    ratio = (logp - old).exp()
    return {
        "trained/kl_old": old - logp,
        "trained/ratio_mean": ratio,
        "trained/ratio_min": ratio,
        "trained/ratio_max": ratio,
    }
