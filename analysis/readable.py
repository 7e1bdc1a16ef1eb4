"""The table of `grpobench tasks readable`: whether a model's answers can be read."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from grpobench.analysis import record
from grpobench.analysis.kept_tables import table
from grpobench.analysis.record import Provenance
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.statistics.decomposition import was_read
from grpobench.analysis.statistics.intervals import Estimate, wilson
from grpobench.analysis.tools.text import NONE, interval, percent

NAME: Final = "readable"
"""Kind and name of the kept table, and name of its file below docs/results."""
ENOUGH: Final = 0.9
"""Share of complete answers from which on a model can be trained on a task as it is."""
MODES: Final = ("sampled", "greedy")

READABLE: Final = "readable"
TOO_FEW_TOKENS: Final = "too few tokens"
"""Complete answers would be enough if every completion that was cut had become one."""
NEEDS_WARM_START: Final = "needs a warm start"
NOT_READABLE: Final = "not readable"
"""The same after a warm start."""
BY_LIKELIHOOD: Final = "by likelihood"
"""Nothing is written, so nothing has to be read."""


@dataclass(frozen=True)
class Counts:
    """What was counted of the answers of one mode.

    An answer is readable if the verifier found one in the completion, as in `topics.sources`. It is complete
    if the token limit did not cut the completion before the answer stood in the form that the prompt asks for
    (the score `format`): the last number of an unfinished calculation is readable, but it is no answer."""

    answers: int
    readable: int
    complete: int
    cut: int
    """Completions that the token limit ended."""
    cut_incomplete: int
    correct: int


@dataclass(frozen=True)
class ReadableRow:
    """One model on one task."""

    model: str
    chat: bool
    """Whether prompts went through a chat template."""
    task: str
    settings: Mapping[str, Any]
    """The task's settings that are not its defaults."""
    warm_start: str
    """Updates × demonstrations before the measurement; empty for the model as it is."""
    split: str
    temperature: float
    """Of sampled answers."""
    max_completion_tokens: int
    dtype: str
    written: Mapping[str, Counts]
    """By mode."""
    asked: int
    """Problems asked by likelihood whose right option is known."""
    likeliest: int
    """Of these, those whose likeliest option is right."""
    chance: float
    """Accuracy of guessing among the options; NaN without options."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """Commit, versions and machine."""

    @property
    def key(self) -> str:
        """What is measured; a new measurement replaces the kept one of the same key."""
        return json.dumps([self.model, self.chat, self.task, dict(self.settings), bool(self.warm_start)])

    @property
    def verdict(self) -> str:
        """What sampled answers say, or greedy ones where none were sampled."""
        counts = next((self.written[mode] for mode in MODES if mode in self.written), None)
        if counts is None or not counts.answers:
            return BY_LIKELIHOOD
        if counts.complete >= ENOUGH * counts.answers:
            return READABLE
        if counts.complete + counts.cut_incomplete >= ENOUGH * counts.answers:
            return TOO_FEW_TOKENS
        return NOT_READABLE if self.warm_start else NEEDS_WARM_START

    def row(self) -> dict[str, Any]:
        """For JSON: the fields, the verdict, and each share with Wilson's interval."""
        shares: dict[str, Any] = {
            mode: {name: _share(value, counts.answers) for name, value in asdict(counts).items()}
            for mode, counts in self.written.items()
        }
        shares["likelihood"] = {"correct": _share(self.likeliest, self.asked)}
        plain = asdict(self) | {"chance": None if math.isnan(self.chance) else self.chance}
        return plain | {"verdict": self.verdict, "shares": shares}


def count(rows: Sequence[Mapping[str, Any]]) -> dict[str, Counts]:
    """The counts of written answers by mode, from rows of an evaluation. Answers that the machine could not
    grade count nowhere; those of a task without the score `format` are in form if they are readable."""
    counts_by_mode = {}
    for mode in MODES:
        mode_rows = [row for row in rows if row["mode"] == mode and row["outcome"] != "infra_error"]
        read = [bool(was_read(row["outcome"], row["scores"].get("correct", 0.0))) for row in mode_rows]
        cut = [row["stopped"] is False for row in mode_rows]
        form = [row["scores"].get("format", 1.0) > 0 for row in mode_rows]
        complete = [r and (f or not c) for r, f, c in zip(read, form, cut, strict=True)]
        if mode_rows:
            counts_by_mode[mode] = Counts(
                answers=len(mode_rows),
                readable=sum(read),
                complete=sum(complete),
                cut=sum(cut),
                cut_incomplete=sum(
                    c and not is_complete for c, is_complete in zip(cut, complete, strict=True)
                ),
                correct=sum(row["scores"].get("correct", 0.0) == 1 for row in mode_rows),
            )
    return counts_by_mode


