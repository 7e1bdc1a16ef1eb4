"""Tasks that consist only of a data set of the Hugging Face hub, by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, get_args

from grpobench.tasks.data import sources
from grpobench.tasks.data.sources import Row, data_folder, parse
from grpobench.tasks.data.tables import DataError, Hosted, Source, Table
from grpobench.tasks.grading.extraction import extract
from grpobench.tasks.grading.final_answer import normalize
from grpobench.tasks.kinds.jsonl import (
    ChoiceRows,
    ExactRows,
    JSONLTask,
    MathRows,
    PythonRows,
    hashed,
    text_of,
)
from grpobench.tasks.task import Problem, Split

DATA_SET: Final = re.compile(r"[\w.-]+/[\w.-]+")
PROMPTS: Final = ("question", "problem", "prompt", "query", "instruction", "input")
ANSWERS: Final = ("answer", "final_answer", "solution", "target", "output", "response", "label")
"""Columns that are taken for prompt and answer, in this order, where a recipe names none."""
SPLITS: Final[Mapping[str, Split]] = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "dev": "validation",
    "test": "test",
}
"""The hub's splits that are read, by name."""


@dataclass(frozen=True, kw_only=True)
class HubRows(JSONLTask):
    """Problems of a data set of the hub.

    The hub's splits are the task's. Where the hub has no validation or test split, it is a share of the
    training split, by a hash of each prompt; where it has no training split, all rows are dealt to the three.
    A row of the training split whose prompt is in another split is left out and recorded. A data set may also
    lie below the data folder, as files OWNER/NAME/SPLIT.jsonl or as a copy of its repository."""

    source = "a data set of the Hugging Face hub"
    summary = "problems of a data set of the hub"

    jsonl: Path = field(default=Path(), init=False, repr=False)
    prompt: str = ""
    """As of a file; empty takes the first of the columns question, problem, prompt, query, instruction and
    input."""
    answer: str = ""
    """As of a file; empty takes the first of the columns answer, final_answer, solution, target, output,
    response and label."""
    hub: str
    """The data set, OWNER/NAME."""
    config: str = ""
    """Its configuration; empty takes the default one."""

    def rules(self) -> dict[str, Any]:
        hub_rules = {
            f"hub: must be OWNER/NAME, such as openai/gsm8k, not {self.hub!r}": DATA_SET.fullmatch(self.hub)
        }
        shared = super().rules()
        unasked = ("jsonl", *(name for name in ("prompt", "answer") if not getattr(self, name)))
        return hub_rules | {rule: holds for rule, holds in shared.items() if not rule.startswith(unasked)}

    @property
    def splits(self) -> tuple[Split, ...]:  # type: ignore[override]
        """All of them, whatever the hub has: nothing is read for it."""
        return get_args(Split)

    def missing(self) -> str:
        """Why the data set cannot be had, found without a download."""
        folder = data_folder()
        table = self.table("train")
        there = sources.local_splits(self.hub, folder) or sources.repository(self.hub, folder)
        return "" if there else sources.missing([table], folder)

    def table(self, split: str) -> Table:
        """A split of the data set as a table."""
        return Table(f"{self.hub}/{split}.jsonl", Hosted(self.hub, self.config, split))

    def where(self) -> str:
        return f"{self.hub}{f' ({self.config})' if self.config else ''}"

    def read(self) -> tuple[Source, Mapping[Split, tuple[Problem, ...]]]:
        return _read(self, data_folder())

    def chosen(self, row: Row) -> HubRows:
        """The task with the columns that are taken from a row where none are named."""
        return replace(
            self,
            prompt=self.prompt or self.first_of(row, "prompt", PROMPTS),
            answer=self.answer or self.first_of(row, "answer", ANSWERS),
        )

    def first_of(self, row: Row, key: str, names: tuple[str, ...]) -> str:
        """The first of these columns that a row has."""
        for name in names:
            if name in row.values:
                return name
        columns = ", ".join(row.values)
        example = (
            f'tasks = [{{ name = "{self.name}", hub = "{self.hub}", {key} = "COLUMN", verify = "math" }}]'
        )
        raise DataError(f"{self.where()}: no column is known as {key} (it has {columns}); write {example}")


