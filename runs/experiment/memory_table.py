"""The memory plan as a table: what is held in each phase."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

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
WIDTH = 100


def plan_lines(found: Sequence[Planned], why: str) -> list[str]:
    """The largest plan as a table, and a line for each other; `why` where there is none."""
    if not found:
        return [why]
    first, *others = found
    lines = [heading(first), *table_lines(first), *verdict_lines(first)]
    if others:
        lines.append("less, of other arms and tasks:")
        lines += [f"    {one.name}: {gib(one.plan.peak)} ({one.plan.largest.name})" for one in others]
    return lines


def heading(one: Planned) -> str:
    place = "a GPU" if one.gpu else "the processor"
    longest = "if every completion has the maximum length"
    return f"memory of {visible(one.name)}, {visible(one.model)} on {place}, {longest}:"


def table_lines(one: Planned) -> list[str]:
    """The table: a row for each part, a column for each phase."""
    large = one.plan.peak >= 2**30
    unit, digits = (2**30, 2) if large else (2**20, 1)
    table = Table(box=None, pad_edge=False)
    table.add_column("GiB" if large else "MiB")
    for phase in one.plan.phases:
        table.add_column(phase.name, justify="right")
    for part in PARTS:
        sizes = [phase.parts.get(part, 0) for phase in one.plan.phases]
        if any(sizes):
            table.add_row(part, *(f"{size / unit:,.{digits}f}" if size else "" for size in sizes))
    totals = [Text(f"{phase.total / unit:,.{digits}f}") for phase in one.plan.phases]
    table.add_row(Text("total"), *totals)
    console = Console(file=io.StringIO(), width=WIDTH, force_terminal=False, force_jupyter=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [f"    {line.rstrip()}" for line in console.file.getvalue().splitlines()]


def verdict_lines(one: Planned) -> list[str]:
    """Which phase is largest, and whether it fits."""
    peak = f"largest: {one.plan.largest.name}, {gib(one.plan.peak)}"
    if one.limit is None:
        lines = [
            f"{peak}; give the memory of a GPU with --gpu-memory GIB to see whether the runs fit into it"
        ]
    elif one.verdict == "fits in smaller portions":
        lines = [peak, warning(one)]
    else:
        words = "fits" if one.verdict == "fits" else "does not fit"
        lines = [f"{peak}; {words} into the {gib(one.limit)} of a GPU that a run may take"]
    return lines + [f"note: {note}" for note in one.plan.notes]
