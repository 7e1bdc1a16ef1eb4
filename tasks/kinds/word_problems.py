"""Base of the tasks whose answers are worked out in steps, with a line ``#### NUMBER`` at the end."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpobench.tasks.grading.extraction import MARKER, ExtractedAnswer
from grpobench.tasks.grading.final_answer import normalize, number
from grpobench.tasks.grading.latex import clean
from grpobench.tasks.grading.reasoning import consistent, supported
from grpobench.tasks.kinds.answered import Answered
from grpobench.tasks.prompts.templates import Template
from grpobench.tasks.task import Problem, identity

ANNOTATION = re.compile(r"<<[^<>\n]*>>")


@dataclass(frozen=True)
class WordProblems(Answered):
    """The prompt asks for steps and a final line ``#### number``.

    `correct` compares the final answer, which need not follow the marker (see `extraction.extract`); `format`
    is 1 if a number follows the marker. `consistent` and `supported` say whether the steps lead to that
    number, right or wrong (see `tasks/grading/reasoning.py`), and are 0 without it. `difficulty` counts the
    steps of the reference solution.
    """

    scores = ("correct", "format", "consistent", "supported")
    ways = ("marker", "boxed", "phrase", "last number")
    max_completion_tokens = 160
    answer_marker = MARKER
    template: str = "gsm8k"

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
        assert value is not None  # `word_problem` refuses a solution without a number.
        return f"{problem.truth['rationale']}\n{MARKER} {value + 1}"


def word_problem(template: Template, question: str, solution: str) -> Problem:
    """The problem of a question, with a solution in GSM8K's notation: calculations in ``<<...>>``, which are
    left out, and a number behind the marker. Raises ValueError for a solution without one."""
    rationale, marker, answer = solution.rpartition(MARKER)
    if not marker or number(normalize(answer)) is None:
        raise ValueError(f"must end in {MARKER!r} and a number")
    rationale = ANNOTATION.sub("", rationale).strip()
    steps = sum(bool(line.strip()) for line in rationale.splitlines())
    return Problem(
        identity(question),
        template.prompt(question),
        {"answer": normalize(answer), "rationale": rationale},
        {"difficulty": float(steps), "category": f"{steps} steps"},
    )
