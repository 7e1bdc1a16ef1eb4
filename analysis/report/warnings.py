"""Every warning of a report, the gravest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from grpobench.analysis.checks.alarms import IMPORTED, SPARED
from grpobench.analysis.checks.pairing import Pairing
from grpobench.analysis.report.sources import describe_sources
from grpobench.analysis.runfolder.experiment import COLLAPSED, FINISHED
from grpobench.analysis.statistics.comparison import pairs_of
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.topics.accuracy import WITHOUT_DATA, why_without_data
from grpobench.analysis.topics.bias import caveats
from grpobench.analysis.topics.comparisons import count_shared_seeds
from grpobench.analysis.topics.contamination import warn_of_contamination
from grpobench.analysis.topics.events import collapses
from grpobench.analysis.topics.guards import warn_of_guards
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.rates import DEPENDS, EDGE
from grpobench.analysis.topics.search import describe_limits, list_rate_doubts, list_search_doubts
from grpobench.analysis.topics.stability import event_words
from grpobench.analysis.topics.training import LITTLE, critic_explained, critic_warnings
from grpobench.analysis.topics.warnings import (
    Gravity,
    ReportWarning,
    warn_of_repeated_numbers,
    warn_of_saturation,
)

MILD = (SPARED, IMPORTED)
"""Titles of alarms on which no number depends."""


@dataclass(frozen=True)
class WarningInput:
    """What warnings are made from."""

    numbers: Numbers
    alarms: Mapping[str, Sequence[str]]
    """Lines by title."""
    pairing: Pairing


def list_warnings(checked: WarningInput) -> list[ReportWarning]:
    """All warnings, the gravest first; of equally grave ones, in the order of `WARNINGS`."""
    warnings = [warning for warn in WARNINGS for warning in warn(checked)]
    return sorted(warnings, key=lambda warning: -warning.gravity)


def _unsearched_rates(checked: WarningInput) -> Iterator[ReportWarning]:
    """Learning rates that were not searched for their arm."""
    doubts = list_rate_doubts(checked.numbers.experiment)
    if doubts:
        yield ReportWarning(
            doubts[0],
            doubts[1:],
            Gravity.FAULT if checked.numbers.experiment.borrowed_rates else Gravity.DOUBT,
            "An algorithm at an unsuitable rate loses whatever its merit. `grpobench search RECIPE` "
            "tries equally many rates for every arm and records them; `--rates 0.5,1,2` shows whether a "
            "difference holds at half and at twice the rates.",
        )


def _rate_conclusions(checked: WarningInput) -> Iterator[ReportWarning]:
    """Differences that are the learning rate's, and best rates at the edge of what was tried."""
    study = checked.numbers.rates
    if study is None:
        yield from _one_rate(checked)
        return
    titles = {
        DEPENDS: (
            "depend{s} on the learning rate",
            "A statement about such a pair must name the learning rates at which it holds.",
        ),
        EDGE: (
            "differ{s} at best learning rates at an edge of those tried",
            "An arm may do better beyond the edge. The same command with more `--rates` adds these runs.",
        ),
    }
    for conclusion, (title, text) in titles.items():
        pairs = [pair for pair in study.pairs if pair.conclusion == conclusion]
        if pairs:
            yield ReportWarning(
                f"{len(pairs)} of {len(study.pairs)} pairs {title.format(s='s' * (len(pairs) == 1))}",
                [f"{pair.first} − {pair.second} on {pair.task}: {pair.why}" for pair in pairs],
                Gravity.DOUBT,
                text,
            )


def _one_rate(checked: WarningInput) -> Iterator[ReportWarning]:
    """Differences between arms with searched rates, of which no other rate was tried."""
    experiment, compared = checked.numbers.experiment, checked.numbers.compared
    differing = [pair for pair in compared if pair.verdict in ("better", "worse")]
    if differing and experiment.search is not None and not list_rate_doubts(experiment):
        yield ReportWarning(
            f"{len(differing)} of {len(compared)} pairs differ{'s' * (len(differing) == 1)} at one learning "
            "rate of each arm",
            [],
            Gravity.DOUBT,
            "No other rate was tried: `--rates 0.5,1,2` shows whether they differ at half and twice these.",
        )


def _unsuitable_rates(checked: WarningInput) -> Iterator[ReportWarning]:
    """Searched learning rates that may not suit their arms."""
    for title, lines in list_search_doubts(checked.numbers.experiment):
        yield ReportWarning(
            title,
            lines,
            Gravity.DOUBT,
            "A verdict on arms then depends on their rates. `grpobench search RECIPE` searches them "
            "under the settings of the recipe.",
        )


def _alarms(checked: WarningInput) -> Iterator[ReportWarning]:
    """What is damaged, not uniform, not as planned, or missing."""
    for title, lines in checked.alarms.items():
        yield ReportWarning(title, lines, Gravity.NOTE if title in MILD else Gravity.FAULT)


