"""All steps of a run, and the work around them: where it starts, what it writes after a step, and its end."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from grpobench.analysis.detectors.registry import Findings
from grpobench.runs.metrics.evaluator import prompts_of
from grpobench.runs.models.token_budgets import halvings
from grpobench.runs.reward import verifier_check
from grpobench.runs.runfolder import fingerprints
from grpobench.runs.runfolder.folder import Checkpoint, RunFolder
from grpobench.runs.runfolder.logs import State
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.lock import FolderError
from grpobench.runs.train import early_checks, stopping
from grpobench.runs.train.base_evaluation import Base, evaluate
from grpobench.runs.train.devices import together
from grpobench.runs.train.progress import SAVING, Preempted
from grpobench.runs.train.stopping import keep_state_before
from grpobench.runs.train.token_numbers import is_stored
from grpobench.runs.train.trainer import Trainer
from grpobench.tasks.task import Split

UNRECORDED = "unrecorded"
"""In the state of a checkpoint: the row of its step, if some evaluations of that step are still missing."""


def begin(trainer: Trainer, folder: RunFolder, checkpoint: Checkpoint | None, began: float) -> int:
    """Continue a run from its checkpoint, or start it. Returns the number of steps that are done."""
    folder.note(**trainer.parts.provenance)
    base = Base(trainer, folder.path, fingerprint(trainer, folder))
    done = checkpoint.step if checkpoint else 0
    if checkpoint:
        together(trainer, "restore", folder.path, done)
        if ruined := together(trainer, "ruined"):
            raise FolderError(
                f"{checkpoint.path}: {ruined}; restore the checkpoint, or delete it to resume an older one"
            )
    if not trainer.models.ranks.alone:  # one process alone lowers them where it did before
        together(trainer, "lower", folder.lowered())
    folder.rewind(done)  # before the watch: rows beyond the checkpoint are of steps that are made again
    trainer.watch.read(folder.path)
    tell_events(trainer, folder)
    trainer.observers.begin(trainer.config, done)
    if not checkpoint:
        if trainer.config.sampler.kind != "preferences":  # which no verifier grades
            verifier_check.demand(trainer.config.task, trainer.source.problems, trainer.config.checks.grader)
        row = evaluate_all(trainer, folder, 0, base=base)
        if base.evaluated_by:
            folder.note(base_evaluated_by=base.evaluated_by)
        if trainer.parts.study_seconds:
            row["time/study"] = trainer.parts.study_seconds
        log(trainer, folder, 0, row, began)
    elif UNRECORDED in checkpoint.state:
        finish_record(trainer, folder, done, checkpoint.state[UNRECORDED], began)
        save(trainer, folder, done)
    return done


def log(trainer: Trainer, folder: RunFolder, step: int, row: Mapping[str, float], began: float) -> None:
    """Write a step's row and pass it to the callbacks. If memory ran out, provenance.json lists once which
    token budget was lowered."""
    token_budgets = trainer.token_budgets().values()
    if lowered := [
        lowering | {"step": step}
        for token_budget in token_budgets
        for lowering in token_budget.take_unreported()
    ]:
        trainer.lowered += lowered
        # All of this attempt, because `note` replaces what it had under this name.
        folder.note(out_of_memory=trainer.lowered)
    full_row = {"step": step, **row, **halvings(token_budgets), "time/wall": time.monotonic() - began}
    folder.log(full_row)
    trainer.watch.note(full_row)
    trainer.observers.step(full_row)


def fingerprint(trainer: Trainer, folder: RunFolder) -> dict[str, str]:
    """Save the fingerprints of the run's inputs, and warn about problems that it both trains on and evaluates
    with. Returns the hashes by name."""
    today = fingerprints.Today()
    made_from = today.of(trainer.config) | trainer.parts.fingerprints
    folder.fingerprint(made_from)
    digests = today.digests(trainer.config)
    if not digests.get("train"):  # pairs of a file, which have no reference answers
        digests["train"] = {
            problem.id: fingerprints.prompt_digest(problem) for problem in trainer.source.problems
        }
    if experts := trainer.parts.experts:
        digests["experts"] = {
            problem.id: fingerprints.prompt_digest(problem) for problem in experts.distinct_problems
        }
    folder.problems(digests)
    if shared := {split: len(names) for split, names in fingerprints.overlap(digests).items()}:
        folder.note(trained_and_evaluated=shared)
        warnings.warn(f"problems that are trained on are evaluated with: {shared}", stacklevel=2)
    return made_from


def record(trainer: Trainer, folder: RunFolder, step: int, row: dict[str, float], began: float) -> None:
    """Write a step's results, with the evaluations due after it. If the run is asked to stop before these are
    complete, the checkpoint keeps the step's row with those that exist, and the next start makes the
    others."""
    config = trainer.config
    # Before the evaluations, in which the run may stop: the next attempt does not have these rollouts.
    if trainer.dump or trainer.over or is_stored(config, step):
        folder.rollouts(step, trainer.transcript)
    try:
        finish_record(trainer, folder, step, row, began)
    except Preempted:
        save(trainer, folder, step, {UNRECORDED: row})
        raise


def finish_record(
    trainer: Trainer, folder: RunFolder, step: int, row: dict[str, float], began: float
) -> None:
    """Make the evaluations due after a step that are not yet in its row, and write the row."""
    # Weights that are not finite are not evaluated.
    if not trainer.diverged:
        evaluate_all(trainer, folder, step, row)
        # An event may end the run with this step, which then is the last one and is evaluated as such.
        if look(trainer, folder, step, row):
            if trainer.groups:  # An attempt that resumes here has none, and the earlier one wrote the file.
                folder.rollouts(step, trainer.transcript)
            evaluate_all(trainer, folder, step, row)
    log(trainer, folder, step, row, began)
    # After `log`: it reads the rows from the file.
    early_checks.judge(trainer, folder, step, row)


def look(trainer: Trainer, folder: RunFolder, step: int, row: Mapping[str, float]) -> bool:
    """Call the detectors when that is due, and write their events. Returns whether an event ends the run."""
    watch = trainer.watch
    watch.note({"step": step, **row})
    if watch.due(step):
        trainer.collapsed = watch.stop(tell_events(trainer, folder))
    return bool(trainer.collapsed)


def tell_events(trainer: Trainer, folder: RunFolder) -> Findings:
    """Write the events in the rows so far."""
    findings = trainer.watch.findings()
    folder.events(event.row() for event in findings.events)
    return findings


def save(trainer: Trainer, folder: RunFolder, step: int, more: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint; `more` goes into its state."""
    trainer.tell(step, SAVING)  # first: a launcher that stops the run then waits for the checkpoint
    stopping.save(trainer, folder, step, trainer.state() | dict(more or {}))


