"""The updates of a step: minibatches, micro-batches, gradients, and the updates that are skipped."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from grpobench.algorithms import returned
from grpobench.algorithms.algorithm import (
    Batch,
    Loss,
    Metric,
    ModelOutput,
    Role,
    Signal,
)
from grpobench.runs.metrics.ratios import departures
from grpobench.runs.metrics.rollout_metrics import MetricAccumulator, gap_metrics
from grpobench.runs.models.optimizer import NonFinite
from grpobench.runs.models.role_weights import Ruined
from grpobench.runs.models.roles import MicroBatches, RoleModels
from grpobench.runs.models.teaching import as_taught
from grpobench.runs.models.weight_noise import NoisyWeights
from grpobench.runs.sample.sampler import Sampler
from grpobench.runs.settings.config import RunConfig, SamplerConfig
from grpobench.runs.settings.truncation import truncation_of
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.corrections import Correction
from grpobench.runs.train.loss_scale import LossScale
from grpobench.runs.train.parts import RunParts

LogpOfRows = list[tuple[torch.Tensor, Batch]]
"""Log-probabilities (b, T) of the trainer's for some rows, and these rows."""


@dataclass
class Updated:
    """The result of a step's updates."""

    row: dict[str, float] = field(default_factory=dict)
    left_out: int = 0
    """Updates skipped because their loss, rewards or gradient were not finite."""
    overflows: int = 0
    """Updates skipped because the scaled loss had a gradient too large for float16."""
    ruined: str = ""
    """Why the weights are not finite any more; empty: they are."""


@dataclass(frozen=True)
class PlannedUpdate:
    """An update of a step."""

    phase: int
    number: int
    """In its phase, from 0."""
    updates: int
    """In its phase."""
    roles: Sequence[Role]
    rows: torch.Tensor
    signal: Signal
    """Of all rows."""
    old_logp: OldLogp


@dataclass
class Differentiated:
    """The sums over the micro-batches of a minibatch. The models hold the sums of the gradients."""

    loss: torch.Tensor
    """A scalar."""
    tokens: torch.Tensor
    """Trained tokens, a long scalar: a number would wait for the device in every micro-batch."""
    tally: MetricAccumulator
    logp: LogpOfRows = field(default_factory=list)
    """The policy's, by micro-batch."""

    @classmethod
    def zero(cls, device: torch.device, catalog: Mapping[str, Metric]) -> Differentiated:
        loss, tokens = torch.zeros((), device=device), torch.zeros((), dtype=torch.long, device=device)
        return cls(loss, tokens, MetricAccumulator(catalog))


