"""Stored texts in a temporary SQLite database, for filters and pages over more than memory holds."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpobench.analysis.browse.texts import StoredText, TextFile, list_text_files, read_texts
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.tools.text import visible
from grpobench.tasks.data.bounded import parse_json

COLUMNS = (
    *("arm", "task", "seed", "step", "kind", "problem", "sample", "outcome", "change", "reward", "length"),
    *("stop", "answer", "failed_test", "prompt", "text", "scores", "turns", "tokens"),
)
"""Of a row, in the order of the page's arrays. `prompt` is the number of a prompt; `tokens` has the `lengths`
of their texts in UTF-16 units, as JavaScript counts, and lists of numbers; `change` is `lost` for a
wrong completion whose problem and sample were right at the first stored step of the run, else `gained` or
empty."""
LISTED = ("arm", "task", "seed", "step", "kind", "outcome", "change", "stop")
"""Columns of which a filter lists the values."""
SORTABLE = COLUMNS[:13]
AT_ONCE = 500
"""Rows that are read from the database together."""
PREVIEW = 160
"""Characters of a text in a table."""


@dataclass(frozen=True)
class Filters:
    """Which texts to show; a field that is empty or None restricts nothing."""

    arm: Sequence[str] = ()
    task: Sequence[str] = ()
    seed: Sequence[int] = ()
    step: Sequence[int] = ()
    kind: Sequence[str] = ()
    problem: Sequence[str] = ()
    outcome: Sequence[str] = ()
    change: Sequence[str] = ()
    stop: Sequence[str] = ()
    reward_min: float | None = None
    reward_max: float | None = None
    length_min: float | None = None
    length_max: float | None = None
    contains: str = ""
    """Text in completion, answer or problem, whatever the case."""
    pattern: str = ""
    """A regular expression that the completion matches somewhere."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Filters:
        """Filters from JSON. Raises ValueError for an unknown name, a wrong type or a wrong pattern."""
        defaults = {entry.name: entry.default for entry in fields(cls)}
        for name, value in values.items():
            default = defaults.get(name, 0)
            kinds: Any = list if default == () else (int, float, type(None)) if default is None else str
            if name not in defaults or not isinstance(value, kinds):
                raise ValueError(f"no filter {name} = {value!r}")
            if kinds is list and not all(isinstance(choice, str | int) for choice in value):
                raise ValueError(f"no filter {name} = {value!r}")
        filters = cls(**values)
        try:
            re.compile(filters.pattern)
        except re.error as error:
            raise ValueError(f"{filters.pattern!r} is no regular expression: {error}") from None
        return filters

    def sql(self) -> tuple[str, list[Any]]:
        """The condition and its values."""
        conditions, values = ["1"], list[Any]()
        for name in (*LISTED, "problem"):
            if chosen := getattr(self, name):
                conditions.append(f"{name} IN ({', '.join('?' * len(chosen))})")
                values += chosen
        for name in ("reward", "length"):
            for bound, sign in (("min", ">="), ("max", "<=")):
                if (limit := getattr(self, f"{name}_{bound}")) is not None:
                    conditions.append(f"{name} {sign} ?")
                    values.append(limit)
        if self.contains:
            conditions.append("holds(?, text, answer, problem)")
            values.append(self.contains.casefold())
        if self.pattern:
            conditions.append("matches(?, text)")
            values.append(self.pattern)
        return " AND ".join(conditions), values