def _failures(checked: WarningInput) -> Iterator[ReportWarning]:
    """Runs without a final accuracy, and why they have none."""
    experiment = checked.numbers.experiment.at_all_rates
    runs = experiment.runs
    status = {(r.arm, r.task, r.seed): r.run_status for r in checked.numbers.runs_at_all_rates.itertuples()}
    lines = [
        f"{run.arm} on {run.task}, seed {run.seed}: {how} at update {run.step}"
        + f", {run.why}" * bool(run.why)
        + (f": {why_without_data(experiment, run)}" if how == WITHOUT_DATA else "")
        for run in runs
        if (how := status[run.arm, run.task, run.seed]) not in (FINISHED, COLLAPSED)
    ]
    if lines:
        yield ReportWarning(
            f"{len(lines)} of {len(runs)} runs {'has' if len(lines) == 1 else 'have'} no final accuracy",
            lines,
            Gravity.FAULT,
            "A run that diverged counts as accuracy 0, because the algorithm failed. Runs that crashed (out "
            "of memory, or another fault of the machine or the program), runs that are not finished and "
            "runs whose logs lack the accuracy are left out. Their comparisons stay unresolved.",
        )


def _format_gains(checked: WarningInput) -> Iterator[ReportWarning]:
    """Changes of accuracy that are changes of readability, or may be."""
    for line in describe_sources(checked.numbers).format:
        yield ReportWarning(line.bold, [line.explanation], Gravity.DOUBT)


def _constant_answers(checked: WarningInput) -> Iterator[ReportWarning]:
    """Policies that answer the same to everything."""
    constant_lines = describe_sources(checked.numbers).constant
    if constant_lines:
        more = f"; and {len(constant_lines) - 1} more" * (len(constant_lines) > 1)
        yield ReportWarning(
            f"Constant answers: {constant_lines[0].bold}{more}",
            [f"{line.bold}. {line.explanation}" for line in constant_lines],
            Gravity.FAULT,
            "A policy that ignores the problem earns whatever share of the problems its answer fits. Compare "
            "its accuracy with that of always giving this answer.",
        )


def _search_limits(checked: WarningInput) -> Iterator[ReportWarning]:
    """What a search took, values that it cannot tell apart, and what was not searched."""
    limits = describe_limits(checked.numbers.experiment)
    if limits:
        yield ReportWarning("The search of settings has limits", [limits], Gravity.NOTE)


def _few_seeds(checked: WarningInput) -> Iterator[ReportWarning]:
    """Too few seeds for any verdict."""
    experiment, needed = checked.numbers.experiment, seeds_needed(ALPHA)
    if not checked.numbers.compared or not pairs_of(experiment.arms, experiment.control):
        return
    seeds = count_shared_seeds(experiment)
    if seeds < needed:
        planned = experiment.plan is not None and len(experiment.plan.seeds) >= needed
        beside = "; the plan has more" * planned
        yield ReportWarning(
            f"{seeds} seed{'s' * (seeds != 1)} allow{'s' * (seeds == 1)} no verdict on two arms, whatever "
            f"their accuracies are; {needed} are needed{beside}"
        )


def _collapsed_runs(checked: WarningInput) -> Iterator[ReportWarning]:
    """Runs that collapsed and did not recover. Not of a map, whose arms are sweep values."""
    experiment, findings = checked.numbers.experiment, checked.numbers.findings
    if experiment.sweep_values:
        return
    ends, lines = collapses(experiment, findings), []
    for run in experiment.runs:
        end = ends.get(run.name)
        if end is None or run.failed:  # a divergence is listed among the failures
            continue
        events = findings[run.name].events if run.name in findings else ()
        event = next(
            (run_event for run_event in events if (run_event.kind, run_event.onset) == (end.kind, end.step)),
            None,
        )
        evidence = "; ".join(map(str, event.evidence)) if event else run.why
        note = f" ({event.note})" if event and event.note else ""
        how = f"{event_words(end.kind)} at update {end.step}"
        how += f", stopped at {run.step}" if run.collapsed else ""
        lines.append(f"{run.arm} on {run.task}, seed {run.seed}: {how}; {evidence}{note}")
    if lines:
        yield ReportWarning(
            f"{len(lines)} of {len(experiment.runs)} runs collapsed",
            lines,
            Gravity.DOUBT,
            "They lost what they had learned and did not recover by the end of their logs. They count with "
            "the accuracy that they ended with, and the tables mark them. A mean over these and other runs "
            "describes neither.",
        )


def _weak_critics(checked: WarningInput) -> Iterator[ReportWarning]:
    """Critics that explain too little."""
    lines = list(critic_warnings(critic_explained(checked.numbers.experiment)))
    if lines:
        yield ReportWarning(
            f"Critics that explain less than {100 * LITTLE:.0f} % of the returns: {_where(lines)}",
            lines,
            Gravity.DOUBT,
            "Predicting the mean return explains 0. With a critic this weak, the arm says nothing about "
            "methods with a critic. If the other rollouts of a group explain no more than the critic, the "
            "returns may not be predictable at all.",
        )


