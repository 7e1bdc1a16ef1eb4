"""What a probe measures of a run: one number from the rows of its metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpobench.analysis.statistics.reached import when_reached

Rows = Sequence[Mapping[str, float]]
"""The rows of the training steps, in order."""
LAST = 0.1
"""Share of the steps that count as the last ones."""
KINDS: Mapping[str, str] = {
    "mean": "mean:METRIC over all steps",
    "last": "last:METRIC, its mean over the last tenth of the steps",
    "quarter": "quarter:METRIC, its mean over the last quarter of the steps",
    "end": "end:METRIC in the last row that has it",
    "log_ratio": "log_ratio:A:B, ln((A + 1)/(B + 1)) of their means over the last tenth of the steps",
    "when": "when:METRIC:OTHER:LEVEL, at the first step from which OTHER averages LEVEL over three steps",
}
ARGUMENTS: Mapping[str, int] = {"mean": 1, "last": 1, "quarter": 1, "end": 1, "log_ratio": 2, "when": 3}


@dataclass(frozen=True)
class Measure:
    """An outcome as a probe names it."""

    kind: str
    arguments: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Measure:
        """Raises ValueError where it is none."""
        kind, *arguments = text.split(":")
        if kind not in KINDS:
            raise ValueError(f"outcome: unknown kind {kind!r}; known: {', '.join(KINDS)}")
        if len(arguments) != ARGUMENTS[kind] or not all(arguments):
            raise ValueError(f"outcome: {text}: write {KINDS[kind]}")
        if kind == "when":
            try:
                float(arguments[2])
            except ValueError:
                why = f"{arguments[2]} is no number; write {KINDS[kind]}"
                raise ValueError(f"outcome: {text}: {why}") from None
        return cls(kind, tuple(arguments))

    def of(self, rows: Rows) -> float:
        """The outcome of a run; NaN where its rows do not have it."""
        return _MEASURES[self.kind](rows, *self.arguments)


def column(rows: Rows, name: str) -> NDArray[np.float64]:
    """The finite values of a metric, in the order of the steps."""
    values = np.array([row[name] for row in rows if name in row], dtype=float)
    finite: NDArray[np.float64] = values[np.isfinite(values)]
    return finite


def _mean(rows: Rows, name: str) -> float:
    values = column(rows, name)
    return float(values.mean()) if len(values) else math.nan


def _last(rows: Rows, name: str, share: float = LAST) -> float:
    return _mean(rows[-max(1, round(share * len(rows))) :], name)


def _quarter(rows: Rows, name: str) -> float:
    return _last(rows, name, 0.25)


def _end(rows: Rows, name: str) -> float:
    values = column(rows, name)
    return float(values[-1]) if len(values) else math.nan


def _log_ratio(rows: Rows, above: str, below: str) -> float:
    return math.log((_last(rows, above) + 1) / (_last(rows, below) + 1))


def _when(rows: Rows, name: str, other: str, level: str) -> float:
    values, others = ([row.get(metric, math.nan) for row in rows] for metric in (name, other))
    return when_reached(values, others, float(level))


_MEASURES: Mapping[str, Callable[..., float]] = {
    "mean": _mean,
    "last": _last,
    "quarter": _quarter,
    "end": _end,
    "log_ratio": _log_ratio,
    "when": _when,
}
