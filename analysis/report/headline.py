"""The headline of a report: one sentence made of verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from grpobench.analysis.report.sources import describe_sources
from grpobench.analysis.runfolder.experiment import DIVERGED
from grpobench.analysis.statistics.comparison import Comparison
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.tools.text import (
    and_list,
    listed,
    number,
    percent,
    points,
    sweep_value,
    sweep_values_in_words,
)
from grpobench.analysis.topics.events import collapses
from grpobench.analysis.topics.guards import describe_guards
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.rates import (
    DEPENDS,
    EDGE,
    ROBUST,
    WAITS,
    Direction,
    RatePair,
    rate_of_policy,
)
from grpobench.analysis.topics.sweep import axes_of, find_frontiers

Arms: TypeAlias = frozenset[str]
MOST_CLAUSES = 3
"""Most groups of arms or tasks that a clause names; the table below the sentence has all."""
MOST_EQUIVALENT = 2
"""Most equivalent pairs that are named."""
MOST_NAMES = 4
"""Most arms or tasks that a list names."""


def describe_headline(numbers: Numbers) -> str:
    """One sentence: what each arm gained, which pairs differ, and which runs collapsed."""
    clauses = [clause for part in PARTS if (clause := part(numbers))]
    if not clauses:
        return "No run has a result yet."
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def joined(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """`a, b and c`; from the `most`-th on, how many more there are."""
    if len(names) > most:
        return listed(names, most - 1)
    return and_list(names)


def arms_in_words(arms: Iterable[str], every: Sequence[str]) -> str:
    """Some of the arms, in the order of the recipe: `all arms`, `all arms but ppo`, `grpo and ppo`."""
    chosen = [arm for arm in every if arm in {*arms}]
    left = [arm for arm in every if arm not in chosen]
    if not left:
        return f"all {len(every)} arms" if len(every) > 2 else joined(chosen)
    if len(chosen) > 2 and len(left) <= 2:
        return f"all arms but {joined(left)}"
    return joined(chosen)


def span_in_words(effects: Sequence[float]) -> str:
    """Sizes of effects in points: `24 to 33`, or one number where both round alike."""
    ends = [number(100 * abs(effect), 0) for effect in (min(effects, key=abs), max(effects, key=abs))]
    return " to ".join(dict.fromkeys(ends))


def describe_unevaluated(numbers: Numbers) -> str:
    """How many runs ended, where none was evaluated; empty elsewhere."""
    ended = sum(run.settled for run in numbers.experiment.at_all_rates.runs)
    if numbers.evaluated or not ended:
        return ""
    runs = "1 run ended and was" if ended == 1 else f"{ended} runs ended and none was"
    return f"{runs}{' not' * (ended == 1)} evaluated, so no accuracies are compared"


# Gains over the policy before training


def describe_gains(numbers: Numbers) -> str:
    """Which arms gain or lose on which tasks, by the verdicts on each arm against its base."""
    pairs = [pair for pair in numbers.against_base if pair.seeds]
    if not numbers.evaluated:
        return ""
    if not pairs:
        return describe_levels(numbers)
    if max(len(pair.seeds) for pair in pairs) < seeds_needed(ALPHA):
        return _unconfirmed(pairs, alone=not numbers.compared)
    arms = numbers.experiment.arms
    clauses = [
        *_changes(pairs, arms, "better", ("gains", "gain")),
        *_changes(pairs, arms, "worse", ("loses", "lose")),
    ]
    without = _tasks_without(numbers.experiment.tasks, pairs)
    if without:
        clauses.append(f"no gain is shown on {joined(without)}")
    more = len(clauses) - MOST_CLAUSES
    return ", ".join(clauses[:MOST_CLAUSES] + [f"and {more} more changes"] * (more > 0))


def _unconfirmed(pairs: Sequence[Comparison], alone: bool) -> str:
    """The changes of mean accuracy where there are too few seeds for any verdict. `alone`: no clause about
    pairs of arms follows, which would say so."""
    seeds = max(len(pair.seeds) for pair in pairs)
    changes: dict[str, list[float]] = {}
    for pair in pairs:
        changes.setdefault(pair.task, []).append(pair.effect)
    task_changes = [
        f"{' to '.join(dict.fromkeys(points(end) for end in (min(sizes), max(sizes))))} points on {task}"
        for task, sizes in changes.items()
    ]
    confirm = f"which {seeds} seed{'s' * (seeds > 1)} cannot confirm ({seeds_needed(ALPHA)} are needed)"
    return f"mean accuracy changes by {joined(task_changes)}" + f", {confirm}" * alone


def describe_levels(numbers: Numbers) -> str:
    """The final accuracies by task, where arms are not compared with the policy before training: none is
    known, or the experiment is a map of which nothing is told by `describe_reach`."""
    finals = numbers.runs.dropna(subset=["counted"]).groupby(["task", "arm"], sort=False)["counted"].mean()
    if finals.empty or describe_reach(numbers):
        return ""
    task_levels = [
        f"{' to '.join(dict.fromkeys(map(percent, (of_task.min(), of_task.max()))))} % on {task}"
        for task, of_task in finals.groupby("task", sort=False)
    ]
    return f"mean final accuracy is {joined(task_levels)}"


def _changes(
    pairs: Sequence[Comparison], arms: Sequence[str], verdict: str, verbs: tuple[str, str]
) -> list[str]:
    """One clause for each set of arms with this verdict, with the tasks on which it is this set."""
    effects: dict[str, dict[str, float]] = {}
    for pair in pairs:
        if pair.verdict == verdict:
            effects.setdefault(pair.task, {})[pair.first] = pair.effect
    tasks_by_arms: dict[Arms, list[str]] = {}
    for task, by_arm in effects.items():
        tasks_by_arms.setdefault(frozenset(by_arm), []).append(task)
    clauses = []
    for group, tasks in sorted(
        tasks_by_arms.items(), key=lambda arms_tasks: -len(arms_tasks[0]) * len(arms_tasks[1])
    ):
        verb = verbs[len(group) > 1]
        where = _sizes({task: [*effects[task].values()] for task in tasks})
        clauses.append(f"{arms_in_words(group, arms)} {verb} {where}")
    return clauses


def _sizes(effects: Mapping[str, Sequence[float]]) -> str:
    """`20 to 27 points on a and 38 to 46 on b`; one range where there are many tasks."""
    if len(effects) > MOST_CLAUSES:
        together = [effect for of_task in effects.values() for effect in of_task]
        return f"{span_in_words(together)} points on {joined([*effects])}"
    first, *other_texts = (f"{span_in_words(sizes)} points on {task}" for task, sizes in effects.items())
    return joined([first, *(text.replace(" points", "", 1) for text in other_texts)])


def _tasks_without(tasks: Sequence[str], pairs: Sequence[Comparison]) -> list[str]:
    """Tasks with comparisons on which no arm gains or loses."""
    verdicts: dict[str, set[str]] = {}
    for pair in pairs:
        verdicts.setdefault(pair.task, set()).add(pair.verdict)
    return [task for task in tasks if task in verdicts and not verdicts[task] & {"better", "worse"}]


# Pairs of arms


def describe_differences(numbers: Numbers) -> str:
    """How many pairs differ and which, which show no difference of the margin, how many are unresolved."""
    compared = numbers.compared
    if not compared:
        return ""
    counts = Counter(pair.verdict for pair in compared)
    differ, open_pairs = counts["better"] + counts["worse"], counts["unresolved"]
    largest = max(len(pair.seeds) for pair in compared)
    if not differ and not counts["equivalent"] and largest < seeds_needed(ALPHA):
        seeds = f"{largest} seed{'s' * (largest != 1)}"
        verb = "confirms" if largest == 1 else "confirm"
        return (
            f"{seeds} {verb} neither changes nor differences between arms ({seeds_needed(ALPHA)} are needed)"
        )
    differ_words = (
        f"{differ} of {len(compared)} pairs differ{'s' * (differ == 1)}" if differ else "no pair differs"
    )
    losers = _losers(_directed(compared), numbers.experiment.arms)
    parts = [f"{_rates_compared(numbers)}{differ_words}{': ' * bool(differ)}{', '.join(losers)}"]
    if equivalent := [pair for pair in compared if pair.verdict == "equivalent"]:
        names = [f"{pair.first} and {pair.second} on {pair.task}" for pair in equivalent]
        shown = f"between {joined(names)}" if len(names) <= MOST_EQUIVALENT else f"in {len(names)} pairs"
        parts.append(f"{equivalent[0].words} {shown}")
    if open_pairs:
        parts.append(f"{open_pairs} pair{'s are' if open_pairs > 1 else ' is'} unresolved")
    return "; ".join(filter(None, (parts[0], ", ".join(parts[1:]))))


def _rates_compared(numbers: Numbers) -> str:
    """At which learning rates the pairs of a recipe were compared; empty where no run records one, as in
    imported logs, and for a map over learning rates, whose arms are the rates."""
    experiment = numbers.experiment
    if numbers.rates:
        return "at their own learning rates "
    if any("learning_rate" in key for point in experiment.sweep_values.values() for key in point.values):
        return ""
    recorded = any(rate_of_policy(run.config) is not None for run in experiment.runs)
    return "at one learning rate of each arm " if recorded else ""


def describe_rates(numbers: Numbers) -> str:
    """Which pairs differ at best learning rates and around them, and which depend on the rate; empty where
    each arm has one rate."""
    study = numbers.rates
    if study is None or not study.pairs:
        return ""
    arms = numbers.experiment.arms
    by_conclusion: dict[str, list[RatePair]] = {}
    for pair in study.pairs:
        by_conclusion.setdefault(pair.conclusion, []).append(pair)
    robust = by_conclusion.get(ROBUST, [])
    rates = "at the best learning rates, at half and at twice these"
    waiting = len(by_conclusion.get(WAITS, []))
    if waiting == len(study.pairs):
        return f"comparisons {rates} wait for runs"
    parts = [f"no difference holds {rates}"]
    if robust:
        names = ", ".join(_losers([pair.direction for pair in robust], arms))
        verb = "differs" if len(robust) == 1 else "differ"
        parts = [f"{len(robust)} of {len(study.pairs)} pairs {verb} {rates} (rate-robust): {names}"]
    endings = {DEPENDS: "on the rate", EDGE: "at best rates at an edge of those tried"}
    for conclusion, ending in endings.items():
        if pairs := by_conclusion.get(conclusion):
            verb = ("depend" if conclusion == DEPENDS else "differ") + "s" * (len(pairs) == 1)
            names = joined([f"{pair.first} − {pair.second} on {pair.task}" for pair in pairs], MOST_CLAUSES)
            parts.append(f"{len(pairs)} {verb} {ending}: {names}")
    if waiting:
        parts.append(f"{waiting} wait{'s' * (waiting == 1)} for runs")
    return ", ".join(parts)


def _directed(compared: Sequence[Comparison]) -> list[Direction]:
    """(better, worse, task) of the pairs that differ."""
    directed = [pair if pair.verdict == "better" else pair.turned() for pair in compared]
    return [(pair.first, pair.second, pair.task) for pair in directed if pair.verdict == "better"]


def _losers(differing: Sequence[Direction], arms: Sequence[str]) -> list[str]:
    """The pairs that differ, one clause for each set of worse arms or of better arms, whichever is fewer."""
    ways = [_grouped(differing, arms, turned) for turned in (False, True)]
    clauses = min(ways, key=len)
    more = len(clauses) - MOST_CLAUSES
    return clauses[:MOST_CLAUSES] + [f"and {more} more"] * (more > 0)


def _grouped(differing: Sequence[Direction], arms: Sequence[str], turned: bool) -> list[str]:
    """Clauses about the better arms, or `turned` about the worse ones."""
    others: dict[tuple[str, str], set[str]] = {}
    for better, worse, task in differing:
        subject, opponent = (worse, better) if turned else (better, worse)
        others.setdefault((subject, task), set()).add(opponent)
    tasks: dict[tuple[str, Arms], list[str]] = {}
    for (subject, task), of_task in others.items():
        tasks.setdefault((subject, frozenset(of_task)), []).append(task)
    word = "worse" if turned else "better"
    ordered = sorted(tasks.items(), key=lambda entry: -len(entry[0][1]) * len(entry[1]))
    clauses = []
    for (subject, theirs), where in ordered:
        other_arms = [arm for arm in arms if arm != subject]
        names = (
            "all others"
            if len(other_arms) > 1 and theirs == {*other_arms}
            else arms_in_words(theirs, other_arms)
        )
        clauses.append(f"{subject} is {word} than {names} on {joined(where)}")
    return clauses


# Runs that collapsed


def describe_collapsed_runs(numbers: Numbers) -> str:
    """How many runs collapsed or diverged, by arm and task."""
    experiment = numbers.experiment
    if experiment.sweep_values:  # each arm is a sweep value, and most collapse on purpose
        return ""
    ends = collapses(experiment, numbers.findings)
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    diverged = 0
    for run in experiment.runs:
        sizes[run.arm, run.task] += 1
        if run.name in ends:
            counts[run.arm, run.task] += 1
            diverged += run.state == DIVERGED
    if not counts:
        return ""
    total = sum(counts.values())
    arm_counts = [
        f"{arm} on {task} {count} of {sizes[arm, task]}" for (arm, task), count in counts.most_common()
    ]
    extra = f" ({diverged} of them diverged)" if diverged and diverged < total else ""
    verb = "diverged" if diverged == total else "collapsed"
    return f"{total} run{'s' * (total > 1)} {verb}{extra}: {listed(arm_counts, MOST_CLAUSES)}"


# Maps


def describe_reach(numbers: Numbers) -> str:
    """How far each arm of a map goes before more than a third of its seeds collapse; empty without a map."""
    axes = axes_of(numbers.experiment.sweep_values)
    if axes is None:
        return ""
    axis_words = sweep_values_in_words([axes.key])
    furthest: dict[str, list[int]] = {}
    for frontier in find_frontiers(axes, numbers.grid):
        if frontier.measured:
            index = -1 if frontier.at is None else axes.sweep_values.index(frontier.at.sweep_value)
            furthest.setdefault(frontier.arm, []).append(index)
    reached = []
    for arm, indices in furthest.items():
        ends = [
            sweep_value(axes.sweep_values[index]) if index >= 0 else "below the grid"
            for index in (min(indices), max(indices))
        ]
        reached.append(f"{arm} {' to '.join(dict.fromkeys(ends))}")
    if not reached:
        return ""
    return (
        f"the largest {axis_words} without a collapse in more than a third of the seeds: {listed(reached, 6)}"
    )


# Gains that are format


def describe_format(numbers: Numbers) -> str:
    """Which changes of accuracy are changes of readability, or may be."""
    lines = [line.bold for line in describe_sources(numbers).format]
    more = len(lines) - MOST_CLAUSES
    return ", ".join(lines[:MOST_CLAUSES] + [f"and {more} more"] * (more > 0))


# Each function gives one clause, or an empty text if it has nothing to say. A topic adds a clause by adding
# its function.
PARTS: Sequence[Callable[[Numbers], str]] = (
    describe_unevaluated,
    describe_reach,
    describe_gains,
    describe_format,
    lambda numbers: describe_guards(numbers.guards),
    describe_rates,
    describe_differences,
    describe_collapsed_runs,
)
"""The clauses in their order."""
