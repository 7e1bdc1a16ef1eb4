"""The course of a run around its steps: where it begins, what is written after a step, and its end.

All steps of a run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from grpobench.analysis.detectors.registry import Findings
from grpobench.runs.models.token_budgets import halvings
from grpobench.runs.reward import verifier_check
from grpobench.runs.runfolder import fingerprints
from grpobench.runs.runfolder.folder import Checkpoint, RunFolder
from grpobench.runs.runfolder.logs import State
from grpobench.runs.tools.faults import point
from grpobench.runs.train import early_checks
from grpobench.runs.train.base import Base
from grpobench.runs.train.progress import SAVING, Preempted
from grpobench.runs.train.stopping import keep_state_before
from grpobench.runs.train.trainer import Trainer
from grpobench.tasks.task import Split

UNRECORDED = "unrecorded"
"""In the state of a checkpoint: the row of its step, where not all evaluations of it were made."""


def begin(trainer: Trainer, folder: RunFolder, checkpoint: Checkpoint | None, began: float) -> int:
    """Take up a run where its checkpoint left it, or at the beginning; the steps that are done."""
    folder.note(**trainer.parts.provenance)
    base = Base(trainer, folder.path, fingerprint(trainer, folder))
    done = checkpoint.step if checkpoint else 0
    if checkpoint:
        trainer.restore({name: checkpoint.tensors(name) for name in checkpoint.names()}, checkpoint.state)
    folder.rewind(done)
    trainer.watch.read(folder.path)
    tell_events(trainer, folder)
    trainer.observers.begin(trainer.config, done)
    if not checkpoint:
        if trainer.config.sampler.kind != "preferences":  # which no verifier grades
            verifier_check.demand(trainer.config.task, trainer.source.problems, trainer.config.checks.grader)
        row = evaluate_all(trainer, folder, 0, base=base)
        if base.told:
            folder.note(base_evaluated_by=base.told)
        log(trainer, folder, 0, row, began)
    elif UNRECORDED in checkpoint.state:
        finish_record(trainer, folder, done, checkpoint.state[UNRECORDED], began)
        save(trainer, folder, done)
    return done


def log(trainer: Trainer, folder: RunFolder, step: int, row: Mapping[str, float], began: float) -> None:
    """Write a step's row, and tell it. Where memory gave out, provenance.json says once what was lowered."""
    token_budgets = trainer.token_budgets().values()
    if lowered := [
        one | {"step": step} for token_budget in token_budgets for one in token_budget.take_unreported()
    ]:
        trainer.lowered += lowered
        folder.note(out_of_memory=trainer.lowered)
    whole = {"step": step, **row, **halvings(token_budgets), "time/wall": time.monotonic() - began}
    folder.log(whole)
    trainer.watch.note(whole)
    trainer.observers.step(whole)


def fingerprint(trainer: Trainer, folder: RunFolder) -> dict[str, str]:
    """Pin what the run is made from, and say which problems it is both trained on and evaluated with.
    Returns the hashes by name."""
    today = fingerprints.Today()
    made_from = today.of(trainer.config) | trainer.parts.fingerprints
    folder.fingerprint(made_from)
    digests = today.digests(trainer.config)
    if not digests.get("train"):  # pairs of a file, whose truth is not known
        digests["train"] = {one.id: fingerprints.prompt_digest(one) for one in trainer.source.problems}
    folder.problems(digests)
    if shared := {split: len(names) for split, names in fingerprints.overlap(digests).items()}:
        folder.note(trained_and_evaluated=shared)
        warnings.warn(f"problems that are trained on are evaluated with: {shared}", stacklevel=2)
    return made_from


def record(trainer: Trainer, folder: RunFolder, step: int, row: dict[str, float], began: float) -> None:
    """Write what a step gave, with the evaluations due after it. Where the run is told to stop before these
    are made, the checkpoint keeps the step's row with what there is of them, and the next start goes on with
    the others."""
    config = trainer.config
    if trainer.dump or step == 1 or step % (config.evaluate.every or config.train.steps) == 0:
        folder.rollouts(step, trainer.transcript)
    try:
        finish_record(trainer, folder, step, row, began)
    except Preempted:
        save(trainer, folder, step, {UNRECORDED: row})
        raise