@dataclass
class Store:
    """The texts of an experiment. `fill` reads them; other threads may query meanwhile."""

    name: str
    files: list[TextFile]
    faults: list[str]
    passed_over: Container[TextFile] = ()
    """Those of `files` that are read only to know what was right at the first step."""
    done: int = 0
    """Files that were read."""
    choices: dict[str, dict[Any, None]] = field(default_factory=lambda: {name: {} for name in LISTED})
    """The values of each column of `LISTED`, in their order."""

    def __post_init__(self) -> None:
        # The empty name: on disk as far as the cache is full, and removed with the connection.
        self._base = sqlite3.connect("", check_same_thread=False)
        self._lock = threading.Lock()
        self._prompts: dict[str, int] = {}
        for statement in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000"):
            self._base.execute(f"PRAGMA {statement}")
        columns = ", ".join(COLUMNS)
        self._base.execute(f"CREATE TABLE texts (id INTEGER PRIMARY KEY, {columns})")
        self._base.execute("CREATE TABLE prompts (id INTEGER PRIMARY KEY, prompt)")
        self._base.create_function("holds", 4, _holds, deterministic=True)
        self._base.create_function("matches", 2, _matches, deterministic=True)

    def fill(self) -> None:
        """Read every file. Hidden characters become escapes."""
        insert = f"INSERT INTO texts ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
        first: dict[tuple[str, str, int], float | None] = {}
        run: Path | None = None
        for file, rows in zip(self.files, read_texts(self.files, self.faults), strict=True):
            if file.path.parent.parent != run:
                run, first = file.path.parent.parent, {}
            changes = [_change(row, first) for row in rows]
            values = []
            if file not in self.passed_over:
                values = [self._values(*pair) for pair in zip(rows, changes, strict=True)]
            with self._lock:
                self._base.executemany(insert, values)
                for name, choices in self.choices.items():
                    column = COLUMNS.index(name)
                    choices.update(dict.fromkeys(row[column] for row in values))
                self.done += 1
        with self._lock:
            self._base.execute("CREATE INDEX alike ON texts (problem, task, seed)")

    def _values(self, row: StoredText, change: str) -> tuple[Any, ...]:
        prompt = self._prompts.get(row.prompt)
        if prompt is None:
            prompt = self._prompts[row.prompt] = len(self._prompts)
            with self._lock:
                self._base.execute("INSERT INTO prompts VALUES (?, ?)", (prompt, visible(row.prompt)))
        turns = [[visible(part) for part in turn] for turn in row.turns]
        return (
            *(_shown(row.arm), _shown(row.task), row.seed, row.step, _shown(row.kind), _shown(row.problem)),
            *(row.sample, _shown(row.outcome), change, row.reward, row.length, row.stop),
            None if row.answer is None else _shown(row.answer),
            *(visible(row.failed_test), prompt, visible(row.text), _packed(row.scores)),
            *(json.dumps(turns) if turns else "", _packed_tokens(row)),
        )

    def page(
        self, filters: Filters, order: str = "", descending: bool = False, start: int = 0, most: int = AT_ONCE
    ) -> tuple[int, list[dict[str, Any]]]:
        """How many rows pass, and `most` of them from the row `start` on, in the order of a column or as
        stored; with the beginnings of texts, and without prompts, scores and turns."""
        way = f"{order} {'DESC' if descending else 'ASC'}, id" if order in SORTABLE else "id"
        numbers = self._passing(filters, way)
        rows = self._complete(numbers[start : start + most])
        return len(numbers), [
            {name: row[name] for name in ("id", *SORTABLE)} | {"text": row["text"][:PREVIEW]} for row in rows
        ]

    def count(self, filters: Filters) -> int:
        """How many rows pass the filters."""
        return len(self._passing(filters, "id"))

    def complete_rows(self, filters: Filters, order: str = "id") -> Iterator[dict[str, Any]]:
        """Each row that passes, as `row` gives it. `order` is SQL."""
        numbers = self._passing(filters, order)
        for start in range(0, len(numbers), AT_ONCE):
            yield from self._complete(numbers[start : start + AT_ONCE])

    def _passing(self, filters: Filters, order: str) -> list[int]:
        where, values = filters.sql()
        query = f"SELECT id FROM texts WHERE {where} ORDER BY {order}"
        return [number for (number,) in self._query(query, values)]

    def row(self, number: int) -> dict[str, Any]:
        """One row with all columns, its number and its prompt; scores and turns as objects. Raises IndexError
        for an unknown number."""
        return self._complete([number])[0]

    def _complete(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        columns = ", ".join(f"prompts.{name}" if name == "prompt" else f"texts.{name}" for name in COLUMNS)
        query = (
            f"SELECT texts.id, {columns} FROM texts JOIN prompts ON prompts.id = texts.prompt "
            f"WHERE texts.id IN ({', '.join('?' * len(numbers))})"
        )
        rows = {}
        for values in self._query(query, numbers):
            row = rows[values[0]] = dict(zip(("id", *COLUMNS), values, strict=True))
            row |= {
                name: parse_json(row[name]) if row[name] else None for name in ("scores", "turns", "tokens")
            }
        return [rows[number] for number in numbers if number in rows]

    def alike(self, number: int) -> list[dict[str, Any]]:
        """The completions of the same problem, kind, sample, task and seed: of every arm and step."""
        query = (
            "SELECT other.id, other.arm, other.step, other.outcome FROM texts JOIN texts AS other USING "
            "(problem, task, seed, kind, sample) WHERE texts.id = ? ORDER BY other.id"
        )
        names = ("id", "arm", "step", "outcome")
        return [dict(zip(names, row, strict=True)) for row in self._query(query, [number])]

    def problems(self) -> list[str]:
        """The names of all problems."""
        return [name for (name,) in self._query("SELECT DISTINCT problem FROM texts", [])]

    def listed(self) -> dict[str, list[Any]]:
        """The values of each column of `LISTED`; numbers in order."""
        with self._lock:  # `fill` may be adding to them
            choices = {
                name: [value for value in values if value != ""] for name, values in self.choices.items()
            }
        return choices | {name: sorted(choices[name]) for name in ("seed", "step")}

    def _query(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._base.execute(query, values).fetchall()


def open_store(folder: Path, filters: Filters = Filters()) -> Store:
    """A store of the files that can hold what the filters ask for; empty until `fill`. Raises LogError for a
    folder without runs or without texts."""
    files, faults = list_text_files(folder)
    if not files:
        remedy = "`grpobench eval` and runs with evaluate.completions = true store some"
        raise LogError("\n".join([f"{folder}: holds no stored text; {remedy}", *faults]))
    first = {file.series: file for file in reversed(files)}
    chosen, passed_over = list[TextFile](), set[TextFile]()
    for file in files:
        restrictions = {name: getattr(filters, name) for name in ("arm", "task", "seed")}
        if all(not values or getattr(file, name) in values for name, values in restrictions.items()):
            if not filters.step or file.step in filters.step:
                chosen.append(file)
            elif first[file.series] == file:
                chosen.append(file)
                passed_over.add(file)
    return Store(folder.resolve().name, chosen, faults, passed_over)


_shown = lru_cache(1 << 14)(visible)
"""`visible` of a text that returns in many rows."""


@lru_cache(1 << 14)
def _packed(scores: tuple[tuple[str, float], ...]) -> str:
    return visible(json.dumps(dict(scores))) if scores else ""


def _packed_tokens(row: StoredText) -> str:
    if row.tokens is None:
        return ""
    ends = [0, *itertools.accumulate(int(count or 0) for count in row.tokens["characters"])]
    # Escapes of hidden characters are longer than these.
    shown = [visible(row.text[start:end]) for start, end in itertools.pairwise(ends)]
    lengths = [len(text.encode("utf-16-le")) // 2 for text in shown]
    numbers = {name: values for name, values in row.tokens.items() if name != "characters"}
    return json.dumps({"lengths": lengths, **numbers}, separators=(",", ":"))


def _change(row: StoredText, first: dict[tuple[str, str, int], float | None]) -> str:
    """Whether the answer was right at the first step and is no more, or the reverse. `first` remembers."""
    before = first.setdefault((row.kind, row.problem, row.sample), row.correct)
    if before is None or row.correct is None or (before == 1) == (row.correct == 1):
        return ""
    return "lost" if before == 1 else "gained"


def _holds(needle: str, *texts: str | None) -> bool:
    return any(text is not None and needle in text.casefold() for text in texts)


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None
