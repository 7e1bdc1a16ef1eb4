"""Sentences of the first screen about gains that are format, policies that answer the same to everything, and
tasks on which nothing more can be gained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from grpobench.analysis.runfolder.experiment import finite_mean
from grpobench.analysis.statistics.verdicts import points as margin_points
from grpobench.analysis.tools.text import interval, listed, percent, points
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.sources import FORMAT, UNKNOWN, constant_answers, shorten


@dataclass(frozen=True)
class Line:
    """A sentence, and the numbers that it rests on."""

    bold: str
    rest: str


@dataclass(frozen=True)
class SourceWarnings:
    """What a reader should know before reading gains of accuracy."""

    format: Sequence[Line]
    """Changes of accuracy that are changes of readability, of the margin or more."""
    constant: Sequence[Line]
    """Arms that answer the same to everything."""
    saturated: Sequence[Line]
    """Tasks on which nothing more can be gained."""

    @property
    def lines(self) -> list[Line]:
        """All of them."""
        return [*self.format, *self.constant, *self.saturated]

    @property
    def title(self) -> str:
        """The heading of the box on the first screen."""
        if changes := len(self.format):
            return (
                f"{changes} change{'s' * (changes > 1)} of accuracy {'are' if changes > 1 else 'is'} format."
            )
        return "Answers that are all the same." if self.constant else "Tasks that are saturated."


def describe_sources(numbers: Numbers) -> SourceWarnings:
    """The sentences of an experiment; none for a map, whose arms are sweep values."""
    if numbers.experiment.sweep_values:
        return SourceWarnings((), (), ())
    rows = numbers.sources.arms.to_dict("records")
    named = [row for row in rows if row["origin"] in (FORMAT, UNKNOWN)]
    changes = [_format_line(row) for row in named if abs(row["gain"]) >= numbers.experiment.margin]
    constant = [_constant_line(*key, runs) for key, runs in constant_answers(numbers.sources).items()]
    return SourceWarnings(changes, constant, list_saturated(numbers))


def _format_line(row: Mapping[str, Any]) -> Line:
    """An arm whose change of accuracy is one of readability."""
    kind = "gain" if row["gain"] > 0 else "loss"
    what = f"{row['arm']} on {row['task']}: the {kind} of {points(row['gain'])} points is {row['origin']}"
    read = f"{percent(row['readable_before'])} % of its answers could be read before training and "
    read += f"{percent(row['readable_after'])} % after, which makes {points(row['readable_part'])} points "
    read += f"(95% interval over {row['over']}: "
    read += f"{interval(row['readable_low'], row['readable_high'], points)}); better answers make "
    read += f"{points(row['answers_part'])}"
    likely = row["likelihood_before"], row["likelihood_after"]
    if not any(map(math.isnan, likely)):
        read += f". By likelihood {percent(likely[0])} % were right before and {percent(likely[1])} % after"
    elif row["origin"] == UNKNOWN:
        read += ". What it preferred while nothing could be read is unknown: the runs log no likelihoods"
    return Line(what, f"{read}.")


def _constant_line(task: str, arm: str, runs: pd.DataFrame) -> Line:
    """An arm with runs that answer the same to everything after training."""
    given = ", ".join(dict.fromkeys(map(shorten, runs["commonest_after"])))
    share = finite_mean(runs["commonest_share_after"])
    seeds = f" (seed{'s' * (len(runs) > 1)} {listed(runs['seed'])})"
    text = f"{arm} on {task} answers {given} to {percent(share)} % of the problems{seeds}"
    right = f"That is right in {percent(finite_mean(runs['commonest_right_after']))} % of these cases"
    before = finite_mean(runs["commonest_share_before"])
    if not math.isnan(before):
        names = ", ".join(dict.fromkeys(map(shorten, filter(None, runs["commonest_before"]))))
        right += f". Before training the commonest answer was {names}, {percent(before)} %"
    return Line(text, f"{right}.")


def list_saturated(numbers: Numbers) -> list[Line]:
    """Tasks on which no arm has room for a gain of the margin: before training, or at the end."""
    margin = numbers.experiment.margin
    size = f"{margin_points(margin)} points"
    lines = []
    for task in numbers.experiment.tasks:
        runs = numbers.runs[numbers.runs["task"] == task]
        base, final = (runs.groupby("arm", sort=False)[name].mean().dropna() for name in ("base", "counted"))
        if len(base) and base.min() >= 1 - margin:
            text = (
                f"Before training {percent(base.min())} % were right already, so that no arm can gain {size}."
            )
            lines.append(Line(f"{task} is saturated", text))
        elif len(final) > 1 and final.min() >= 1 - margin:
            text = f"Every arm ends at {percent(final.min())} % or more, so that none can be {size} better."
            lines.append(Line(f"{task} is saturated", text))
    return lines
