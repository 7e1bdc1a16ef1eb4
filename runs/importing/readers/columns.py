"""Tables: CSV with a header, JSON lines, and JSON lists of objects. A row is a step."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grpobench.analysis.tools.text import listed
from grpobench.runs.importing.gaps import Row, closed
from grpobench.runs.importing.log import Log, demand, numbers, parsed, whole
from grpobench.runs.importing.translate import STEP
from grpobench.tasks.data.errors import DataError

STEPS = ("step", "global_step", "train/global_step", "training/global_step", "_step", "Step", "iteration")
"""Columns that hold the step unless --map names another; the first that is there."""
NOTHING: Mapping[str, str] = MappingProxyType({})
CLOCKS = ("_step", "_runtime", "_timestamp", "")
"""Columns that an export of W&B's has beside the metrics, and the number of the row, whose column pandas
writes without a name."""
SEED = "seed"


def read_csv(file: Path, mapped: Mapping[str, str] = NOTHING) -> Log:
    """The run of a table with a header; tabs part the cells of a .tsv, commas those of any other. Raises
    DataError where it holds no step, or two columns of one name."""
    log = Log(file, "csv", files=[file])
    text = file.read_text(encoding="utf-8-sig", errors="replace")
    reader = csv.reader(io.StringIO(text), delimiter="\t" if file.suffix == ".tsv" else ",")
    rows = cells(reader, log)
    first, header = next(rows, (0, []))
    place = header.index(step_column(file, header, mapped))
    table = []
    for line, row in rows:
        if len(row) != len(header):
            log.fault(file, line, f"{len(row)} cells under {len(header)} names; the line is left out")
        elif (at := whole(as_number(row[place]))) is None:
            log.fault(file, line, f"`{header[place]}` is no step: {row[place][:40]!r}; the line is left out")
        else:
            table.append((line, at, row))
    numeric = [any(as_number(row[at]) is not None for _, _, row in table) for at in range(len(header))]
    texts = [name for name, any_number in zip(header, numeric, strict=True) if not any_number]
    if texts and table:
        log.notes.append(f"columns without a number are left out: {', '.join(texts)}")
    counted = Counter(name for name, any_number in zip(header, numeric, strict=True) if any_number)
    if repeated := [f"`{name}`" for name, count in counted.items() if count > 1]:
        raise DataError(f"{file}, line {first}: several columns are called {listed(repeated)}; rename them")
    read = []
    for line, at, row in table:
        values = {}
        for column, name in enumerate(header):
            if column == place or not numeric[column] or not row[column].strip():
                continue
            value = as_number(row[column])
            if value is None:
                what = f"`{name}` is no number: {row[column][:40]!r}; it is left out"
                log.fault(file, line, what)
            else:
                values[name] = value
        read.append(Row(line, at, values))
    return lay(log, read, mapped)


def cells(reader: Any, log: Log) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the rows that are not empty."""
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            log.fault(log.place, reader.line_num, f"not CSV ({error}); the line is left out")
            continue
        if any(cell.strip() for cell in row):
            yield reader.line_num, row


def as_number(text: str) -> float | None:
    """The number that a cell holds; None for anything else."""
    try:
        return float(text)
    except ValueError:
        return None


def read_jsonl(file: Path, mapped: Mapping[str, str] = NOTHING) -> Log:
    """The run of a file with an object per line, or of a JSON list of objects. Raises DataError where it
    holds no step."""
    log = Log(file, "jsonl", files=[file])
    rows = list(objects(file, log))
    names = dict.fromkeys(name for _, row in rows for name in numbers(row))
    column = step_column(file, list(names), mapped) if names else ""
    read = []
    for line, row in rows:
        values = log.numbers(row, line)
        at = whole(values.pop(column, None))
        if at is None:
            log.fault(file, line, f"`{column}` holds no step; the line is left out")
        else:
            read.append(Row(line, at, values))
    return lay(log, read, mapped)


def lay(log: Log, rows: Sequence[Row], mapped: Mapping[str, str]) -> Log:
    """The log with its rows: oldest first, of one seed, without gaps."""
    if len(rows) > 1 and rows[0].step > rows[-1].step and all(a.step >= b.step for a, b in pairwise(rows)):
        rows = rows[::-1]
        log.notes.append("the newest row stands first; the rows are sorted by their steps")
    log.seed = seed_of(log, rows)
    rows, gaps = closed(rows, mapped)
    if gaps:
        each = listed([f"{name} ({count})" for name, count in gaps.items()])
        log.notes.append(f"NaN that stands for no value is left out: {each}")
    for row in rows:
        values = {name: value for name, value in row.values.items() if name not in CLOCKS}
        log.add(row.step, values, "" if row.line is None else f"line {row.line}")
    return demand(log)


def seed_of(log: Log, rows: Sequence[Row]) -> int | None:
    """The seed that a column tells. Raises DataError for several: rows of different runs."""
    names = {name for row in rows for name in row.values if name.rpartition("/")[2].lower() == SEED}
    seed = None
    for name in sorted(names):
        told = sorted({row.values[name] for row in rows if math.isfinite(row.values.get(name, math.nan))})
        if len(told) > 1:
            each = listed([f"{value:g}" for value in told])
            raise DataError(
                f"{log.place}: `{name}` is {each}: these are rows of {len(told)} runs; write a file for each"
            )
        seed = whole(told[0]) if told and seed is None else seed
    return seed


def objects(file: Path, log: Log) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """(line, object) of what is whole."""
    content = file.read_bytes()
    if content.lstrip()[:1] == b"[":
        try:
            rows = parsed(content)
        except ValueError as error:
            raise DataError(f"{file}, line {getattr(error, 'lineno', 1)}: not JSON ({error})") from error
        for number, row in enumerate(rows, start=1):
            if isinstance(row, Mapping):
                yield None, row
            else:
                log.fault(file, None, f"entry {number} is {type(row).__name__}, no object; it is left out")
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parsed(line)
            if not isinstance(row, Mapping):
                raise ValueError(f"{type(row).__name__}, no object")
        except ValueError as error:
            log.fault(file, number, f"not a JSON object ({error}); the line is left out")
        else:
            yield number, row


def step_column(file: Path, names: Sequence[str], mapped: Mapping[str, str]) -> str:
    """The column that holds the step. Raises DataError where none does."""
    given = [theirs for theirs, own in mapped.items() if own == STEP]
    found = next((name for name in (*given, *STEPS) if name in names), None)
    if found is None:
        shown = ", ".join(names[:8]) or "none"
        raise DataError(f"{file}: no column holds the step; write --map COLUMN=step (columns: {shown})")
    return found
