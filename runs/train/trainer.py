"""One run: sample, verify, credit, update, log, evaluate, checkpoint. Knows no algorithm and no task."""

from __future__ import annotations

import dataclasses
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from grpobench.algorithms.algorithm import Batch, Role, Signal
from grpobench.algorithms.curriculum import Study
from grpobench.runs.measure.catalogue import catalogue
from grpobench.runs.measure.evaluator import Evaluator
from grpobench.runs.measure.rollout_metrics import entropy, gap_metrics, sampled_metrics, trained_metrics
from grpobench.runs.measure.tally import Tally
from grpobench.runs.models.loading import Loaded, load, weights_hash
from grpobench.runs.models.packing import micro_batches
from grpobench.runs.models.roles import Models, NonFinite, Ruined
from grpobench.runs.prepare.study import study
from grpobench.runs.prepare.warmstart import warm_start
from grpobench.runs.record import pins
from grpobench.runs.record.folder import RunFolder
from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.choose import sampler_for
from grpobench.runs.sample.context import dropped
from grpobench.runs.sample.episodes import conversation
from grpobench.runs.sample.rollouts import Group, pack_groups
from grpobench.runs.sample.sampler import Sampler
from grpobench.runs.settings.config import RunConfig, rates
from grpobench.runs.tools.clock import Clock
from grpobench.runs.tools.memory import peak_memory_gb
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.collect import OnPolicy, Preferences, Replay, Source, demand_problems
from grpobench.runs.train.corrections import Correction, correct
from grpobench.runs.train.progress import Progress

MOST_SKIPPED = 3
"""Steps in a row that may leave updates out for a loss, reward or gradient that is not finite; with the next
such step the run has diverged."""


def fasten(trainer: Trainer, folder: RunFolder) -> None:
    """Pin what the run is made from, and say which problems it is both trained on and evaluated with."""
    today = pins.Today()
    folder.pin(today.of(trainer.config) | trainer.pins)
    digests = today.digests(trainer.config)
    if not digests.get("train"):  # pairs of a file, whose truth is not known
        digests["train"] = {one.id: pins.prompt_digest(one) for one in trainer.source.problems}
    folder.problems(digests)
    if shared := {split: len(names) for split, names in pins.overlap(digests).items()}:
        folder.note(trained_and_evaluated=shared)
        warnings.warn(f"problems that are trained on are evaluated with: {shared}", stacklevel=2)


