"""The numbers of a contrast: one for each seed, from the values of the runs that it names."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.rule import Check, Test, covers
from grpobench.analysis.runfolder.files import LogError

SEEDS_PER_BASE = 2**63
"""The seed s of base number b, in the order of their names, is counted as s + b · `SEEDS_PER_BASE`. Seeds are
below it."""


def contrasts_of(
    test_or_check: Test | Check, values: Mapping[Key, float], waits: bool = False
) -> dict[int, float]:
    """Seed -> weighted sum, for seeds with all values. Raises LogError for a name without runs, unless it
    `waits` for runs."""
    ratio = isinstance(test_or_check, Test) and test_or_check.ratio
    sums: dict[int, float] = {}
    complete: dict[int, int] = {}
    for name, weight in test_or_check.contrast.items():
        for seed, value in mean_by_seed(name, values, waits).items():
            value = log_of(value) if ratio else value
            sums[seed] = sums.get(seed, 0.0) + weight * value
            complete[seed] = complete.get(seed, 0) + math.isfinite(value)
    return {seed: sums[seed] for seed in sorted(sums) if complete[seed] == len(test_or_check.contrast)}


def repetitions(contrasts: Mapping[int, float]) -> dict[int, float]:
    """Seed -> its mean over bases, from contrasts by seed and base. Runs with one seed draw the same
    problems, samples and errors of a verifier on every base, so that they are one repetition; a base with
    seeds of its own has repetitions of its own. With one base these are the contrasts."""
    by_seed: dict[int, list[float]] = {}
    for seed, contrast in contrasts.items():
        by_seed.setdefault(seed % SEEDS_PER_BASE, []).append(contrast)
    return {seed: float(np.mean(by_base)) for seed, by_base in by_seed.items()}


def log_of(value: float) -> float:
    """Its logarithm; NaN where it has none."""
    return math.log(value) if value > 0 else math.nan


def mean_by_seed(name: str, values: Mapping[Key, float], waits: bool) -> dict[int, float]:
    """Seed -> mean over the arms and tasks that a name covers; NaN where one of them is missing."""
    run_values = values_covered(name, values)
    if not run_values and not waits:
        raise LogError(
            f"contrast: no run of {name}; there are {', '.join(sorted({run[0] for run in values}))}"
        )
    cells = sorted({run[:2] for run in run_values})  # in one order, so that sums have the same last digits
    means: dict[int, float] = {}
    for seed in {run[2] for run in run_values}:
        cell_values = [run_values.get((*cell, seed), math.nan) for cell in cells]
        means[seed] = float(np.mean(cell_values))
    return means


def values_covered(name: str, values: Mapping[Key, float]) -> dict[Key, float]:
    """The runs that a name in a contrast covers."""
    return {run: value for run, value in values.items() if covers(name, *run[:2])}
