"""A run through TRL's own trainer, on our tasks and in our run folder."""

# TRL samples with transformers, computes its loss and its gradient and makes the updates. Around it
# everything is the suite's: model, warm start, problem schedule, rewards, optimizer, evaluations, logs and
# checkpoints. docs/backends.md says what therefore compares, and what differs all the same.

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback, set_seed

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.libraries.trl_arguments import TABLE
from grpobench.runs.metrics.rollout_metrics import sampled_metrics, trained_metrics
from grpobench.runs.models.role_weights import Network
from grpobench.runs.models.roles import trunk_and_head
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.sample.rollouts import pack_groups
from grpobench.runs.settings.trl import version
from grpobench.runs.tools.process import safe_point
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.progress import Preempted
from grpobench.runs.train.run_loop import begin, end, record, save_when_due
from grpobench.runs.train.stopping import Before
from grpobench.runs.train.trainer import Trainer
from grpobench.runs.train.trl.arguments import quiet
from grpobench.runs.train.trl.work import RecordedPairs, Sampled, Work

UNUSED = ("learning_rate", "epoch", "num_tokens")
"""What TRL logs and the run does not: the rate is ours, and the counters begin anew with every attempt."""


def carry(trainer: Trainer, folder: RunFolder, stop: Callable[[], bool], began: float) -> None:
    """All steps that are left, and the end. `began` is the attempt's start in seconds."""
    quiet()
    entry = TABLE[trainer.config.algorithm.name]
    checkpoint = folder.latest()
    done = checkpoint.step if checkpoint else 0
    with tempfile.TemporaryDirectory(prefix="grpobench-") as output_folder:
        work: Work = RecordedPairs(trainer, done, entry) if entry.pairs else Sampled(trainer, done, entry)
        threads = torch.get_num_threads()
        theirs = work.trainer(Path(output_folder))
        torch.set_num_threads(threads)  # accelerate may have changed it
        # Before `begin`, which restores a checkpoint's reference into it.
        adopt_reference(trainer, theirs)
        trainer.parts.provenance["trl"] = {
            "version": version(),
            "trainer": type(theirs).__name__,
            "arguments": {name: value for name, value in work.arguments.items() if name != "output_dir"},
        }
        folder.fingerprint({"trl": version()})
        begin(trainer, folder, checkpoint, began)
        steps = Steps(trainer, work, folder, stop, began, done)
        # TRL calls no callback for a step without an update.
        steps.without_updates(0)
        if steps.left():
            # `disable_tqdm` puts it there, and it would print every log.
            theirs.remove_callback(PrinterCallback)
            theirs.add_callback(steps)
            try:
                theirs.train()
            except Preempted:
                steps.keep()
                raise
    end(trainer, folder)


def adopt_reference(trainer: Trainer, theirs: Any) -> None:
    """Put TRL's reference in the place of ours, so that there is one, and checkpoints hold it if it moves."""
    trainer.models.networks.pop("reference", None)
    if getattr(theirs, "ref_model", None) is not None:
        trainer.models.networks["reference"] = Network(*trunk_and_head(theirs.ref_model))
        trainer.models.moved = bool(trainer.config.modify.reference_every)


