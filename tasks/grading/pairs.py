"""Pairs of a truth and an answer with the verdict that each should have, ours and those of other graders."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from grpobench.tasks.data import bounded
from grpobench.tasks.grading.algebra import Comparison, compared
from grpobench.tasks.grading.final_answer import compare_all
from grpobench.tasks.workers.pool import Pool

CPU_SECONDS = 6.0
"""Seconds of a question; lm-eval gives up by itself after five seconds by the clock."""
WALL_SECONDS = 60.0


@dataclass(frozen=True)
class LibraryGrader:
    """A grader of a library, at the version whose verdicts are kept."""

    name: str
    package: str
    version: str
    invocation: str
    """How it is called."""
    needs: tuple[tuple[str, str], ...] = ()
    """Other required packages, with the beginning of their version."""

    def missing(self) -> str:
        """Why it cannot be asked here, with the remedy; empty if it can."""
        for package, version in ((self.package, self.version), *self.needs):
            try:
                installed = metadata.version(package)
            except metadata.PackageNotFoundError:
                installed = "not here"
            if not installed.startswith(version):
                return f"{self.name}: {package} is {installed}; it takes pip install '{package}=={version}'"
        return ""

    def ask(self, pairs: Sequence[tuple[str, str]]) -> list[Comparison]:
        """Its verdict on each pair of truth and answer, as they were written. Raises OSError if its processes
        cannot be started."""
        pool = Pool(f"grpobench.tasks.grading.pairs:{self.name}", cpu_seconds=CPU_SECONDS)
        try:
            replies = pool.map([list(pair) for pair in pairs], wall_seconds=WALL_SECONDS)
        finally:
            pool.close()
        if lost := [reply.value for reply in replies if reply.ending == "infra_error"]:
            raise OSError(f"{self.name} could not be asked: {lost[0]}")
        return [compared(reply) for reply in replies]


GRADERS = (
    LibraryGrader(
        "math_verify",
        "math-verify",
        "0.9.0",
        "`verify(parse(truth), parse(answer))`, each in a box",
        (("antlr4-python3-runtime", "4.13"),),  # With 4.11 it does not read \\%.
    ),
    LibraryGrader(
        "minerva_math",
        "lm-eval",
        "0.4.13",
        "`is_equiv` of its task's utils.py, both through its `normalize_final_answer`",
        (("antlr4-python3-runtime", "4.11"),),
    ),
    LibraryGrader("hendrycks_math", "lm-eval", "0.4.13", "`is_equiv(answer, truth)` of its task's utils.py"),
)

Compare = Callable[[Sequence[str]], bool]


def math_verify() -> Compare:
    """math-verify alone."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)

    def compare(pair: Sequence[str]) -> bool:
        truth, answer = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in pair)
        return bool(verify(truth, answer, timeout_seconds=None))

    return compare


def minerva_math() -> Compare:
    """lm-eval's `exact_match` of minerva_math."""
    utils = _utils("minerva_math")

    def compare(pair: Sequence[str]) -> bool:
        truth, answer = map(utils.normalize_final_answer, pair)
        return bool(utils.is_equiv(answer, truth))

    return compare


def hendrycks_math() -> Compare:
    """lm-eval's `exact_match` of hendrycks_math."""
    utils = _utils("hendrycks_math")
    return lambda pair: bool(utils.is_equiv(pair[1], pair[0]))


