"""Captions of figures: seeds, problems, rollouts and intervals, in addition to the definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pandas as pd

from grpobench.analysis.runfolder.experiment import Experiment

BANDS = "Bands are pointwise 95% t intervals of the mean over seeds"
BARS = "Bars are 95% t intervals of the mean over seeds"
CUT = ", cut to possible values"


def seeds_in_words(counts: Iterable[int]) -> str:
    """`8 seeds per arm and task`, from the number of seeds of each arm on each task."""
    return f"{counted(counts, 'seed')} per arm and task"


def seeds_of(frame: pd.DataFrame) -> list[int]:
    """How many seeds each arm has on each task in a frame with these columns."""
    return [int(count) for count in frame.groupby(["task", "arm"], sort=False)["seed"].nunique()]


def counted(counts: Iterable[int], noun: str) -> str:
    """`8 seeds`, or `6 to 8 seeds` where numbers differ."""
    distinct_counts = sorted(set(counts)) or [0]
    ends = dict.fromkeys((distinct_counts[0], distinct_counts[-1]))
    return f"{' to '.join(map(str, ends))} {noun}{'s' * (distinct_counts[-1] != 1)}"


def means_in_words(counts: Sequence[int], intervals: str, subject: str = "Lines") -> str:
    """What lines and their bands or bars are; without intervals for a single seed."""
    text = f"{subject} are means over {seeds_in_words(counts)}."
    return f"{text} {intervals}." if max(counts, default=0) > 1 else f"{text} One seed has no interval."


def problems_in_words(
    experiment: Experiment, split_of: Mapping[str, str], label: Callable[[str], str] = str
) -> str:
    """`64 validation problems per task`, or a number for each task where they differ. `split_of` is the split
    by task. Logs without evaluated problems are named."""
    rows = experiment.evaluations
    numbers: dict[str, str] = {}
    for task, split in split_of.items():
        problems = rows.loc[(rows["task"] == task) & (rows["split"] == split), "problem"].nunique()
        numbers[task] = (
            f"{problems} {split} problems" if problems else f"{split} problems whose number is not logged"
        )
    if len(set(numbers.values())) == 1:
        return next(iter(numbers.values())) + " per task" * (len(numbers) > 1)
    return ", ".join(f"{text} of {label(task)}" for task, text in numbers.items())


def rollouts_in_words(experiment: Experiment) -> str:
    """The rollouts behind a value of training, as a sentence; empty where runs differ or do not say."""
    sizes = {
        (train.get("prompts_per_step"), train.get("group_size"))
        for run in experiment.runs
        if isinstance(train := run.config.get("train", {}), Mapping)
    }
    if len(sizes) != 1 or None in next(iter(sizes)):
        return ""
    ((prompts, group),) = sizes
    return f"A value is of one update with {prompts} prompts × {group} completions."


def joined(sentences: Iterable[str]) -> str:
    """Sentences that are not empty, as one text."""
    return " ".join(filter(None, sentences))
