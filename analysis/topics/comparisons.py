"""Comparisons of arms: every pair on every task, and all tasks together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import DIVERGED, Experiment
from grpobench.analysis.runfolder.interim import InterimPlan
from grpobench.analysis.statistics.aggregates import bootstrap_improvement, bootstrap_interquartile_mean
from grpobench.analysis.statistics.comparison import BASE, Comparison, compare, compare_with_base, pairs_of
from grpobench.analysis.statistics.crossed import crossed_interval
from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.power import POWER, REPETITIONS, SEED
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.statistics.verdicts import points as margin_points
from grpobench.analysis.tools.text import NONE, interval, number, p_value, percent, points, two
from grpobench.analysis.topics.accuracy import answers_at_ends, clusters_of


def add_crossed_intervals(
    experiment: Experiment, runs: pd.DataFrame, task: str, pairs: Sequence[Comparison]
) -> list[Comparison]:
    """Add the interval over seeds × problems to the comparisons of a task. `runs` are rows of `finals`, which
    give the mode. A pair without a problem that all its runs answered stays unchanged."""
    counted = runs[(runs["task"] == task) & runs["counted"].notna()]
    frame = answers_at_ends(experiment, counted["mode"].iloc[0]) if len(counted) else counted
    if frame.empty:
        return list(pairs)
    frame = frame[frame["task"] == task]
    failed = {(r.arm, int(r.seed)) for r in counted.itertuples() if r.state == DIVERGED}
    after, before = _by_problem(frame[frame["step"] > 0]), _by_problem(frame[frame["step"] == 0])
    crossed = []
    for pair in pairs:
        table, problems = _differences(pair, after, before, failed)
        clusters = clusters_of(frame, problems)
        shared = clusters if len(set(clusters)) < len(clusters) else None
        crossed.append(pair.beside(len(problems), crossed_interval(table, shared)) if table.size else pair)
    return crossed


def _by_problem(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per (arm, seed) and a column per problem: the mean score over its samples."""
    return frame.groupby(["arm", "seed", "problem"])["score/correct"].mean().unstack("problem")


def _differences(
    pair: Comparison, after: pd.DataFrame, before: pd.DataFrame, failed: set[tuple[str, int]]
) -> tuple[Floats, pd.Index]:
    """Differences (seeds, problems) and the problems; empty where a run has no rows. A run that diverged has
    score 0 on every problem."""
    sides = [(pair.first, after), (pair.second, after) if pair.second != BASE else (pair.first, before)]
    tables = []
    for arm, scores in sides:
        zero = {seed for seed in pair.seeds if (arm, seed) in failed and scores is after}
        arm_seeds = [(arm, seed) for seed in pair.seeds]
        if not set(arm_seeds) - {(arm, seed) for seed in zero} <= set(scores.index):
            return np.zeros((0, 0)), pd.Index([])
        table = scores.reindex(pd.MultiIndex.from_tuples(arm_seeds, names=["arm", "seed"]))
        table[[seed in zero for seed in pair.seeds]] = 0.0
        tables.append(table.droplevel("arm"))
    first, second = tables[0].align(tables[1], join="inner", axis=1)
    difference = (first - second).dropna(axis=1)
    return difference.to_numpy(dtype=np.float64), difference.columns


# Pairs of arms


def compare_arms(experiment: Experiment, runs: pd.DataFrame, alpha: float = ALPHA) -> list[Comparison]:
    """The pairs of arms on every task, or with a control its pairs; corrections are over the pairs of one
    task."""
    comparisons: list[Comparison] = []
    for task in experiment.tasks:
        values = scores_by_seed(experiment, runs, task, "counted")
        pairs = compare(
            task,
            values,
            find_missing_seeds(experiment, runs, task),
            alpha,
            experiment.margin,
            experiment.plan,
            experiment.control,
        )
        comparisons += add_crossed_intervals(experiment, runs, task, pairs)
    return comparisons


