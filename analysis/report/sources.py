"""Sentences about gains that are format, and policies that answer the same to everything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import pandas as pd

from grpobench.analysis.runfolder.experiment import finite_mean
from grpobench.analysis.tools.text import interval, listed, percent, points
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.sources import FORMAT, UNKNOWN, constant_answers, shorten

SourcedSentence: TypeAlias = dict[str, str]
"""A sentence (`bold`), and the numbers that it rests on (`rest`), as report.json holds them."""


def describe_sources(numbers: Numbers) -> dict[str, list[SourcedSentence]]:
    """What a reader should know before reading gains of accuracy; empty lists for a map, whose arms are sweep
    values. `format`: changes of accuracy that are changes of readability, of the margin or more. `constant`:
    arms that answer the same to everything."""
    if numbers.experiment.sweep_values:
        return {"format": [], "constant": []}
    rows = numbers.sources.arms.to_dict("records")
    readability_rows = [row for row in rows if row["origin"] in (FORMAT, UNKNOWN)]
    changes = [_format_line(row) for row in readability_rows if abs(row["gain"]) >= numbers.experiment.margin]
    constant = [_constant_line(*key, runs) for key, runs in constant_answers(numbers.sources).items()]
    return {"format": changes, "constant": constant}


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
    return {"bold": headline, "rest": f"{read}."}


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
    return {"bold": text, "rest": f"{right}."}
