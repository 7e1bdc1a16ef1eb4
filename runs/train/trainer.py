"""One GRPO-like step: collect, verify, credit, update, log. Knows no algorithm and no task."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from grpobench.algorithms import returned
from grpobench.algorithms.algorithm import Batch
from grpobench.runs.metrics.catalog import catalog
from grpobench.runs.metrics.rollout_metrics import (
    MetricAccumulator,
    entropy,
    gap_metrics,
    sampled_metrics,
    trained_metrics,
)
from grpobench.runs.models.token_budgets import ModelError, TokenBudget
from grpobench.runs.observe.observers import Observers
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Group, pack_groups
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.machine import peak_memory_gb
from grpobench.runs.tools.process import safe_point
from grpobench.runs.train.corrections import correct
from grpobench.runs.train.parts import Parts
from grpobench.runs.train.progress import Progress, transcript
from grpobench.runs.train.update import Updated, Updater, check_gap
from grpobench.runs.train.watch import Watch

MOST_SKIPPED = 3
"""Steps in a row that may leave updates out for a loss, reward or gradient that is not finite; with the next
such step the run has diverged."""


class Trainer:
    """The parts of a run at work, and how far it has come."""

    def __init__(
        self,
        config: RunConfig,
        parts: Parts,
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
        self.last_reward = self.last_rate = math.nan
        self.skipped = 0
        """Steps in a row that left updates out."""
        self.groups: Sequence[Group] = ()
        """Of the last step, those to train on."""
        self.dump = False
        """Whether the step's rollouts are worth keeping whatever the schedule says."""
        self.diverged = ""
        """Why the run cannot go on: a result, not an error."""
        self.collapsed = ""
        """The event that ends the run, where its recipe says so: a result too."""
        self.lowered: list[dict[str, Any]] = []
        """What memory has lowered in this attempt, with the step in whose row it was told."""
        self.watch = Watch(config)

    @property
    def over(self) -> bool:
        """Whether no step is made any more."""
        return bool(self.diverged or self.collapsed)

    @property
    def transcript(self) -> Iterator[dict[str, Any]]:
        """The last step's rollouts as a rollouts file holds them, made when asked for: few steps have one."""
        return (transcript(group, self.loaded) for group in self.groups)

    def tell(self, step: int, phase: str) -> None:
        self.report(Progress(step, self.config.train.steps, self.last_reward, self.last_rate, phase))

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs beside tensors."""
        return {
            "curriculum": self.curriculum.state(),
            "generated": self.source.generated,
            "trained": self.updater.trained,
            "skipped": self.skipped,
            "optimizers": self.models.counters(),
            "token_budgets": {
                name: token_budget.state() for name, token_budget in self.token_budgets().items()
            },
        }

    def token_budgets(self) -> dict[str, TokenBudget]:
        """How much goes through the models at once, of what memory may lower."""
        decoded = {"decoding": self.sampler.token_budget} if isinstance(self.sampler, HFSampler) else {}
        return {"reading": self.models.token_budget, **decoded}

    def restore(self, tensors: dict[str, dict[str, torch.Tensor]], state: dict[str, Any]) -> None:
        if "optimizers" not in state:
            raise ModelError("the checkpoint is of an older version; delete the run's folder to start over")
        self.models.restore(tensors, state["optimizers"])
        self.sampler.sync()
        self.curriculum.restore(state["curriculum"])
        self.source.generated = state["generated"]
        self.updater.trained, self.skipped = state["trained"], state["skipped"]
        for name, token_budget in self.token_budgets().items():
            token_budget.restore(state.get("token_budgets", {}).get(name, {}))

    # One step

    def step(self, step: int) -> dict[str, float]:
        """Collect, credit and update once; the row of metrics.jsonl without evaluations."""
        began = time.perf_counter()
        self.clock.seconds.clear()
        self.dump = self.updater.begun = False
        before = self.source.generated
        self.tell(step - 1, "sampling")
        sampled, groups = self.gather(step)
        batch = pack_groups(groups, self.limit, step, self.loaded.pad, str(self.models.device))
        row = sampled_metrics(sampled) | {"policy/entropy": self.entropy(sampled, step)}
        used = batch
        tally = MetricAccumulator(self.metrics)
        if len(batch):
            self.tell(step - 1, "training")
            batch, gap = self._settle_old_logp(batch)
            correction = correct(batch, self.config.sampler)
            row |= correction.metrics(batch.completion_mask) if correction else {}
            with self.clock("forward"), torch.no_grad():
                signal = returned.compute_signal(self.algorithm, batch, self.models)
                row |= returned.observe(self.algorithm, batch, signal)
            used = batch[(signal.row_group >= 0).nonzero().squeeze(-1)]
            updated = self.updater.update(batch, signal, tally, step, correction)
            self._count_failures(updated, step)
            row |= updated.row | gap
            if not self.diverged:
                if mix := self.algorithm.synchronize(step):
                    self.models.follow(mix)
                with self.clock("sync"):
                    row |= self.sampler.sync()
        point("step")
        self.updater.begun = False
        row |= trained_metrics(used, sampled) | tally.numbers()
        return self.finish_step(row, groups, began, before)

    def finish_step(
        self, row: dict[str, float], groups: Sequence[Group], began: float, generated: int
    ) -> dict[str, float]:
        """The row of a step with what it cost. `began` is its start, and `generated` how many tokens had
        been sampled by then."""
        self.groups = groups
        elapsed = time.perf_counter() - began
        self.last_reward = row.get("reward/mean", math.nan)
        self.last_rate = (self.source.generated - generated) / elapsed
        return row | self._costs(elapsed)

    def gather(self, step: int) -> tuple[list[Group], list[Group]]:
        """(all groups that a step sampled, those to train on): draw, sample, grade, and draw again while the
        curriculum rejects some."""
        wanted = self.config.train.prompts_per_step
        sampled: list[Group] = []
        kept: list[Group] = []
        for attempt in range(self.curriculum.attempts):
            index = self.curriculum.draw(step, attempt)
            groups = self.source.gather(step, attempt, index)
            point("rollout")
            safe_point()
            sampled += groups
            accepted = self.curriculum.accept(step, index, [group.graded() for group in groups])
            kept += [group for group, keep in zip(groups, accepted, strict=True) if keep]
            if len(kept) >= wanted:
                break
        return sampled, kept[:wanted]

    def entropy(self, groups: Sequence[Group], step: int) -> float:
        """Mean entropy over all tokens that the policy wrote in these groups, in nats: of the distributions
        that they were drawn from, or, where the sampler tells none or other policies wrote them, of the
        policy as it is now."""
        told = entropy(groups) if self.source.on_policy else None
        if told is not None:
            return told
        device = str(self.models.device)
        batch = pack_groups(groups, self.limit, step, self.loaded.pad, device, ungraded=True)
        if not batch.completion_mask.any():
            return math.nan
        with self.clock("forward"):
            read = self.models.forward("policy", batch).entropy
        return read[batch.completion_mask].double().mean().item()

    def _settle_old_logp(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """log π_old: the sampler's own where they are as good as the trainer's and not to be compared with
        them, else read anew; then with the gap between the two."""
        settings = self.config.sampler
        if not self.source.on_policy:
            return batch, {}
        trusted = self.sampler.exact and settings.correction == "none"
        if settings.old_logp == "sampler" or (settings.old_logp == "auto" and trusted):
            return batch, {}
        with self.clock("forward"):
            old = self.models.forward("policy", batch).logp
        return dataclasses.replace(batch, old_logp=old), check_gap(
            gap_metrics([(old, batch)]), self.sampler.max_logprob_gap
        )

    def _count_failures(self, updated: Updated, step: int) -> None:
        self.diverged = updated.ruined
        self.skipped = self.skipped + 1 if updated.left_out else 0
        self.dump = bool(updated.left_out or self.diverged)
        if self.skipped > MOST_SKIPPED:
            self.diverged = (
                f"gradients were not finite in {self.skipped} steps in a row, the last at step {step}"
            )

    def _costs(self, elapsed: float) -> dict[str, float]:
        phases = {f"time/{name}": seconds for name, seconds in self.clock.seconds.items()}
        return phases | {
            "cost/generated_tokens": float(self.source.generated),
            "cost/trained_tokens": float(self.updater.trained),
            "cost/peak_memory_gb": peak_memory_gb(),
            "time/step": elapsed,
            "time/other": elapsed - sum(phases.values()),
        }
