"""The pairs of arms in a short form: who is better, and what would resolve the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpobench.analysis.runfolder.interim import InterimPlan
from grpobench.analysis.statistics.comparison import Comparison
from grpobench.analysis.tools.text import p_value, points
from grpobench.analysis.topics.unresolved import seeds_text, seeds_to_resolve

MOST_ROWS = 12
"""Most pairs of a task that are shown without a click."""


@dataclass(frozen=True)
class PairRow:
    """One pair: `grpo > ppo` and the difference in points."""

    text: str
    verdict: str
    effect: str
    p: str
    """p of a difference that is shown; of an unresolved pair, the seeds that would find it."""
    equivalence: str
    """p of the equivalence that is shown; of an unresolved pair, the seeds that would show it."""
    waits: str = ""
    """What the pair waits for, in place of both."""


@dataclass(frozen=True)
class TaskPairs:
    """The pairs of one task, resolved ones first."""

    task: str
    resolved: int
    rows: Sequence[PairRow]


def pairs_by_task(compared: Sequence[Comparison], plan: InterimPlan | None = None) -> list[TaskPairs]:
    """The pairs of every task, told from the better arm's side."""
    tasks: dict[str, list[PairRow]] = {}
    for pair in sorted(compared, key=lambda pair: pair.verdict == "unresolved"):
        tasks.setdefault(pair.task, []).append(_row(pair, plan))
    ordered = dict.fromkeys(pair.task for pair in compared)
    return [
        TaskPairs(task, sum(row.verdict != "unresolved" for row in tasks[task]), tasks[task])
        for task in ordered
    ]


def _row(pair: Comparison, plan: InterimPlan | None) -> PairRow:
    if pair.verdict == "unresolved":
        needed = seeds_to_resolve(pair, plan)
        text, effect = f"{pair.first} ? {pair.second}", points(pair.effect)
        if needed.waits:
            return PairRow(text, pair.verdict, effect, "", "", needed.waits)
        return PairRow(text, pair.verdict, effect, needed.to_find, seeds_text(needed.equivalence))
    if pair.verdict == "equivalent":
        p = p_value(pair.p_equivalence_holm)
        return PairRow(pair.text, pair.verdict, points(pair.effect), "", f"p {p}")
    better_first = pair.turned() if pair.verdict == "worse" else pair
    return PairRow(
        better_first.text, pair.verdict, points(better_first.effect), f"p {p_value(pair.p_adjusted)}", ""
    )
