"""Sentences of the page: what was run, how it stands, and what so many seeds can decide."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from grpobench.analysis.logs.matrix import COLLAPSED, FINISHED
from grpobench.analysis.report.facts import Facts
from grpobench.analysis.statistics.comparison import Comparison, pairs_of
from grpobench.analysis.statistics.permutation import seeds_needed, smallest_p
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.statistics.verdicts import points as margin_points
from grpobench.analysis.summary.comparisons import most_shared
from grpobench.analysis.summary.doses import Axes, Cell, arms_run, axes_of, frontiers
from grpobench.analysis.summary.events import collapses
from grpobench.analysis.summary.headline import decoding
from grpobench.analysis.summary.settings import MOST_COLUMNS, Setting
from grpobench.analysis.summary.stability import words
from grpobench.analysis.tables.comparisons import INTERVALS
from grpobench.analysis.tools.text import (
    NONE,
    dose,
    doses_in_words,
    interval,
    level_name,
    listed,
    percent,
    points,
)


def claim(pair: Comparison, runs: pd.DataFrame) -> dict[str, str]:
    """A resolved comparison in words, seen from the better arm, with what collapsed on either side; `runs`
    are the rows of `finals`."""
    effect, low, high = pair.effect, pair.low, pair.high
    text = f"{pair.first} is better than {pair.second}"
    if pair.verdict == "worse":
        effect, low, high = -effect, -high, -low
        text = f"{pair.second} is better than {pair.first}"
    elif pair.verdict == "equivalent":
        text = f"{pair.first} and {pair.second} are equivalent"
    size = f"{points(effect)} points ({interval(low, high, points)})"
    return {"text": text, "rest": f"on {pair.task}: {size}; {pair.needs}{collapsed_of(pair, runs)}"}


def collapsed_of(pair: Comparison, runs: pd.DataFrame) -> str:
    """`; 2 of 3 runs of grpo collapsed`; empty where none of either arm did."""
    told = ""
    for arm in (pair.first, pair.second):
        own = runs[(runs["arm"] == arm) & (runs["task"] == pair.task)]
        if count := int((own["standing"] == COLLAPSED).sum()):
            told += f"; {count} of {len(own)} runs of {arm} collapsed"
    return told


def fallen(facts: Facts) -> list[tuple[str, str, str]]:
    """Every run that collapsed and did not recover, what fell, and the values that show it."""
    ends = collapses(facts.matrix, facts.numbers.findings)
    told = []
    for run in facts.matrix.runs:
        end = ends.get(run.name)
        if end is None or run.failed:  # a divergence is told among the failures
            continue
        events = facts.numbers.findings[run.name].events if run.name in facts.numbers.findings else ()
        shown = next((one for one in events if (one.kind, one.onset) == (end.kind, end.step)), None)
        evidence = "; ".join(map(str, shown.evidence)) if shown else run.why
        note = f" ({shown.note})" if shown and shown.note else ""
        how = f"{words(end.kind)} at update {end.step}"
        how += f", stopped at {run.step}" if run.collapsed else ""
        told.append((f"{run.arm} on {run.task}, seed {run.seed}", how, evidence + note))
    return told


def borne(facts: Facts) -> list[str]:
    """How far each arm of a map goes without a collapse and whether it learned there, a sentence for each of
    its levels; empty where the matrix is no map."""
    axes = axes_of(facts.matrix.doses)
    if axes is None:
        return []
    told = []
    what = doses_in_words([axes.key])
    ran = arms_run(facts.numbers.grid)
    for one in (each for each in frontiers(facts.numbers.grid) if each.arm in ran):
        where = f" at {doses_in_words(axes.others)} {level_name(one.level)}" if axes.others else ""
        if not one.measured:
            said = f"no run at the smallest {what} has a result"
        elif one.at is None:
            said = f"more than a third of the seeds collapse at the smallest {what}"
        else:
            said = f"the highest {what} at which at most a third of the seeds collapse is {dose(one.at.dose)}"
            said += f"{', the largest of the grid' * one.beyond}; {learned_words(one.at)}"
        best = one.best
        best_words = f"; the highest accuracy is at {dose(best.dose)}, {_share(best)}" if best else ""
        told.append(f"{one.arm}{where}, {one.task}: {said}{best_words}.")
    return told


def learned_words(cell: Cell) -> str:
    """How many runs at a dose collapsed and how many learned: a run that does neither has learned nothing."""
    learned = f" and {cell.learned}" if cell.learned else ", but none"
    told = f"there {cell.collapsed} of {cell.known} collapsed{learned} of {cell.known} learned"
    return f"{told} (accuracy {_share(cell)})"


def _share(cell: Cell) -> str:
    return f"{percent(cell.accuracy.value)} %"


def subtitle(facts: Facts) -> str:
    """What stands below the page's name: the recipe's summary; of a map the arms that were run, since a
    summary names those of the recipe, of which `--set arms=` takes some."""
    axes = axes_of(facts.matrix.doses)
    arms = arms_run(facts.numbers.grid) if axes else ()
    if axes is None or not arms:
        return facts.matrix.summary
    names = f"{', '.join(arms[:-1])} and {arms[-1]}" if len(arms) > 1 else arms[0]
    verbs = "learn, stall, drift and collapse" if len(arms) > 1 else "learns, stalls, drifts and collapses"
    keys = doses_in_words([axes.key, *axes.others]).replace(", ", " and ")
    return f"Where {names} {verbs} on {listed(facts.matrix.tasks)}, by {keys}"


def head(facts: Facts) -> dict[str, str]:
    """What was run, in a few words each."""
    matrix = facts.matrix
    axes = axes_of(matrix.doses)
    return {
        "arms": listed(arms_run(facts.numbers.grid) if axes else matrix.arms, 40),
        "doses": doses_given(axes) if axes else "",
        "tasks": ", ".join(matrix.tasks),
        "seeds": listed(matrix.seeds, 40),
        "runs": planned(facts),
        "model": _common(facts.settings, "model.name"),
        "updates": _common(facts.settings, "train.steps"),
        "sampler": _common(facts.settings, "sampler.kind"),
        "evaluation": " and ".join(
            decoding(matrix, mode)
            for mode in ("greedy", "sampled", "likelihood")
            if any(name.split("/")[2] == mode for name in matrix.names("eval/"))
        ),
    }


def doses_given(axes: Axes) -> str:
    """Every value of every key of a map."""
    values = {axes.key: axes.doses}
    values |= {
        key: tuple(dict.fromkeys(level[i] for level in axes.levels)) for i, key in enumerate(axes.others)
    }
    return "; ".join(f"{doses_in_words([key])} {', '.join(map(dose, own))}" for key, own in values.items())


def planned(facts: Facts) -> str:
    """How every planned run stands, in numbers that add up, and how many were not planned; where nothing says
    what was planned, how every run stands that is there."""
    told = ", ".join(f"{n} {standing}" for standing, n in facts.accounting.items())
    extra = sum(not run.planned for run in facts.matrix.runs)
    kind = "planned" if facts.matrix.described else "found"
    planned = f"{sum(facts.accounting.values())} {kind}: {told}"
    return f"{planned}; and {extra} that were not planned" if extra else planned


def failures(facts: Facts) -> list[tuple[str, str, str, str]]:
    """Every run that has no final accuracy of its own, and why."""
    standing = {(r.arm, r.task, r.seed): r.standing for r in facts.numbers.runs.itertuples()}
    return [
        (f"{run.arm} on {run.task}, seed {run.seed}", how, f"at update {run.step}", run.why)
        for run in facts.matrix.runs
        if (how := standing[run.arm, run.task, run.seed]) not in (FINISHED, COLLAPSED)
    ]


def _common(settings: Sequence[Setting], key: str) -> str:
    """The value of a setting over all arms, or each arm's own."""
    for setting in settings:
        if setting.key == key:
            if not setting.differs:
                return next(iter(setting.values.values()))
            if len(setting.values) > MOST_COLUMNS:
                return "; ".join(f"{value}: {arms}" for value, arms in setting.shared())
            return "; ".join(f"{arm}: {value}" for arm, value in setting.values.items())
    return NONE


