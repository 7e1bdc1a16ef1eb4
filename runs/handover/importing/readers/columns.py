"""Tables of metrics with a row per step: CSV with a header, JSON lines, and JSON lists of objects."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpobench.analysis.tools.text import listed
from grpobench.runs.handover.importing.log import Log, as_step, demand, head, numbers, parsed, text_of
from grpobench.runs.handover.importing.names.vocabularies import VOCABULARIES
from grpobench.runs.handover.importing.translate import STEP, mapped_name, ours
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

Truths = NDArray[np.bool_]
COUNTERS = (
    *("epoch", "step", "_step", "global_step", "iteration", "index", "seed", ""),
    *("time", "wall_time", "runtime", "_runtime", "timestamp", "_timestamp"),
    *("num_tokens", "num_input_tokens_seen"),
)
"""Last parts of column names that rows of every kind have."""
EVALUATED = re.compile(r"(eval|val|valid|validation|test)\b|(eval|val|valid|validation|test)_", re.IGNORECASE)


@dataclass(frozen=True)
class TableRow:
    """The numbers of a row of a table."""

    line: int | None
    step: int
    values: dict[str, float]


def closed(rows: Sequence[TableRow], mapped: Mapping[str, str]) -> tuple[list[TableRow], dict[str, int]]:
    """The rows without their gaps, and the number of gaps per column. Rows are in the order of their
    steps.

    A table has a cell for every column, and its writer (for example pandas) puts NaN into cells without a
    value: an evaluation has no reward, an update no accuracy. A NaN is such a gap if

    1. its row has values, and no column of them ever has a value in a row with a value of the NaN's column:
       the row is of another kind; or
    2. its row has values, and these are all of evaluations or of columns that are missing in at least half of
       the rows with a value of the NaN's column; or no two values of the column follow each other, as in a
       column that is logged every ten rows. Neither applies to a stretch of two or more steps to the end that
       is longer than any stretch before a value.

    Every other NaN is a value: one next to the loss, the learning rate or anything else that is logged with
    the column, and one in a row without any value. Counters such as an epoch say nothing about a row's kind.
    """
    if not any(math.isnan(value) for row in rows for value in row.values.values()):
        return list(rows), {}
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    table = np.full((len(rows), len(names)), np.nan)
    absent = np.ones(table.shape, dtype=bool)
    column_by_name = {name: at for at, name in enumerate(names)}
    for at, row in enumerate(rows):
        for name, value in row.values.items():
            table[at, column_by_name[name]] = value
            absent[at, column_by_name[name]] = False
    has = ~np.isnan(table)
    lost = ~has & ~absent
    steps = np.array([row.step for row in rows])
    evaluated = np.array([evaluation(name, mapped) for name in names])
    counts = np.array([counter(name, mapped, bool(has[:, at].all())) for at, name in enumerate(names)])
    telling = has & ~counts
    gaps = np.zeros(table.shape, dtype=bool)
    for at in np.flatnonzero(lost.any(axis=0) & has.any(axis=0)).tolist():
        gaps[:, at] = of_column(has[:, at], lost[:, at], telling, evaluated, steps)
    left = [
        TableRow(
            row.line,
            row.step,
            {name: value for name, value in row.values.items() if not gap[column_by_name[name]]},
        )
        for row, gap in zip(rows, gaps, strict=True)
    ]
    counted = gaps.sum(axis=0)
    return left, {name: int(counted[at]) for name, at in column_by_name.items() if counted[at]}


def of_column(
    present: Truths, lost: Truths, telling: Truths, evaluated: Truths, steps: NDArray[Any]
) -> Truths:
    """Which rows of a column are gaps. `present` are its rows with a value, `lost` those with NaN;
    `telling` are the values of all columns (rows, columns) except counters."""
    together = telling[present].sum(axis=0)
    companions = (2 * together > present.sum()) & ~evaluated
    some = telling.any(axis=1)
    foreign = lost & some & ~telling[:, together > 0].any(axis=1)
    apart = lost & some & ~telling[:, companions].any(axis=1)
    kind = np.flatnonzero(present | (lost & ~foreign))
    alternates = present.sum() > 1 and not (present[kind][1:] & present[kind][:-1]).any()
    perhaps = lost if alternates else apart
    longest, end = stretches(present[kind], steps[kind])
    if len(end) > max(1, longest):
        perhaps = perhaps & ~np.isin(steps, end)
    return foreign | perhaps


def stretches(present: Truths, steps: NDArray[Any]) -> tuple[int, list[int]]:
    """The length in steps of the longest stretch without a value that a value follows, and the steps of the
    stretch that lasts to the end."""
    longest = 0
    open_steps: dict[int, None] = {}
    last = -1
    for value, step in zip(present.tolist(), steps.tolist(), strict=True):
        if value:
            longest = max(longest, len(open_steps))
            open_steps, last = {}, step
        elif step != last:
            open_steps[step] = None
    return longest, list(open_steps)


def evaluation(name: str, mapped: Mapping[str, str]) -> bool:
    """Whether a column belongs to evaluations, by --map, or else by the start of its name."""
    return (mapped_name(name, mapped) or name).startswith("eval/") or EVALUATED.match(name) is not None


def counter(name: str, mapped: Mapping[str, str], everywhere: bool) -> bool:
    """Whether a column says nothing about a row's kind: by its name, or because it has a value in every row
    and is not a known metric."""
    if mapped_name(name, mapped):
        return False
    if name.rpartition("/")[2].lower() in COUNTERS:
        return True
    is_metric = ours(name) or any(vocabulary.find(name) for vocabulary in VOCABULARIES.values())
    return everywhere and not is_metric and not evaluation(name, mapped)


STEPS = ("step", "global_step", "train/global_step", "training/global_step", "_step", "Step", "iteration")
"""Columns that hold the step unless --map names another; the first that exists."""
NOTHING: Mapping[str, str] = MappingProxyType({})
CLOCKS = ("_step", "_runtime", "_timestamp", "")
"""Columns that a W&B export has beside the metrics, and the row number, which pandas writes without a
name."""
SEED = "seed"


CHART_COLUMN = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<range>__MIN|__MAX)?")
"""A column of a chart that was exported from W&B. For a metric it also has the least and the largest value
of the logged steps that the chart shows as one point."""
GROUP = "Group: "


def chart_runs(file: Path) -> list[str]:
    """The runs whose lines a table has as columns ``RUN - METRIC``, if it is a chart exported from W&B; else
    nothing."""
    _, header = next(table_rows(file, Log(file, "csv")), (0, []))
    metrics = [CHART_COLUMN.fullmatch(name) for name in header if name not in (*STEPS, *CLOCKS)]
    columns = [column for column in metrics if column]
    chart = len(columns) == len(metrics) or any(column["range"] for column in columns)
    return list(dict.fromkeys(column["run"] for column in columns)) if chart else []


def of_run(header: Sequence[str], run: str) -> tuple[list[str], list[bool]]:
    """The names of a chart's columns without the run's name, and whether each belongs to the run and is no
    range."""
    columns = [CHART_COLUMN.fullmatch(name) for name in header]
    names = [column["metric"] if column else name for name, column in zip(header, columns, strict=True)]
    return names, [column is None or (column["run"] == run and not column["range"]) for column in columns]


def table_rows(file: Path, log: Log) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the rows of a table, the header first."""
    return cells(
        csv.reader(io.StringIO(text_of(file)), delimiter="\t" if file.suffix == ".tsv" else ","), log
    )