@dataclass
class Steps(TrainerCallback):
    """Makes our steps of TRL's updates: seeds and rate before them; row, evaluations and checkpoint after."""

    ours: Trainer
    work: Work
    folder: RunFolder
    stop: Callable[[], bool]
    attempt_began: float
    done: int
    """Steps that are finished."""
    updates: list[Mapping[str, Any]] = field(default_factory=list)
    """What TRL logged about each update of the step under way."""
    began: float = 0.0
    generated: int = 0

    def __post_init__(self) -> None:
        self.before = self.done
        self.state_before: Before | None = None
        """The state before the step under way; None between steps."""

    def left(self) -> int:
        """Steps that are to be done."""
        return 0 if self.ours.over else self.ours.config.train.steps - self.done

    def end(self, step: int) -> int:
        """Updates after which a step is over."""
        return self.work.ends[step - self.before - 1]

    def rate(self) -> float:
        parts = self.ours.parts
        return self.ours.config.train.learning_rate["policy"] * parts.schedule(self.done + 1)

    def open(self) -> None:
        self.began, self.generated = time.perf_counter(), self.ours.source.generated
        self.ours.clock.seconds.clear()
        self.ours.dump = self.ours.updater.begun = False
        self.state_before = Before(self.ours, self.folder, self.done)
        self.updates.clear()
        self.work.begin(self.done + 1)

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        step = self.done + 1
        if not self.updates:
            self.open()
            set_seed(derive(self.ours.config.seed, "trl", step) % 2**32)  # NumPy takes 32 bits
            self.ours.tell(self.done, "sampling" if isinstance(self.work, Sampled) else "training")
        # At every update, since TRL's scheduler sets its own rate after each.
        for group in optimizer.param_groups:
            group["lr"] = self.rate()
        safe_point()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        safe_point()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        safe_point()
        # From here on the state before the step is gone.
        self.ours.updater.begun = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" not in logs:
            return  # the summary of the whole training
        self.updates.append(dict(logs))
        if state.global_step == self.end(self.done + 1):
            self.close()
            self.without_updates(state.global_step)
        # An event may end the run before TRL's `max_steps`.
        control.should_training_stop = not self.left()

    def without_updates(self, updates: int) -> None:
        """The steps that follow at once, because they have nothing to train on."""
        while self.left() and self.end(self.done + 1) == updates:
            self.open()
            self.close()

    def close(self) -> None:
        """The step under way is over. Raises Preempted after a checkpoint when the run is told to stop."""
        trainer, step = self.ours, self.done + 1
        # From here on the weights are those of a finished step.
        self.state_before, trainer.updater.begun = None, False
        groups = self.work.groups(step)
        batch = pack_groups(groups, trainer.limit, step, trainer.loaded.pad)
        row = sampled_metrics(groups, trainer.categories) | self.work.measured | self.work.row(step)
        used = batch[self.work.trained(step, batch).nonzero().squeeze(-1)] if len(batch) else batch
        row |= trained_metrics(used, groups)
        self._count_flops(used)
        if self.updates:
            row |= gathered(self.updates, self.work.names) | {"learning_rate/policy": self.rate()}
        bad = sum(not math.isfinite(update["loss"] + update["grad_norm"]) for update in self.updates)
        if bad:
            trainer.dump = True
            trainer.diverged = (
                f"{bad} updates of TRL's had a loss or gradient that is not finite, in step {step}"
            )
        if ruined := trainer.models.ruined():
            trainer.dump = True
            trainer.diverged = trainer.diverged or f"{ruined} after step {step}"
        row["grad/nonfinite"] = float(bad)
        row = trainer.finish_step(row, groups, self.began, self.generated)
        # transformers' trainer turns training mode on, and the evaluations below need the other.
        trainer.models.language.eval()
        record(trainer, self.folder, step, row, self.attempt_began)
        self.done = step
        self.updates.clear()
        if not trainer.over:
            save_when_due(trainer, self.folder, step, self.stop)

    def _count_flops(self, used: Batch) -> None:
        """Count a step's passes as our own loop would; TRL may make further ones."""
        flops = self.ours.models.flops
        with flops.counting():
            for role in self.ours.algorithm.reference_roles:
                flops.add_forward(role, used)
            for _ in range(self.ours.config.train.epochs if self.updates else 0):
                flops.add_update(("policy",), used)

    def keep(self) -> None:
        """Told to stop: a checkpoint of the step before the one under way, if that has changed nothing."""
        if self.state_before is not None:
            self.state_before.save()


def gathered(updates: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, float]:
    """TRL's logs of a step's updates as one row, under our names where we have the metric, else ``trl/``.
    Means over the updates that logged a number; the time is the sum."""
    row = {}
    for name in dict.fromkeys(name for update in updates for name in update):
        if name in UNUSED:
            continue
        values = [float(update[name]) for update in updates if update.get(name) is not None]
        total = sum(values)
        mean = total / len(values) if values else math.nan
        row[names.get(name, f"trl/{name}")] = total if name == "step_time" else mean
    return row
