"""Tasks that consist only of a JSONL file: a prompt, an answer and a way to grade it, without any code."""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

from grpobench.tasks.data.messages import (
    Message,
    Prompt,
    as_line,
    holds_messages,
    parse_prompt,
    with_context,
)
from grpobench.tasks.data.sources import Row, RowError, parse
from grpobench.tasks.data.tables import DataError, Source, Table
from grpobench.tasks.grading import lettered
from grpobench.tasks.grading.asserts import Inconvertible, convert, tested
from grpobench.tasks.grading.extraction import (
    LONGEST,
    ExtractedAnswer,
    behind,
    between_tags,
    extract,
    first_line,
)
from grpobench.tasks.grading.final_answer import normalize, number
from grpobench.tasks.grading.options import option_letter
from grpobench.tasks.kinds import programs
from grpobench.tasks.kinds.answered import Valued
from grpobench.tasks.task import Problem, Split, Task, Verdict, identity

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")
PLACEHOLDER: Final = re.compile(r"\{\{(\w+)\}\}|\{([^\W\d]\w*)\}")
"""``{column}`` in a template, and ``{{word}}``, which stands for ``{word}``."""
SPLIT: Final = "split"
"""The column with the split of a problem."""
TRAITS: Final = ("category", "difficulty", "cluster")
"""Columns that describe a problem for reports and curricula."""
ENDINGS: Final = (".jsonl", ".jsonl.gz")
BOX: Final = "\\boxed{"