def outlook(facts: Facts) -> list[str]:
    """What this many seeds can decide at all, and where another reading says otherwise, a paragraph each."""
    return [told for told in (decidable(facts), crossed_words(facts), axes_words(facts)) if told]


def decidable(facts: Facts) -> str:
    """What this many seeds can decide at all."""
    matrix, late = facts.matrix, int(facts.numbers.runs["counted"].isna().sum())
    if matrix.plan:
        taken = sum(look <= len(matrix.seeds) for look in matrix.plan.looks)
        beside = f" {taken} of {len(matrix.plan.looks)} looks were taken; p values allow for that."
        margin = f" Equivalence is within {margin_points(matrix.margin)} points."
        return f"{matrix.plan.words}{beside}{margin}"
    pairs = len(pairs_of(matrix.arms))
    if not pairs:
        return "There is one arm: nothing to compare."
    needed, seeds = seeds_needed(ALPHA, pairs), most_shared(matrix)
    can = (
        "so verdicts are possible" + (", but not where a run has no result" if late else "")
        if seeds >= needed
        else f"so no verdict is possible with {seeds}, whatever the accuracies are"
    )
    every = pairs == len(matrix.arms) * (len(matrix.arms) - 1) // 2
    shared = "" if seeds == len(matrix.seeds) else f", the most of {len(matrix.seeds)} that two arms share,"
    only = "" if every else f"Of {len(matrix.arms)} arms each is compared with the first, {matrix.arms[0]}. "
    return (
        f"{only}With {seeds} seed{'s' * (seeds != 1)}{shared} the smallest two-sided p of the exact test is "
        f"{smallest_p(seeds):.3g}; comparing {pairs} pair{'s' * (pairs > 1)} of arms per task at {ALPHA:g} "
        f"needs at least {needed} seeds, {can}. Arms are equivalent where "
        f"two one-sided exact tests rule out a difference of {margin_points(matrix.margin)} points or more, "
        f"which takes at least {seeds_needed(ALPHA, pairs, 1)} seeds. A 95% interval of a difference is a t "
        f"interval over seeds: {INTERVALS}"
    )


def axes_words(facts: Facts) -> str:
    """Where the answer depends on what is held equal, in a sentence; else empty."""
    told = [f"{one.first} − {one.second} on {one.task}" for one in facts.numbers.on_axes if one.depends]
    if not told:
        return ""
    return (
        "The verdict on validation accuracy at equal updates, generated tokens and seconds depends on which "
        f"of them is held equal for {listed(told)}: see the verdicts at equal budgets."
    )


def crossed_words(facts: Facts) -> str:
    """Where the interval over seeds × problems says otherwise than the verdict, in a sentence; else empty."""
    told = [f"{p.first} − {p.second} on {p.task}" for p in facts.numbers.compared if p.disagrees]
    if not told:
        return ""
    count = f"{len(told)} of {len(facts.numbers.compared)} comparisons"
    return f"Over seeds × problems the interval says otherwise than the verdict in {count}: {listed(told)}."
