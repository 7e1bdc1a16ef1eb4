"""Rows of tidy frames: those of a run, those of an arm on a task, and their mean."""

from __future__ import annotations

import math

import pandas as pd

from grpobench.analysis.logs.matrix import Run


def rows_of(frame: pd.DataFrame, run: Run) -> pd.DataFrame:
    """The rows of a run."""
    return frame[(frame["arm"] == run.arm) & (frame["task"] == run.task) & (frame["seed"] == run.seed)]


def cell_of(frame: pd.DataFrame, arm: str, task: str) -> pd.DataFrame:
    """The rows of an arm on a task, over all seeds."""
    return frame[(frame["arm"] == arm) & (frame["task"] == task)]


def finite_mean(values: pd.Series) -> float:
    """The mean of the values that are no NaN; NaN where there is none."""
    finite = values.dropna()
    return float(finite.mean()) if len(finite) else math.nan
