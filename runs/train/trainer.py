"""One step of any algorithm: collect rollouts, compute log π_old and the signal, update, synchronize the
sampler."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpobench.algorithms import returned
from grpobench.algorithms.algorithm import Batch, Signal
from grpobench.algorithms.curriculum import Informed, expected_value, is_cumulative
from grpobench.runs.metrics.catalog import catalog
from grpobench.runs.metrics.rollout_metrics import (
    MetricAccumulator,
    categories_of,
    entropy,
    gap_metrics,
    sampled_metrics,
    trained_metrics,
)
from grpobench.runs.metrics.turns import credit_metrics, turn_metrics
from grpobench.runs.models.base_policy import BasePolicy
from grpobench.runs.models.flops import FORWARD
from grpobench.runs.models.token_budgets import ModelError, TokenBudget
from grpobench.runs.observe.observers import Observers
from grpobench.runs.sample.rollouts import (
    Group,
    RowIndex,
    environment_replies,
    find_graded_rows,
    pack_groups,
)
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.truncation import truncation_of
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.machine import read_peak_memory_gb
from grpobench.runs.tools.process import safe_point
from grpobench.runs.train import token_numbers
from grpobench.runs.train.checked_curriculum import CheckedCurriculum
from grpobench.runs.train.corrections import Correction, correct
from grpobench.runs.train.gradient_noise import GradientNoise
from grpobench.runs.train.parts import RunParts
from grpobench.runs.train.progress import Progress, transcript
from grpobench.runs.train.recorded_routes import forward_recording
from grpobench.runs.train.rollouts import OnPolicy
from grpobench.runs.train.update import GapTooLarge, Updated, Updater, allowed_gap, check_gap
from grpobench.runs.train.watch import Watch
from grpobench.tasks.task import Split

MOST_SKIPPED = 3
"""Steps in a row that may leave updates out for a loss, reward or gradient that is not finite; with the next
such step the run has diverged."""
RESTORED = {
    *("curriculum", "generated", "trained", "sampler_tokens", "flops", "skipped"),
    *("gradient_noise", "optimizers", "token_budgets"),
}
"""Keys of a checkpoint's state that a trainer continues from."""


@dataclass
class StepRecord:
    """What a step measures, from which its row of metrics.jsonl is made."""

    step: int
    tally: MetricAccumulator
    """What each micro-batch measures."""
    row: dict[str, float] = field(default_factory=dict)
    """What is measured once in the step."""
    gap: dict[str, float] = field(default_factory=dict)
    """Between the sampler and the trainer over the whole batch, if log π_old took a forward pass."""
    sampled: Sequence[Group] = ()
    """All groups of the step, also those that the curriculum rejected."""
    groups: Sequence[Group] = ()
    """The groups to train on."""
    logp: torch.Tensor | None = None
    """The current policy's log-probabilities (B, T) of everything in `sampled`, if its entropy took a forward
    pass."""
    entropy: torch.Tensor | None = None
    """The entropy (B, T) of everything in `sampled`, if it took a forward pass."""
    trained: Batch | None = None
    """The rows that the updates use; None before the rollouts are collected."""