def count_likeliest(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int, float]:
    """(problems, those whose likeliest option is right, accuracy of guessing) of the rows by likelihood."""
    likelihood_rows = [row for row in rows if row["mode"] == "likelihood" and "correct" in row["scores"]]
    if not likelihood_rows:
        return 0, 0, math.nan
    right = sum(row["scores"]["correct"] == 1 for row in likelihood_rows)
    return (
        len(likelihood_rows),
        right,
        sum(1 / len(row["logp"]) for row in likelihood_rows) / len(likelihood_rows),
    )


def _share(value: int, of: int) -> dict[str, float] | None:
    return asdict(wilson(value, of)) if of else None


# Keeping


def merge(before: Sequence[ReadableRow], new: Sequence[ReadableRow]) -> list[ReadableRow]:
    """The kept rows with new ones in the places of those that measured the same."""
    rows = {row.key: row for row in before} | {row.key: row for row in new}
    order = {task: number for number, task in enumerate(dict.fromkeys(row.task for row in rows.values()))}
    return sorted(
        rows.values(),
        key=lambda row: (order[row.task], str(dict(row.settings)), row.model, not row.chat, row.warm_start),
    )


def content_of(rows: Sequence[ReadableRow]) -> dict[str, Any]:
    """The content of the kept table."""
    return record.content_of(NAME, NAME, _provenance(rows), {"rows": [row.row() for row in rows]})


def _provenance(rows: Sequence[ReadableRow]) -> Provenance:
    """That of all rows; each has its own, in `made`."""
    return Provenance(
        command="grpobench tasks readable",
        commits=dict(Counter(row.made["commit"] for row in rows)),
        versions={
            name: list(dict.fromkeys(row.made["versions"][name] for row in rows))
            for name in (rows[0].made["versions"] if rows else ())
        },
        machine=list(dict.fromkeys(row.made["machine"] for row in rows)),
    )


def read(path: Path) -> list[ReadableRow]:
    """The rows of a kept table. Raises LogError if the file is none."""
    return record.read(path, NAME, lambda content: [_row(row) for row in content["rows"]])


def _row(plain: Mapping[str, Any]) -> ReadableRow:
    fields = {name: value for name, value in plain.items() if name not in ("verdict", "shares")}
    written = {mode: Counts(**counts) for mode, counts in fields["written"].items()}
    chance = math.nan if fields["chance"] is None else fields["chance"]
    return ReadableRow(**{**fields, "written": written, "chance": chance})


# Printing

HEADER: Final = (
    *("task", "model", "prompt", "warm start", "answers", "readable", "complete (95 % interval)", "cut"),
    *("right", "greedy: readable", "right", "by likelihood", "verdict"),
)


def cells(rows: Sequence[ReadableRow]) -> list[list[str]]:
    """The printed cells of each row, in the order of `HEADER`; shares in percent."""
    return [
        [
            " ".join([row.task, *(f"{name}={value}" for name, value in row.settings.items())]),
            row.model,
            "chat" if row.chat else "plain",
            row.warm_start or NONE,
            *_written(row.written.get("sampled")),
            *_greedy(row.written.get("greedy")),
            NONE
            if not row.asked
            else f"{percent(row.likeliest / row.asked)} of {row.asked} (chance {percent(row.chance)})",
            row.verdict,
        ]
        for row in rows
    ]


def _written(counts: Counts | None) -> list[str]:
    if counts is None:
        return [NONE] * 5
    complete: Estimate = wilson(counts.complete, counts.answers)
    return [
        str(counts.answers),
        percent(counts.readable / counts.answers),
        f"{percent(complete.value)} ({interval(complete.low, complete.high)})",
        percent(counts.cut / counts.answers),
        percent(counts.correct / counts.answers),
    ]


def _greedy(counts: Counts | None) -> list[str]:
    if counts is None:
        return [NONE] * 2
    return [percent(counts.readable / counts.answers), percent(counts.correct / counts.answers)]


def render(rows: Sequence[ReadableRow], kind: str) -> list[str]:
    """The lines of one table of a document. Raises LogError for an unknown kind."""
    kinds = {"table": as_table, "provenance": provenance}
    if kind not in kinds:
        raise LogError(f"unknown kind {kind!r}; known: {', '.join(kinds)}")
    return kinds[kind](rows)


def as_table(rows: Sequence[ReadableRow]) -> list[str]:
    """The Markdown table."""
    temperatures = " and ".join(dict.fromkeys(f"{row.temperature:g}" for row in rows))
    lead = f"Shares in %, of answers sampled at temperature {temperatures} unless the column says otherwise:"
    return table(lead, HEADER, cells(rows), text_columns=4)


def provenance(rows: Sequence[ReadableRow]) -> list[str]:
    """Commits, versions and machines in a sentence."""
    dtypes = " and ".join(dict.fromkeys(row.dtype for row in rows))
    made = _provenance(rows)
    machine = [f"{' and '.join(made.machine)}, {dtypes}"]
    return replace(made, commits=dict.fromkeys(made.commits, 0), machine=machine).lines(f"{len(rows)} rows")
