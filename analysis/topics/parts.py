"""A part of an experiment under other names: some of its arms and tasks, called as figures call them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pandas as pd

from grpobench.analysis.runfolder.evaluations import LaterEvaluation
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.comparison import BASE
from grpobench.analysis.topics.axes import OnAxes

Entry = TypeVar("Entry", bound=Any)


@dataclass(frozen=True)
class Shown:
    """What figures show of an experiment, and under which names. In a map, arms are those of the recipe. The
    methods are of a part with arms and tasks."""

    arms: tuple[str, ...] = ()
    """The arms, in the order of the recipe; empty for all, of which figures of many show some."""
    tasks: tuple[str, ...] = ()
    """The tasks; empty for all."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Names of arms and tasks in figures, where they differ from the recipe's."""

    def label(self, name: str) -> str:
        """The name of an arm or a task in this part."""
        return self.labels.get(name, name)

    def arm_names(self, experiment: Experiment) -> dict[str, str]:
        """The arms that are left, each with its name in this part. The sweep values of a map keep theirs."""
        points = experiment.sweep_values
        if points:
            return {arm: arm for arm in experiment.arms if points[arm].arm in self.arms}
        return {arm: self.label(arm) for arm in experiment.arms if arm in self.arms}

    def experiment(self, experiment: Experiment) -> Experiment:
        """The part of an experiment."""
        names = self.arm_names(experiment)
        runs = [run for run in experiment.runs if run.arm in names and run.task in self.tasks]

        def rows(frame: pd.DataFrame) -> pd.DataFrame:
            return self.rows(frame, experiment)

        return replace(
            experiment,
            arms=tuple(names.values()),
            tasks=tuple(self.label(task) for task in experiment.tasks if task in self.tasks),
            runs=tuple(replace(run, arm=names[run.arm], task=self.label(run.task)) for run in runs),
            metrics=rows(experiment.metrics),
            evaluations=rows(experiment.evaluations),
            statuses=rows(experiment.statuses),
            control=self.label(experiment.control),
            configs={run.name: run.config for run in runs},
            sweep_values={
                arm: replace(point, arm=self.label(point.arm))
                for arm, point in experiment.sweep_values.items()
                if arm in names
            },
        )

    def rows(self, frame: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
        """The rows of a frame of the experiment with columns `arm` and `task`."""
        if frame.empty:
            return frame
        names, tasks = self.arm_names(experiment), {task: self.label(task) for task in self.tasks}
        part_rows = frame[frame["arm"].isin(list(names)) & frame["task"].isin(list(tasks))]
        return part_rows.assign(arm=part_rows["arm"].map(names), task=part_rows["task"].map(tasks))

    def entries(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those of its arms and tasks, under its names. They have a `task`, and an `arm` or a `first` and a
        `second`. Comparisons stay corrected for all pairs that were compared."""
        chosen = []
        for entry in entries:
            arms = {key: getattr(entry, key) for key in ("arm", "first", "second") if hasattr(entry, key)}
            if entry.task in self.tasks and {*arms.values()} <= {*self.arms, BASE}:
                labels = {key: self.label(arm) for key, arm in arms.items()}
                chosen.append(replace(entry, task=self.label(entry.task), **labels))
        return chosen

    def on_axes(self, pairs: Sequence[OnAxes]) -> list[OnAxes]:
        """The comparisons at equal budgets."""
        return [
            replace(
                on_axes,
                comparisons=dict(
                    zip(on_axes.comparisons, self.entries([*on_axes.comparisons.values()]), strict=True)
                ),
            )
            for on_axes in self.entries(pairs)
        ]

    def later(self, evaluations: Sequence[LaterEvaluation]) -> list[LaterEvaluation]:
        """The evaluations of its runs, and those of models."""
        return [
            replace(
                evaluation, arm=self.label(evaluation.arm), trained_task=self.label(evaluation.trained_task)
            )
            for evaluation in evaluations
            if not evaluation.trained_task
            or (evaluation.arm in self.arms and evaluation.trained_task in self.tasks)
        ]

    def curves(self, frame: pd.DataFrame, every_task: Sequence[str]) -> pd.DataFrame:
        """The rows of `sample_curves`. A place begins with its task; a task in it that is not of the
        experiment stays."""
        left_out = set(every_task) - set(self.tasks)
        tasks = frame["place"].map(lambda panel_label: re.split(r"\n| \(trained on |\)\n", panel_label))
        trained = tasks.map(lambda names: names[1] if len(names) > 2 else names[0])
        ours = frame["arm"].isin(self.arms) | (frame["policy"] == "model")
        part_rows = frame[ours & ~trained.isin(left_out)]
        return part_rows.assign(
            arm=part_rows["arm"].map(self.label), place=part_rows["place"].map(self._renamed)
        )

    def _renamed(self, panel_label: str) -> str:
        first, line, other_lines = panel_label.partition("\n")
        task, trained_on, trained = first.partition(" (trained on ")
        trained = self.label(trained.removesuffix(")")) + ")" if trained_on else ""
        return f"{self.label(task)}{trained_on}{trained}{line}{other_lines}"