@dataclass(frozen=True, kw_only=True)
class JSONLTask(Task):
    """Problems from a JSONL file; a problem's truth is its columns and, under `GRADED`, what is graded.

    Each line of the file is a problem, an object whose keys are its columns. The four subclasses differ in
    what makes a completion right; `FROM_DATA` has them by the name in a recipe (``verify = "math"``). Splits
    come from the column ``split``, or from a hash of each prompt (`share_of`). No two problems have the same
    prompt, so no two splits share one. The columns ``category``, ``difficulty`` and ``cluster`` become
    traits. A prompt may be messages. The task's system message and its examples come before it and change
    neither its id nor its split."""

    source = "a JSONL file of yours"
    summary = "problems of a JSONL file"
    GRADED: ClassVar[str] = "(graded)"

    name: str  # type: ignore[misc]  # that of a task with code belongs to its class
    """The task's name in arms, folders and reports."""
    jsonl: Path
    """The file, ending in .jsonl or .jsonl.gz; in a recipe relative to the recipe's folder."""
    prompt: str
    """The prompt: a text in which ``{column}`` stands for a column of the row, or the name of one column with
    a text or with messages, a list of ``{"role": ..., "content": ...}``."""
    system: str = ""
    """A system message before every prompt."""
    few_shot: int = 0
    """So many of the first training problems stand with their answers before every question. They are not
    trained on."""
    examples: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """Problems of your own that stand there too: tables with the columns of the file."""
    answer: str = "answer"
    """The column of the reference answer."""
    solution: str = ""
    """The column of a whole right completion, for warm starts; empty: the answer alone is one."""
    answer_marker: str = ""  # type: ignore[misc]
    """The text before the final answer in a completion, if there is one; the last occurrence counts."""
    max_completion_tokens: int = 256  # type: ignore[misc]
    """Maximum number of tokens of a completion."""
    validation: float = 0.1
    """Share of the problems for validation, by a hash of the prompt, if there is no column ``split``."""
    test: float = 0.1
    """Share of the problems for the test, in the same way."""

    def rules(self) -> dict[str, Any]:
        """What must hold of the settings, by the message for what does not."""
        return {
            f"name: must be letters, digits, - and _, not {self.name!r}": NAME.fullmatch(self.name),
            f"jsonl: must end in .jsonl or .jsonl.gz, not {self.jsonl}": self.jsonl.name.endswith(ENDINGS),
            "prompt: must not be empty": self.prompt.strip(),
            "answer: must name a column": self.answer,
            "system: must not be blank": not self.system or self.system.strip(),
            "few_shot: must be at least 0": self.few_shot >= 0,
            "max_completion_tokens: must be at least 1": self.max_completion_tokens >= 1,
            "validation: must be from 0 to below 1": 0 <= self.validation < 1,
            "test: must be from 0 to below 1": 0 <= self.test < 1,
            "validation: must leave something to train on, with test": self.validation + self.test < 1,
        }

    def __post_init__(self) -> None:
        if broken := [message for message, holds in self.rules().items() if not holds]:
            raise ValueError(*broken)

    # Reading

    def problems(self, split: Split) -> Sequence[Problem]:
        problems = self.read()[1][split]
        if not problems:
            raise DataError(
                f"{self.where()}: no problem is in the split {split}; give rows a column {SPLIT!r}, or "
                "change the task's shares `validation` and `test`"
            )
        return problems

    def sources(self, split: Split) -> Sequence[Source]:
        return (self.read()[0],)

    def read(self) -> tuple[Source, Mapping[Split, tuple[Problem, ...]]]:
        """Where the problems come from, and the problems by split. Raises DataError."""
        return read(self)

    def where(self) -> str:
        """What errors name."""
        return str(self.jsonl)

    @property
    def splits(self) -> tuple[Split, ...]:  # type: ignore[override]
        """The splits that have problems; all splits if the file cannot be read, which `missing` reports."""
        try:
            parts = self.read()[1]
        except DataError:
            return get_args(Split)
        return tuple(split for split, problems in parts.items() if problems)

    def missing(self) -> str:
        try:
            self.read()
        except DataError as error:
            return str(error)
        return super().missing()

    def make(self, row: Row) -> tuple[Split | None, Problem]:
        """(the column `split`, the problem) of a row. Raises RowError."""
        prompt = self.prompted(row)
        if self.system and not isinstance(prompt, str) and prompt[0].role == "system":
            raise row.error(
                f"{self.prompt!r} begins with a system message, and the task has `system` too; remove one of "
                "them, or drop the line"
            )
        columns = {**row.values, self.GRADED: self.graded(row)}
        if self.solution:
            row.text(self.solution)
        split = row.values.get(SPLIT)
        if split is not None and split not in get_args(Split):
            raise row.error(f"{SPLIT!r} must be one of {', '.join(get_args(Split))}, not {split!r:.80}")
        return split, Problem(identity(as_line(prompt)), prompt, columns, traits(row))

    def chosen(self, row: Row) -> JSONLTask:
        """The task with the columns of this row."""
        return self

    def prompted(self, row: Row) -> Prompt:
        """The prompt of a row, without the task's system message and its examples."""
        if not PLACEHOLDER.search(self.prompt):
            if holds_messages(row.values.get(self.prompt)):
                try:
                    return parse_prompt(row.values[self.prompt])
                except ValueError as error:
                    raise row.error(f"{self.prompt!r}: {error}") from None
            if self.prompt in row.values:
                return row.text(self.prompt)
            raise self.without_column(row, self.prompt, "write a text with {column} in it, or name a column")
        for word, column in PLACEHOLDER.findall(self.prompt):
            if not word and column not in row.values:
                raise self.without_column(row, column, "correct the mistyped name")
        return PLACEHOLDER.sub(
            lambda match: f"{{{match[1]}}}" if match[1] else self.shown(row, match[2]), self.prompt
        )

    def without_column(self, row: Row, column: str, remedy: str) -> RowError:
        """The error of a row without a column that the prompt names. If it is the first row, the prompt is
        wrong; otherwise the row differs from those before it."""
        lack = f"no column {column!r}, which the task's prompt names (it has {', '.join(row.values)})"
        return row.error(lack, f"in the task's prompt, {remedy}") if row.line == 1 else row.error(lack)

    def shown(self, row: Row, column: str) -> str:
        """A column as prompts show it: text, a number, or a list of texts on lines of their own."""
        value = row.values.get(column)
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return "\n".join(value)
        if value and holds_messages(value):
            raise row.error(
                f"{column!r} holds messages, which are a whole prompt and no part of one; write prompt = "
                f'"{column}"'
            )
        return text_of(row, column)

    @abstractmethod
    def graded(self, row: Row) -> Any:
        """What the verifier needs of a row, as JSON. Raises RowError for a row that cannot be graded."""

    def graded_answer(self, problem: Problem) -> Any:
        """The result of `graded` for the problem's row."""
        return problem.truth[self.GRADED]

    def with_graded(self, problem: Problem) -> Problem:
        """The problem with that alone as its truth, as tasks with code have it."""
        return replace(problem, truth=self.graded_answer(problem))

    def columns(self, problem: Problem) -> Mapping[str, Any]:
        """The columns of the problem's row."""
        return {key: value for key, value in problem.truth.items() if key != self.GRADED}

    # Completions

    def stated(self, completion: str) -> str:
        """The part of a completion that states the answer; empty if it states several."""
        if self.answer_marker and self.answer_marker in completion:
            return behind(completion, self.answer_marker) or ""
        return between_tags(completion) or ""

    @abstractmethod
    def reference(self, problem: Problem) -> str:
        """A completion that only states the answer."""

    def demonstrate(self, problem: Problem) -> str:
        return str(problem.truth[self.solution]) if self.solution else self.reference(problem)

    # What every prompt begins with

    def in_context(self, parts: Mapping[Split, Sequence[Problem]]) -> dict[Split, tuple[Problem, ...]]:
        """The problems of each split, with the task's system message and its examples before each question;
        training problems that are examples are left out. Raises DataError."""
        train = parts["train"]
        if self.few_shot and self.few_shot >= len(train):
            raise DataError(
                f"{self.where()}: few_shot takes {self.few_shot} of {len(train)} training problems as "
                "examples, and leaves none to train on; lower it"
            )
        splits = {problem.id: split for split, problems in parts.items() for problem in problems}
        shown = list(train[: self.few_shot])
        for line, values in enumerate(self.examples, 1):
            row = Row("", line, values)
            location = f"task {self.name}: number {line} of its `examples`"
            try:
                example = self.chosen(row).make(row)[1]
            except RowError as error:
                raise DataError(f"{location}: {error.reason}; correct it in the recipe") from None
            if example.id in splits:
                raise DataError(f"{location} is in the split {splits[example.id]} too; take another")
            shown.append(example)
        turns = tuple(turn for example in shown for turn in self.solved(example))
        return {
            split: tuple(
                replace(problem, prompt=with_context(problem.prompt, self.system, turns))
                for problem in problems[self.few_shot * (split == "train") :]
            )
            for split, problems in parts.items()
        }

    def solved(self, problem: Problem) -> Sequence[Message]:
        """A problem as an example: its messages without a system message, and its answer."""
        messages = (Message("user", problem.prompt),) if isinstance(problem.prompt, str) else problem.prompt
        question_messages = [message for message in messages if message.role != "system"]
        return *question_messages, Message("assistant", self.demonstrate(problem).strip())