def finish_record(
    trainer: Trainer, folder: RunFolder, step: int, row: dict[str, float], began: float
) -> None:
    """The evaluations due after a step that are not yet in its row, and the row."""
    if not trainer.diverged:
        evaluate_all(trainer, folder, step, row)
        if look(trainer, folder, step, row):
            evaluate_all(trainer, folder, step, row)
    log(trainer, folder, step, row, began)
    early_checks.judge(trainer, folder, step, row)


def look(trainer: Trainer, folder: RunFolder, step: int, row: Mapping[str, float]) -> bool:
    """Look at the run when that is due, and write down what is found. Whether it is to end for it: its last
    evaluations are then made at once."""
    watch = trainer.watch
    watch.note({"step": step, **row})
    if watch.due(step):
        trainer.collapsed = watch.stop(tell_events(trainer, folder))
    return bool(trainer.collapsed)


def tell_events(trainer: Trainer, folder: RunFolder) -> Findings:
    """Write down what the rows so far show."""
    findings = trainer.watch.findings()
    folder.events(event.row() for event in findings.events)
    return findings


def save(trainer: Trainer, folder: RunFolder, step: int, more: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint, after saying so. `more` goes into its state."""
    trainer.tell(step, SAVING)
    folder.save(step, trainer.models.state(), trainer.state() | dict(more or {}))


def save_when_due(trainer: Trainer, folder: RunFolder, step: int, stop: Callable[[], bool]) -> None:
    """A checkpoint after the steps that have one, and one before Preempted when the run is told to stop."""
    config = trainer.config
    halting = stop()
    due = config.checkpoint.every and step % config.checkpoint.every == 0 and step < config.train.steps
    if due or halting:
        save(trainer, folder, step)
    if halting:
        raise Preempted


def end(trainer: Trainer, folder: RunFolder) -> None:
    """Keep the final weights, write down what the logs show, and say how the run ended. Weights that are not
    finite are not kept: the run has diverged, and its last checkpoint, which is finite, stays."""
    if ruined := trainer.models.ruined():
        trainer.diverged = trainer.diverged or f"{ruined} at the end"
        folder.lock.demand()
        (folder.path / "final" / "policy.safetensors").unlink(missing_ok=True)  # an earlier attempt's
    else:
        trainer.tell(folder.step, SAVING)
        if not trainer.over and trainer.config.checkpoint.final:
            save(trainer, folder, trainer.config.train.steps)
        folder.keep_final(
            "policy", {name: p.detach() for name, p in trainer.models.named_parameters("policy").items()}
        )
    tell_events(trainer, folder)
    state: State = "diverged" if trainer.diverged else "collapsed" if trainer.collapsed else "finished"
    folder.finish(state, trainer.diverged or trainer.collapsed)


def evaluate_all(
    trainer: Trainer,
    folder: RunFolder,
    step: int,
    row: dict[str, float] | None = None,
    base: Base | None = None,
) -> dict[str, float]:
    """Put the evaluations due at a step into its row, each when it is made and written: validation on
    schedule, test before and after training. What the row holds is not made again. At step 0 `base` may know
    them from another arm."""
    row = {} if row is None else row
    settings, last = trainer.config.evaluate, trainer.config.train.steps
    due: list[Split] = []
    edge = step == last or (step == 0 and settings.before) or bool(trainer.collapsed)
    if settings.problems and (edge or (settings.every and step and step % settings.every == 0)):
        due.append("validation")
    if settings.test_problems and edge:
        due.append("test")
    for split in due:
        if any(name.startswith(f"eval/{split}/") for name in row):
            continue
        began = time.perf_counter()
        trainer.tell(step, f"evaluating on {split}")
        rows, summary = base.evaluate(split) if base else trainer.parts.evaluator.evaluate(step, split)
        point("evaluate")
        folder.evaluations(rows)
        point("evaluated")
        trainer.watch.evaluated(rows)
        trainer.observers.evaluation(step, split, summary)
        row |= summary
        row["time/evaluate"] = row.get("time/evaluate", 0.0) + time.perf_counter() - began
    return row


def carry(trainer: Trainer, folder: RunFolder, stop: Callable[[], bool], began: float) -> None:
    """All steps that are left, and the end. `began` is the attempt's start in seconds."""
    done = begin(trainer, folder, folder.latest(), began)
    for step in range(done + 1, trainer.config.train.steps + 1):
        if trainer.over:
            break
        with keep_state_before(trainer, folder, step):
            row = trainer.step(step)
        record(trainer, folder, step, row, began)
        if trainer.over:
            break
        save_when_due(trainer, folder, step, stop)
    end(trainer, folder)
