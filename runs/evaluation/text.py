"""Records of evaluations as text: numbers with intervals, and where two ways of asking differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.topics.evaluations import EvaluationAgreement, compare_answers, mean_score
from grpobench.runs.evaluation.records import EvaluationRecord

LONGEST = 160
"""Characters of a completion that are shown."""


HEADS = {"base": "before", "final": "after", "model": ""}


def lines(record: EvaluationRecord) -> list[str]:
    """A record as a small table. Metrics of parts (``metric/category``) are only in the files."""
    settings, numbers = record.content["settings"], record.numbers
    num_problems = len({row["problem"] for row in record.rows})
    head = f"{record.subject.name}: {settings['task']}, {settings['split']} split, {num_problems} problems"
    table_lines = [
        (f"{head}, through {record.content['through']}{' (kept from before)' if record.was_cached else ''}")
    ]
    prefix = f"eval/{settings['split']}/"
    names = dict.fromkeys(
        name for policy_numbers in numbers.values() for name in policy_numbers if name.count("/") == 3
    )
    width = max((len(name.removeprefix(prefix)) for name in names), default=0)
    if record.subject.run:
        table_lines.append(
            "  ".join(["", " " * width, *(f"{HEADS[policy]:<24}" for policy in numbers)]).rstrip()
        )
    for name in names:
        mode, _, metric = name.removeprefix(prefix).partition("/")
        cells = [
            _cell(record, policy, mode, metric, policy_numbers.get(name))
            for policy, policy_numbers in numbers.items()
        ]
        table_lines.append(
            "  ".join(["", f"{mode} {metric}".ljust(width), *(f"{c:<24}" for c in cells)]).rstrip()
        )
    caveat = record.content.get("caveat")
    return [*table_lines, *([f"  Caveat: {caveat}"] if caveat else []), f"  {record.path}"]


def _cell(record: EvaluationRecord, policy: str, mode: str, metric: str, value: float | None) -> str:
    """A number; for the accuracy with its interval over items."""
    if value is None:
        return "–"
    rows = [row for row in record.rows if row["policy"] == policy and row["mode"] == mode]
    rows = [row for row in rows if metric in row["scores"] and row["outcome"] != "infra_error"]
    if metric != "correct" or not rows:
        return f"{value:.4f}"
    mean = mean_score(rows, metric)
    return f"{value:.4f} [{mean.estimate.low:.3f}, {mean.estimate.high:.3f}]"


@dataclass(frozen=True)
class ModeAgreement:
    """How far the two ways of asking agree."""

    lines: Sequence[str]
    rows: Sequence[dict[str, Any]]
    """For machines."""


def paired(records: Sequence[EvaluationRecord]) -> ModeAgreement:
    """Compare records of the same subject and question that were made in the two ways."""
    text_lines: list[str] = []
    rows: list[dict[str, Any]] = []
    for ours in (record for record in records if record.content["through"] == "grpobench"):
        for theirs in (record for record in records if record.content["through"] == "lm-eval"):
            if (theirs.path.parent, theirs.question) != (ours.path.parent, ours.question):
                continue
            for policy in ours.numbers:
                pair = [[row for row in r.rows if row["policy"] == policy] for r in (ours, theirs)]
                for agreement in compare_answers(pair[0], pair[1]):
                    name = ours.subject.name + (f" ({HEADS[policy]})" if HEADS[policy] else "")
                    text_lines += _compared(name, agreement)
                    rows.append(
                        {
                            "subject": ours.subject.name,
                            "policy": policy,
                            "mode": agreement.mode,
                            "items": agreement.items,
                            "grpobench": agreement.first,
                            "lm_eval": agreement.second,
                            "differing": [first_row["problem"] for first_row, _ in agreement.differing],
                            "same_text": agreement.same_text,
                        }
                    )
    return ModeAgreement(text_lines, rows)


def _compared(name: str, agreement: EvaluationAgreement) -> list[str]:
    alike = agreement.items - len(agreement.differing)
    text = "" if agreement.same_text is None else f"; {agreement.same_text} completions are identical"
    accuracies = f"grpobench {agreement.first:.4f}, lm-eval {agreement.second:.4f}"
    text_lines = [
        f"{name}, {agreement.mode}: {accuracies}; the same scores on {alike} of {agreement.items} items{text}"
    ]
    for first_row, other in agreement.differing:
        text_lines.append(f"  problem {first_row['problem']}:")
        text_lines += [
            f"    {way:<10}{_shown(row)}" for way, row in (("grpobench", first_row), ("lm-eval", other))
        ]
    return text_lines


def _shown(row: Any) -> str:
    text = repr(row["completion"]) if "completion" in row else f"log p = {row.get('logp')}"
    return f"{row['scores']} {text[:LONGEST]}{'…' if len(text) > LONGEST else ''}"