def save_when_due(trainer: Trainer, folder: RunFolder, step: int, stop: Callable[[], bool]) -> None:
    """Write a checkpoint on schedule, and one before raising Preempted if the run is asked to stop."""
    config = trainer.config
    # What all ranks have written by now becomes a checkpoint; a step does not wait for the rest.
    folder.finish_saving(wait=False)
    # Asked once: if the answer changed below, the run would stop without a checkpoint.
    halting = stop()
    # Not the last step, which `end` saves if anything may continue from it.
    due = config.checkpoint.every and step % config.checkpoint.every == 0 and step < config.train.steps
    if due or halting:
        save(trainer, folder, step)
    if halting:
        raise Preempted


def end(trainer: Trainer, folder: RunFolder) -> None:
    """Save the final weights, the events and the final state of the run. Weights that are not finite are not
    saved: the run has diverged, and its last checkpoint, which is finite, stays."""
    # As in `save`: a launcher waits for this one, too.
    if folder.saving is not None:
        trainer.tell(folder.step, SAVING)
    folder.finish_saving()
    if ruined := together(trainer, "ruined"):
        trainer.diverged = trainer.diverged or f"{ruined} at the end"
        # Another process may have taken the folder over, and its weights must stay.
        folder.lock.demand()
        (folder.path / "final" / "policy.safetensors").unlink(missing_ok=True)  # an earlier attempt's
    else:
        trainer.tell(folder.step, SAVING)
        checkpoint_config = trainer.config.checkpoint
        if not trainer.over and checkpoint_config.continues:
            save(trainer, folder, trainer.config.train.steps)
        folder.finish_saving()
        if checkpoint_config.weights:
            folder.keep_final("policy", together(trainer, "final weights"))
        else:
            shutil.rmtree(folder.path / "final", ignore_errors=True)  # an attempt's that was to keep them
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
    """Add the evaluations due at a step to its row, each as soon as it is written: validation on schedule,
    test before and after training. Those that the row already has are not repeated. At step 0 `base` may have
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
        evaluator = trainer.parts.evaluator
        rows, summary = base.evaluate(evaluator, split) if base else evaluate(trainer, evaluator, step, split)
        point("evaluate")
        folder.evaluations(rows, prompts_of(evaluator.task, split, rows))
        point("evaluated")
        trainer.watch.evaluated(rows)
        trainer.observers.evaluation(step, split, summary)
        # Only now, with the rows written: by these names a resumed run knows that it has this split.
        row |= summary
        row["time/evaluate"] = row.get("time/evaluate", 0.0) + time.perf_counter() - began
    for split in due:
        evaluate_also(trainer, step, split, row, base)
    return row


def evaluate_also(
    trainer: Trainer, step: int, split: Split, row: dict[str, float], base: Base | None
) -> None:
    """Add the numbers of the tasks of `evaluate.also` on a split to a step's row. They have no rows in
    eval.jsonl, whose readers take all of its rows for the run's task."""
    for evaluator in trainer.parts.also:
        task, began = evaluator.task, time.perf_counter()
        head = f"also/{task.name}/{split}/"
        if split not in task.splits or any(name.startswith(head) for name in row):
            continue
        trainer.tell(step, f"evaluating {task.name} on {split}")
        _, summary = base.evaluate(evaluator, split) if base else evaluate(trainer, evaluator, step, split)
        row |= {name.replace(f"eval/{split}/", head, 1): value for name, value in summary.items()}
        row["time/evaluate"] = row.get("time/evaluate", 0.0) + time.perf_counter() - began


def carry(trainer: Trainer, folder: RunFolder, stop: Callable[[], bool], began: float) -> None:
    """Make the steps that are left, and end the run. The attempt began at `began`, in seconds."""
    try:
        # This may end the run: an evaluation that was still missing may show an event of `stop_on`.
        done = begin(trainer, folder, folder.latest(), began)
        for step in range(done + 1, trainer.config.train.steps + 1):
            if trainer.over:
                break
            with keep_state_before(trainer, folder, step):
                row = together(trainer, "step", step)
            record(trainer, folder, step, row, began)
            if trainer.over:
                break
            save_when_due(trainer, folder, step, stop)
    except Preempted:
        # Raises what a checkpoint in the background has failed of, which closing the folder would not.
        folder.finish_saving()
        raise
    end(trainer, folder)