def read_csv(file: Path, mapped: Mapping[str, str] = NOTHING, chart_run: str = "") -> Log:
    """The run of a table with a header, or one run of a chart; cells are separated by tabs in a .tsv and by
    commas otherwise. Raises DataError if it has no step, two columns of one name, or the means of groups."""
    log = Log(file, "csv", files=[file], name=chart_run)
    if chart_run.startswith(GROUP):
        raise DataError(
            f"{file}: a W&B chart of groups, whose lines are means over the runs of `{chart_run}`; ungroup "
            "the runs and export the chart again"
        )
    rows = table_rows(file, log)
    first, header = next(rows, (0, []))
    header, chosen = of_run(header, chart_run) if chart_run else (header, [True] * len(header))
    step_index = header.index(step_column(file, header, mapped))
    table = []
    for line, row in rows:
        if len(row) != len(header):
            log.fault(file, line, f"{len(row)} cells under {len(header)} names; the line is left out")
        elif (at := as_step(as_number(row[step_index]))) is None:
            log.fault(
                file,
                line,
                f"`{header[step_index]}` is not a step: {row[step_index][:40]!r}; the line is left out",
            )
        else:
            table.append((line, at, row))
    numeric = [
        chosen[at] and any(as_number(row[at]) is not None for _, _, row in table) for at in range(len(header))
    ]
    texts = [
        name
        for name, any_number, is_chosen in zip(header, numeric, chosen, strict=True)
        if is_chosen > any_number
    ]
    if texts and table:
        log.notes.append(f"columns without a number are left out: {', '.join(texts)}")
    counted = Counter(name for name, any_number in zip(header, numeric, strict=True) if any_number)
    if repeated := [f"`{name}`" for name, count in counted.items() if count > 1]:
        raise DataError(f"{file}, line {first}: several columns are called {listed(repeated)}; rename them")
    read = []
    for line, at, row in table:
        values = {}
        for column, name in enumerate(header):
            if column == step_index or not numeric[column] or not row[column].strip():
                continue
            value = as_number(row[column])
            if value is None:
                message = f"`{name}` is not a number: {row[column][:40]!r}; it is left out"
                log.fault(file, line, message)
            else:
                values[name] = value
        read.append(TableRow(line, at, values))
    return lay(log, read, mapped)


