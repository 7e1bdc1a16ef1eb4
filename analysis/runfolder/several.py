"""Combine the runs of several experiments into one, for figures across result folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.files import LogError


def combine_experiments(experiments: Sequence[Experiment]) -> Experiment:
    """One experiment with all runs of several, in their order. If several experiments have an arm of the same
    name, the name of the experiment is added to it, or its folder if these names are equal too. Runs of
    different experiments are not paired, so there are no comparisons. `apart` says this, and whether
    accuracies are over different problems.

    Raises LogError for a folder that is given twice, and for a map among several experiments.
    """
    if len(experiments) == 1:
        return experiments[0]
    twice = [
        str(path)
        for path, count in Counter(experiment.folder.resolve() for experiment in experiments).items()
        if count > 1
    ]
    if twice:
        raise LogError(f"{', '.join(twice)}: given twice; name each folder once")
    if maps := [str(experiment.folder) for experiment in experiments if experiment.sweep_values]:
        raise LogError(f"{', '.join(maps)}: a map, whose arms are sweep values; draw it on its own")
    common = Path(os.path.commonpath([experiment.folder.resolve() for experiment in experiments]))
    labels = _labels(experiments, common)
    parts = [
        _part(experiment, arm_labels, common)
        for experiment, arm_labels in zip(experiments, labels, strict=True)
    ]
    runs = tuple(run for part in parts for run in part.runs)
    return Experiment(
        name=" and ".join(dict.fromkeys(experiment.name for experiment in experiments)),
        folder=common,
        summary="",
        recipe="",
        arms=tuple(arm for part in parts for arm in part.arms),
        tasks=tuple(dict.fromkeys(task for part in parts for task in part.tasks)),
        seeds=tuple(sorted({run.seed for run in runs})),
        runs=runs,
        metrics=pd.concat([part.metrics for part in parts], ignore_index=True),
        evaluations=pd.concat([part.evaluations for part in parts], ignore_index=True),
        statuses=pd.concat([part.statuses for part in parts], ignore_index=True),
        configs={name: config for part in parts for name, config in part.configs.items()},
        margin=min(part.margin for part in parts),
        damage=tuple(fault for part in parts for fault in part.damage),
        unimported=tuple(fault for part in parts for fault in part.unimported),
        apart=_apart(experiments),
    )


def _labels(experiments: Sequence[Experiment], common: Path) -> list[Mapping[str, str]]:
    """For each experiment, the names of its arms in the combination."""
    arms = Counter(arm for experiment in experiments for arm in experiment.arms)
    named_alike = Counter((arm, experiment.name) for experiment in experiments for arm in experiment.arms)
    labels: list[Mapping[str, str]] = []
    for experiment in experiments:
        folder = os.path.relpath(experiment.folder.resolve(), common)
        labels.append(
            {
                arm: arm
                if arms[arm] == 1
                else f"{arm} ({experiment.name if named_alike[arm, experiment.name] == 1 else folder})"
                for arm in experiment.arms
            }
        )
    return labels


def _part(experiment: Experiment, labels: Mapping[str, str], common: Path) -> Experiment:
    """An experiment with the new names of its arms, and runs named by their path from the common folder."""
    names = {
        run.name: os.path.relpath(experiment.folder.resolve() / run.name, common) for run in experiment.runs
    }

    def called(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(arm=frame["arm"].map(labels))

    statuses = called(experiment.statuses)
    return replace(
        experiment,
        arms=tuple(labels[arm] for arm in experiment.arms),
        runs=tuple(replace(run, name=names[run.name], arm=labels[run.arm]) for run in experiment.runs),
        metrics=called(experiment.metrics),
        evaluations=called(experiment.evaluations),
        statuses=statuses.assign(name=statuses["name"].map(names)),
        configs={names[name]: config for name, config in experiment.configs.items()},
    )


def _apart(experiments: Sequence[Experiment]) -> str:
    """The sentence that captions add to figures across experiments."""
    differ, unknown = [], []
    for task in dict.fromkeys(task for experiment in experiments for task in experiment.tasks):
        problem_sets = [_problems(experiment, task) for experiment in experiments if task in experiment.tasks]
        if len(problem_sets) > 1 and not all(problem_sets):
            unknown.append(task)
        elif any(
            len({problems[split] for problems in problem_sets if split in problems}) > 1
            for split in ("validation", "test")
        ):
            differ.append(task)
    text = f"The runs of these {len(experiments)} experiments are not paired."
    if differ:
        text += f" On {', '.join(differ)} they were evaluated on different problems, "
        text += "so their accuracies cannot be compared."
    if unknown:
        text += f" On {', '.join(unknown)}, some logs do not say on which problems runs were evaluated."
    return text


def _problems(experiment: Experiment, task: str) -> Mapping[str, frozenset[str]]:
    """The evaluated problems by split; empty where the logs do not say."""
    rows = experiment.evaluations[experiment.evaluations["task"] == task]
    return {
        str(split): frozenset(map(str, problems.unique()))
        for split, problems in rows.groupby("split")["problem"]
    }
