"""Which NaN of a table says that its row has no value there, and which that the value was NaN.

A table has a cell for every column, and what writes one (pandas, say) puts NaN where a row has nothing to
tell: an evaluation has no reward, an update no accuracy. A NaN is taken for such a gap where

1. its row has values, none of which ever stands in a row with a value of that column: a row of another kind;
2. its row has values, all of them of evaluations or of columns that half of the rows with a value of that
   column lack, or more; or no two values of the column follow each other, as of one that is logged every ten
   rows. Neither holds for a stretch to the end of two steps or more that is longer than any that a value came
   after.

Every other NaN is a value: one beside the loss, the learning rate or anything else that is told with the
column, and one in a row that has no value at all. Counters such as an epoch tell nothing of a row's kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpobench.runs.importing.translate import VOCABULARIES, ours, told_as

Truths = NDArray[np.bool_]
COUNTERS = (
    *("epoch", "step", "_step", "global_step", "iteration", "index", "seed", ""),
    *("time", "wall_time", "runtime", "_runtime", "timestamp", "_timestamp"),
    *("num_tokens", "num_input_tokens_seen"),
)
"""Last parts of names of columns that rows of every kind have."""
EVALUATED = re.compile(r"(eval|val|valid|validation|test)\b|(eval|val|valid|validation|test)_", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """The numbers of a row of a table."""

    line: int | None
    step: int
    values: dict[str, float]


def closed(rows: Sequence[Row], mapped: Mapping[str, str]) -> tuple[list[Row], dict[str, int]]:
    """The rows without their gaps, and how many each column had. Rows are in the order of their steps."""
    if not any(math.isnan(value) for row in rows for value in row.values.values()):
        return list(rows), {}
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    table = np.full((len(rows), len(names)), np.nan)
    absent = np.ones(table.shape, dtype=bool)
    place = {name: at for at, name in enumerate(names)}
    for at, row in enumerate(rows):
        for name, value in row.values.items():
            table[at, place[name]] = value
            absent[at, place[name]] = False
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
        Row(row.line, row.step, {name: value for name, value in row.values.items() if not gap[place[name]]})
        for row, gap in zip(rows, gaps, strict=True)
    ]
    counted = gaps.sum(axis=0)
    return left, {name: int(counted[at]) for name, at in place.items() if counted[at]}


def of_column(own: Truths, lost: Truths, telling: Truths, evaluated: Truths, steps: NDArray[Any]) -> Truths:
    """Which rows of a column are gaps. `own` are its rows with a value, `lost` those with NaN; `telling` are
    the values of all columns (rows, columns), counters left out."""
    together = telling[own].sum(axis=0)
    companions = (2 * together > own.sum()) & ~evaluated
    some = telling.any(axis=1)
    foreign = lost & some & ~telling[:, together > 0].any(axis=1)
    apart = lost & some & ~telling[:, companions].any(axis=1)
    kind = np.flatnonzero(own | (lost & ~foreign))
    alternates = own.sum() > 1 and not (own[kind][1:] & own[kind][:-1]).any()
    perhaps = lost if alternates else apart
    longest, end = stretches(own[kind], steps[kind])
    if len(end) > max(1, longest):
        perhaps = perhaps & ~np.isin(steps, end)
    return foreign | perhaps


def stretches(own: Truths, steps: NDArray[Any]) -> tuple[int, list[int]]:
    """How many steps the longest stretch of rows without a value has that a value comes after, and the steps
    of the one that lasts to the end."""
    longest = 0
    open_steps: dict[int, None] = {}
    last = -1
    for value, step in zip(own.tolist(), steps.tolist(), strict=True):
        if value:
            longest = max(longest, len(open_steps))
            open_steps, last = {}, step
        elif step != last:
            open_steps[step] = None
    return longest, list(open_steps)


def evaluation(name: str, mapped: Mapping[str, str]) -> bool:
    """Whether a column is of evaluations: by what it is mapped to, else by how its name begins."""
    return (told_as(name, mapped) or name).startswith("eval/") or EVALUATED.match(name) is not None


def counter(name: str, mapped: Mapping[str, str], everywhere: bool) -> bool:
    """Whether a column tells nothing of a row's kind: by its name, or because it has a value in every row and
    is no metric that is known."""
    if told_as(name, mapped):
        return False
    if name.rpartition("/")[2].lower() in COUNTERS:
        return True
    known = ours(name) or any(one.find(name) for one in VOCABULARIES.values())
    return everywhere and not known and not evaluation(name, mapped)
