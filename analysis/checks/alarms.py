"""Everything that a reader must know before the numbers. Read from logs alone; a matrix that one launcher ran
through on one machine has nothing to tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from grpobench.analysis.checks.complete import incomplete, leaked, left_out, misplaced, unplanned
from grpobench.analysis.checks.imports import foreign, left_behind
from grpobench.analysis.checks.uniform import apart, changed, code, data, versions
from grpobench.analysis.logs.matrix import Matrix


@dataclass(frozen=True)
class Alarm:
    """Something that a reader must know before the numbers."""

    title: str
    lines: Sequence[str]


DAMAGED = "Damaged, and counted nowhere until it is mended"
SPARED = "Damaged, and needed by no number"


def find_alarms(matrix: Matrix, damage: Sequence[str] = (), spared: Sequence[str] = ()) -> list[Alarm]:
    """Everything that is damaged, not uniform, not as planned, or missing; empty where nothing is. `damage`
    and `spared` are what could not be read (of `Numbers`)."""
    found = [Alarm(title, lines) for title, lines in ((DAMAGED, damage), (SPARED, spared)) if lines]
    return found + [Alarm(title, lines) for title, find in CHECKS.items() if (lines := [*find(matrix)])]


CHECKS: Mapping[str, Callable[[Matrix], Iterable[str]]] = {
    "Changed while the run ran": changed,
    "Evaluated on problems that were trained on": leaked,
    "Updates left out for a loss, reward or gradient that is not finite": left_out,
    "Logs that lack something": incomplete,
    "Left out of what was imported": left_behind,
    "Imported from logs of others": foreign,
    "Folders that are not what they say": misplaced,
    "Not as planned": unplanned,
    "Seeds of one arm with different settings": apart,
    "Different data or models under the same settings": data,
    "Different versions or devices": versions,
    "Different code": code,
}
"""Title in the report -> what finds its lines."""