def _utils(task: str) -> Any:
    """Import only the file: importing the package's `tasks` would load the whole harness."""
    package = importlib.util.find_spec("lm_eval")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("lm_eval")
    path = Path(package.origin).parent / "tasks" / task / "utils.py"
    spec = importlib.util.spec_from_file_location(f"{task}_utils", path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = Path(__file__).parent / "graded" / "math_pairs.jsonl"
PAGE = "tasks/math-pairs.md"
"""Under the folder of documents."""
OURS = "ours"
EACH = (OURS, *(grader.name for grader in GRADERS))
MOST_SHOWN = 60
"""A reason with more pairs than this links to the table of all."""


@dataclass(frozen=True)
class Pair:
    """A truth and an answer. `said` is each grader's verdict; `why` explains those that differ from ours. If
    ours differs from `equal`, `note` gives the reason and our decision."""

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
        """Whether a grader's verdict is the expected one."""
        return (self.said[grader] == "equal") == self.equal

    def apart(self, grader: str) -> bool:
        """Whether a grader accepts what ours refuses, or the reverse. No verdict counts as refusal."""
        return (self.said[grader] == "equal") != (self.said[OURS] == "equal")

    def row(self) -> dict[str, Any]:
        """As JSON, which `load` reads."""
        facts = {"kind": self.kind, "truth": self.truth, "answer": self.answer}
        return {**facts, "equal": self.equal, "note": self.note, **self.said, "why": dict(self.why)}


def load() -> list[Pair]:
    """The kept pairs."""
    rows = bounded.read_rows(TABLE)
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
    """The pairs with new verdicts of ours and of the installed graders, and why the others could not be
    asked; their kept verdicts stay.

    Verdicts are kept with the pairs in `graded/math_pairs.jsonl`, because one of the graders needs another
    version of a parser than the others, so no machine can ask all of them at once. Graders of other libraries
    are called as those libraries call them, in processes that can be killed: some of them compute 9^{9^{9}}.
    """
    verdicts_by_grader: dict[str, Sequence[str]] = {OURS: compare_all([pair.key for pair in pairs])}
    lacking = [lack for grader in GRADERS if (lack := grader.missing())]
    verdicts_by_grader |= {
        grader.name: grader.ask([p.key for p in pairs]) for grader in GRADERS if not grader.missing()
    }
    judged_pairs = []
    for i, pair in enumerate(pairs):
        now = replace(
            pair, said={**pair.said, **{name: verdicts[i] for name, verdicts in verdicts_by_grader.items()}}
        )
        why = {grader.name: pair.why.get(grader.name, "") for grader in GRADERS if now.apart(grader.name)}
        judged_pairs.append(replace(now, why=why))
    return judged_pairs, lacking


def faults(recorded: Sequence[Pair], now: Sequence[Pair]) -> Iterator[str]:
    """Pairs for which our verdict is neither the expected one nor a kept exception with its reason."""
    for before, pair in zip(recorded, now, strict=True):
        if not pair.right(OURS) and (before.said[OURS] != pair.said[OURS] or not pair.note):
            expected = "equal" if pair.equal else "different"
            yield f"{pair.kind}: {pair.answer!r} for {pair.truth!r} is {pair.said[OURS]}, expected {expected}"


def tally(pairs: Sequence[Pair], grader: str) -> dict[str, int]:
    """How many verdicts of a grader are the expected ones, and how many are wrong in either way."""
    counts = Counter(
        "right" if pair.right(grader) else "refused" if pair.equal else "accepted" for pair in pairs
    )
    return {name: counts[name] for name in ("right", "accepted", "refused")}


def as_lines(pairs: Sequence[Pair]) -> Iterator[str]:
    """A line on each grader."""
    for name in EACH:
        counts = tally(pairs, name)
        yield (
            f"{name}: {counts['right']} of {len(pairs)} verdicts as they should be, "
            f"{counts['accepted']} accepted and {counts['refused']} refused wrongly"
        )


def page_facts() -> dict[str, Any]:
    """The content of the page, from the kept verdicts."""
    pairs = load()
    kinds = {pair.kind: [candidate for candidate in pairs if candidate.kind == pair.kind] for pair in pairs}
    return {
        "pairs": pairs,
        "graders": GRADERS,
        "each": EACH,
        "kinds": {
            kind: {name: tally(kind_pairs, name) for name in EACH} | {"pairs": len(kind_pairs)}
            for kind, kind_pairs in kinds.items()
        },
        "total": {name: tally(pairs, name) for name in EACH},
        "exceptions": [pair for pair in pairs if not pair.right(OURS)],
        "differences": {grader.name: reasons(pairs, grader.name) for grader in GRADERS},
        "most": MOST_SHOWN,
    }


def reasons(pairs: Sequence[Pair], grader: str) -> dict[str, list[tuple[str, list[Pair]]]]:
    """The pairs on which a grader differs from ours, by what it does, most pairs first: those that it accepts
    and those that it refuses."""
    reasons_by_way: dict[str, list[tuple[str, list[Pair]]]] = {}
    for way in ("accepts", "refuses"):
        pairs_by_reason: dict[str, list[Pair]] = {}
        for pair in pairs:
            if pair.apart(grader) and (pair.said[grader] == "equal") == (way == "accepts"):
                pairs_by_reason.setdefault(pair.why[grader], []).append(pair)
        reasons_by_way[way] = sorted(pairs_by_reason.items(), key=lambda item: -len(item[1]))
    return reasons_by_way
