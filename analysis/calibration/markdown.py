"""A kept calibration as Markdown; `KINDS` lists the tables that a document can ask for."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from grpobench.analysis.kept_tables import table
from grpobench.analysis.record import Provenance
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.tools.text import NONE, number, percent, two

Content: TypeAlias = Mapping[str, Any]


def render(content: Content, kind: str) -> list[str]:
    """The lines of one table. Raises LogError for an unknown kind."""
    if kind not in KINDS:
        raise LogError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    return KINDS[kind](content)


def provenance(content: Content) -> list[str]:
    """Command, commit, versions and machine in a sentence."""
    runs = sum(sum(case["runs"].values()) for case in content["cases"])
    return Provenance.pop({**content}).lines(f"{runs} runs")


def goals(content: Content) -> list[str]:
    """What was asked for, and what came out on seeds that set nothing."""
    rows = [
        [
            row["goal"],
            f"{'at least' if row['at_least'] else 'at most'} {row['bound']:g}",
            two(row["value"]),
            "yes" if row["met"] else "**no**",
        ]
        for row in content["goals"]
    ]
    goal_lines = table(
        "On the seeds that set nothing:", ["goal", "asked", "found", "met"], rows, text_columns=1
    )
    others = [row for row in content["detectors"] if row["family"] != "collapse" and row["meets"] is False]
    if not others:
        return goal_lines
    misses = "; ".join(f"{words(row['kind'])} ({brief(row['scored'])})" for row in others)
    requirement = "recall and precision of .9, .05 false alarms per healthy run"
    text = f"Of the other kinds of events these miss what is asked of a collapse ({requirement}): {misses}."
    return [*goal_lines, "", *textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)]


def cases(content: Content) -> list[str]:
    """The library: what is wrong with each kind of run, and its labels."""
    rows = [
        [
            case["arm"],
            case["what"],
            ", ".join(map(words, case["must"])) or NONE,
            ", ".join(map(words, case["may"])) or NONE,
            f"{case['runs']['set']} + {case['runs']['scored']}",
        ]
        for case in content["cases"]
    ]
    header = ["arm", "what it is", "must show", "may show", "runs"]
    lead = (
        "Runs: those whose seeds set thresholds + those that score them. Every other event is a false alarm."
    )
    return table(lead, header, rows, text_columns=4)


def detectors(content: Content) -> list[str]:
    """Each detector with its thresholds as they were set, on the seeds that set nothing."""
    rows = [
        [words(row["kind"]), setting(row), *scored(row["scored"])]
        for row in content["detectors"]
        if row["scored"]["must"] or row["scored"]["never"]
    ]
    header = [
        "event",
        "thresholds",
        "found",
        "recall",
        "false",
        "precision",
        "per healthy run",
        "delay",
        "lead",
    ]
    lead = (
        "On the seeds that set nothing. Found: of the runs that must show it. False: of those that must not. "
        "Per healthy run: false alarms. Delay: median updates from the fault to the alarm. Lead: median "
        "updates from the alarm until held-out accuracy was lost for good."
    )
    return table(textwrap.fill(lead, 118), header, rows, text_columns=2)


def halves(content: Content) -> list[str]:
    """Thresholds and scores on both halves, and the defaults' on the second."""
    rows = []
    for row in content["detectors"]:
        if row["tried"] > 1 or row["values"] != row["default"]:
            scores = [brief(row[half]) for half in ("set", "scored", "default_scored")]
            rows.append(
                [words(row["kind"]), format_values(row["default"]), format_values(row["values"]), *scores]
            )
    header = ["event", "default", "set", "first half", "second half", "default, second half"]
    lead = "Recall, precision and false alarms per healthy run with each setting:"
    return table(lead, header, rows, text_columns=3)


def warning(content: Content) -> list[str]:
    """How the limit of the early warning was set."""
    row = content["warning"]
    text = (
        f"h = {row['limit']:g}: the largest sum of at most one in twenty of {row['draws']:,} resampled "
        f"courses of {row['runs']} healthy runs, in blocks of {row['block']} updates, is above it; so is "
        f"that of {row['above']} of these {row['runs']} runs themselves."
    )
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


def same_arm(content: Content) -> list[str]:
    """False positives of the comparison."""
    rows = [
        [
            str(row["arms"]),
            str(row["seeds"]),
            str(row["comparisons"]),
            f"{row['false']} ({percent(row['rate'])} %)",
            str(row["equivalent"]),
            f"{row['wrongly_equivalent']} ({percent(row['wrong_rate'])} %)",
        ]
        for row in content["same_arm"]
    ]
    pool = content["same_arm"][0]["pool"] if content["same_arm"] else 0
    lead = f"Arms drawn from {pool} runs of `{content['pool']}`, no run in two arms, at a nominal 5 %:"
    columns = ("comparisons", "called different", "all called equivalent", "wrongly, one moved by the margin")
    return table(lead, ["arms", "seeds each", *columns], rows, text_columns=0)


KINDS: Mapping[str, Callable[[Content], list[str]]] = {
    "provenance": provenance,
    "goals": goals,
    "cases": cases,
    "detectors": detectors,
    "halves": halves,
    "warning": warning,
    "same-arm": same_arm,
}


def as_lines(content: Content) -> Iterator[str]:
    """Everything, for a terminal."""
    for kind in ("provenance", "goals", "detectors", "halves", "warning", "same-arm"):
        yield from (*render(content, kind), "")


def words(kind: str) -> str:
    return kind.replace("_", " ")


def format_values(values: Mapping[str, float]) -> str:
    return ", ".join(f"`{name}` {value:g}" for name, value in values.items()) or NONE


def setting(row: Content) -> str:
    """The thresholds that were looked at, with a sign where they are not the default."""
    return format_values(row["values"]) + (" (set)" if row["values"] != row["default"] else "")


def scored(score_row: Content) -> Sequence[str]:
    """The columns of a score."""
    return [
        f"{score_row['hits']} of {score_row['must']}",
        two(score_row["recall"]),
        f"{score_row['false']} of {score_row['never']}",
        two(score_row["precision"]),
        two(score_row["per_healthy"]),
        number(score_row["delay"], 0),
        f"{number(score_row['lead'], 0)} ({score_row['leads']})" if score_row["leads"] else NONE,
    ]


def brief(score_row: Content) -> str:
    return " / ".join(two(score_row[name]) for name in ("recall", "precision", "per_healthy"))
