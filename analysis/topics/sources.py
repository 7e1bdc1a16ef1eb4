"""The sources of a gain: answers that became readable or better, and policies that answer the same to
everything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import Experiment, by_cell, finite_mean
from grpobench.analysis.statistics.decomposition import (
    COUNTS,
    decides,
    decompose,
    problem_intervals,
    was_read,
)
from grpobench.analysis.statistics.intervals import Estimate, Floats, seed_mean
from grpobench.analysis.tools.text import NONE, interval, percent, points, visible
from grpobench.analysis.topics.events import graded

FORMAT = "format"
"""More than half of the change is readable answers, and the interval of this part excludes 0."""
ANSWERS = "answers"
"""The same of accuracy among readable answers."""
UNKNOWN = "format or unknown"
"""As `FORMAT`, but nothing was readable on one side, and no likelihoods tell what the policy preferred."""
UNRESOLVED = "unresolved"
NOT_LOGGED = "not logged"

FEWEST_SEEDS = 3
"""With fewer seeds, the intervals are over problems: a t interval over two is 12.7 standard errors wide."""
CONSTANT = 0.9
"""Share of the problems from which on an answer is called the same to everything."""
FEWEST_PROBLEMS = 8
"""With fewer problems, the same answer to all of them may be chance."""
LONGEST = 24
"""Longer answers are shown without their end (characters)."""
WHEN = ("before", "after")
RUN = ["task", "arm", "seed"]


@dataclass(frozen=True)
class Sources:
    """Where the gains of an experiment come from; accuracies and parts are shares."""

    runs: pd.DataFrame
    """One row per run with evaluations before and after training: task, arm, seed, problems, gain,
    readable_part, answers_part, assumed; and each `_before` and `_after`: accuracy, readable,
    among_readable, likelihood, commonest (text), commonest_share, commonest_right (its accuracy)."""
    arms: pd.DataFrame
    """One row per task and arm: means of these over seeds, intervals of both parts (`_low`, `_high`), what
    the intervals are over (`over`), `seeds` and `origin`. An arm whose runs log no outcomes has only the
    origin `NOT_LOGGED`."""


def find_sources(experiment: Experiment, runs: pd.DataFrame) -> Sources:
    """Split the gain of every run and arm. `runs` are the rows of `finals`, which choose split and mode; runs
    without an accuracy before or after training are left out."""
    measured_runs = runs.dropna(subset=["base", "final"])
    answers = _answers(experiment, measured_runs)
    by_run = dict(iter(answers.groupby(RUN, sort=False))) if len(answers) else {}
    counts = {key: _counts(rows) for key, rows in by_run.items()}
    rows = [_run(key, by_run[key], counts[key]) for key in counts]
    frame = pd.DataFrame(rows)
    arms, cell = [], by_cell(frame) if rows else None
    for task in experiment.tasks:
        for arm in experiment.arms:
            if not len(measured_runs[(measured_runs["task"] == task) & (measured_runs["arm"] == arm)]):
                continue
            arm_rows = cell(arm, task) if cell else frame
            if arm_rows.empty:
                arms.append({"task": task, "arm": arm, "seeds": 0, "origin": NOT_LOGGED})
            else:
                arms.append(_arm(arm_rows, [counts[task, arm, seed] for seed in arm_rows["seed"]]))
    return Sources(frame, pd.DataFrame(arms))


def _answers(experiment: Experiment, measured_runs: pd.DataFrame) -> pd.DataFrame:
    """Graded answers and likelihoods before training and after the last update, on the split of the headline:
    the columns of the logs, `after`, `group` (what problems share, or the problem) and `COUNTS`."""
    frame = graded(experiment.evaluations)
    if frame.empty or measured_runs.empty or not {"outcome", "answer"} <= set(frame.columns):
        return frame.iloc[:0]
    chosen = measured_runs[[*RUN, "split", "mode"]].rename(columns={"mode": "headline"})
    frame = frame.merge(chosen, on=[*RUN, "split"])
    frame = frame[(frame["mode"] == frame["headline"]) | (frame["mode"] == "likelihood")]
    frame = frame.dropna(subset=["outcome", "score/correct"])
    last = frame.groupby(RUN)["step"].transform("max")
    frame = frame[(frame["step"] == 0) | (frame["step"] == last)]
    both = frame[frame["mode"] == frame["headline"]].groupby(RUN)["step"].nunique()
    frame = frame.merge((both == 2).rename("both").reset_index(), on=RUN)
    frame = frame[frame["both"]]
    correct = frame["score/correct"].astype(float)
    written, likely = frame["mode"] == frame["headline"], frame["mode"] == "likelihood"
    readable = written & was_read(frame["outcome"], correct)
    group = frame["trait/cluster"] if "trait/cluster" in frame else pd.Series(np.nan, index=frame.index)
    return frame.assign(
        after=(frame["step"] > 0).astype(int),
        group=group.where(group.notna(), frame["problem"]).astype(str),
        answers=written.astype(float),
        readable=readable.astype(float),
        correct=correct.where(written, 0.0),
        asked=likely.astype(float),
        likeliest=correct.where(likely, 0.0),
    )


def _counts(rows: pd.DataFrame) -> dict[str, Floats]:
    """Group of problems -> its counts, of shape (2, 5)."""
    sums = rows.groupby(["group", "after"], sort=True)[list(COUNTS)].sum()
    counts: dict[str, Floats] = {}
    for (group, after), values in zip(sums.index, sums.to_numpy(dtype=float), strict=True):
        counts.setdefault(group, np.zeros((2, len(COUNTS))))[after] = values
    return counts


def _run(key: tuple[str, str, int], rows: pd.DataFrame, counts: Mapping[str, Floats]) -> dict[str, Any]:
    """The row of a run."""
    total = np.sum([*counts.values()], axis=0)
    parts = decompose(total)
    row: dict[str, Any] = dict(zip(RUN, key, strict=True))
    row["problems"] = rows.loc[rows["answers"] > 0, "problem"].nunique()
    for after, when in enumerate(WHEN):
        answers, readable, correct, likelihood_rows, likeliest = total[after]
        row |= {
            f"accuracy_{when}": correct / answers,
            f"readable_{when}": readable / answers,
            f"among_readable_{when}": correct / readable if readable else math.nan,
            f"likelihood_{when}": likeliest / likelihood_rows if likelihood_rows else math.nan,
        }
        row |= {f"{name}_{when}": value for name, value in _commonest(rows, after).items()}
    row["gain"] = row["accuracy_after"] - row["accuracy_before"]
    return row | {
        "readable_part": float(parts.readable),
        "answers_part": float(parts.answers),
        "assumed": bool(parts.assumed),
    }


def _commonest(rows: pd.DataFrame, after: int) -> dict[str, Any]:
    """The most frequent answer of a policy, its share of all answers and its accuracy. Of several, the first;
    what could not be read has none."""
    policy_rows = rows[(rows["after"] == after) & (rows["answers"] > 0)]
    read = policy_rows[
        (policy_rows["readable"] > 0)
        & policy_rows["answer"].map(lambda answer_text: isinstance(answer_text, str))
    ]
    if read.empty:
        return {"commonest": "", "commonest_share": math.nan, "commonest_right": math.nan}
    answer = Counter(read["answer"]).most_common(1)[0][0]
    same = read[read["answer"] == answer]
    return {
        "commonest": str(answer),
        "commonest_share": len(same) / len(policy_rows),
        "commonest_right": float(same["correct"].mean()),
    }


def _arm(arm_rows: pd.DataFrame, counts: list[dict[str, Floats]]) -> dict[str, Any]:
    """The row of an arm on a task, from the rows and the counts of its runs."""
    numbers = arm_rows.drop(columns=[*RUN, "commonest_before", "commonest_after", "assumed"])
    means = {name: finite_mean(numbers[name]) for name in numbers}
    assumed = bool(arm_rows["assumed"].any())
    if len(arm_rows) >= FEWEST_SEEDS:
        over, readable, answers = (
            "seeds",
            seed_mean(arm_rows["readable_part"]),
            seed_mean(arm_rows["answers_part"]),
        )
    else:
        over = "problems"
        groups = sorted(set().union(*counts))
        empty = np.zeros((2, len(COUNTS)))
        readable, answers = problem_intervals(
            [[run_counts.get(g, empty) for g in groups] for run_counts in counts]
        )
    return {
        "task": arm_rows["task"].iloc[0],
        "arm": arm_rows["arm"].iloc[0],
        "seeds": len(arm_rows),
        "origin": name_origin(means["gain"], readable, answers, assumed),
        **means,
        "commonest_before": _names(arm_rows, "before"),
        "commonest_after": _names(arm_rows, "after"),
        "readable_low": readable.low,
        "readable_high": readable.high,
        "answers_low": answers.low,
        "answers_high": answers.high,
        "over": over,
        "assumed": assumed,
    }


def _names(arm_rows: pd.DataFrame, when: str) -> str:
    """The commonest answers of the runs, the most frequent first."""
    answers = Counter(answer for answer in arm_rows[f"commonest_{when}"] if answer)
    return ", ".join(shorten(answer) for answer, _ in answers.most_common())


def shorten(answer: str) -> str:
    """An answer as a sentence or a cell shows it."""
    text = " ".join(visible(answer).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def name_origin(gain: float, readable: Estimate, answers: Estimate, assumed: bool = False) -> str:
    """Which part makes a change of accuracy: `FORMAT`, `ANSWERS`, `UNKNOWN` or `UNRESOLVED`."""
    if decides(readable, gain):
        return UNKNOWN if assumed else FORMAT
    return ANSWERS if decides(answers, gain) else UNRESOLVED


def constant_answers(sources: Sources) -> dict[tuple[str, str], pd.DataFrame]:
    """By task and arm, the rows of runs that give one answer to `CONSTANT` of the problems or more after
    training, although it is right for fewer.

    The logs hold no reference answers. With share s and accuracy c of the commonest answer, it is right for
    at most s·c + 1 − s of the problems: those where it is given and right, and all others."""
    runs = sources.runs
    if runs.empty:
        return {}
    share, right = runs["commonest_share_after"], runs["commonest_right_after"]
    least = share - (share * right + 1 - share)
    same = runs[(share >= CONSTANT) & (least > 0) & (runs["problems"] >= FEWEST_PROBLEMS)]
    return {
        (str(task), str(arm)): arm_rows for (task, arm), arm_rows in same.groupby(["task", "arm"], sort=False)
    }


def sources_table(sources: Sources) -> PrintedTable:
    """Where the gain of each arm comes from, one row per task and arm."""
    rows = [
        [row["task"], row["arm"], *([NONE] * 7), NOT_LOGGED]
        if row["origin"] == NOT_LOGGED
        else [
            row["task"],
            row["arm"],
            points(row["gain"]),
            _change(row, "readable"),
            _change(row, "among_readable"),
            _change(row, "likelihood"),
            " → ".join(_commonest_cell(row, when) for when in WHEN),
            f"{points(row['readable_part'])} ({interval(row['readable_low'], row['readable_high'], points)})",
            points(row["answers_part"]),
            row["origin"],
        ]
        for row in sources.arms.to_dict("records")
    ]
    header = ["task", "arm", "gain", "readable", "right of these", "by likelihood"]
    header += ["commonest", "of readable (95% interval)", "of better", "origin"]
    note = (
        "Shares before → after training in percent, gains in points, mean over the seeds with both "
        "evaluations. With the share r of readable answers and the accuracy a among them, the gain is "
        "exactly (r₁ − r₀)(a₀ + a₁)/2 of readable answers and (a₁ − a₀)(r₀ + r₁)/2 of better ones. If "
        "nothing was readable, the accuracy by likelihood (of the likeliest option) stands in for a. The "
        f"origin is {FORMAT} or {ANSWERS} if that part makes more than half of the gain and its interval "
        f"excludes 0, and {UNKNOWN} if nothing was readable and there are no likelihoods. Intervals: t over "
        f"seeds; with fewer than {FEWEST_SEEDS} seeds over problems (jackknife), which says nothing about "
        "other seeds."
    )
    return PrintedTable(
        "sources", "Where a gain comes from", header, rows, sources.arms, text_columns=2, note=note
    )


def _change(row: Mapping[str, Any], name: str) -> str:
    """A share before and after."""
    before, after = row[f"{name}_before"], row[f"{name}_after"]
    return NONE if math.isnan(before) and math.isnan(after) else f"{percent(before)} → {percent(after)}"


def _commonest_cell(row: Mapping[str, Any], when: str) -> str:
    share = row[f"commonest_share_{when}"]
    return NONE if math.isnan(share) else f"{row[f'commonest_{when}']} {percent(share)}"