class Updater:
    """Turns batches with their signals into updates of the models."""

    def __init__(self, config: RunConfig, parts: RunParts) -> None:
        self.config, self.algorithm, self.models = config, parts.algorithm, parts.models
        self.source, self.sampler, self.clock = parts.source, parts.sampler, parts.clock
        self.schedule = parts.schedule
        self.trained = 0
        """Tokens trained on so far."""
        self.begun = False
        """Whether the current step may have changed weights."""
        self.noise = parts.noise
        self.loss_scale = LossScale() if self.models.dtype == torch.float16 and not self.noise else None
        """Of what is differentiated in float16; None: nothing is scaled."""

    def update(
        self,
        batch: Batch,
        signal: Signal,
        tally: MetricAccumulator,
        step: int,
        correction: Correction | None = None,
        experts: Batch | None = None,
    ) -> Updated:
        """All optimizer updates of a step. `experts` are expert completions, dealt to its updates."""
        scale = self.schedule(step)
        norms: dict[str, list[float]] = {}
        updated = Updated()
        for planned in self._planned(batch, signal, step):
            number, rows, roles, trained = planned.number, planned.rows, planned.roles, self.trained
            # The first minibatch is computed with the weights that sampled (without a lag), so only its gap
            # is the sampler's error; every later one also has the distance that the updates have gone.
            first_logp: LogpOfRows | None = [] if self._on_policy(roles) and number == 0 else None
            loss = self.accumulate(
                planned.old_logp.minibatch(number),
                planned.signal[rows],
                roles,
                tally,
                first_logp,
                None if correction is None else correction[rows],
                planned.old_logp.of_first_update(number),
                dealt(experts, number, planned.updates) if "policy" in roles else None,
            )
            if planned.phase:  # the same tokens again, for other roles
                self.trained = trained
            if number == 0:
                planned.old_logp.keep_up_with_budget()
            if first_logp:
                updated.row |= check_gap(
                    gap_metrics(first_logp), allowed_gap(self.sampler, self.models, self.config.sampler)
                )
            self._optimize(loss, batch.reward[rows], roles, scale, updated, norms)
            if updated.ruined:
                # No further update: every gradient would be NaN.
                updated.ruined += f" after an update of step {step}"
                break
        updated.row |= {name: sum(values) / len(values) for name, values in norms.items()}
        for role in self.algorithm.updated_roles(step):
            updated.row[f"learning_rate/{role}"] = self.models.optimizers[role].learning_rate * scale
        updated.row["grad/nonfinite"] = float(updated.left_out)
        if self.loss_scale:
            updated.row["grad/overflow"] = float(updated.overflows)
            updated.row["grad/loss_scale"] = self.loss_scale.value
        return updated

    def _planned(self, batch: Batch, signal: Signal, step: int) -> Iterator[PlannedUpdate]:
        """The updates of a step. What a phase begins with is computed when the one before it is over."""
        plan = [*self._minibatches(batch, signal, step)]
        for phase, roles in enumerate(self.algorithm.phases(step)):
            if phase:
                with self.clock("forward"), torch.no_grad():
                    signal = returned.realign(self.algorithm, batch, signal, self.models)
            # All of them now: log π_old of the later ones is computed before the first update.
            old_logp = self._old_logp(batch, signal, plan, roles)
            for number, rows in enumerate(plan):
                yield PlannedUpdate(phase, number, len(plan), roles, rows, signal, old_logp)

    def _minibatches(self, batch: Batch, signal: Signal, step: int) -> Iterator[torch.Tensor]:
        """The rows of every update of a step."""
        for epoch in range(self.config.train.epochs):
            # By the epoch, so that each deals the groups anew.
            seed = derive(self.config.seed, "minibatch", step, epoch)
            yield from minibatches(batch, signal.row_group, self.config.train.num_minibatches, seed)

    def _on_policy(self, roles: Sequence[Role]) -> bool:
        """Whether these roles include the policy that wrote the rollouts."""
        return "policy" in roles and self.source.on_policy and not self.noise

    def needs_layout(self, roles: Sequence[Role]) -> bool:
        """Whether log π_old has to be computed in the layout of each update (see `OldLogpByLayout`)."""
        rounded = self.models.dtype != torch.float32
        recomputes = self.config.sampler.old_logp != "sampler"
        return rounded and recomputes and self._on_policy(roles)

    def _optimize(
        self,
        loss: torch.Tensor,
        reward: torch.Tensor,
        roles: Sequence[Role],
        scale: float,
        updated: Updated,
        norms: dict[str, list[float]],
    ) -> None:
        """Update the roles with their gradients, unless something is not finite. Adds to `updated` and to the
        gradients' `norms`."""
        with self.clock("optimize"):
            overflown = False
            try:
                demand_finite(loss, reward)
                # Behind a finite loss, a gradient that is not finite may be the scale's fault.
                overflown = self.loss_scale is not None
                # Before norms are taken and clipped.
                self.unscale(roles)
                # Before the update, since one that is interrupted may have changed some of the weights.
                self.begun = True
                for name, norm in self.models.step(roles, scale).items():
                    norms.setdefault(name, []).append(norm)
                if self.loss_scale:
                    self.loss_scale.grow()
            except NonFinite:
                self.models.clear()  # else the next minibatch would add to these gradients
                if overflown and self.loss_scale and self.loss_scale.shrink():
                    updated.overflows += 1
                else:
                    updated.left_out += 1
            except Ruined as error:
                updated.ruined = str(error)

    def unscale(self, roles: Iterable[Role]) -> None:
        """Divide the gradients that roles hold by the scale of the losses, if there is one."""
        if self.loss_scale:
            for role in roles:
                self.loss_scale.divide(self.models.optimizers[role].weights.gradients().values())

    def _old_logp(
        self, batch: Batch, signal: Signal, plan: Sequence[torch.Tensor], roles: Sequence[Role]
    ) -> OldLogp:
        """Where each minibatch's log π_old comes from."""
        if not self.needs_layout(roles):
            return OldLogp(batch, plan)
        return OldLogpByLayout(batch, plan, lambda later: self._forward(batch, signal, later), self.models)

    def _forward(self, batch: Batch, signal: Signal, plan: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """log π (b, T) of each minibatch, all with one token budget."""
        with self.clock("forward"):
            while True:
                budget = self.models.budget
                logp = [
                    self.models.forward("policy", batch[rows], signal.row_group[rows]).logp for rows in plan
                ]
                # Where memory gave out, the minibatches before that had another layout than those after it.
                if self.models.budget == budget:
                    return logp

    def accumulate(
        self,
        batch: Batch,
        signal: Signal,
        roles: Sequence[Role],
        tally: MetricAccumulator,
        logp: LogpOfRows | None,
        correction: Correction | None = None,
        first: bool = False,
        experts: Batch | None = None,
    ) -> torch.Tensor:
        """Add up the gradients of one minibatch and of its expert completions, if it has any; returns its
        loss, a scalar. `logp`, if given, gets the policy's log-probabilities. In the `first` update of a step
        they are also log π_old."""
        if self.noise:
            return self._accumulate_noise(self.noise, batch, signal, tally)
        sums = self.differentiate(batch, signal, roles, tally.catalog, correction, first, experts)
        # After the gradients: once, however often memory ran out.
        self.models.flops.add_update(roles, batch)
        if experts is not None:
            self.models.flops.add_update(("policy",), experts)
        if self.algorithm.teacher_divergence is not None and "policy" in roles:
            self.models.flops.add_forward(self.algorithm.teacher_role, as_taught(batch))
        tally.take(sums.tally)
        if logp is not None:
            logp += sums.logp
        self.trained += int(sums.tokens)
        return sums.loss

    def _accumulate_noise(
        self, noise: NoisyWeights, batch: Batch, signal: Signal, tally: MetricAccumulator
    ) -> torch.Tensor:
        """The same where the rollouts' weights had noise: the gradient is a sum of the noises, weighted by
        what the loss makes of the density of each row's weights (`Algorithm.weight_noise`)."""
        assert batch.member is not None
        written, absent = batch.completion_mask, batch.old_logp[:, :0]
        density = torch.zeros(len(batch), device=batch.reward.device, requires_grad=True)
        parts = written / written.sum(-1, keepdim=True).clamp(min=1)
        weights = returned.loss_weights(self.algorithm, batch)
        now: dict[Role, ModelOutput] = {"policy": ModelOutput(density[:, None] * parts, absent, absent)}
        loss = returned.loss(self.algorithm, batch, signal, now, weights)
        total = (loss.terms * weights).sum()
        (slope,) = torch.autograd.grad(total, density)
        with self.clock("backward"):
            noise.add_gradient(batch.step, batch.member, slope)
        tally.add(loss.metrics, written)
        self.trained += int(written.sum())
        return total.detach()

    def differentiate(
        self,
        batch: Batch,
        signal: Signal,
        roles: Sequence[Role],
        catalog: Mapping[str, Metric],
        correction: Correction | None = None,
        first: bool = False,
        experts: Batch | None = None,
    ) -> Differentiated:
        """Add the gradient of one minibatch, with its expert completions, to those that the models hold, in
        micro-batches; changes nothing else."""
        # Of the whole minibatch, so that splitting it into micro-batches does not change its average.
        weights = returned.loss_weights(self.algorithm, batch)
        weights = weights if correction is None else correction.of(weights)
        batches = [(batch, signal.row_group)]
        if experts is not None:
            # In micro-batches of their own, so that those of the rollouts are as without them.
            batches.append((experts, torch.arange(len(experts), device=experts.group.device)))

        def work(splits: Sequence[MicroBatches]) -> Differentiated:
            # Sums of their own for each attempt: one that runs out of memory is repeated from its start, with
            # smaller micro-batches, and must not count twice.
            sums = Differentiated.zero(batch.reward.device, catalog)
            for rows in splits[0]:
                micro, now, loss, total = self._loss(batch[rows], signal[rows], weights[rows], roles, first)
                if splits[0].filling:
                    # The other ranks reduce their gradients layer by layer and wait for this one's.
                    self._backward(total * 0)
                    continue
                self._backward(total)
                # Detached: a sum with its graph would keep every micro-batch in memory.
                self._measure(sums, micro, now, loss, total.detach())
            if experts is not None:
                self._imitate(experts, splits[1], sums)
            return self._of_all_ranks(sums)

        return self.models.in_micro_batches_of(batches, work, self.models.clear)

    def _of_all_ranks(self, sums: Differentiated) -> Differentiated:
        """The sums of all ranks, of which the models have added up the gradients already."""
        if self.models.ranks.alone:
            return sums
        total = Differentiated.zero(sums.loss.device, sums.tally.catalog)
        for loss, parts, logp, tokens in self.models.gathered(
            [(sums.loss, sums.tally.parts, sums.logp, sums.tokens)]
        ):
            total.loss += loss
            for name, values in parts.items():
                total.tally.parts.setdefault(name, []).extend(values)
            total.logp += logp
            total.tokens += tokens
        return total

    def _imitate(self, experts: Batch, micro_batches: MicroBatches, sums: Differentiated) -> None:
        """Add the gradient of expert completions, and what they measure, to the sums of their minibatch."""
        weights = returned.expert_weights(self.algorithm, experts)
        for rows in micro_batches:
            micro = experts[rows]
            with self.clock("forward"):
                now = self.models.forward_train(("policy",), micro)
                loss = returned.expert_loss(self.algorithm, micro, now, weights[rows])
                total = (loss.terms * weights[rows]).sum()
            if micro_batches.filling:
                self._backward(total * 0)
                continue
            self._backward(total)
            sums.loss += total.detach()
            # Neither entropy nor movement: these are of what the policy wrote.
            sums.tally.add(loss.metrics, micro.completion_mask)
            sums.tokens += micro.completion_mask.sum()

    def _loss(
        self, micro: Batch, signal: Signal, weights: torch.Tensor, roles: Sequence[Role], first: bool
    ) -> tuple[Batch, Mapping[Role, ModelOutput], Loss, torch.Tensor]:
        """(the micro-batch with its log π_old, the outputs of the roles, the loss terms, their weighted
        sum)."""
        with self.clock("forward"):
            now = self.models.forward_train(
                roles,
                micro,
                self.algorithm.differentiates_entropy,
                divergence=self.algorithm.teacher_divergence,
                teacher=self.algorithm.teacher_role,
            )
            if first:
                # Detached, so that the ratio π/π_old is exactly 1 and yet has a gradient.
                micro = dataclasses.replace(micro, old_logp=now["policy"].logp.detach())
            loss = returned.loss(self.algorithm, micro, signal, now, weights)
            # A sum, never a mean: the weights hold the average over the minibatch.
            return micro, now, loss, (loss.terms * weights).sum()

    def _backward(self, total: torch.Tensor) -> None:
        """Add the gradients of a micro-batch to those of its minibatch."""
        with self.clock("backward"):
            (total if self.loss_scale is None else total * self.loss_scale.value).backward()
        point("update")

    def _measure(
        self,
        sums: Differentiated,
        micro: Batch,
        now: Mapping[Role, ModelOutput],
        loss: Loss,
        total: torch.Tensor,
    ) -> None:
        """Add a micro-batch to the sums of its minibatch."""
        completion_mask = micro.completion_mask
        sums.loss += total
        sums.tally.add(loss.metrics, completion_mask)
        if "policy" in now:
            logp = now["policy"].logp.detach()  # kept beyond this micro-batch, which its graph must not be
            sums.tally.add({"trained/entropy": now["policy"].entropy}, completion_mask)
            if self.source.on_policy:
                sums.tally.add(movement(logp, micro.old_logp, completion_mask), completion_mask)
            sums.logp.append((logp, micro))
        sums.tokens += completion_mask.sum()


class OldLogp:
    """The minibatches of a step with the log π_old that the batch has."""

    def __init__(self, batch: Batch, plan: Sequence[torch.Tensor]) -> None:
        self.batch, self.plan = batch, plan

    def minibatch(self, number: int) -> Batch:
        """The rows of an update, counted from 0."""
        return self.batch[self.plan[number]]

    def of_first_update(self, number: int) -> bool:
        """Whether the update's own forward pass gives log π_old."""
        return False

    def keep_up_with_budget(self) -> None:
        """Called after the first gradients and before the first update."""


class OldLogpByLayout(OldLogp):
    """The same with log π_old computed in the layout of each update.

    In bfloat16 a log-probability depends on what else is in the forward pass. Each update therefore needs
    log π_old from micro-batches like its own: else ratios are not 1 where no weight has moved. The first
    update's own forward pass gives it, since no weight has changed before; for the others `forward` computes
    it in advance.
    """

    def __init__(
        self,
        batch: Batch,
        plan: Sequence[torch.Tensor],
        forward: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
        models: RoleModels,
    ) -> None:
        super().__init__(batch, plan)
        self.forward, self.models = forward, models
        self.later = forward(plan[1:])
        self.budget = models.budget

    def minibatch(self, number: int) -> Batch:
        batch = super().minibatch(number)
        return dataclasses.replace(batch, old_logp=self.later[number - 1]) if number else batch

    def of_first_update(self, number: int) -> bool:
        return number == 0

    def keep_up_with_budget(self) -> None:
        # The first gradients may have run out of memory and halved the budget, which changes the layout of
        # the later updates. Only now, before the first of them, can log π_old still be computed again.
        if self.models.budget != self.budget:
            self.later = self.forward(self.plan[1:])


def allowed_gap(sampler: Sampler, models: RoleModels, settings: SamplerConfig) -> float:
    """The largest mean gap in nats per token that is no fault: infinite while the sampler uses earlier
    weights on purpose (before the first update of a lagged run it does not yet), or draws from a truncated
    distribution."""
    different = models.past.staleness or truncation_of(settings).active
    return math.inf if different else sampler.max_logprob_gap


class GapTooLarge(RuntimeError):
    """Sampler and trainer give the same tokens other probabilities than their precision explains."""

    def __init__(self, gap: dict[str, float]) -> None:
        self.gap = gap
        self.distance = f"the sampler and the trainer disagree by {gap['gap/mean']:.2g} nats per token"
        super().__init__(
            f"{self.distance} on the same weights; this model does not give the same probabilities in both"
        )


def check_gap(gap: dict[str, float], largest: float) -> dict[str, float]:
    """The metrics of a gap. Raises GapTooLarge if its mean exceeds `largest` nats per token."""
    if gap.get("gap/mean", 0.0) > largest:
        raise GapTooLarge(gap)
    return gap


def demand_finite(loss: torch.Tensor, reward: torch.Tensor) -> None:
    """Raises NonFinite for a loss (a scalar) or rewards (B,) that are not finite numbers."""
    # One `bool` for both, because each waits for the device.
    if not bool(loss.isfinite() & reward.isfinite().all()):
        raise NonFinite(f"the loss is {loss.item()}, the rewards are from {reward.min()} to {reward.max()}")


def minibatches(batch: Batch, row_group: torch.Tensor, count: int, seed: int) -> list[torch.Tensor]:
    """The rows of each minibatch: whole groups in a shuffled order, dealt evenly. Rows with row group −1 are
    left out, and so is an empty minibatch."""
    groups: dict[int, list[int]] = {}
    for row, (group, number) in enumerate(zip(batch.group.tolist(), row_group.tolist(), strict=True)):
        if number >= 0:
            groups.setdefault(group, []).append(row)
    order = list(groups.values())
    # A generator of its own: the order depends on nothing but the seed.
    random.Random(seed).shuffle(order)
    dealt = [[row for rows in order[i::count] for row in rows] for i in range(count)]
    return [torch.tensor(rows, device=batch.completion.device) for rows in dealt if rows]


def dealt(experts: Batch | None, number: int, updates: int) -> Batch | None:
    """The expert completions of an update, counted from 0, of so many of a step; each goes to one."""
    if experts is None or number >= len(experts):
        return None
    return experts[torch.arange(number, len(experts), updates, device=experts.group.device)]


def movement(logp: torch.Tensor, old: torch.Tensor, completion_mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Per token: log π_old − log π, and the ratio π/π_old; one ratio for three reductions. And where it is
    far from 1."""
    ratio = (logp - old).exp()
    return {
        "trained/kl_old": old - logp,
        "trained/ratio_mean": ratio,
        "trained/ratio_min": ratio,
        "trained/ratio_max": ratio,
        **departures("trained/ratio_", logp - old, completion_mask),
    }