def compare_arms_with_base(
    experiment: Experiment, runs: pd.DataFrame, alpha: float = ALPHA
) -> list[Comparison]:
    """Every arm on every task against what its runs scored before training; corrections are over the
    arms of one task."""
    comparisons: list[Comparison] = []
    for task in experiment.tasks:
        values, bases = (scores_by_seed(experiment, runs, task, column) for column in ("counted", "base"))
        waiting = find_missing_seeds(experiment, runs, task)
        pairs = compare_with_base(task, values, bases, waiting, alpha, experiment.margin, experiment.plan)
        comparisons += add_crossed_intervals(experiment, runs, task, pairs)
    return comparisons


def scores_by_seed(
    experiment: Experiment, runs: pd.DataFrame, task: str, column: str
) -> dict[str, dict[int, float]]:
    """Arm -> seed -> a number of the rows of `finals`, where there is one."""
    scores: dict[str, dict[int, float]] = {}
    for arm in experiment.arms:
        rows = runs[(runs["task"] == task) & (runs["arm"] == arm)]
        if len(rows):
            rows = rows.dropna(subset=[column])
            scores[arm] = dict(zip(rows["seed"].astype(int), rows[column].astype(float), strict=True))
    return scores


def find_missing_seeds(experiment: Experiment, runs: pd.DataFrame, task: str) -> dict[str, dict[int, str]]:
    """Arm -> seed without a result -> the seed with the status of its run, in words."""
    late = runs[(runs["task"] == task) & runs["counted"].isna()].sort_values("seed")
    return {
        arm: {
            int(row.seed): (f"{row.seed} ({row.run_status})") for row in late[late["arm"] == arm].itertuples()
        }
        for arm in experiment.arms
    }


