"""Warnings about what was measured: numbers that repeat, and tasks without room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pandas as pd

from grpobench.analysis.runfolder.experiment import Experiment, by_cell
from grpobench.analysis.tools.text import listed, percent


class Gravity(IntEnum):
    """How much a reader must doubt."""

    NOTE = 1
    """Worth knowing; no conclusion depends on it."""
    DOUBT = 2
    """A conclusion may not hold, or not mean what it seems to."""
    FAULT = 3
    """Numbers are missing, wrong, or not comparable."""


@dataclass(frozen=True)
class ReportWarning:
    """Something that a reader must know before believing the numbers."""

    title: str
    """A sentence without a period that can be understood alone."""
    lines: Sequence[str] = ()
    """The details: which runs, which numbers."""
    gravity: Gravity = Gravity.DOUBT
    text: str = ""
    """What it means, in sentences."""


SAME = 1e-12
"""Accuracies closer than this are the same number."""
FEWEST = 3
"""Fewest seeds of which the same number in each is not taken for chance."""
CEILING, FLOOR = 0.97, 0.03
"""From and to these accuracies a task has no room left for a difference."""


def is_saturated(accuracy: float) -> bool:
    """Whether an accuracy (a share) leaves no room for a difference; not where it is NaN."""
    return accuracy >= CEILING or accuracy <= FLOOR


def have_no_room(means: Sequence[float]) -> bool:
    """Whether all arms are at the ceiling, or all on the floor."""
    return all(mean >= CEILING for mean in means) or all(mean <= FLOOR for mean in means)


def warn_of_repeated_numbers(experiment: Experiment, runs: pd.DataFrame) -> Iterator[ReportWarning]:
    """Arms whose final accuracy is the same in every seed, equal to that of another arm in every seed, or
    equal to the accuracy before training in every seed. `runs` are the rows of `finals`. Saturated tasks are
    left out, because equal numbers are to be expected there."""
    finals_of, lines = by_cell(runs.dropna(subset=["final"])), []
    for task in experiment.tasks:
        alike: dict[tuple[tuple[int, float], ...], list[str]] = {}
        for arm in experiment.arms:
            rows = finals_of(arm, task).sort_values("seed")
            if len(rows) < FEWEST or is_saturated(float(rows["final"].mean())):
                continue
            seeds, final, base = rows["seed"].to_numpy(), rows["final"].to_numpy(), rows["base"].to_numpy()
            every = f"all {len(rows)} seeds"
            if np.ptp(final) < SAME:
                lines.append(f"{arm} on {task}: {percent(final[0])} % in {every}")
            if (np.abs(final - base) < SAME).all():
                lines.append(f"{arm} on {task}: the same as before training in {every}")
            numbers = tuple(
                (int(seed), round(float(value), 12)) for seed, value in zip(seeds, final, strict=True)
            )
            alike.setdefault(numbers, []).append(arm)
        for numbers, arms in alike.items():
            if len(arms) > 1:
                lines.append(f"{listed(arms)} on {task}: equal to each other in all {len(numbers)} seeds")
    if lines:
        yield ReportWarning(
            f"Identical numbers in all seeds: {_shortened(lines)}",
            lines,
            Gravity.FAULT,
            "Seeds differ in initialization, problems and sampling, so equal accuracies rarely come from "
            "training. Look for a policy that was not updated, a setting without effect or constant answers.",
        )


def warn_of_saturation(experiment: Experiment, runs: pd.DataFrame) -> Iterator[ReportWarning]:
    """Tasks with a mean accuracy before training, or of every arm after it, at one end of the scale."""
    lines: list[str] = []
    for task in experiment.tasks:
        rows = runs[runs["task"] == task]
        base = float(rows["base"].mean())
        finals = rows.dropna(subset=["final"]).groupby("arm", sort=False)["final"].mean()
        if base >= CEILING:
            lines.append(f"{task}: {percent(base)} % before training, so training can gain almost nothing")
        elif base <= FLOOR:
            lines.append(f"{task}: {percent(base)} % before training, so few first rollouts earn a reward")
        ends = " to ".join(dict.fromkeys((percent(finals.min()), percent(finals.max()))))
        if len(finals) and (finals >= CEILING).all():
            lines.append(f"{task}: all arms end at {ends} %, so they cannot differ")
        elif len(finals) and (finals <= FLOOR).all():
            lines.append(f"{task}: all arms end at {ends} %, so nothing was learned")
    if lines:
        yield ReportWarning(
            f"Little room for a difference: {_shortened(lines)}",
            lines,
            Gravity.DOUBT,
            f"An accuracy of {CEILING:.0%} or more, or of {FLOOR:.0%} or less, hides what an algorithm does. "
            "A small difference on such a task says little about the algorithms. model.warm_start teaches a "
            "policy that knows nothing of a task.",
        )


def _shortened(lines: Sequence[str]) -> str:
    """The first line, and how many more there are."""
    return f"{lines[0]}; and {len(lines) - 1} more" if len(lines) > 1 else lines[0]
