"""What is known of runs that were imported from logs of other libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from grpobench.analysis.logs.imported import imported
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.headline import headline_of
from grpobench.analysis.tools.text import listed

MOST = 3
"""Faults of a run that are told; origin.json has all."""


def foreign(matrix: Matrix) -> Iterable[str]:
    """Whose logs the imported runs are, and of which the final accuracy is from before the last update."""
    kinds: Counter[str] = Counter()
    for run in matrix.runs:
        if told := imported(run):
            names = f"names of {told['names']}" if told.get("names") else "names of no known library"
            writer = f", written by {told['writer']}" if told.get("writer") else ""
            kinds[f"{told.get('format', 'unknown')} logs with {names}{writer}"] += 1
    for kind, count in kinds.most_common():
        runs = "1 run" if count == 1 else f"{count} runs"
        yield f"{runs} from {kind}: origin.json says what each metric is there"
    early: dict[str, list[str]] = {}
    for task in matrix.tasks:
        frame = matrix.select(headline_of(matrix, task).metric)
        last = frame[frame["task"] == task].groupby(["arm", "seed"])["step"].max()
        for run in matrix.runs:
            key = (run.arm, run.seed)
            if run.task != task or not run.finished or not imported(run) or key not in last.index:
                continue
            if 0 < int(last[key]) < run.step:
                early.setdefault(f"step {last[key]} of {run.step}", []).append(run.name)
    for when, late in early.items():
        yield f"the final accuracy is of {when}, the last evaluation in the log: {listed(late)}"


def left_behind(matrix: Matrix) -> Iterable[str]:
    """What could not be read at all, and of each imported run what was left out: file, line and why."""
    yield from matrix.unimported
    for run in matrix.runs:
        faults = [str(fault) for fault in imported(run).get("faults", ())]
        if faults:
            more = f"; and {len(faults) - MOST} more, in its origin.json" if len(faults) > MOST else ""
            yield f"{run.name}: {'; '.join(faults[:MOST])}{more}"