def count_shared_seeds(experiment: Experiment) -> int:
    """The largest number of seeds that a pair of arms shares on a task, with or without results."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for run in experiment.runs:
        seeds.setdefault((run.task, run.arm), set()).add(run.seed)
    return max(
        (
            len(seeds.get((task, first), set()) & seeds.get((task, second), set()))
            for task in experiment.tasks
            for first, second in pairs_of(experiment.arms, experiment.control)
        ),
        default=0,
    )


# All tasks together

BOOTSTRAP_SEED = 0


def scores_by_task(experiment: Experiment, runs: pd.DataFrame) -> dict[str, list[Floats]]:
    """By arm, the counted accuracies of its runs on each task on which every arm has some."""
    values = {
        arm: [
            runs.loc[(runs["arm"] == arm) & (runs["task"] == task), "counted"].dropna().to_numpy(dtype=float)
            for task in experiment.tasks
        ]
        for arm in experiment.arms
    }
    shared = [i for i in range(len(experiment.tasks)) if all(len(values[arm][i]) for arm in experiment.arms)]
    return {arm: [of_arm[i] for i in shared] for arm, of_arm in values.items()}


# Tables

INTERVALS = (
    "The interval assumes normal differences and ignores all other pairs. The test does neither, and it "
    "cannot reject with fewer seeds than it needs. So an interval may exclude 0 where the verdict is "
    "unresolved."
)
"""Why an interval and a verdict may disagree. It is printed wherever both are shown."""


HEADER = (
    *(
        "task",
        "pair",
        "verdict",
        "difference",
        "95% interval",
        "over problems too",
        "seeds",
        "p",
        "adjusted p",
        "p of the margin",
    ),
    *("MDE", "power", "P(1st wins)", "why"),
)


def comparisons_table(
    compared: Sequence[Comparison],
    plan: InterimPlan | None = None,
    control: str = "",
    over_rates: Mapping[tuple[str, str, str], str] | None = None,
) -> PrintedTable:
    """All pairs of arms on every task, or those of a control: the differences and the results of the
    tests. `over_rates` says of (task, first, second) what holds over learning rates."""
    note = (
        "Differences of final accuracy in points, taken inside each seed. The verdict is about the first "
        "arm. p: exact two-sided sign-flip permutation test over n seeds; its smallest value is 2/2ⁿ (.25 "
        f"for three seeds). Adjusted p: {_correction(plan)}. Better and worse: adjusted p is at most "
        f"{ALPHA:g}. No difference of the margin{_margin(compared)} or more: two one-sided tests of the same "
        "kind (smallest p 1/2ⁿ) reject such a difference, and the 95% interval lies inside the margin; the "
        "table shows the larger p of both tests after Holm's correction over the pairs of a task. For each "
        "kind of verdict, the chance that it is wrong about any pair of a task is at most "
        f"{ALPHA:.0%} if the errors of a seed are symmetric. "
        f"Interval: t over seeds. {INTERVALS} Over problems "
        "too: 95% interval of a model that draws both seeds and problems at random, computed from the "
        "problems that all these runs answered, paired by seed and problem. This interval is about other "
        "problems like these; the test is about these problems. MDE: an effect that this test finds with "
        f"these seeds in {POWER:.0%} of repetitions or more, at {ALPHA:.0%} over the pairs of the task. It "
        "is simulated for normal differences with the observed SD, as if other pairs were independent and "
        "without effect; in brackets, at the ends of the 95% interval of that SD. None: these seeds cannot "
        f"find any effect. Power, by the same simulation ({REPETITIONS:,} repetitions, generator seed "
        f"{SEED}), in %: how often these seeds find a difference as large as the margin, and how often the "
        "two one-sided tests reject if arms are equal. P(1st wins): share of pairs of runs in which the run "
        "of the first arm is better; ties count ½."
    )
    if plan:
        note += (
            f" {plan.words} The p values are valid whichever interim analysis is the last. For a difference, "
            "p is the smallest level at which the sign-flip test would have rejected by now, if it spent "
            "that level over the analyses. For the margin, it is the smallest p of an analysis divided by "
            "its share of the level. MDE and power are those of the last analysis."
        )
    if control:
        note = f"Only pairs with the control {control} are compared and corrected. {note}"
    table = _table("comparisons", "Every pair with all numbers", compared, note)
    return _with_rates(table, compared, over_rates) if over_rates else table


def _with_rates(
    table: PrintedTable, compared: Sequence[Comparison], over_rates: Mapping[tuple[str, str, str], str]
) -> PrintedTable:
    """The table with a column behind the verdict that says what holds over learning rates."""
    words = [over_rates.get((pair.task, pair.first, pair.second), NONE) for pair in compared]
    return replace(
        table,
        header=[*table.header[:3], "over learning rates", *table.header[3:]],
        rows=[[*row[:3], text, *row[3:]] for row, text in zip(table.rows, words, strict=True)],
        frame=table.frame.assign(over_rates=words),
        text_columns=4,
        note=f"All arms at their own learning rates. {table.note}",
    )


def against_base_table(compared: Sequence[Comparison]) -> PrintedTable:
    """Every arm on every task against what it was before training."""
    note = (
        "Accuracy after training minus the accuracy of the same seed before training, in points. Verdicts "
        "use the same tests as pairs of arms, corrected over the arms of a task. A run that diverged counts "
        "as 0."
    )
    return _table("against_base", "Each arm against its base", compared, note)


def _table(name: str, title: str, compared: Sequence[Comparison], note: str) -> PrintedTable:
    rows = [
        [
            pair.task,
            f"{pair.first} − {pair.second}",
            pair.words,
            points(pair.effect),
            interval(pair.low, pair.high, points),
            interval(pair.crossed_low, pair.crossed_high, points),
            str(len(pair.seeds)),
            p_value(pair.p),
            p_value(pair.p_adjusted),
            p_value(pair.p_equivalence_holm),
            _detectable(pair),
            _power(pair),
            number(pair.improvement, 2),
            "; ".join(filter(None, (pair.needs, pair.disagrees))),
        ]
        for pair in compared
    ]
    frame = pd.DataFrame([asdict(pair) | {"text": pair.text} for pair in compared])
    heading = "Why each verdict was reached, and what a verdict would need"
    return PrintedTable(
        name, title, HEADER, rows, frame, text_columns=3, wide=1, note=note, sentence_heading=heading
    )


def _margin(compared: Sequence[Comparison]) -> str:
    """The margin in points: (2 points)."""
    margins = sorted({pair.margin for pair in compared})
    return f" ({', '.join(map(margin_points, margins))} points)" if margins else ""


def _power(pair: Comparison) -> str:
    """Both powers in percent; – where the spread is unknown."""
    if math.isnan(pair.power):
        return NONE
    return f"{number(100 * pair.power, 0)} / {number(100 * pair.power_equivalence, 0)}"


def _detectable(pair: Comparison) -> str:
    """The smallest effect that can be found, in points, with the ends of its interval."""
    if len(pair.seeds) < seeds_needed(ALPHA):
        return "none"
    if math.isnan(pair.detectable):
        return NONE
    low, high = (number(100 * value, 1) for value in (pair.detectable_low, pair.detectable_high))
    return f"{number(100 * pair.detectable, 1)} ({low} to {high})"


def _correction(plan: InterimPlan | None) -> str:
    """How p values of differences are corrected, in words."""
    if plan:
        return "after Holm's correction over the pairs of a task"
    return (
        "after closed max-T tests (Westfall and Young) over the pairs of a task, which flip the sign of a "
        "seed in all pairs at once, so that its smallest value is 2/2ⁿ as well"
    )


def aggregate_table(experiment: Experiment, runs: pd.DataFrame) -> PrintedTable | None:
    """Interquartile means over all tasks; None for one task or one arm."""
    if len(experiment.tasks) < 2 or len(experiment.arms) < 2:
        return None
    scores = scores_by_task(experiment, runs)
    interquartile = {arm: bootstrap_interquartile_mean(scores[arm], BOOTSTRAP_SEED) for arm in scores}
    most = max(Counter(zip(runs["arm"], runs["task"], strict=True)).values())
    note = (
        "Interquartile mean over all runs × tasks with a stratified bootstrap interval, which resamples "
        f"seeds inside each task (bootstrap seed {BOOTSTRAP_SEED})."
    )
    note += _lacking(experiment, runs)
    if most < 5:
        note += f" With {most} seeds a task has only {most**most} resamples, so the interval is rough."
    return PrintedTable(
        "aggregate",
        "All tasks together",
        ["arm", "interquartile mean (%)", "95% interval"],
        [[arm, percent(e.value), interval(e.low, e.high)] for arm, e in interquartile.items()],
        pd.DataFrame([{"arm": arm} | asdict(e) for arm, e in interquartile.items()]),
        text_columns=1,
        note=note,
    )


def improvement_table(experiment: Experiment, runs: pd.DataFrame) -> PrintedTable | None:
    """The probability of improvement over all tasks; None for one task or one arm."""
    if len(experiment.tasks) < 2 or len(experiment.arms) < 2:
        return None
    scores, pairs = scores_by_task(experiment, runs), pairs_of(experiment.arms, experiment.control)
    improvement = [(a, b, bootstrap_improvement(scores[a], scores[b], BOOTSTRAP_SEED)) for a, b in pairs]
    rows = [[f"{a} over {b}", number(e.value, 2), interval(e.low, e.high, two)] for a, b, e in improvement]
    frame = pd.DataFrame([{"first": a, "second": b} | asdict(e) for a, b, e in improvement])
    header = ["pair", "probability of improvement", "95% interval"]
    note = (
        "Probability that a run of the first arm is better than a run of the second, as a mean over tasks "
        "with a bootstrap interval; ties count ½. It says how often an arm is better, not by how much, and "
        "it is not a verdict."
    )
    note += _lacking(experiment, runs)
    title = "Probability of improvement"
    return PrintedTable("improvement", title, header, rows, frame, text_columns=1, note=note)


def _lacking(experiment: Experiment, runs: pd.DataFrame) -> str:
    """What the means over all tasks leave out, in sentences; empty where they leave nothing out."""
    counted = runs.dropna(subset=["counted"])
    present = set(zip(counted["task"], counted["arm"], strict=True))
    tasks = [task for task in experiment.tasks if any((task, arm) not in present for arm in experiment.arms)]
    missing, text = len(runs) - len(counted), ""
    if missing:
        text += f" Left out: {missing} run{'s' * (missing > 1)} without a result."
    if tasks:
        text += f" Tasks left out because some arm has no result: {', '.join(tasks)}."
    return text