class Trainer:
    """Everything that a run holds in memory."""

    def __init__(self, config: RunConfig, report: Callable[[Progress], None] = lambda _: None) -> None:
        self.config, self.report = config, report
        self.last_reward = self.last_rate = math.nan
        self.tell(0, "loading")
        self.algorithm = algorithm = config.modify.around(config.algorithm)
        train = config.train
        self.loaded = load(config.model.name)
        self.origin: dict[str, Any] = {"model": self.loaded.origin}
        self.pins: dict[str, str] = {}
        """Hashes of what is only known when it has been loaded; the others are `pins.Today`'s."""
        data = {source for split in config.task.splits for source in config.task.sources(split)}
        if data:
            ordered = sorted(data, key=lambda source: (source.table, source.place))
            self.origin["data"] = [dataclasses.asdict(source) for source in ordered]
        if config.task.caveat:
            self.origin["caveat"] = config.task.caveat
        if tier := config.task.sandbox():
            self.origin["sandbox"] = tier
        self.limit = config.sampler.max_new_tokens or config.task.max_new_tokens
        if lost := dropped(config, self.loaded):
            self.origin["dropped_prompts"] = lost
        if config.model.warm_start:
            where = warm_start(self.loaded, config.task, config.model, self._tell_warm_start)
            self.origin["warm_start"] = where.name
            self.pins["warm start"] = weights_hash(where)
        torch.manual_seed(config.seed)
        self.models = Models(
            self.loaded.model,
            algorithm.trains,
            algorithm.reads,
            temperature=config.sampler.temperature,
            dtype=config.model.dtype,
            budget=train.tokens_per_micro_batch,
        )
        self.models.optimise(
            {
                role: rate
                for role, rate in rates(train.learning_rate, algorithm.trains).items()
                if role in algorithm.trains
            },
            train.betas,
            train.weight_decay,
            train.max_grad_norm,
        )
        self.clock = Clock()
        self.sampler: Sampler = sampler_for(config, self.models, self.loaded)
        self.source = self._source()
        demand_problems(train.prompts, len(self.source.problems))
        traits = [problem.traits for problem in self.source.problems]
        self.curriculum = algorithm.curriculum(
            traits,
            train.prompts,
            derive(config.seed, "curriculum"),
            self._study() if algorithm.studies else None,
        )
        self.evaluator = Evaluator(
            config.task,
            self.loaded,
            self.sampler,
            config.evaluate,
            config.seed,
            self.limit,
            models=self.models,
            long_prompts=config.model.long_prompts,
        )
        self.metrics = catalogue()
        self.trained = self.skipped = 0
        self.transcript: list[dict[str, Any]] = []
        self.dump = False
        self.diverged = ""
        """Why the run cannot go on: a result, not an error."""

    def _source(self) -> Source:
        config = self.config
        if config.sampler.kind == "preferences":
            return Preferences(Path(config.sampler.path).expanduser(), self.loaded)
        grader = Grader(config.task, config.reward, self.loaded, config.seed)
        if grader.origin:
            self.origin["reward_model"] = grader.origin
            self.pins["reward model"] = grader.origin.get("sha256") or grader.origin.get("commit", "")
        table = self.loaded.model.get_input_embeddings().weight
        fresh = OnPolicy(config, self.loaded, self.sampler, grader, self.clock, self.algorithm, table)
        return fresh if config.sampler.on_policy else Replay(fresh, config.sampler.problems)

    def _study(self) -> Study:
        """What the policy makes of the training problems before it is trained."""
        return study(
            self.models,
            self.loaded,
            self.config.task,
            self.source.problems,
            str(self.origin.get("warm_start", "")),
            lambda read, of: self.tell(0, f"studying the problems {read}/{of}"),
        )

    def tell(self, step: int, phase: str) -> None:
        self.report(Progress(step, self.config.train.steps, self.last_reward, self.last_rate, phase))

    def _tell_warm_start(self, update: int, updates: int, loss: float) -> None:
        self.tell(0, f"warm start {update}/{updates}, loss {loss:.3f}")

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs beside tensors."""
        return {
            "curriculum": self.curriculum.state(),
            "generated": self.source.generated,
            "trained": self.trained,
            "skipped": self.skipped,
        }

    def restore(self, tensors: dict[str, dict[str, torch.Tensor]], state: dict[str, Any]) -> None:
        self.models.restore(tensors)
        self.sampler.sync()
        self.curriculum.restore(state["curriculum"])
        self.source.generated = state["generated"]
        self.trained, self.skipped = state["trained"], state["skipped"]

    # One step

    def step(self, step: int) -> dict[str, float]:
        """Collect, credit and update once; the row of metrics.jsonl without evaluations."""
        began = time.perf_counter()
        self.clock.seconds.clear()
        self.dump = False
        before = self.source.generated
        self.tell(step - 1, "sampling")
        sampled, groups = self.gather(step)
        batch = pack_groups(groups, self.limit, step, self.loaded.pad, str(self.models.device))
        row = sampled_metrics(sampled) | {"policy/entropy": self.entropy(sampled, step)}
        used = batch
        tally = Tally(self.metrics)
        if len(batch):
            self.tell(step - 1, "training")
            batch, gap = self._settle_old_logp(batch)
            correction = correct(batch, self.config.sampler)
            row |= correction.metrics(batch.written) if correction else {}
            with self.clock("read"), torch.no_grad():
                signal = self.algorithm.credit(batch, self.models)
                row |= self.algorithm.observe(batch, signal)
            used = batch[(signal.unit >= 0).nonzero().squeeze(-1)]
            row |= self._update(batch, signal, tally, step, correction) | gap
            if not self.diverged:
                if mix := self.algorithm.synchronise(step):
                    self.models.follow(mix)
                with self.clock("sync"):
                    row |= self.sampler.sync()
        row |= trained_metrics(used, sampled) | tally.numbers()
        return self.finish_step(row, groups, began, before)

    def finish_step(
        self, row: dict[str, float], groups: Sequence[Group], began: float, generated: int
    ) -> dict[str, float]:
        """The row of a step with what it cost. `began` is its start, and `generated` how many tokens had
        been sampled by then."""
        self.transcript = [_transcript(group, self.loaded) for group in groups]
        elapsed = time.perf_counter() - began
        self.last_reward = row.get("reward/mean", math.nan)
        self.last_rate = (self.source.generated - generated) / elapsed
        return row | self._costs(elapsed)

    def gather(self, step: int) -> tuple[list[Group], list[Group]]:
        """(all groups that a step sampled, those to train on): draw, sample, grade, and draw again while the
        curriculum rejects some."""
        wanted = self.config.train.prompts
        sampled: list[Group] = []
        kept: list[Group] = []
        for attempt in range(self.curriculum.attempts):
            index = self.curriculum.draw(step, attempt)
            groups = self.source.gather(step, attempt, index)
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
        if not batch.written.any():
            return math.nan
        with self.clock("read"):
            read = self.models.read("policy", batch).entropy
        return read[batch.written].double().mean().item()

    def _settle_old_logp(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """log π_old: the sampler's own where they are as good as the trainer's and not to be compared with
        them, else read anew; then with the gap between the two."""
        settings = self.config.sampler
        if not self.source.on_policy:
            return batch, {}
        trusted = self.sampler.exact and settings.correction == "none"
        if settings.old_logp == "sampler" or (settings.old_logp == "auto" and trusted):
            return batch, {}
        with self.clock("read"):
            old = self.models.read("policy", batch).logp
        return dataclasses.replace(batch, old_logp=old), self._check_gap(gap_metrics([(old, batch)]))

    def _update(
        self, batch: Batch, signal: Signal, tally: Tally, step: int, correction: Correction | None = None
    ) -> dict[str, float]:
        """All optimiser updates of a step."""
        train, algorithm = self.config.train, self.algorithm
        scale = min(1.0, step / train.warmup_steps) if train.warmup_steps else 1.0
        roles = algorithm.updates(step)
        norms: dict[str, list[float]] = {}
        bad = 0
        fresh: list[tuple[torch.Tensor, Batch]] | None = (
            [] if "policy" in roles and self.source.on_policy else None
        )
        row: dict[str, float] = {}
        anew = "policy" in roles and self._layout_matters()
        plan = [*self._minibatches(batch, signal, step)]
        later = self._old_logp_of(batch, signal, plan[1:]) if anew else []
        for place, rows in enumerate(plan):
            weight = None if correction is None else correction[rows]
            part = batch[rows]
            if anew and place:
                part = dataclasses.replace(part, old_logp=later[place - 1])
            loss = self._accumulate(part, signal[rows], roles, tally, fresh, weight, anew and not place)
            if fresh:  # the first minibatch read the very weights that sampled
                row |= self._check_gap(gap_metrics(fresh))
                fresh = None
            with self.clock("optimise"):
                try:
                    demand_finite(loss, batch.reward[rows])
                    for name, norm in self.models.step(roles, scale).items():
                        norms.setdefault(name, []).append(norm)
                except NonFinite:
                    self.models.clear()
                    bad += 1
                except Ruined as error:
                    self.diverged = f"{error} after an update of step {step}"
                    break
        row |= {name: sum(values) / len(values) for name, values in norms.items()}
        row |= {f"learning_rate/{role}": self.models.optimisers[role].learning_rate * scale for role in roles}
        self._count_failures(bad, step)
        return row | {"grad/nonfinite": float(bad)}

    def _layout_matters(self) -> bool:
        """Whether log π_old is the trainer's in a precision in which it depends on what is read together, so
        that each update needs it as the update itself reads it: else ratios are not 1 where nothing moved."""
        rounded = self.models.dtype != torch.float32
        return rounded and self.source.on_policy and self.config.sampler.old_logp != "sampler"

    def _old_logp_of(self, batch: Batch, signal: Signal, plan: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """log π_old (b, T) of each minibatch, before any update."""
        with self.clock("read"):
            return [self.models.read("policy", batch[rows], signal.unit[rows]).logp for rows in plan]

    def _minibatches(self, batch: Batch, signal: Signal, step: int) -> Iterator[torch.Tensor]:
        """Rows of every update of a step."""
        for epoch in range(self.config.train.epochs):
            seed = derive(self.config.seed, "minibatch", step, epoch)
            yield from minibatches(batch, signal.unit, self.config.train.minibatches, seed)

    def _count_failures(self, bad: int, step: int) -> None:
        self.skipped = self.skipped + 1 if bad else 0
        self.dump = bool(bad or self.diverged)
        if self.skipped > MOST_SKIPPED:
            self.diverged = (
                f"gradients were not finite in {self.skipped} steps in a row, the last at step {step}"
            )

    def _accumulate(
        self,
        batch: Batch,
        signal: Signal,
        roles: Sequence[Role],
        tally: Tally,
        fresh: list[tuple[torch.Tensor, Batch]] | None,
        correction: Correction | None = None,
        first: bool = False,
    ) -> torch.Tensor:
        """Gradients of one minibatch; its loss, a scalar. Its weights are made before it is split, which so
        changes nothing. The `first` of a step reads log π_old itself: nothing has been updated yet."""
        algorithm, whole = self.algorithm, batch.reward.new_zeros(())
        weights = algorithm.weigh(batch)
        weights = weights if correction is None else correction.of(weights)
        for rows in micro_batches(batch, signal.unit, self.models.budget):
            micro = batch[rows]
            with self.clock("read"):
                now = self.models.read_now(roles, micro, algorithm.differentiates_entropy)
                if first:
                    micro = dataclasses.replace(micro, old_logp=now["policy"].logp.detach())
                loss = algorithm.loss(micro, signal[rows], now)
                total = (loss.terms * weights[rows]).sum()
            with self.clock("backward"):
                total.backward()
            whole += total.detach()
            tally.add(loss.metrics, micro.written)
            if "policy" in now:
                reading = now["policy"]
                tally.add({"trained/entropy": reading.entropy}, micro.written)
                if self.source.on_policy:
                    tally.add(_movement(reading.logp.detach(), micro.old_logp), micro.written)
                if fresh is not None:
                    fresh.append((reading.logp.detach(), micro))
            self.trained += int(micro.written.sum())
        return whole

    def _check_gap(self, gap: dict[str, float]) -> dict[str, float]:
        if gap.get("gap/mean", 0.0) > self.sampler.largest_gap:
            raise RuntimeError(
                f"the sampler and the trainer disagree by {gap['gap/mean']:.2g} nats per token on the same "
                "weights; this model does not give the same probabilities in both"
            )
        return gap

    def _costs(self, elapsed: float) -> dict[str, float]:
        phases = {f"time/{name}": seconds for name, seconds in self.clock.seconds.items()}
        return phases | {
            "cost/generated_tokens": float(self.source.generated),
            "cost/trained_tokens": float(self.trained),
            "cost/peak_memory_gb": peak_memory_gb(),
            "time/step": elapsed,
            "time/other": elapsed - sum(phases.values()),
        }


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


def _movement(logp: torch.Tensor, old: torch.Tensor) -> dict[str, torch.Tensor]:
    ratio = (logp - old).exp()
    return {
        "trained/kl_old": old - logp,
        "trained/ratio_mean": ratio,
        "trained/ratio_min": ratio,
        "trained/ratio_max": ratio,
    }


def _transcript(group: Group, loaded: Loaded) -> dict[str, Any]:
    """One row of a rollouts file."""
    return {
        "problem": group.problem.id,
        "prompt": group.problem.prompt,
        "completions": [
            {
                "text": loaded.decode(rollout.completion),
                **conversation(loaded, rollout),
                "tokens": rollout.length,
                "stopped": rollout.stopped,
                "scores": dict(verdict.scores),
                "outcome": verdict.outcome,
                "reward": reward,
                "components": {
                    name: column[place]
                    for name, column in group.components.items()
                    if not math.isnan(column[place])
                },
            }
            for place, (rollout, verdict, reward) in enumerate(
                zip(group.rollouts, group.verdicts, group.reward, strict=True)
            )
        ],
    }
