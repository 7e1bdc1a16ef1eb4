"""The search that chose settings of the arms: how equal it was, what it chose and how clearly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.search import RATE, Combination, SearchRecord, Stage, rate_key
from grpobench.analysis.statistics.halving import LEAST_SEEDS, mean_of, select
from grpobench.analysis.tools.text import (
    each_seed,
    interval,
    listed,
    number,
    percent,
    sweep_value,
    sweep_values_in_words,
)
from grpobench.analysis.topics.runs import flatten

CHOSEN = "chosen"
MOST_NAMED = 12
"""Most settings that a sentence lists."""


def search_table(record: SearchRecord) -> PrintedTable:
    """A row per stage, arm and value: seeds that it reached, mean outcome, each seed, whether it was
    chosen."""
    rows, data = [], []
    for stage in searched_stages(record):
        for arm in stage.arms:
            for values, by_seed in record.by_value(stage, arm).items():
                mean, is_chosen = mean_of(by_seed), values == tuple(stage.chosen[arm])
                shown = each_seed([*by_seed.values()]) if record.is_accuracy else _numbers(by_seed)
                rows.append(
                    [
                        stage.role,
                        arm,
                        describe_values(stage, values),
                        str(len(by_seed)),
                        outcome_text(record, mean),
                        shown,
                        CHOSEN if is_chosen else "",
                        describe_choice(record, stage, arm) if is_chosen else "",
                    ]
                )
                data.append(
                    {
                        "role": stage.role,
                        "arm": arm,
                        **dict(zip(stage.over, values, strict=True)),
                        "seeds": len(by_seed),
                        "mean": mean,
                        **{f"seed_{seed}": value for seed, value in by_seed.items()},
                        "chosen": is_chosen,
                    }
                )
    header = ["rate of", "arm", "value", "seeds", "mean", "each seed", "", "choice"]
    unit = ", in percent" * record.is_accuracy
    note = f"{describe_rule(record)} Mean: {describe_outcome(record)}, over tasks and seeds{unit}."
    return PrintedTable(
        "search",
        "Settings that were tried before these runs",
        header,
        rows,
        pd.DataFrame(data),
        text_columns=3,
        wide=2,
        note=note,
        sentence_heading="The choices",
    )


def table_lines(record: SearchRecord) -> list[str]:
    """The table for a terminal, without its sentences."""
    return search_table(record).text()


def searched_stages(record: SearchRecord) -> list[Stage]:
    """The stages in which there was something to choose."""
    return [stage for stage in record.stages if len(stage.combinations) > 1]


def outcome_text(record: SearchRecord, value: float) -> str:
    """A mean outcome: accuracies in percent."""
    if math.isinf(value):
        return "diverged"
    return percent(value) if record.is_accuracy else f"{value:.3g}".replace("-", "−")


def _numbers(by_seed: Mapping[int, float]) -> str:
    return "  ".join("diverged" if math.isinf(score) else number(score, 3) for score in by_seed.values())


def describe_values(stage: Stage, values: Combination) -> str:
    """``learning rate 1e−4, clip high 0.28``; without a name where the rate alone is searched."""
    texts = [sweep_value(value) for value in values]
    if [*stage.over] == [rate_key(stage.role)]:
        return texts[0]
    return ", ".join(f"{name_of(stage, key)} {text}" for key, text in zip(stage.over, texts, strict=True))


def describe_outcome(record: SearchRecord) -> str:
    """What the search compared."""
    measures = dict.fromkeys(record.outcomes.values())
    if not record.is_accuracy:
        return " and ".join(measures)
    modes = " or ".join(measure.split("/")[2] for measure in measures)
    return f"validation accuracy after the last update, {modes} decoding"


def describe_rule(record: SearchRecord) -> str:
    """The rule of the search."""
    seeds = f"seed{'s' * (len(record.seeds) > 1)} {listed(record.seeds)}"
    if len(record.rungs) < 2:
        how = f"Every value ran with {seeds}."
    else:
        share = "half" if record.keep == 0.5 else f"{record.keep:.0%}"
        how = (
            f"Values ran on rungs of {and_list(record.rungs)} seeds ({seeds}). The best {share} of a rung, "
            "rounded up and at least two, went on to the next one."
        )
    worst = "counts as 0" if record.is_accuracy else "ranks last"
    return (
        f"{how} The highest mean of those with all seeds was chosen, the lower learning rate where means are "
        f"equal; a run that diverged {worst}."
    )


def and_list(values: Sequence[object]) -> str:
    """``1, 2 and 4``."""
    *before, last = map(str, values)
    return f"{', '.join(before)} and {last}" if before else last


def describe_budget(record: SearchRecord) -> str:
    """How much each arm was searched: ``policy, 5 values (…), 12 runs of 40 steps for each of …``."""
    parts = []
    for stage in searched_stages(record):
        runs = dict.fromkeys(record.runs_of(stage, arm) for arm in stage.arms)
        steps = dict.fromkeys(record.steps.values())
        each = f"{' or '.join(map(str, runs))} runs of {' or '.join(map(str, steps))} steps"
        values = f"{len(stage.combinations)} values ({describe_grid(stage)})"
        parts.append(f"{stage.role}, {values}, {each} for each of {listed(stage.arms, MOST_NAMED)}")
    return "; ".join(parts)


def describe_grid(stage: Stage) -> str:
    """The values of each key: ``learning rate 1e−4, 1e−3; clip high 0.2, 0.28``."""
    return "; ".join(
        f"{name_of(stage, key)} {', '.join(map(sweep_value, values))}" for key, values in stage.over.items()
    )


def name_of(stage: Stage, key: str) -> str:
    """A key in words."""
    return "learning rate" if key == rate_key(stage.role) else sweep_values_in_words([key])


# Choices


def describe_choice(record: SearchRecord, stage: Stage, arm: str) -> str:
    """Whether a choice is clear, and whether it lies at an edge."""
    remarks = [describe_clarity(record, stage, arm), *edges(stage, tuple(stage.chosen[arm]))]
    return "; ".join(remarks)


def describe_choices(record: SearchRecord) -> list[str]:
    """A sentence for each choice."""
    return [
        f"{arm}: {stage.role}'s {describe_grid_value(stage, arm)}; {describe_choice(record, stage, arm)}"
        for stage in searched_stages(record)
        for arm in stage.arms
    ]


def describe_grid_value(stage: Stage, arm: str) -> str:
    """The chosen value of each key."""
    pairs = zip(stage.over, stage.chosen[arm], strict=True)
    return ", ".join(f"{name_of(stage, key)} {sweep_value(value)}" for key, value in pairs)


def describe_clarity(record: SearchRecord, stage: Stage, arm: str) -> str:
    """Whether the second best value can be told apart from the chosen one."""
    choice = select(record.by_value(stage, arm))
    if choice.second is None:
        return "no other value had as many seeds"
    second = describe_values(stage, choice.second)
    if math.isinf(choice.difference):
        return f"the second best, {second}, diverged"
    show = percent if record.is_accuracy else lambda value: number(value, 3)
    unit = " points" if record.is_accuracy else ""
    ahead = f"{show(choice.difference)}{unit} above {second}"
    if choice.seeds < LEAST_SEEDS:
        return (
            f"not clear: {ahead}, and {choice.seeds} seed{'s' * (choice.seeds > 1)} cannot tell that from 0"
        )
    word = "clear" if choice.clear else "not clear"
    return f"{word}: {ahead} ({interval(choice.low, choice.high, show)} over {choice.seeds} seeds)"


def edges(stage: Stage, values: Combination) -> list[str]:
    """Chosen numbers that are the smallest or the largest that was tried."""
    remarks = []
    for key, value in zip(stage.over, values, strict=True):
        tried = stage.over[key]
        if len(tried) < 2 or any(isinstance(tried_value, bool | str) for tried_value in tried):
            continue
        numbers = [float(tried_value) for tried_value in tried]
        for end, word in ((min(numbers), "smaller"), (max(numbers), "larger")):
            if value == end:
                name = name_of(stage, key)
                remarks.append(f"at the edge: no {word} {name} than {sweep_value(value)} was tried")
    return remarks


# The report of the runs with the chosen values


def describe_search(experiment: Experiment) -> str:
    """The search, for a methods section; empty where the settings were not searched."""
    record = experiment.search
    if record is None or not searched_stages(record):
        return ""
    return (
        f"Settings were searched beforehand on {listed(record.tasks, MOST_NAMED)}, with the same number of "
        f"runs and steps for every arm and on seeds that these runs do not use: {describe_budget(record)}. "
        f"{describe_rule(record)} The search compared the {describe_outcome(record)}"
    )


def list_rate_doubts(experiment: Experiment) -> list[str]:
    """Sentences without a period about learning rates that were not searched for their arm, the gravest
    first; none of a single arm and of a map, whose values are the question."""
    if len(experiment.arms) < 2 or experiment.sweep_values:
        return []
    doubts = []
    borrowed = {arm: near for arm, near in experiment.borrowed_rates.items() if arm in experiment.arms}
    if borrowed:
        origins = [f"the arm {origin}" for origin in dict.fromkeys(borrowed.values())]
        doubts.append(
            f"No learning rate was chosen for {listed([*borrowed], MOST_NAMED)}: the rate is that of "
            f"{listed(origins, MOST_NAMED)}"
        )
    record = experiment.search
    if record is None or not searched_stages(record):
        if experiment.over_rates is None:
            doubts.append("No search of learning rates is recorded: a difference may come from the rates")
        return doubts
    searched = {
        (arm, stage.role)
        for stage in searched_stages(record)
        if rate_key(stage.role) in stage.over and len(stage.over[rate_key(stage.role)]) > 1
        for arm in stage.arms
    }
    lacking: dict[str, None] = {}
    for run in experiment.runs:
        rates = run.config.get("train", {}).get("learning_rate", {})
        for role in rates if isinstance(rates, Mapping) else ["policy"]:
            if (run.arm, role) not in searched:
                lacking.setdefault(run.arm if role == "policy" else f"{run.arm} ({role})")
    if lacking:
        doubts.append(f"Learning rates were not searched for {listed([*lacking], MOST_NAMED)}")
    return doubts


def describe_limits(experiment: Experiment) -> str:
    """What a reader must know of the search: choices at an edge or not clear, and what was not searched.
    Empty without a search."""
    record = experiment.search
    if record is None or not searched_stages(record):
        return ""
    at_edge, unclear = [], []
    for stage in searched_stages(record):
        for arm in stage.arms:
            if edges(stage, tuple(stage.chosen[arm])):
                at_edge.append(f"{arm} ({describe_grid_value(stage, arm)})")
            if not select(record.by_value(stage, arm)).clear:
                unclear.append(f"{arm} ({stage.role})")
    parts = [f"Settings were searched before these runs, on other seeds: {describe_budget(record)}."]
    if at_edge:
        sentence = "The search chose a value at the edge of what it tried for"
        parts.append(f"{sentence} {listed(at_edge, MOST_NAMED)}.")
    if unclear:
        sentence = f"The second best value is within noise for {listed(unclear, MOST_NAMED)}"
        parts.append(f"{sentence}: another search may choose another.")
    if count := len(record.earlier):
        parts.append(
            f"Values were added after {count} earlier search{'es' * (count > 1)} in the same folder."
        )
    return " ".join([*parts, describe_rest(experiment, record)])


def describe_rest(experiment: Experiment, record: SearchRecord) -> str:
    """What was not searched: arms, roles, and settings in which the arms differ."""
    searched = {arm for stage in searched_stages(record) for arm in stage.arms}
    parts = []
    if lacking := [arm for arm in experiment.arms if arm not in searched]:
        parts.append(f"the arms {listed(lacking, MOST_NAMED)}")
    fixed = [
        f"{name_of(stage, key)} {sweep_value(values[0])} of the {stage.role}"
        for stage in record.stages
        for key, values in stage.over.items()
        if len(values) == 1
    ]
    parts += fixed
    keys = {resolved_key(key) for stage in record.stages for key in stage.over}
    if others := [key for key in differing(experiment) if key not in keys]:
        parts.append(f"settings in which the arms differ: {listed(others, MOST_NAMED)}")
    unsearched = f"{'; '.join(parts)}; and " if parts else ""
    return f"Not searched: {unsearched}all other settings, which are the recipe's."


def resolved_key(key: str) -> str:
    """The key of run.toml that a searched key sets."""
    return f"{RATE}.policy" if key == RATE else key


def differing(experiment: Experiment) -> list[str]:
    """Settings of algorithm and training in which the arms differ, as the command line calls them."""
    values: dict[str, set[str]] = {}
    for run in experiment.runs:
        for key, value in flatten(run.config).items():
            if key.startswith(("algorithm.settings.", "train.", "modify.", "sampler.", "reward.")):
                values.setdefault(key.replace(".settings.", ".", 1), set()).add(str(value))
    return [key for key, distinct_values in values.items() if len(distinct_values) > 1]


def find_unsearched_values(experiment: Experiment) -> Iterator[str]:
    """Runs that do not use the chosen values, or have another number of steps than the search."""
    record = experiment.search
    if record is None:
        return
    chosen = record.chosen()
    sentences: dict[str, None] = {}
    for run in experiment.runs:
        config = {key.replace(".settings.", ".", 1): value for key, value in flatten(run.config).items()}
        for key, value in chosen.get(run.arm, {}).items():
            name = resolved_key(key)
            if config and config.get(name, value) != value:
                text = f"{run.arm}: {name} is {config[name]}, and the search chose {sweep_value(value)}"
                sentences.setdefault(text)
        steps, searched = config.get("train.steps"), record.steps.get(run.task)
        if config and searched is None:
            sentences.setdefault(f"{run.task}: the search did not run on this task")
        elif config and steps != searched:
            sentences.setdefault(f"{run.task}: runs have {steps} steps, and those of the search {searched}")
    yield from sentences
