"""What is missing, out of place, not as planned, or trained on though it is evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grpobench.analysis.logs.changes import attempts
from grpobench.analysis.logs.digests import read_digests
from grpobench.analysis.logs.frames import by_run
from grpobench.analysis.logs.imported import imported
from grpobench.analysis.logs.matrix import DAMAGED, Matrix, Run
from grpobench.analysis.summary.settings import resolved_settings
from grpobench.analysis.tools.text import listed

PROMPT = 10
"""Characters of a problem's digest that stand for its prompt."""
NONFINITE = "grad/nonfinite"
"""Updates of a step that were skipped because their loss, a reward or a gradient was not finite."""


def incomplete(matrix: Matrix) -> Iterable[str]:
    """Runs with a result whose folder lacks a part of what every run writes."""
    steps = matrix.metrics.groupby(["arm", "task", "seed"], sort=False)["step"].unique()
    evaluated = by_run(matrix.metrics[matrix.metrics["metric"].isin(matrix.names("eval/"))])
    answered = by_run(matrix.evaluations)
    for run in matrix.runs:
        if run.state in ("missing", DAMAGED):
            continue
        faults = [*run.lost] if run.origin else ["origin.json is missing", *run.lost]
        key = (run.arm, run.task, run.seed)
        if run.settled:
            logged = {int(step) for step in steps[key]} if key in steps.index else set()
            faults += _lost_steps(run, logged)
            faults += _lost_evaluations(run, evaluated(run), answered(run))
        if faults:
            yield f"{run.name}: {'; '.join(faults)}"


def _lost_steps(run: Run, logged: set[int]) -> list[str]:
    if not logged:
        return ["metrics.jsonl is missing or empty: the run counts nowhere"]
    if told := imported(run):  # others log some of their steps
        lost_rows = int(told.get("rows", 0)) - len(logged)
        return [f"metrics.jsonl lacks {lost_rows} of {told['rows']} rows"] if lost_rows > 0 else []
    last = resolved_settings(run).get("train.steps", run.step) if run.finished else run.step
    lost = sorted({*range(int(last) + 1)} - logged)
    return (
        [f"metrics.jsonl lacks {len(lost)} of {last + 1} rows, the first of step {lost[0]}"] if lost else []
    )


def _lost_evaluations(run: Run, own: Any, rows: Any) -> list[str]:
    """Evaluations whose summary is in metrics.jsonl and whose answers are not in eval.jsonl."""
    if (told := imported(run)) and not told.get("answers"):  # others log what evaluations sum up to
        return []
    summed = {
        (int(step), *str(metric).split("/")[1:3])
        for step, metric in own[["step", "metric"]].drop_duplicates().itertuples(index=False)
    }
    kept = {*rows[["step", "split", "mode"]].itertuples(index=False, name=None)} if len(rows) else set()
    if summed and not kept:
        return ["eval.jsonl is missing or empty"]
    lost = sorted(summed - kept)
    return [f"eval.jsonl lacks {' '.join(map(str, one))}" for one in lost[:1]] + (
        [f"and {len(lost) - 1} more evaluations"] if len(lost) > 1 else []
    )


def left_out(matrix: Matrix) -> Iterable[str]:
    """Finished runs some of whose updates were not made; those that diverged are named for it elsewhere."""
    frame = matrix.select(NONFINITE)
    found = by_run(frame[frame["value"] > 0])
    for run in matrix.runs:
        steps = found(run)["step"]
        if run.finished and len(steps):
            last = resolved_settings(run).get("train.steps", run.step)
            yield f"{run.name}: in {len(steps)} of {last} steps, the last of them {steps.max()}"


def misplaced(matrix: Matrix) -> Iterable[str]:
    """Folders that hold another run than they say, or a copy of one."""
    for name, who in matrix.strangers.items():
        yield f"{name} holds {who}, by its run.toml; nothing in it is counted"
    for run in matrix.runs:
        told = run.config.get("matrix", matrix.name)
        if told != matrix.name:
            yield f"{run.name} was made for the matrix {told}, by its run.toml; it is counted"
    owners: dict[tuple[Any, ...], list[str]] = {}
    for run in matrix.runs:
        for one in attempts(run):
            mark = (one["id"],) if "id" in one else (one.get("pid"), one.get("host"), one.get("started"))
            if any(mark):
                owners.setdefault(mark, []).append(run.name)
    for names in dict.fromkeys(tuple(sorted(set(names))) for names in owners.values()):
        if len(names) > 1:
            yield f"{listed(names)} come from one and the same process: all but one are copies, and counted"


def unplanned(matrix: Matrix) -> Iterable[str]:
    """What is there and was not planned, and seeds that only some arms of a task have."""
    if not matrix.described:
        yield "matrix.json is missing or damaged: which runs were planned is not known"
    if extra := [run.name for run in matrix.runs if not run.planned]:
        yield f"not planned by matrix.json, and counted: {listed(extra)}"
    for task in matrix.tasks:
        arms: dict[str, set[int]] = {}
        for run in matrix.runs:
            if run.task == task:
                arms.setdefault(run.arm, set()).add(run.seed)
        everything = set().union(*arms.values()) if arms else set()
        for arm, seeds in arms.items():
            if lost := sorted(everything - seeds):
                yield f"{arm} on {task} has no run of seed {listed(lost)}, which other arms have"


def leaked(matrix: Matrix) -> Iterable[str]:
    """Evaluated problems that the same run could train on, by the digests that it kept."""
    told: dict[str, list[str]] = {}
    for name, digests in read_digests(matrix)[0].items():
        trained = {*digests.get("train", {}).values()}
        for split, problems in digests.items():
            both = [key for key, one in problems.items() if one in trained or one[:PROMPT] in trained]
            if split != "train" and both:
                share = f"{len(both)} of {len(problems)} {split} problems"
                what = f"{share} are training problems, such as {both[0]}"
                told.setdefault(what, []).append(name)
    for what, names in told.items():
        yield f"{what}: {listed(names)}"
