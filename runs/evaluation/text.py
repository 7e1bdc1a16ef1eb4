"""Records of evaluations as text: numbers with intervals, and where two ways of asking differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.topics.evaluations import Agreement, compare_answers, mean_score
from grpobench.runs.evaluation.records import Record

LONGEST = 160
"""Characters of a completion that are shown."""


HEADS = {"base": "before", "final": "after", "model": ""}


def lines(record: Record) -> list[str]:
    """A record as a small table. Metrics of parts (``metric/category``) are only in the files."""
    settings, numbers = record.content["settings"], record.numbers
    items = len({row["problem"] for row in record.rows})
    head = f"{record.subject.name}: {settings['task']}, {settings['split']} split, {items} problems"
    told = [
        (f"{head}, through {record.content['through']}{' (kept from before)' if record.was_cached else ''}")
    ]
    prefix = f"eval/{settings['split']}/"
    names = dict.fromkeys(name for own in numbers.values() for name in own if name.count("/") == 3)
    width = max((len(name.removeprefix(prefix)) for name in names), default=0)
    if record.subject.run:
        told.append("  ".join(["", " " * width, *(f"{HEADS[policy]:<24}" for policy in numbers)]).rstrip())
    for name in names:
        mode, _, metric = name.removeprefix(prefix).partition("/")
        cells = [_cell(record, policy, mode, metric, own.get(name)) for policy, own in numbers.items()]
        told.append("  ".join(["", f"{mode} {metric}".ljust(width), *(f"{c:<24}" for c in cells)]).rstrip())
    caveat = record.content.get("caveat")
    return [*told, *([f"  Caveat: {caveat}"] if caveat else []), f"  {record.path}"]


def _cell(record: Record, policy: str, mode: str, metric: str, value: float | None) -> str:
    """A number; for the accuracy with its interval over items."""
    if value is None:
        return "–"
    rows = [row for row in record.rows if row["policy"] == policy and row["mode"] == mode]
    rows = [row for row in rows if metric in row["scores"] and row["outcome"] != "infra_error"]
    if metric != "correct" or not rows:
        return f"{value:.4f}"
    found = mean_score(rows, metric)
    return f"{value:.4f} [{found.estimate.low:.3f}, {found.estimate.high:.3f}]"


@dataclass(frozen=True)
class Compared:
    """How far the two ways of asking agree."""

    lines: Sequence[str]
    rows: Sequence[dict[str, Any]]
    """For machines."""


def paired(records: Sequence[Record]) -> Compared:
    """Compare records of the same subject and question that were made in the two ways."""
    told: list[str] = []
    rows: list[dict[str, Any]] = []
    for ours in (record for record in records if record.content["through"] == "grpobench"):
        for theirs in (record for record in records if record.content["through"] == "lm-eval"):
            if (theirs.path.parent, theirs.question) != (ours.path.parent, ours.question):
                continue
            for policy in ours.numbers:
                pair = [[row for row in r.rows if row["policy"] == policy] for r in (ours, theirs)]
                for found in compare_answers(pair[0], pair[1]):
                    name = ours.subject.name + (f" ({HEADS[policy]})" if HEADS[policy] else "")
                    told += _compared(name, found)
                    rows.append(
                        {
                            "subject": ours.subject.name,
                            "policy": policy,
                            "mode": found.mode,
                            "items": found.items,
                            "grpobench": found.first,
                            "lm_eval": found.second,
                            "differing": [one["problem"] for one, _ in found.differing],
                            "same_text": found.same_text,
                        }
                    )
    return Compared(told, rows)


def _compared(name: str, found: Agreement) -> list[str]:
    alike = found.items - len(found.differing)
    text = "" if found.same_text is None else f"; {found.same_text} completions are identical"
    accuracies = f"grpobench {found.first:.4f}, lm-eval {found.second:.4f}"
    told = [f"{name}, {found.mode}: {accuracies}; the same scores on {alike} of {found.items} items{text}"]
    for one, other in found.differing:
        told.append(f"  problem {one['problem']}:")
        told += [f"    {way:<10}{_shown(row)}" for way, row in (("grpobench", one), ("lm-eval", other))]
    return told


def _shown(row: Any) -> str:
    text = repr(row["completion"]) if "completion" in row else f"log p = {row.get('logp')}"
    return f"{row['scores']} {text[:LONGEST]}{'…' if len(text) > LONGEST else ''}"
