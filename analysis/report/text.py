"""Sentences of the page: the head, what these seeds can decide, and BibTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from grpobench.analysis.report.facts import Facts
from grpobench.analysis.report.references import LIBRARIES, TITLES, bibtex_authors
from grpobench.analysis.runfolder.experiment import COLLAPSED, DIVERGED, Experiment, attempts
from grpobench.analysis.statistics.comparison import Comparison, pairs_of
from grpobench.analysis.statistics.permutation import seeds_needed, smallest_p
from grpobench.analysis.statistics.verdicts import ALPHA, no_difference
from grpobench.analysis.statistics.verdicts import points as margin_points
from grpobench.analysis.tools.text import (
    NONE,
    and_list,
    interval,
    level_name,
    listed,
    percent,
    points,
    sweep_value,
    sweep_values_in_words,
)
from grpobench.analysis.topics.accuracy import describe_decoding
from grpobench.analysis.topics.comparisons import INTERVALS, count_shared_seeds
from grpobench.analysis.topics.runs import MOST_COLUMNS, RecipeKey
from grpobench.analysis.topics.sweep import SweepAxes, SweepCell, arms_with_results, axes_of, find_frontiers


def describe_verdict(pair: Comparison, runs: pd.DataFrame, over_rates: str = "") -> dict[str, str]:
    """A resolved comparison in words, from the better arm's side, with the number of collapsed runs of both
    arms, and what holds `over_rates`. `runs` are the rows of `finals`."""
    shown = pair.turned() if pair.verdict == "worse" else pair
    text = f"{shown.first} is better than {shown.second}"
    if pair.verdict == "equivalent":
        text = f"{pair.words} between {pair.first} and {pair.second}"
    size = f"{points(shown.effect)} points ({interval(shown.low, shown.high, points)})"
    ending = count_collapses(pair, runs) + f"; over learning rates: {over_rates}" * bool(over_rates)
    return {"text": text, "rest": f"on {pair.task}: {size}; {pair.needs}{ending}"}


def count_collapses(pair: Comparison, runs: pd.DataFrame) -> str:
    """`; 2 of 3 runs of grpo collapsed; the means are over runs of both kinds`; empty where no run of either
    arm collapsed or diverged, and without the second part where all of an arm did."""
    text, is_mixed = "", False
    for arm in (pair.first, pair.second):
        statuses = list(runs.loc[(runs["arm"] == arm) & (runs["task"] == pair.task), "run_status"])
        counts = {ending: statuses.count(ending) for ending in (COLLAPSED, DIVERGED) if ending in statuses}
        text += "".join(f"; {n} of {len(statuses)} runs of {arm} {ending}" for ending, n in counts.items())
        is_mixed |= 0 < sum(counts.values()) < len(statuses)
    return text + "; the means are over runs of both kinds" * is_mixed


def describe_frontiers(facts: Facts) -> list[str]:
    """One sentence per arm and level of a map: how far the arm goes without a collapse, and whether it
    learned there. Empty where the experiment is not a map."""
    axes = axes_of(facts.experiment.sweep_values)
    if axes is None:
        return []
    lines = []
    axis_words = sweep_values_in_words([axes.key])
    ran = arms_with_results(facts.numbers.grid)
    for frontier in (each for each in find_frontiers(axes, facts.numbers.grid) if each.arm in ran):
        where = (
            f" at {sweep_values_in_words(axes.others)} {level_name(frontier.level)}" if axes.others else ""
        )
        if not frontier.measured:
            reach = f"no run at the smallest {axis_words} has a result"
        elif frontier.at is None:
            reach = f"more than a third of the seeds collapse at the smallest {axis_words}"
        else:
            reach = (
                f"the highest {axis_words} at which at most a third of the seeds collapse is "
                f"{sweep_value(frontier.at.sweep_value)}"
            )
            reach += f"{', the largest of the grid' * frontier.beyond}; {describe_cell(frontier.at)}"
        best = frontier.best
        best_words = (
            (f"; the highest accuracy is at {sweep_value(best.sweep_value)}, {_share(best)}") if best else ""
        )
        lines.append(f"{frontier.arm}{where}, {frontier.task}: {reach}{best_words}.")
    return lines


def describe_cell(cell: SweepCell) -> str:
    """How many runs at a sweep value collapsed and how many learned. A run can do neither."""
    learned = f" and {cell.learned}" if cell.learned else ", but none"
    text = (
        f"there {cell.collapsed} of {cell.finished_runs} collapsed{learned} of {cell.finished_runs} learned"
    )
    return f"{text} (accuracy {_share(cell)})"


def _share(cell: SweepCell) -> str:
    return f"{percent(cell.accuracy.value)} %"


def describe_subtitle(facts: Facts) -> str:
    """The line below the page's title: the recipe's summary. For a map it names the arms that were run,
    because the summary names all arms of the recipe and `--set arms=` may select some of them."""
    axes = axes_of(facts.experiment.sweep_values)
    arms = arms_with_results(facts.numbers.grid) if axes else ()
    if axes is None or not arms:
        return facts.experiment.summary
    verbs = "learn, stall, drift and collapse" if len(arms) > 1 else "learns, stalls, drifts and collapses"
    keys = sweep_values_in_words([axes.key, *axes.others]).replace(", ", " and ")
    return f"Where {and_list(arms)} {verbs} on {listed(facts.experiment.tasks)}, by {keys}"


def describe_head(facts: Facts) -> dict[str, str]:
    """What was run: arms, tasks, seeds and the most important settings."""
    experiment = facts.experiment
    axes = axes_of(experiment.sweep_values)
    arms = axes.arms if axes else experiment.arms
    sizes = ((arms, "arm"), (experiment.tasks, "task"), (experiment.seeds, "seed"))
    return {
        "counts": " × ".join(f"{len(every)} {noun}{'s' * (len(every) != 1)}" for every, noun in sizes),
        "arms": listed(arms_with_results(facts.numbers.grid) if axes else experiment.arms, 40),
        "sweep_values": list_sweep_values(axes) if axes else "",
        "tasks": ", ".join(experiment.tasks),
        "seeds": listed(experiment.seeds, 40),
        "runs": summarize_run_statuses(facts),
        "model": _common(facts.settings, "model.name"),
        "updates": _common(facts.settings, "train.steps"),
        "sampler": _common(facts.settings, "sampler.kind"),
        "evaluation": " and ".join(
            describe_decoding(experiment, mode)
            for mode in ("greedy", "sampled", "likelihood")
            if any(name.split("/")[2] == mode for name in experiment.names("eval/"))
        ),
    }


def list_sweep_values(axes: SweepAxes) -> str:
    """All values of each key of a map."""
    values = {axes.key: axes.sweep_values}
    values |= {
        key: tuple(dict.fromkeys(level[i] for level in axes.levels)) for i, key in enumerate(axes.others)
    }
    return "; ".join(
        (f"{sweep_values_in_words([key])} {', '.join(map(sweep_value, value_list))}")
        for key, value_list in values.items()
    )


def summarize_run_statuses(facts: Facts) -> str:
    """How many planned runs have each status; the numbers add up to the plan. Runs that were not planned are
    counted separately. Without a plan, all runs that were found are counted."""
    counts = ", ".join(f"{n} {run_status}" for run_status, n in facts.accounting.items())
    extra = sum(not run.planned for run in facts.experiment.runs)
    kind = "planned" if facts.experiment.described else "found"
    planned = f"{sum(facts.accounting.values())} {kind}: {counts}"
    return f"{planned}; and {extra} that were not planned" if extra else planned


def _common(settings: Sequence[RecipeKey], key: str) -> str:
    """The value of a setting that all arms share, or one value per arm."""
    for setting in settings:
        if setting.key == key:
            if not setting.differs:
                return next(iter(setting.values.values()))
            if len(setting.values) > MOST_COLUMNS:
                return "; ".join(f"{value}: {arms}" for value, arms in setting.shared())
            return "; ".join(f"{arm}: {value}" for arm, value in setting.values.items())
    return NONE


def describe_decidable(facts: Facts) -> str:
    """What this many seeds can decide."""
    experiment, late = facts.experiment, int(facts.numbers.runs["counted"].isna().sum())
    if experiment.plan:
        planned = experiment.plan.analyses
        made = sum(seeds <= len(experiment.seeds) for seeds in planned)
        beside = f" {made} of {len(planned)} interim analyses were made; the p values allow for them."
        margin = f" The margin is {margin_points(experiment.margin)} points."
        return f"{experiment.plan.words}{beside}{margin}"
    pairs = len(pairs_of(experiment.arms, experiment.control))
    if not pairs:
        return "There is only one arm, so there is nothing to compare."
    needed, seeds = seeds_needed(ALPHA), count_shared_seeds(experiment)
    can = (
        "so verdicts are possible" + (", except where a run has no result" if late else "")
        if seeds >= needed
        else f"so no verdict is possible with {seeds}, whatever the accuracies are"
    )
    shared = (
        ""
        if seeds == len(experiment.seeds)
        else (f", the most of {len(experiment.seeds)} that two arms share,")
    )
    return (
        f"{_which_pairs(experiment, pairs)}With {seeds} seed{'s' * (seeds != 1)}{shared} the smallest "
        f"two-sided p of the exact test is {smallest_p(seeds):.3g}, after the correction for several pairs "
        f"as well. A difference at level {ALPHA:g} needs at least {needed} seeds, {can}. Two arms show "
        f"{no_difference(experiment.margin)} if two one-sided exact tests reject such a difference and the "
        "95% interval lies inside the margin, which needs at least "
        f"{seeds_needed(ALPHA, pairs, 1)} seeds under Holm for {pairs} pair{'s' * (pairs > 1)}. The 95% "
        f"interval of a difference is a t interval over seeds. {INTERVALS}"
    )


def _which_pairs(experiment: Experiment, pairs: int) -> str:
    """A sentence about which arms are compared; empty where all pairs are."""
    if experiment.control:
        return f"Each other arm is compared with the control, {experiment.control}, and with nothing else. "
    if pairs < len(experiment.arms) * (len(experiment.arms) - 1) // 2:
        return f"Each of the {len(experiment.arms)} arms is compared with the first, {experiment.arms[0]}. "
    return ""


# BibTeX

CITED = re.compile(r"(?P<title>[^;]+?), arXiv:(?P<number>\d{4}\.\d{4,5})")


def used_papers(experiment: Experiment, papers: Mapping[str, str]) -> dict[str, str]:
    """Algorithm -> its paper, for the algorithms that the runs use; `papers` covers all algorithms."""
    names = dict.fromkeys(_algorithm(config) for config in experiment.configs.values())
    return {name: papers[name] for name in names if papers.get(name)}


def _algorithm(config: Mapping[str, object]) -> str:
    table = config.get("algorithm")
    return str(table.get("name", "")) if isinstance(table, Mapping) else ""


def versions(experiment: Experiment) -> dict[str, list[str]]:
    """Library -> its versions in the last attempts of the runs."""
    versions_by_library: dict[str, dict[str, None]] = {}
    for run in experiment.runs:
        tried = attempts(run)
        recorded = tried[-1].get("versions") if tried else None
        for name, version in (recorded if isinstance(recorded, Mapping) else {}).items():
            versions_by_library.setdefault(str(name), {})[str(version)] = None
    return {name: sorted(ordered) for name, ordered in sorted(versions_by_library.items())}


def make_bibtex(experiment: Experiment, papers: Mapping[str, str]) -> str:
    """One entry per paper of the algorithms and libraries used."""
    entries: dict[str, str] = {}
    for paper in used_papers(experiment, papers).values():
        for citation in CITED.finditer(paper):
            entries.setdefault(citation["number"], citation["title"].strip())
    for name in versions(experiment):
        if name in LIBRARIES:
            title, number = LIBRARIES[name]
            entries.setdefault(number, title)
    return "\n\n".join(bibtex_entry(number, title) for number, title in entries.items())


def bibtex_key(number: str) -> str:
    """What a paper calls the entry of an arXiv number."""
    return f"arxiv-{number}"


def bibtex_entry(number: str, title: str) -> str:
    """A BibTeX entry of a preprint; arXiv numbers begin with year and month. Without authors, styles sort by
    `key`."""
    title, authors = TITLES.get(number, title), bibtex_authors(number)
    return "\n".join(
        [
            f"@misc{{{bibtex_key(number)},",
            f"  author = {{{authors}}}," if authors else f"  key = {{{title}}},",
            f"  title = {{{{{title}}}}},",
            f"  year = {{20{number[:2]}}},",
            f"  eprint = {{{number}}},",
            "  archivePrefix = {arXiv},",
            f"  url = {{https://arxiv.org/abs/{number}}}",
            "}",
        ]
    )