class Trainer:
    """Makes the steps of a run. Holds its parts and how far it has come."""

    def __init__(
        self,
        config: RunConfig,
        parts: RunParts,
        report: Callable[[Progress], None] = lambda _: None,
        observers: Observers | None = None,
    ) -> None:
        self.config, self.parts, self.report = config, parts, report
        self.observers = observers or Observers()
        self.algorithm, self.loaded, self.models = parts.algorithm, parts.loaded, parts.models
        self.sampler, self.source, self.curriculum = parts.sampler, parts.source, parts.curriculum
        self.clock, self.limit = parts.clock, parts.limit
        self.updater = Updater(config, parts)
        self.metrics = catalog(config.algorithm)
        self.noise = GradientNoise(config, self.updater, self.metrics)
        self.categories = categories_of(self.source.problems)
        # Here, before a checkpoint is restored: the weights are still those of the base.
        self.base_policy = self._keep_base() if config.evaluate.kl_base else None
        self.last_reward = self.last_rate = math.nan
        self.skipped = 0
        """Steps in a row that left updates out."""
        self.groups: Sequence[Group] = ()
        """Of the last step, those to train on."""
        self.token_numbers: dict[RowIndex, dict[str, Any]] = {}
        """Of the last step, what its rollouts file says of the tokens of each rollout, if anything."""
        self.dump = False
        """Whether the step's rollouts are saved although the schedule does not ask for it."""
        self.agreed = False
        """Whether sampler and trainer have once given the same probabilities, as far as their type allows."""
        self.diverged = ""
        """Why the run cannot go on: a result, not an error."""
        self.collapsed = ""
        """The event that ends the run, where its recipe says so: a result too."""
        self.lowered: list[dict[str, Any]] = []
        """The token budgets that this attempt lowered for want of memory, with the step that reported it."""
        self.watch = Watch(config)
        self.algorithm_state = self.algorithm.initial_state()
        """What the algorithm carries from step to step: that of the next step, once a step is finished."""

    @property
    def over(self) -> bool:
        """Whether the run makes no further step."""
        return bool(self.diverged or self.collapsed)

    @property
    def transcript(self) -> Iterator[dict[str, Any]]:
        """The last step's rollouts as a rollouts file holds them, made on demand: few steps have a file."""
        for number, group in enumerate(self.groups):
            rows = [self.token_numbers.get((number, index)) for index in range(len(group.rollouts))]
            yield transcript(group, self.loaded, rows)

    def evaluate(self, number: int, step: int, split: Split) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """(rows, numbers) of the evaluator with that number on a split."""
        return self.parts.evaluators[number].evaluate(step, split)

    def tell(self, step: int, phase: str) -> None:
        self.report(Progress(step, self.config.train.steps, self.last_reward, self.last_rate, phase))

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs beside tensors."""
        scale = self.updater.loss_scale
        return {
            "curriculum": self.curriculum.state(),
            "generated": self.source.generated,
            "trained": self.updater.trained,
            "sampler_tokens": self.source.sampler_tokens,
            "flops": self.models.flops.total,
            "skipped": self.skipped,
            "agreed": self.agreed,
            "gradient_noise": self.noise.state(),
            "optimizers": self.models.counters(),
            "token_budgets": {
                name: token_budget.state() for name, token_budget in self.token_budgets().items()
            },
            "algorithm": self.algorithm_state,
            **({"loss_scale": scale.state()} if scale else {}),
        }

    def token_budgets(self) -> dict[str, TokenBudget]:
        """The token budgets, by the name under which a checkpoint keeps them."""
        return {"reading": self.models.token_budget, **self.sampler.token_budgets}

    def restore(self, tensors: dict[str, dict[str, torch.Tensor]], state: dict[str, Any]) -> None:
        """Continue from the weights and the `state` of a checkpoint. Raises ModelError for a checkpoint of an
        older version, which lacks a part."""
        if not state.keys() >= RESTORED:
            raise ModelError("the checkpoint is of an older version; delete the run's folder to start over")
        self.models.restore(tensors, state["optimizers"])
        self.sampler.sync()  # after the weights: an engine still holds those of the base
        self.curriculum.restore(state["curriculum"])
        self.source.generated, self.source.sampler_tokens = state["generated"], state["sampler_tokens"]
        self.updater.trained, self.skipped = state["trained"], state["skipped"]
        self.agreed = state.get("agreed", False)  # checkpoints of version 0.3.0 lack it
        self.models.flops.total = state["flops"]
        self.noise.restore(state["gradient_noise"])
        if self.updater.loss_scale:
            self.updater.loss_scale.restore(state["loss_scale"])
        # An algorithm may have got its state since.
        self.algorithm_state = state.get("algorithm", self.algorithm_state)
        for name, token_budget in self.token_budgets().items():
            token_budget.restore(state["token_budgets"].get(name, {}))

    # One step

    def step(self, step: int) -> dict[str, float]:
        """One training step. Returns its row of metrics.jsonl, without the evaluations."""
        with self._recording(step) as record:
            batch = self.collect_rollouts(record)
            # The curriculum may reject every group, and the grader may fail on every completion.
            if len(batch):
                try:
                    self._train_on(batch, record)
                except GapTooLarge as error:
                    self._count_gap(error, record)
        return record.row

    def _train_on(self, batch: Batch, record: StepRecord) -> None:
        # From here on: passes that only measure, as in `collect_rollouts`, are not counted.
        with self.models.flops.counting():
            batch = self.compute_old_logp(batch, record)
            correction = self.compute_correction(batch, record)
            signal = self.compute_signal(batch, record)
            self.measure_noise(batch, signal, correction, record)
            self.update(batch, signal, correction, record)
            if not self.diverged:
                self.advance_state(batch)
        self.measure_tokens(batch, signal, record)
        if not self.diverged:
            self.synchronize(record)

    def _count_gap(self, error: GapTooLarge, record: StepRecord) -> None:
        """A gap that updates opened is a result: rounding no longer hides what weights of this size compute.
        Raises the error for any other, which is a fault of the sampler."""
        rounds = self.models.dtype != torch.float32
        if not (self.agreed and rounds and self.sampler.reads_trainer_weights):
            raise error
        record.row |= error.gap
        dtype = str(self.models.dtype).removeprefix("torch.")
        self.diverged = f"{error.distance} at step {record.step} in {dtype}, and agreed before"

    @contextlib.contextmanager
    def _recording(self, step: int) -> Iterator[StepRecord]:
        """Around a step: what has to be reset before it, and its row after it."""
        began, generated = time.perf_counter(), self.source.generated
        self.clock.seconds.clear()
        self.dump = self.updater.begun = False
        self.token_numbers = {}
        record = StepRecord(step, MetricAccumulator(self.metrics))
        yield record
        point("step")
        # From here on the weights are those of a finished step, so that a checkpoint may hold them.
        self.updater.begun = False
        assert record.trained is not None
        row = record.row | trained_metrics(record.trained, record.sampled) | record.tally.numbers()
        record.row = self.finish_step(row, record.groups, began, generated)

    def collect_rollouts(self, record: StepRecord) -> Batch:
        """Sample and grade the groups of a step. Returns the graded rollouts to train on, as one batch."""
        self.tell(record.step - 1, "sampling")
        record.sampled, record.groups = self.gather(record.step)
        # Before the first forward pass of the step: from here on to `synchronize` nothing is sampled.
        with self.clock("sync"):
            self.sampler.sleep()
        device = str(self.models.device)
        batch = pack_groups(record.groups, self.limit, record.step, self.loaded.pad, device)
        replies = environment_replies(batch) if self.algorithm.learns_replies else None
        batch = dataclasses.replace(batch, state=self.algorithm_state, replies=replies)
        record.trained = batch
        # Before the updates: the entropy is that of the policy that sampled.
        record.row |= sampled_metrics(record.sampled, self.categories)
        record.row |= turn_metrics(record.sampled, self.loaded)
        record.row |= self.policy_metrics(record.sampled, record.step, record)
        if self.config.sampler.lag:
            record.row["sampler/lag"] = float(self.models.past.staleness)
        return batch

    def compute_old_logp(self, batch: Batch, record: StepRecord) -> Batch:
        """The batch with log π_old: the sampler's log-probabilities where they are as good as the trainer's
        and nothing compares the two, else those of a forward pass with the current weights, which also
        measures their gap."""
        self.tell(record.step - 1, "training")
        if not self._needs_forward_for_old_logp():
            return batch
        with self.clock("forward"):
            if self.config.sampler.router_replay == "R2":
                old_logp, routes = forward_recording(self.models, batch)
                batch = dataclasses.replace(batch, routed_experts=routes)
            else:
                old_logp = self._current_logp(batch, record)
        allowed = allowed_gap(self.sampler, self.models, self.config.sampler)
        record.gap = check_gap(gap_metrics([(old_logp, batch)]), allowed)
        self.agreed = True
        return dataclasses.replace(batch, old_logp=old_logp)

    def _current_logp(self, batch: Batch, record: StepRecord) -> torch.Tensor:
        """log π (B, T) of a step's batch: from the pass that gave the entropy, if there was one with the same
        weights."""
        if record.logp is None:
            return self.models.forward("policy", batch).logp
        self.models.flops.add_forward("policy", batch)  # which nobody counted for a metric
        rows = find_graded_rows(record.groups, record.sampled)
        return record.logp[rows, : batch.completion.shape[1]]

    def _needs_forward_for_old_logp(self) -> bool:
        settings = self.config.sampler
        # Rollouts of another policy keep what was recorded with them: the policy of now is not their π_old.
        # With noise in the weights none of the trainer's probabilities are those of the rollouts.
        noisy = self.algorithm.weight_noise is not None
        if not self.source.on_policy or settings.old_logp == "sampler" or noisy:
            return False
        # A correction is the ratio of the trainer's π_old to the sampler's: it needs both. With a lag the
        # sampler is exact about weights that the trainer no longer has.
        trusted = self.sampler.exact and settings.correction == "none" and not settings.lag
        # The policy's probabilities are of all tokens.
        trusted = trusted and not truncation_of(settings).active
        # R2 replays the routes of this pass.
        trusted = trusted and settings.router_replay != "R2"
        return not (settings.old_logp == "auto" and trusted)

    def compute_correction(self, batch: Batch, record: StepRecord) -> Correction | None:
        """The importance weights π_old / π_sampler, if the recipe asks for them."""
        correction = correct(batch, self.config.sampler)
        if correction:
            record.row |= correction.metrics(batch.completion_mask)
        return correction

    def compute_signal(self, batch: Batch, record: StepRecord) -> Signal:
        """The advantages or preference pairs, once for all updates of the step."""
        # Without gradient: the loss takes the signal as a constant, even if a trained critic computed it.
        with self.clock("forward"), torch.no_grad():
            signal: Signal = returned.compute_signal(self.algorithm, batch, self.models)
            record.row |= returned.observe(self.algorithm, batch, signal)
        if self.config.task.turns > 1 and self.algorithm.has_advantages:
            record.row |= credit_metrics(self.config.task, self.loaded, record.groups, batch, signal)
        # −1 marks rows that the algorithm leaves out of its updates.
        record.trained = batch[(signal.row_group >= 0).nonzero().squeeze(-1)]
        return signal

    def measure_noise(
        self, batch: Batch, signal: Signal, correction: Correction | None, record: StepRecord
    ) -> None:
        """The variance of the policy's gradient at the weights before the updates, where it is due."""
        if self.noise.due(record.step):
            record.row |= self.noise.measure(batch, signal, correction, record.step)

    def update(self, batch: Batch, signal: Signal, correction: Correction | None, record: StepRecord) -> None:
        """All optimizer updates of the step."""
        experts = None
        if self.parts.experts:
            device = str(self.models.device)
            experts = self.parts.experts.batch(record.step, self.limit, self.loaded.pad, device)
        updated = self.updater.update(batch, signal, record.tally, record.step, correction, experts)
        cause = returned.unsound(self.algorithm, batch, signal) if updated.left_out else ""
        if cause and not self.skipped:
            warnings.warn(f"an update of step {record.step} is left out: {cause}", stacklevel=2)
        self._count_failures(updated, record.step, cause)
        # A gap over the whole batch replaces the one that the first minibatch measured.
        record.row |= updated.row | record.gap
        self.agreed |= "gap/mean" in updated.row

    def advance_state(self, batch: Batch) -> None:
        """What the algorithm carries to the next step, after the updates of this one. If these are left out,
        its rollouts count all the same."""
        with self.clock("forward"), torch.no_grad():
            self.algorithm_state = returned.next_state(self.algorithm, batch, self.models)

    def measure_tokens(self, batch: Batch, signal: Signal, record: StepRecord) -> None:
        """What the rollouts file of the step says of each token, where it is due: one more forward pass,
        which changes nothing and which `cost/flops` does not count."""
        if not token_numbers.is_due(self.config, record.step):
            return
        after = None
        if not self.diverged:
            with self.clock("forward"):
                after = self.models.forward("policy", batch).logp
        entropy = token_numbers.entropies(record.groups, record.sampled, record.entropy)
        numbers = token_numbers.numbers_of(batch, signal, entropy, after)
        self.token_numbers = token_numbers.by_rollout(record.groups, numbers, self.loaded)

    def synchronize(self, record: StepRecord) -> None:
        """Move the reference where the algorithm does so, and give the new weights to the sampler."""
        if mix := self.algorithm.synchronize(record.step):
            self.models.follow(mix)
        with self.clock("sync"):
            record.row |= self.sampler.sync()

    def finish_step(
        self, row: dict[str, float], groups: Sequence[Group], began: float, generated: int
    ) -> dict[str, float]:
        """The row of a step with its costs. The step started at `began`, when `generated` tokens had been
        sampled."""
        self.groups = groups
        elapsed = time.perf_counter() - began
        self.last_reward = row.get("reward/mean", math.nan)
        self.last_rate = (self.source.generated - generated) / elapsed
        return row | self._costs(elapsed)

    def gather(self, step: int) -> tuple[list[Group], list[Group]]:
        """(all groups that a step sampled, those to train on). Draws problems, samples and grades their
        completions, and repeats this while the curriculum rejects groups."""
        num_prompts = self.config.train.prompts_per_step
        sampled: list[Group] = []
        accepted_groups: list[list[Group]] = []  # of each accepted problem, which may have several
        rejected: dict[int, list[Group]] = {}
        if isinstance(self.curriculum, Informed):
            self.curriculum.inform(self.algorithm_state)
        for attempt in range(self.curriculum.attempts):
            index = self.curriculum.draw(step, attempt)
            gathered = self.source.gather(step, attempt, index)
            groups = [dataclasses.replace(group, index=i) for group, i in zip(gathered, index, strict=True)]
            # Before `accept`, which may teach the curriculum of these very rewards.
            groups = [self._valued(*pair) for pair in zip(groups, index, strict=True)]
            point("rollout")
            safe_point()  # between two attempts nothing is half done, so the run may stop here
            sampled += groups
            accepted = self.curriculum.accept(step, index, [group.graded_rewards() for group in groups])
            for group, keep in zip(groups, accepted, strict=True):
                if keep:
                    accepted_groups.append([*rejected.pop(group.index, []), group])
                elif is_cumulative(self.curriculum):
                    rejected.setdefault(group.index, []).append(group)
            if len(accepted_groups) >= num_prompts:
                break
        # Before the updates: with a lag the weights for the next step exist already.
        self._sample_ahead(step + 1)
        return sampled, [group for groups in accepted_groups[:num_prompts] for group in groups]

    def _sample_ahead(self, step: int) -> None:
        """Let a sampler that works ahead begin with the next step, if there is one."""
        last = step > self.config.train.steps
        if (
            last
            or not isinstance(self.source, OnPolicy)
            or not isinstance(self.curriculum, CheckedCurriculum)
        ):
            return
        if (index := self.curriculum.foreseen(step)) is not None:
            self.source.begin_next(step, index)

    def _valued(self, group: Group, problem: int) -> Group:
        """The group with the value of its problem, if the curriculum knows one."""
        value = expected_value(self.curriculum, problem)
        return group if math.isnan(value) else dataclasses.replace(group, expected=value)

    def entropy(self, groups: Sequence[Group], step: int, record: StepRecord | None = None) -> float:
        """Mean entropy in nats over all tokens that the policy wrote in these groups: of the distributions
        that the sampler drew them from, or, if another policy wrote the tokens, of the current one. If the
        sampler does not report them, they are computed with the weights that it had; the `record` gets the
        log-probabilities of that pass if these are the current weights."""
        reported = entropy(groups) if self.source.on_policy else None
        if reported is not None:
            return reported
        device = str(self.models.device)
        batch = pack_groups(groups, self.limit, step, self.loaded.pad, device, include_ungraded=True)
        if not batch.completion_mask.any():
            return math.nan
        # With the weights that sampled, which with a lag are not the current ones.
        with self.clock("forward"), self.models.past.swapped_in():
            output = self.models.forward("policy", batch)
        if record is not None:
            record.entropy = output.entropy
            if not self.models.past.staleness:
                record.logp = output.logp
        # float64: a float32 sum over so many tokens loses digits.
        return output.entropy[batch.completion_mask].double().mean().item()

    def policy_metrics(
        self, groups: Sequence[Group], step: int, record: StepRecord | None = None
    ) -> dict[str, float]:
        """Entropy of the policy in these groups of a step and, where it is due, its KL to the base policy."""
        row = {"policy/entropy": self.entropy(groups, step, record)}
        settings, last = self.config.evaluate, step == self.config.train.steps
        scheduled = settings.problems and settings.every and step % settings.every == 0
        if self.base_policy and (last or scheduled):
            device = str(self.models.device)
            batch = pack_groups(groups, self.limit, step, self.loaded.pad, device, include_ungraded=True)
            # Each by its own routes: replaying them in one of two policies would part equal ones.
            batch = dataclasses.replace(batch, routed_experts=None)
            with self.clock("forward"):
                row["policy/kl_base"] = (
                    self.base_policy.kl(batch) if batch.completion_mask.any() else math.nan
                )
        return row

    def _keep_base(self) -> BasePolicy:
        """The base policy: the reference, if the algorithm has one and no step of the run moves it."""
        steps = range(1, self.config.train.steps + 1)
        fixed = "reference" in self.models.networks and not any(map(self.algorithm.synchronize, steps))
        return BasePolicy(self.models, fixed)

    def _count_failures(self, updated: Updated, step: int, cause: str) -> None:
        self.diverged = updated.ruined
        self.skipped = self.skipped + 1 if updated.left_out else 0
        self.dump = bool(updated.left_out or self.diverged)
        if self.skipped > MOST_SKIPPED:
            self.diverged = (
                f"gradients were not finite in {self.skipped} steps in a row, the last at step {step}"
            ) + (f": {cause}" if cause else "")

    def _flops(self) -> float:
        """FLOPs so far, by the formula of `models.flops`."""
        passes = self.models.flops
        return FORWARD * passes.weights["policy"] * self.source.sampler_tokens + passes.total

    def _costs(self, elapsed: float) -> dict[str, float]:
        phases = {f"time/{name}": seconds for name, seconds in self.clock.seconds.items()}
        return phases | {
            "cost/generated_tokens": float(self.source.generated),
            "cost/trained_tokens": float(self.updater.trained),
            "cost/flops": self._flops(),
            # Not stopping: the weights are those after the step, and the counters not yet all.
            "cost/peak_memory_gb": max(self.models.ranks.all_gather(read_peak_memory_gb(), stops=False)),
            "cost/state_gb": self.models.take_state_bytes() / 2**30,
            "time/step": elapsed,
            "time/other": elapsed - sum(phases.values()),
        }
