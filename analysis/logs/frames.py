"""Rows of tidy frames: those of each run, those of each arm on a task, and their mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd

from grpobench.analysis.logs.matrix import Run


def by_run(frame: pd.DataFrame) -> Callable[[Run], pd.DataFrame]:
    """What gives the rows of a run, in their order. The frame is parted once, not once for each run."""
    rows = _parted(frame, ["arm", "task", "seed"])
    return lambda run: rows(run.arm, run.task, run.seed)


def by_cell(frame: pd.DataFrame) -> Callable[[str, str], pd.DataFrame]:
    """What gives the rows of an arm on a task, over all seeds, in their order."""
    return _parted(frame, ["arm", "task"])


def _parted(frame: pd.DataFrame, keys: Sequence[str]) -> Callable[..., pd.DataFrame]:
    places = frame.groupby([*keys], sort=False).indices if len(frame) else {}
    return lambda *key: frame.iloc[places.get(key, [])]


def finite_mean(values: pd.Series) -> float:
    """The mean of the values that are no NaN; NaN where there is none."""
    finite = values.dropna()
    return float(finite.mean()) if len(finite) else math.nan