def cells(reader: Any, log: Log) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the rows that are not empty."""
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            log.fault(log.path, reader.line_num, f"not CSV ({error}); the line is left out")
            continue
        if any(cell.strip() for cell in row):
            yield reader.line_num, row


def as_number(text: str) -> float | None:
    """The number in a cell; None for anything else."""
    try:
        return float(text)
    except ValueError:
        return None


def read_jsonl(file: Path, mapped: Mapping[str, str] = NOTHING) -> Log:
    """The run of a file with an object per line, or of a JSON list of objects. Raises DataError if it has no
    step."""
    log = Log(file, "jsonl", files=[file])
    rows = list(objects(file, log))
    names = dict.fromkeys(name for _, row in rows for name in numbers(row))
    column = step_column(file, list(names), mapped) if names else ""
    read = []
    for line, row in rows:
        values = log.numbers(row, line)
        at = as_step(values.pop(column, None))
        if at is None:
            log.fault(file, line, f"`{column}` holds no step; the line is left out")
        else:
            read.append(TableRow(line, at, values))
    return lay(log, read, mapped)


def lay(log: Log, rows: Sequence[TableRow], mapped: Mapping[str, str]) -> Log:
    """The log with its rows: oldest first, of one seed, without gaps."""
    if len(rows) > 1 and rows[0].step > rows[-1].step and all(a.step >= b.step for a, b in pairwise(rows)):
        rows = rows[::-1]
        log.notes.append("the newest row came first; the rows are now sorted by their steps")
    log.seed = seed_of(log, rows)
    rows, gaps = closed(rows, mapped)
    if gaps:
        each = listed([f"{name} ({count})" for name, count in gaps.items()])
        log.notes.append(f"NaN in cells without a value is left out: {each}")
    for row in rows:
        values = {name: value for name, value in row.values.items() if name not in CLOCKS}
        log.add(row.step, values, "" if row.line is None else f"line {row.line}")
    return demand(log)


def seed_of(log: Log, rows: Sequence[TableRow]) -> int | None:
    """The seed in a column. Raises DataError for several: rows of different runs."""
    names = {name for row in rows for name in row.values if name.rpartition("/")[2].lower() == SEED}
    seed = None
    for name in sorted(names):
        seeds = sorted({row.values[name] for row in rows if math.isfinite(row.values.get(name, math.nan))})
        if len(seeds) > 1:
            each = listed([f"{value:g}" for value in seeds])
            raise DataError(
                f"{log.path}: `{name}` is {each}: these are rows of {len(seeds)} runs; write a file for each"
            )
        seed = as_step(seeds[0]) if seeds and seed is None else seed
    return seed


def objects(file: Path, log: Log) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """(line, object) of every whole line."""
    if head(file).lstrip()[:1] == b"[":
        try:
            rows = parsed(bounded.as_utf8(bounded.read_bytes(file, bounded.max_array())))
        except ValueError as error:
            raise DataError(f"{file}, line {getattr(error, 'lineno', 1)}: not JSON ({error})") from error
        for number, row in enumerate(rows, start=1):
            if isinstance(row, Mapping):
                yield None, row
            else:
                log.fault(file, None, f"entry {number} is {type(row).__name__}, no object; it is left out")
        return
    for number, line in enumerate(bounded.utf8_lines(file), start=1):
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
    """The column that holds the step. Raises DataError if none does."""
    mapped_columns = [theirs for theirs, our_name in mapped.items() if our_name == STEP]
    column = next((name for name in (*mapped_columns, *STEPS) if name in names), None)
    if column is None:
        shown = ", ".join(names[:8]) or "none"
        raise DataError(f"{file}: no column holds the step; write --map COLUMN=step (columns: {shown})")
    return column
