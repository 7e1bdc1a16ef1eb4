"""The search that chose settings of the arms: how equal it was, what it chose and how clearly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.search import (
    RATE,
    Combination,
    SearchRecord,
    Stage,
    rate_key,
    settings_of,
)
from grpobench.analysis.statistics.rate_choice import (
    BEYOND,
    LEAST_SEEDS,
    ONE_IN,
    PRUNING,
    clarity_of,
    deviation_of,
    mean_of,
    qualifies,
)
from grpobench.analysis.tools.text import (
    NONE,
    and_list,
    each_seed,
    interval,
    listed,
    number,
    percent,
    sweep_value,
    sweep_values_in_words,
)
from grpobench.analysis.topics.runs import resolved_settings

CHOSEN = "chosen"
MOST_NAMED = 12
"""Most settings that a sentence lists."""
MOST_DIFFERENCES = 4
"""Most settings that a title lists."""


def search_table(record: SearchRecord) -> PrintedTable:
    """A row per stage, arm and value: seeds that it reached, mean outcome, standard deviation over seeds,
    failed runs, each seed, whether it was chosen."""
    rows, data = [], []
    for stage in searched_stages(record):
        for arm in stage.arms:
            trials = record.trials_of(stage, arm)
            for values, by_seed in record.by_value(stage, arm).items():
                mean, is_chosen = mean_of(by_seed), values == tuple(stage.chosen[arm])
                deviation = deviation_of(by_seed)
                failed = sum(trial.failed for trial in trials[values])
                shown = each_seed([*by_seed.values()]) if record.is_accuracy else _numbers(by_seed)
                rows.append(
                    [
                        stage.role,
                        arm,
                        describe_values(stage, values),
                        str(len(by_seed)),
                        outcome_text(record, mean),
                        NONE if math.isnan(deviation) else outcome_text(record, deviation),
                        f"{failed}/{len(trials[values])}" if failed else "",
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
                        "sd": deviation,
                        "failed": failed,
                        **{f"seed_{seed}": value for seed, value in by_seed.items()},
                        "chosen": is_chosen,
                    }
                )
    header = ["rate of", "arm", "value", "seeds", "mean", "SD", "failed", "each seed", "", "choice"]
    unit = ", in percent" * record.is_accuracy
    note = f"{describe_rule(record)} Mean and SD: {describe_outcome(record)}, over tasks and seeds{unit}."
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
    if [*stage.over] == [rate_key(stage.role)]:
        return sweep_value(values[0])
    return describe_named_values(stage, values)


def describe_named_values(stage: Stage, values: Sequence[Any]) -> str:
    """``learning rate 1e−4, clip high 0.28``, also where the rate alone is searched."""
    pairs = zip(stage.over, values, strict=True)
    return ", ".join(f"{name_of(stage, key)} {sweep_value(value)}" for key, value in pairs)


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
    worst = "counts as 0" if record.is_accuracy else "ranks last"
    if not record.rungs:
        return _describe_interior_rule(record, seeds, worst)
    if len(record.rungs) < 2:
        how = f"Every value ran with {seeds}."
    else:
        share = "half" if record.keep == 0.5 else f"{record.keep:.0%}"
        how = (
            f"Values ran on rungs of {and_list(record.rungs)} seeds ({seeds}). The best {share} of a rung, "
            "rounded up and at least two, went on to the next one."
        )
    return (
        f"{how} The highest mean of those with all seeds was chosen, the lower learning rate where means are "
        f"equal; a run that diverged {worst}."
    )


def _describe_interior_rule(record: SearchRecord, seeds: str, worst: str) -> str:
    """The rule of `rate_choice`."""
    pruning = listed(record.seeds[:PRUNING])
    failed = "collapsed, diverged or ended below its accuracy before training"
    failed = failed if record.is_accuracy else "collapsed or diverged"
    return (
        f"A grid of learning rates, the same for every arm, ran with seeds {pruning}. It grew until the best "
        f"of every arm had {BEYOND} rates beyond it on either side, by at most {record.extensions} on each. "
        "Two rates halfway between the best and its neighbors were added. The best and its neighbors then "
        f"ran with {seeds}. A rate qualified if at most one in {ONE_IN} of its runs {failed}. Of these, the "
        "highest mean minus standard deviation over seeds was chosen, the lower rate where these are equal; "
        f"a run that diverged {worst}."
    )


def describe_budget(record: SearchRecord) -> str:
    """How much each arm was searched: ``policy, 5 values (…), 12 runs of 40 steps for each of …``."""
    parts = []
    for stage in searched_stages(record):
        runs = dict.fromkeys(record.runs_of(stage, arm) for arm in stage.arms)
        steps = dict.fromkeys(record.steps.values())
        each = f"{' or '.join(map(str, runs))} runs of {' or '.join(map(str, steps))} steps"
        counts = dict.fromkeys(len(record.by_value(stage, arm)) for arm in stage.arms)
        values = f"{' or '.join(map(str, counts))} values ({describe_grid(stage)})"
        parts.append(f"{stage.role}, {values}, {each} for each of {listed(stage.arms, MOST_NAMED)}")
    return "; ".join(parts)


def budget_lines(record: SearchRecord) -> list[str]:
    """What the search spent, a line for each arm."""
    return [
        f"{arm}: {budget.runs} runs, {budget.steps:,} steps, {budget.tokens:,} tokens sampled in training, "
        f"{number(budget.seconds / 60, 1)} min of run time"
        for arm, budget in record.budgets().items()
    ]


def describe_grid(stage: Stage) -> str:
    """The values of each key: ``learning rate 1e−4, 1e−3; clip high 0.2, 0.28``."""
    return "; ".join(
        f"{name_of(stage, key)} {listed([*map(sweep_value, values)], MOST_NAMED)}"
        for key, values in stage.over.items()
    )


def name_of(stage: Stage, key: str) -> str:
    """A key in words."""
    return "learning rate" if key == rate_key(stage.role) else sweep_values_in_words([key])


# Choices


def describe_choice(record: SearchRecord, stage: Stage, arm: str) -> str:
    """Whether a choice is clear, whether too many of its runs failed, and whether it lies at an edge."""
    failures = describe_failures(record, stage, arm)
    return "; ".join(
        [describe_clarity(record, stage, arm), *[failures] * bool(failures), *edges(record, stage, arm)]
    )


def describe_failures(record: SearchRecord, stage: Stage, arm: str) -> str:
    """That no rate qualified, and how many runs at the chosen one failed; empty where it qualified, and of a
    search by successive halving, which has no such rule."""
    runs = record.trials_of(stage, arm).get(tuple(stage.chosen[arm]), [])
    failed = sum(trial.failed for trial in runs)
    if record.rungs or qualifies(failed, len(runs)):
        return ""
    return f"no rate qualified: {failed} of {len(runs)} runs at the chosen one failed, the fewest of all"


def describe_choices(record: SearchRecord) -> list[str]:
    """A sentence for each choice."""
    return [
        f"{arm}: {stage.role}'s {describe_named_values(stage, stage.chosen[arm])}; "
        f"{describe_choice(record, stage, arm)}"
        for stage in searched_stages(record)
        for arm in stage.arms
    ]


def describe_clarity(record: SearchRecord, stage: Stage, arm: str) -> str:
    """Whether the second best value can be told apart from the chosen one."""
    outcomes = record.by_value(stage, arm)
    choice = clarity_of(outcomes, tuple(stage.chosen[arm]))
    if choice.second is None:
        return "no other value had as many seeds"
    second = describe_values(stage, choice.second)
    if math.isinf(choice.difference):
        return f"the second best, {second}, diverged"
    show = percent if record.is_accuracy else lambda value: number(value, 3)
    unit = " points" if record.is_accuracy else ""
    ahead = f"{show(choice.difference)}{unit} above {second}"
    if choice.difference < 0:
        failed = sum(trial.failed for trial in record.trials_of(stage, arm)[choice.second])
        why = "whose outcomes vary more" if not failed else f"of whose runs {failed} failed"
        ahead = f"{show(-choice.difference)}{unit} below {second}, {why}"
    if choice.seeds < LEAST_SEEDS:
        return (
            f"not clear: {ahead}, and {choice.seeds} seed{'s' * (choice.seeds > 1)} cannot tell that from 0"
        )
    word = "clear" if choice.clear else "not clear"
    return f"{word}: {ahead} ({interval(choice.low, choice.high, show)} over {choice.seeds} seeds)"


def edges(record: SearchRecord, stage: Stage, arm: str) -> list[str]:
    """Chosen numbers that are the smallest or the largest that was tried for an arm."""
    remarks = []
    tried_values = record.by_value(stage, arm)
    for index, (key, value) in enumerate(zip(stage.over, stage.chosen[arm], strict=True)):
        tried = {values[index] for values in tried_values}
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
    if record is None:
        if experiment.over_rates is None:
            doubts.append("No search of learning rates is recorded: a difference may come from the rates")
        return doubts
    if not record.stages and experiment.over_rates is None:
        doubts.append(
            f"The learning rates are those of the search {record.recipe}, of which no record is kept here"
        )
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
            stated = not record.stages and run.arm in record.settings
            if not stated and (run.arm, role) not in searched:
                lacking.setdefault(run.arm if role == "policy" else f"{run.arm} ({role})")
    if lacking:
        doubts.append(f"Learning rates were not searched for {listed([*lacking], MOST_NAMED)}")
    return doubts


def list_search_doubts(experiment: Experiment) -> list[tuple[str, list[str]]]:
    """Why the rates of a search may not suit their arms, the gravest first: a title without a period, and
    lines. Empty without a search, and for a single arm, which nothing is compared with."""
    record = experiment.search
    if record is None or len(experiment.arms) < 2:
        return []
    doubts = []
    failing: dict[str, str] = {}
    at_edge: dict[str, str] = {}
    for stage in searched_stages(record):
        for arm in stage.arms:
            cell = f"{arm} ({describe_named_values(stage, stage.chosen[arm])})"
            if text := describe_failures(record, stage, arm):
                failing[cell] = f"{arm}: {text}"
            if remarks := edges(record, stage, arm):
                at_edge[cell] = f"{arm}: {'; '.join(remarks)}"
    for title, lines in (
        ("No rate that was searched qualified for", failing),
        ("The search chose the edge of what it tried for", at_edge),
    ):
        if lines:
            doubts.append((f"{title} {listed([*lines], MOST_NAMED)}", [*lines.values()]))
    if differences := list_other_settings(experiment, record):
        title = f"Learning rates were searched under other settings: {listed(differences, MOST_DIFFERENCES)}"
        doubts.append((title, differences))
    unequal = [
        f"{stage.role}: {', '.join(f'{arm} {record.runs_of(stage, arm)} runs' for arm in stage.arms)}"
        for stage in searched_stages(record)
        if len({record.runs_of(stage, arm) for arm in stage.arms}) > 1
    ]
    if unequal:
        doubts.append((f"The search gave the arms unequal budgets: {listed(unequal, 2)}", unequal))
    return doubts


def list_other_settings(experiment: Experiment, record: SearchRecord) -> list[str]:
    """Settings under which rates were searched and that the runs do not have, those of training first:
    ``num_minibatches 4 (here 8)``."""
    chosen = record.chosen()
    cells: dict[tuple[str, str, str], set[tuple[str, str]]] = {}
    compared: set[tuple[str, str]] = set()
    for run in experiment.runs:
        here, searched = settings_of(run.config), record.settings_for(run.arm, run.task)
        if here and searched:
            compared.add((run.arm, run.task))
        for key in searched.keys() & here.keys() - chosen.get(run.arm, {}).keys():
            if searched[key] != here[key]:
                values = sweep_value(searched[key]), sweep_value(here[key])
                cells.setdefault((key, *values), set()).add((run.arm, run.task))
    differences = []
    for key, before, now in sorted(cells, key=lambda cell: (not cell[0].startswith("train."), cell)):
        where = _where(cells[key, before, now], compared)
        differences.append(f"{key.removeprefix('train.')} {before} (here {now}{where})")
    return differences + [f"not on {task}" for task in experiment.tasks if task not in record.tasks]


def _where(cells: set[tuple[str, str]], compared: set[tuple[str, str]]) -> str:
    """The arms and tasks of `cells`, unless they are all that were compared: `` for ppo on nanobias``."""
    words = ""
    for part, word in enumerate(("for", "on")):
        names = {cell[part] for cell in cells}
        if names != {cell[part] for cell in compared}:
            words += f" {word} {listed(sorted(names))}"
    return words


def describe_limits(experiment: Experiment) -> str:
    """What a reader must know of the search: what it took, choices that are not clear, and what was not
    searched. Empty without a search."""
    record = experiment.search
    if record is None or not searched_stages(record):
        return ""
    unclear = [
        f"{arm} ({stage.role})"
        for stage in searched_stages(record)
        for arm in stage.arms
        if not clarity_of(record.by_value(stage, arm), tuple(stage.chosen[arm])).clear
    ]
    parts = [f"Settings were searched before these runs, on other seeds: {describe_budget(record)}."]
    parts.append(f"The search took, for {'; for '.join(budget_lines(record))}.")
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
    parts += [
        f"{name_of(stage, key)} {sweep_value(values[0])} of the {stage.role}"
        for stage in record.stages
        for key, values in stage.over.items()
        if len(values) == 1
    ]
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
        for key, value in resolved_settings(run).items():
            sections = ("algorithm.", "train.", "modify.", "sampler.", "reward.")
            if key.startswith(sections) and key != "algorithm.name":
                values.setdefault(key, set()).add(str(value))
    return [key for key, distinct_values in values.items() if len(distinct_values) > 1]


def find_unsearched_values(experiment: Experiment) -> Iterator[str]:
    """Runs that do not use the chosen values."""
    chosen = experiment.search.chosen() if experiment.search else {}
    sentences: dict[str, None] = {}
    for run in experiment.runs:
        config = resolved_settings(run)
        for key, value in chosen.get(run.arm, {}).items():
            name = resolved_key(key)
            if config and config.get(name, value) != value:
                text = f"{run.arm}: {name} is {config[name]}, and the search chose {sweep_value(value)}"
                sentences.setdefault(text)
    yield from sentences
