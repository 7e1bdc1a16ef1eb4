"""The memory plan as a table: what is held in each phase."""

from __future__ import annotations

from collections.abc import Sequence

from grpobench.analysis.figures.table import plain
from grpobench.analysis.tools.text import visible
from grpobench.runs.experiment.memory import Planned, gib, warning
from grpobench.runs.models.memory_plan import GRAPH_WORKSPACE

PARTS = (
    *("policy", "reference", "critic", "master weights", "optimizer", "gradients", "earlier weights"),
    *(
        "base policy",
        "teacher",
        "reward model",
        "gathered weights",
        "sampler's copy",
        "engine weights",
        "engine cache",
        "weight casts",
        "activations",
    ),
    *("logits", "key-value cache", "decoding graphs", GRAPH_WORKSPACE, "working memory"),
)
"""All parts of a plan, in the order of the table."""


def plan_lines(planned_runs: Sequence[Planned], why: str) -> list[str]:
    """The largest plan as a table, and a line for each other; `why` where there is none."""
    if not planned_runs:
        return [why]
    first, *others = planned_runs
    lines = [heading(first), *table_lines(first), *verdict_lines(first)]
    if others:
        lines.append("less, of other arms and tasks:")
        lines += [
            f"    {planned_run.name}: {gib(planned_run.plan.peak)} ({planned_run.plan.largest.name})"
            for planned_run in others
        ]
    return lines


def heading(planned_run: Planned) -> str:
    device = "a GPU" if planned_run.gpu else "the processor"
    longest = "if every completion has the maximum length"
    return f"memory of {visible(planned_run.name)}, {visible(planned_run.model)} on {device}, {longest}:"


def table_lines(planned_run: Planned) -> list[str]:
    """The table: a row for each part, a column for each phase."""
    large = planned_run.plan.peak >= 2**30
    unit, digits = (2**30, 2) if large else (2**20, 1)
    sizes = {part: [phase.parts.get(part, 0) for phase in planned_run.plan.phases] for part in PARTS}
    sizes = {part: of_phases for part, of_phases in sizes.items() if any(of_phases)}
    sizes["total"] = [phase.total for phase in planned_run.plan.phases]
    rows = [
        [part, *(f"{size / unit:,.{digits}f}" if size else "" for size in of_phases)]
        for part, of_phases in sizes.items()
    ]
    header = ["GiB" if large else "MiB", *(phase.name for phase in planned_run.plan.phases)]
    return [f"    {line}" for line in plain(header, rows).text(numbers_right=True)]


def verdict_lines(planned_run: Planned) -> list[str]:
    """Which phase is largest, and whether it fits."""
    peak = f"largest: {planned_run.plan.largest.name}, {gib(planned_run.plan.peak)}"
    if planned_run.limit is None:
        lines = [
            f"{peak}; give the memory of a GPU with --gpu-memory GIB to see whether the runs fit into it"
        ]
    elif planned_run.verdict == "fits in smaller portions":
        lines = [peak, warning(planned_run)]
    else:
        words = "fits" if planned_run.verdict == "fits" else "does not fit"
        lines = [f"{peak}; {words} into the {gib(planned_run.limit)} of a GPU that a run may take"]
    return lines + [f"note: {note}" for note in planned_run.plan.notes]