@dataclass(frozen=True, kw_only=True)
class MathRows(JSONLTask, Valued):
    """Answers with a value, graded like those of the task `math`: ``1/2`` is ``0.5`` and ``\\frac{1}{2}``.

    With `answer_marker` the answer is the rest of the line after the marker. Without one, it is in
    ``\\boxed{}``, after ``####``, after "answer is", or is the whole of a one-line completion. `format` is 1
    for an answer after the marker, in a box or after ``####``.
    """

    ways = ("boxed", "marker", "phrase", "whole")

    def graded(self, row: Row) -> Any:
        return {"answer": normalize(text_of(row, self.answer))}

    def grade_episodes(self, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> list[Verdict]:
        return super().grade_episodes([(self.with_graded(problem), turns) for problem, turns in pairs])

    def find(self, completion: str) -> ExtractedAnswer | None:
        if not self.answer_marker:
            return super().find(completion)
        if self.answer_marker == BOX:
            return extract(completion, ("boxed",))
        text = first_line(behind(completion, self.answer_marker) or "")
        return ExtractedAnswer(text, "marker") if 0 < len(text) <= LONGEST else None

    def formatted(self, extracted: ExtractedAnswer) -> bool:
        return extracted.how in ("boxed", "marker")

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        marker = self.answer_marker or BOX
        return (f"{marker}{answer}{'}' * (marker == BOX)}",)

    def reference(self, problem: Problem) -> str:
        return self.state(problem, self.graded_answer(problem)["answer"])[0]

    def corrupt(self, problem: Problem) -> str:
        """One more than the answer."""
        answer = self.graded_answer(problem)["answer"]
        value = number(answer)
        return self.state(problem, f"{answer}+1" if value is None else str(value + 1))[0]


@dataclass(frozen=True, kw_only=True)
class ExactRows(JSONLTask):
    """Answers with only one right spelling. White space at both ends is ignored, and any stretch of it equals
    one space; everything else counts, including capital letters."""

    scores = ("correct",)

    def graded(self, row: Row) -> Any:
        return plain(text_of(row, self.answer))

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        answers = [plain(self.stated(completion)) for completion in completions]
        return [Verdict({"correct": float(text == self.graded_answer(problem))}, text) for text in answers]

    def reference(self, problem: Problem) -> str:
        return f"{self.answer_marker}{self.graded_answer(problem)}"

    def corrupt(self, problem: Problem) -> str:
        return f"{self.reference(problem)}?"


@dataclass(frozen=True, kw_only=True)
class ChoiceRows(JSONLTask):
    """One of several candidates, answered by its letter: ``B``, ``B.`` or ``(B)``. If the prompt has
    ``{candidates}`` (with the column's name), they are listed there with their letters. The answer column has
    the text of a candidate, its letter, or its index, a whole number that counts from 0. `format` is 1 if
    there is a letter."""

    scores = ("correct", "format")
    modes = ("sampled", "greedy", "likelihood")
    options: str = "candidates"
    """The column with the list of candidates, 2 to 26 texts."""

    def listed(self, row: Row) -> list[str]:
        options = row.values.get(self.options)
        texts = isinstance(options, list) and all(isinstance(item, str) and item.strip() for item in options)
        if not isinstance(options, list) or not texts or not 2 <= len(options) <= len(lettered.ALPHABET):
            raise row.error(f"{self.options!r} must be a list of 2 to 26 texts, not {options!r:.80}")
        if len({plain(item) for item in options}) < len(options):
            raise row.error(f"{self.options!r} has the same text twice")
        return options

    def shown(self, row: Row, column: str) -> str:
        return lettered.listed(self.listed(row)) if column == self.options else super().shown(row, column)

    def graded(self, row: Row) -> Any:
        options, answer = [plain(option) for option in self.listed(row)], plain(text_of(row, self.answer))
        letters, index = lettered.ALPHABET[: len(options)], row.values.get(self.answer)
        if isinstance(index, int) and index in range(len(options)):
            if answer in options and answer != options[index]:
                raise row.error(
                    f"{self.answer!r} {index} is the text of candidate {letters[options.index(answer)]} and "
                    f"the index of candidate {letters[index]}; write a letter from A to {letters[-1]}"
                )
            return {"letter": letters[index], "count": len(options)}
        if answer not in options and answer not in letters:
            raise row.error(
                f"{self.answer!r} must be the text of a candidate, a letter from A to {letters[-1]} or an "
                f"index from 0 to {len(options) - 1}, not {answer!r:.80}"
            )
        letter = letters[options.index(answer)] if answer in options else answer
        return {"letter": letter, "count": len(options)}

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        expected = self.graded_answer(problem)
        letters = [option_letter(self.stated(completion), expected["count"]) for completion in completions]
        return [
            Verdict(
                {"correct": float(letter == expected["letter"]), "format": float(letter is not None)},
                letter,
                "unparsable" if letter is None else "graded",
            )
            for letter in letters
        ]

    def candidates(self, problem: Problem) -> tuple[str, ...]:
        answer_texts = lettered.answers(self.graded_answer(problem)["count"])
        return tuple(f"{self.answer_marker}{text}" for text in answer_texts)

    def reference(self, problem: Problem) -> str:
        return self.candidates(problem)[lettered.ALPHABET.index(self.graded_answer(problem)["letter"])]

    def corrupt(self, problem: Problem) -> str:
        """The next letter."""
        options = self.candidates(problem)
        return options[(options.index(self.reference(problem)) + 1) % len(options)]


@dataclass(frozen=True, kw_only=True)
class PythonRows(JSONLTask, programs.Programs):
    """Python functions, run in the sandbox and graded by asserts like those of the task `mbpp`. The answer
    column is a right program; the asserts call one function that it defines."""

    tests: str = "tests"
    """The column with the asserts: a list of texts, or one text."""
    max_completion_tokens: int = 512  # type: ignore[misc]

    def __post_init__(self) -> None:
        JSONLTask.__post_init__(self)
        programs.Programs.__post_init__(self)

    def graded(self, row: Row) -> Any:
        reference = row.text(self.answer).replace("\r\n", "\n")
        listed = row.values.get(self.tests)
        test = "\n".join(map(str, listed)) if isinstance(listed, list) else row.text(self.tests)
        try:
            entry = tested(test, reference)
            calls, conditions = convert(test, {entry})
        except Inconvertible as error:
            raise row.error(f"{self.tests!r}: {error}") from error
        return programs.asserted(entry, reference, calls, conditions)

    def grade_episodes(self, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> list[Verdict]:
        return super().grade_episodes([(self.with_graded(problem), turns) for problem, turns in pairs])

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        return super().state(self.with_graded(problem), answer)

    def reference(self, problem: Problem) -> str:
        return programs.in_block(self.graded_answer(problem)["reference"])

    def corrupt(self, problem: Problem) -> str:
        return super().corrupt(self.with_graded(problem))


FROM_DATA: Final[Mapping[str, type[JSONLTask]]] = {
    "math": MathRows,
    "exact": ExactRows,
    "choice": ChoiceRows,
    "python": PythonRows,
}
"""The classes by the recipe's `verify`."""


def plain(text: str) -> str:
    """A text without white space at its ends, and with single spaces for any inside."""
    return " ".join(text.split())


def text_of(row: Row, column: str) -> str:
    """A column's text; a number as JSON writes it."""
    value = row.values.get(column)
    number_like = isinstance(value, int | float) and not isinstance(value, bool)
    return json.dumps(value) if number_like else row.text(column)


def traits(row: Row) -> dict[str, str | float]:
    """The `TRAITS` of a row. Raises RowError for one that is neither text nor a number."""
    row_traits: dict[str, str | float] = {}
    for name in TRAITS:
        value = row.values.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise row.error(f"{name!r} must be text or a number, not {value!r:.80}")
            row_traits[name] = value if isinstance(value, str) else float(value)
    return row_traits


def share_of(prompt: Prompt) -> float:
    """A number from 0 to below 1 that depends only on the prompt: the first 8 bytes of its sha256. Below
    `test` a problem is in the test split, below `test` + `validation` in validation, else in train."""
    digest = hashlib.sha256(as_line(prompt).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def read(task: JSONLTask) -> tuple[Source, Mapping[Split, tuple[Problem, ...]]]:
    """The file and its problems by split, read again if the file has changed. Raises DataError."""
    path = task.jsonl.expanduser().absolute()
    try:
        file_status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); correct the task's jsonl") from None
    return _read(task, path, file_status.st_mtime_ns, file_status.st_size)


@lru_cache(maxsize=16)
def _read(task: JSONLTask, path: Path, *_: int) -> tuple[Source, Mapping[Split, tuple[Problem, ...]]]:
    source, split_problems = parse(
        Table(str(path), None), Path("/"), task.make, identity=lambda pair: pair[1].id
    )
    stated_splits = [split for split, _ in split_problems if split]
    if stated_splits and len(stated_splits) < len(split_problems):
        raise DataError(
            f"{path}: {len(stated_splits)} of {len(split_problems)} rows say their {SPLIT}; "
            "give all that column, or none"
        )
    parts: dict[Split, list[Problem]] = {split: [] for split in get_args(Split)}
    for split, problem in split_problems:
        parts[split or hashed(task, problem)].append(problem)
    return replace(source, table=path.name), task.in_context(parts)


def hashed(task: JSONLTask, problem: Problem) -> Split:
    """The split of a problem by `share_of` its prompt."""
    share = share_of(problem.prompt)
    return "test" if share < task.test else "validation" if share < task.test + task.validation else "train"