def _where(lines: Sequence[str]) -> str:
    """The arm and task of the first line, and how many more there are."""
    first = lines[0].partition(", seed")[0]
    return f"{first} and {len(lines) - 1} more" if len(lines) > 1 else first


def _other_problems(checked: WarningInput) -> Iterator[ReportWarning]:
    """Pairs whose conclusion changes if problems are resampled too."""
    compared = checked.numbers.compared
    pairs = [pair for pair in compared if pair.disagrees]
    if pairs:
        resolved = sum(pair.verdict != "unresolved" for pair in pairs)
        yield ReportWarning(
            f"In {len(pairs)} of {len(compared)} comparisons, resampling problems as well as seeds changes "
            f"the conclusion ({resolved} of them resolved)",
            [f"{p.first} − {p.second} on {p.task} ({p.words}): {p.disagrees}" for p in pairs],
            Gravity.DOUBT if resolved else Gravity.NOTE,
        )


def _budgets(checked: WarningInput) -> Iterator[ReportWarning]:
    """Pairs whose verdict depends on what is held equal."""
    pairs = [pair_on_axes for pair_on_axes in checked.numbers.on_axes if pair_on_axes.depends]
    turned = [
        pair_on_axes
        for pair_on_axes in pairs
        if {"better", "worse"} <= {pair.verdict for pair in pair_on_axes.comparisons.values()}
    ]
    if pairs:
        yield ReportWarning(
            f"The verdict on validation accuracy depends on what is held equal (updates, generated tokens or "
            f"seconds) for {len(pairs)} of {len(checked.numbers.on_axes)} pairs",
            [pair_on_axes.sentence for pair_on_axes in pairs],
            Gravity.DOUBT if turned else Gravity.NOTE,
            "The table of verdicts at equal budgets shows each.",
        )


def _pairing(checked: WarningInput) -> Iterator[ReportWarning]:
    """Runs of a seed that do not begin alike."""
    pairing = checked.pairing
    if pairing.odd:
        groups = pairing.base_groups + pairing.first_groups
        yield ReportWarning(
            f"Runs of one seed begin differently in {len(pairing.odd)} of {groups} checks of the pairing",
            pairing.odd,
            Gravity.DOUBT,
            "Equal weights and schedules give equal accuracies before training and equal first rollouts. A "
            "warm start, a sampler or a curriculum of an arm's own breaks this. The tests stay valid, but "
            "pairing removes less noise.",
        )


def _interrupted_logs(checked: WarningInput) -> Iterator[ReportWarning]:
    """Logs with half-written lines or rows written twice."""
    lines = []
    for run in checked.numbers.experiment.runs:
        faults = []
        if run.cut_lines:
            faults.append(f"{run.cut_lines} half-written last line{'s' * (run.cut_lines > 1)} left out")
        if run.rewritten_rows:
            faults.append(f"{run.rewritten_rows} rows written again after a restart; the later rows count")
        if faults:
            lines.append(f"{run.name}: {'; '.join(faults)}")
    if lines:
        count = f"{len(lines)} run{'s' * (len(lines) > 1)}"
        yield ReportWarning(f"Logs that were interrupted: {count}", lines, Gravity.NOTE)


def _known_weaknesses(checked: WarningInput) -> Iterator[ReportWarning]:
    """What is known to be wrong with a task's numbers."""
    caveat_by_task = caveats(checked.numbers.experiment, checked.numbers.later)
    if caveat_by_task:
        yield ReportWarning(
            f"Known weaknesses of a task's numbers: {', '.join(caveat_by_task)}",
            [f"{task}: {caveat}" for task, caveat in caveat_by_task.items()],
            Gravity.NOTE,
        )


# A topic adds a warning by adding a function.
WARNINGS: Sequence[Callable[[WarningInput], Iterable[ReportWarning]]] = (
    lambda checked: warn_of_guards(checked.numbers.guards),
    lambda checked: warn_of_contamination(checked.numbers.experiment),
    _unsearched_rates,
    _rate_conclusions,
    _unsuitable_rates,
    _alarms,
    _failures,
    _format_gains,
    _constant_answers,
    lambda checked: warn_of_repeated_numbers(checked.numbers.experiment, checked.numbers.runs),
    _few_seeds,
    _collapsed_runs,
    lambda checked: warn_of_saturation(checked.numbers.experiment, checked.numbers.runs),
    _pairing,
    _weak_critics,
    _other_problems,
    _budgets,
    _search_limits,
    _interrupted_logs,
    _known_weaknesses,
)
"""What each topic warns of; equally grave warnings keep this order."""
