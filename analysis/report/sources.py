"""Sentences about gains that are format, and policies that answer the same to everything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from grpobench.analysis.runfolder.experiment import finite_mean
from grpobench.analysis.tools.text import interval, listed, percent, points
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.sources import FORMAT, UNKNOWN, constant_answers, shorten


@dataclass(frozen=True)
class SourcedSentence:
    """A sentence, and the numbers that it rests on."""

    bold: str
    explanation: str

    def row(self) -> dict[str, str]:
        """As report.json holds it."""
        return {"bold": self.bold, "rest": self.explanation}


@dataclass(frozen=True)
class SourceWarnings:
    """What a reader should know before reading gains of accuracy."""

    format: Sequence[SourcedSentence]
    """Changes of accuracy that are changes of readability, of the margin or more."""
    constant: Sequence[SourcedSentence]
    """Arms that answer the same to everything."""

    @property
    def lines(self) -> list[SourcedSentence]:
        """All of them."""
        return [*self.format, *self.constant]

    def row(self) -> dict[str, list[dict[str, str]]]:
        """As report.json holds them."""
        return {
            "format": [line.row() for line in self.format],
            "constant": [line.row() for line in self.constant],
        }


def describe_sources(numbers: Numbers) -> SourceWarnings:
    """The sentences of an experiment; none for a map, whose arms are sweep values."""
    if numbers.experiment.sweep_values:
        return SourceWarnings((), ())
    rows = numbers.sources.arms.to_dict("records")
    readability_rows = [row for row in rows if row["origin"] in (FORMAT, UNKNOWN)]
    changes = [_format_line(row) for row in readability_rows if abs(row["gain"]) >= numbers.experiment.margin]
    constant = [_constant_line(*key, runs) for key, runs in constant_answers(numbers.sources).items()]
    return SourceWarnings(changes, constant)


def _format_line(row: Mapping[str, Any]) -> SourcedSentence:
    """An arm whose change of accuracy is one of readability."""
    kind = "gain" if row["gain"] > 0 else "loss"
    headline = f"{row['arm']} on {row['task']}: the {kind} of {points(row['gain'])} points is {row['origin']}"
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
    return SourcedSentence(headline, f"{read}.")


def _constant_line(task: str, arm: str, runs: pd.DataFrame) -> SourcedSentence:
    """An arm with runs that answer the same to everything after training."""
    answers = ", ".join(dict.fromkeys(map(shorten, runs["commonest_after"])))
    share = finite_mean(runs["commonest_share_after"])
    seeds = f" (seed{'s' * (len(runs) > 1)} {listed(runs['seed'])})"
    text = f"{arm} on {task} answers {answers} to {percent(share)} % of the problems{seeds}"
    right = f"That is right in {percent(finite_mean(runs['commonest_right_after']))} % of these cases"
    before = finite_mean(runs["commonest_share_before"])
    if not math.isnan(before):
        names = ", ".join(dict.fromkeys(map(shorten, filter(None, runs["commonest_before"]))))
        right += f". Before training the commonest answer was {names}, {percent(before)} %"
    return SourcedSentence(text, f"{right}.")
