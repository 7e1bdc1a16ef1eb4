"""Pairs of a truth and an answer with the verdict that each should have, ours and those of other graders.

The verdicts are kept with the pairs in `graded/math_pairs.jsonl`: one of the graders needs another version of
a parser than the others, so no machine asks all of them at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpobench.tasks.grading.final_answer import compare_all
from grpobench.tasks.grading.graders import GRADERS

TABLE = Path(__file__).parent / "graded" / "math_pairs.jsonl"
PAGE = "tasks/math-pairs.md"
"""Under the folder of documents."""
OURS = "ours"
EACH = (OURS, *(grader.name for grader in GRADERS))
MOST_SHOWN = 60
"""A reason with more pairs than this points to the table of all."""


@dataclass(frozen=True)
class Pair:
    """A truth and an answer. `said` is each grader's verdict; `why` says of those that differ from ours what
    they do. Where ours differs from `equal`, `note` gives the reason and how we decide."""

    kind: str
    truth: str
    answer: str
    equal: bool
    note: str
    said: Mapping[str, str]
    why: Mapping[str, str]

    @property
    def key(self) -> tuple[str, str]:
        return self.truth, self.answer

    def right(self, grader: str) -> bool:
        """Whether a grader's verdict is the one expected."""
        return (self.said[grader] == "equal") == self.equal

    def apart(self, grader: str) -> bool:
        """Whether a grader accepts what ours refuses, or the reverse. No verdict is no acceptance."""
        return (self.said[grader] == "equal") != (self.said[OURS] == "equal")

    def row(self) -> dict[str, Any]:
        """As JSON, which `load` reads."""
        facts = {"kind": self.kind, "truth": self.truth, "answer": self.answer}
        return {**facts, "equal": self.equal, "note": self.note, **self.said, "why": dict(self.why)}


def load() -> list[Pair]:
    """The kept pairs."""
    rows = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
    return [
        Pair(
            kind=row["kind"],
            truth=row["truth"],
            answer=row["answer"],
            equal=row["equal"],
            note=row["note"],
            said={name: row[name] for name in EACH},
            why=row["why"],
        )
        for row in rows
    ]


def as_text(pairs: Sequence[Pair]) -> str:
    """The file of these pairs."""
    return "".join(json.dumps(pair.row(), ensure_ascii=False) + "\n" for pair in pairs)


def ask(pairs: Sequence[Pair]) -> tuple[list[Pair], list[str]]:
    """The pairs with verdicts asked for now, ours and those of the graders that are installed; and why the
    others could not be asked, whose kept verdicts stay."""
    asked: dict[str, Sequence[str]] = {OURS: compare_all([pair.key for pair in pairs])}
    lacking = [lack for grader in GRADERS if (lack := grader.missing())]
    asked |= {grader.name: grader.ask([p.key for p in pairs]) for grader in GRADERS if not grader.missing()}
    found = []
    for i, pair in enumerate(pairs):
        now = replace(pair, said={**pair.said, **{name: said[i] for name, said in asked.items()}})
        why = {grader.name: pair.why.get(grader.name, "") for grader in GRADERS if now.apart(grader.name)}
        found.append(replace(now, why=why))
    return found, lacking


def faults(kept: Sequence[Pair], now: Sequence[Pair]) -> Iterator[str]:
    """Where our verdict of now is neither the expected one nor a kept exception with its reason."""
    for before, pair in zip(kept, now, strict=True):
        if not pair.right(OURS) and (before.said[OURS] != pair.said[OURS] or not pair.note):
            wanted = "equal" if pair.equal else "different"
            yield f"{pair.kind}: {pair.answer!r} for {pair.truth!r} is {pair.said[OURS]}, expected {wanted}"


def tally(pairs: Sequence[Pair], grader: str) -> dict[str, int]:
    """How many verdicts of a grader are the expected ones, and how many are not in either way."""
    found = Counter(
        "right" if pair.right(grader) else "refused" if pair.equal else "accepted" for pair in pairs
    )
    return {name: found[name] for name in ("right", "accepted", "refused")}


def as_lines(pairs: Sequence[Pair]) -> Iterator[str]:
    """A line on each grader."""
    for name in EACH:
        found = tally(pairs, name)
        yield (
            f"{name}: {found['right']} of {len(pairs)} verdicts as they should be, "
            f"{found['accepted']} accepted and {found['refused']} refused wrongly"
        )


def shown() -> dict[str, Any]:
    """What the page says, from the kept verdicts."""
    pairs = load()
    kinds = {pair.kind: [own for own in pairs if own.kind == pair.kind] for pair in pairs}
    return {
        "pairs": pairs,
        "graders": GRADERS,
        "each": EACH,
        "kinds": {
            kind: {name: tally(own, name) for name in EACH} | {"pairs": len(own)}
            for kind, own in kinds.items()
        },
        "total": {name: tally(pairs, name) for name in EACH},
        "exceptions": [pair for pair in pairs if not pair.right(OURS)],
        "differences": {grader.name: reasons(pairs, grader.name) for grader in GRADERS},
        "most": MOST_SHOWN,
    }


def reasons(pairs: Sequence[Pair], grader: str) -> dict[str, list[tuple[str, list[Pair]]]]:
    """The pairs of which a grader says something else than ours, by what it does, most pairs first: those
    that it accepts and those that it refuses."""
    found: dict[str, list[tuple[str, list[Pair]]]] = {}
    for way in ("accepts", "refuses"):
        own: dict[str, list[Pair]] = {}
        for pair in pairs:
            if pair.apart(grader) and (pair.said[grader] == "equal") == (way == "accepts"):
                own.setdefault(pair.why[grader], []).append(pair)
        found[way] = sorted(own.items(), key=lambda item: -len(item[1]))
    return found
