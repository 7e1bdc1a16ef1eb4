"""Tables: CSV with a header, JSON lines, and JSON lists of objects. A row is a step."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpobench.runs.importing.log import Log, numbers, whole
from grpobench.tasks.data.errors import DataError

STEPS = ("step", "global_step", "train/global_step", "training/global_step", "_step", "Step", "iteration")
"""Columns that hold the step unless --map names another; the first that is there."""


def read_csv(file: Path, step: Sequence[str] = ()) -> Log:
    """The run of a table with a header; tabs part the cells of a .tsv, commas those of any other. Raises
    DataError where it holds no step."""
    log = Log(file, "csv", files=[file])
    text = file.read_text(encoding="utf-8-sig", errors="replace")
    reader = csv.reader(io.StringIO(text), delimiter="\t" if file.suffix == ".tsv" else ",")
    rows = cells(reader, log)
    header = next(rows, (0, []))[1]
    place = header.index(step_column(file, header, step))
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
        log.add(at, values, f"line {line}")
    return demand(log)


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


def read_jsonl(file: Path, step: Sequence[str] = ()) -> Log:
    """The run of a file with an object per line, or of a JSON list of objects. Raises DataError where it
    holds no step."""
    log = Log(file, "jsonl", files=[file])
    rows = list(objects(file, log))
    names = dict.fromkeys(name for _, row in rows for name in numbers(row))
    column = step_column(file, list(names), step) if names else ""
    for line, row in rows:
        values = numbers(row)
        at = whole(values.pop(column, None))
        if at is None:
            log.fault(file, line, f"`{column}` holds no step; the line is left out")
        else:
            log.add(at, values, f"line {line}")
    return demand(log)


def objects(file: Path, log: Log) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """(line, object) of what is whole."""
    content = file.read_bytes()
    if content.lstrip()[:1] == b"[":
        try:
            rows = json.loads(content)
        except ValueError as error:
            raise DataError(f"{file}, line {getattr(error, 'lineno', 1)}: not JSON ({error})") from error
        yield from ((None, row) for row in rows if isinstance(row, Mapping))
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, Mapping):
                raise ValueError(f"{type(row).__name__}, no object")
        except ValueError as error:
            log.fault(file, number, f"not a JSON object ({error}); the line is left out")
        else:
            yield number, row


def step_column(file: Path, names: Sequence[str], mapped: Sequence[str]) -> str:
    """The column that holds the step. Raises DataError where none does."""
    found = next((name for name in (*mapped, *STEPS) if name in names), None)
    if found is None:
        shown = ", ".join(names[:8]) or "none"
        raise DataError(f"{file}: no column holds the step; write --map COLUMN=step (columns: {shown})")
    return found


def demand(log: Log) -> Log:
    """The log. Raises DataError for one without a row."""
    if not any(log.rows.values()):
        first = f"; {log.faults[0]}" if log.faults else ""
        raise DataError(f"{log.place}: holds no row of numbers{first}")
    return log