@dataclass(frozen=True, kw_only=True)
class HubMath(HubRows, MathRows):
    """As `MathRows`. An answer column with a whole solution gives what follows its last ``####`` or stands in
    ``\\boxed{}``."""

    def graded(self, row: Row) -> Any:
        text = text_of(row, self.answer)
        extracted = extract(text, ("marker", "boxed"))
        return {"answer": normalize(extracted.text if extracted else text)}


@dataclass(frozen=True, kw_only=True)
class HubExact(HubRows, ExactRows):
    """As `ExactRows`."""


@dataclass(frozen=True, kw_only=True)
class HubChoice(HubRows, ChoiceRows):
    """As `ChoiceRows`."""


@dataclass(frozen=True, kw_only=True)
class HubPython(HubRows, PythonRows):
    """As `PythonRows`."""


FROM_HUB: Final[Mapping[str, type[HubRows]]] = {
    "math": HubMath,
    "exact": HubExact,
    "choice": HubChoice,
    "python": HubPython,
}
"""The classes by the recipe's `verify`."""


def name_of(hub: str) -> str:
    """What a data set is called in arms, folders and reports."""
    return re.sub(r"[^A-Za-z0-9_+-]", "-", hub.rpartition("/")[2]).strip("-")


@lru_cache(maxsize=8)
def _read(task: HubRows, folder: Path | None) -> tuple[Source, Mapping[Split, tuple[Problem, ...]]]:
    names = sources.local_splits(task.hub, folder) or sources.hub_splits(task.table("train"), folder)
    tables = {name: SPLITS[name] for name in names if name in SPLITS}
    if not tables:
        raise DataError(
            f"{task.where()}: has the splits {', '.join(names) or 'none'}, and none of {', '.join(SPLITS)}; "
            "export the rows as JSONL and name the file: jsonl = ..."
        )
    parts: dict[Split, list[Problem]] = {split: [] for split in get_args(Split)}
    table_sources: list[Source] = []
    for name, split in tables.items():
        source, table_problems = _rows(task, name, folder)
        parts[split] += table_problems
        table_sources.append(source)
    deal(task, parts)
    held_out_ids = {problem.id for split in ("validation", "test") for problem in parts[split]}
    twice = sum(problem.id in held_out_ids for problem in parts["train"])
    parts["train"] = [problem for problem in parts["train"] if problem.id not in held_out_ids]
    skipped = [note for source in table_sources for note in source.skipped]
    skipped += [f"{twice} training rows whose prompt is in another split"] if twice else []
    combined = replace(
        table_sources[0],
        location=", ".join(source.location for source in table_sources),
        sha256=" ".join(source.sha256 for source in table_sources),
        rows=sum(source.rows for source in table_sources),
        skipped=tuple(skipped),
        table=task.hub,
    )
    return combined, task.in_context(parts)


def _rows(task: HubRows, name: str, folder: Path | None) -> tuple[Source, list[Problem]]:
    """The problems of one of the hub's splits."""
    chosen: list[HubRows] = []

    def make(row: Row) -> Problem:
        if not chosen:
            chosen.append(task.chosen(row))
        return chosen[0].make(row)[1]

    return parse(task.table(name), folder, make, identity=lambda problem: problem.id)


def deal(task: HubRows, parts: dict[Split, list[Problem]]) -> None:
    """Give splits that the hub lacks their share of its training split, or all splits theirs where it has no
    training split."""
    if not parts["train"]:
        pool = [problem for problems in parts.values() for problem in problems]
        lacking = list(get_args(Split))
    else:
        pool, lacking = parts["train"], ["train", *(split for split in parts if not parts[split])]
    dealt = [(hashed(task, problem), problem) for problem in pool]
    for split in lacking:
        present_splits = {*get_args(Split)} - {*lacking} if split == "train" else set()
        parts[split] = [problem for at, problem in dealt if at == split or at in present_splits]
