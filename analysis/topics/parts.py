"""A part of an experiment under other names: some of its arms and tasks, called as figures call them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from grpobench.analysis.runfolder.evaluations import LaterEvaluation
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.comparison import BASE, Comparison
from grpobench.analysis.topics.axes import OnAxes
from grpobench.analysis.topics.compute import ComputeCurve
from grpobench.analysis.topics.rates import RateStudy
from grpobench.analysis.topics.sweep import SweepCell


@dataclass(frozen=True)
class ReportSelection:
    """Which arms and tasks are left, and their other names. In a map, arms are those of the recipe."""

    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)

    def label(self, name: str) -> str:
        """The name of an arm or a task in this part."""
        return self.labels.get(name, name)

    def experiment(self, experiment: Experiment) -> Experiment:
        """The part of an experiment."""
        points = experiment.sweep_values
        part_arms = [arm for arm in experiment.arms if (points[arm].arm if points else arm) in self.arms]
        runs = [run for run in experiment.runs if run.arm in set(part_arms) and run.task in self.tasks]
        arm_labels: Mapping[str, str] = {} if points else self.labels

        def rows(frame: pd.DataFrame) -> pd.DataFrame:
            return _rows(frame, part_arms, self.tasks, arm_labels, self.labels)

        return replace(
            experiment,
            arms=tuple(arm_labels.get(arm, arm) for arm in part_arms),
            tasks=tuple(self.label(task) for task in experiment.tasks if task in self.tasks),
            runs=tuple(
                replace(run, arm=arm_labels.get(run.arm, run.arm), task=self.label(run.task)) for run in runs
            ),
            metrics=rows(experiment.metrics),
            evaluations=rows(experiment.evaluations),
            statuses=rows(experiment.statuses),
            control=self.label(experiment.control),
            configs={run.name: run.config for run in runs},
            sweep_values={
                arm: replace(point, arm=self.label(point.arm))
                for arm, point in points.items()
                if arm in part_arms
            },
        )

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a frame with columns `arm` and `task`."""
        return _rows(frame, self.arms, self.tasks, self.labels, self.labels)

    def comparisons(self, pairs: Sequence[Comparison]) -> list[Comparison]:
        """The comparisons between its arms. They stay corrected for all pairs that were compared."""
        return [
            replace(
                pair, task=self.label(pair.task), first=self.label(pair.first), second=self.label(pair.second)
            )
            for pair in pairs
            if pair.task in self.tasks and {pair.first, pair.second} <= {*self.arms, BASE}
        ]

    def rates(self, study: RateStudy) -> RateStudy:
        """The curves of its arms over learning rates, and the comparisons between them."""
        curves = tuple(
            replace(curve, task=self.label(curve.task), arm=self.label(curve.arm))
            for curve in study.curves
            if curve.arm in self.arms and curve.task in self.tasks
        )
        pairs = tuple(
            replace(
                pair, task=self.label(pair.task), first=self.label(pair.first), second=self.label(pair.second)
            )
            for pair in study.pairs
            if pair.task in self.tasks and {pair.first, pair.second} <= {*self.arms}
        )
        return RateStudy(curves, pairs)

    def on_axes(self, pairs: Sequence[OnAxes]) -> list[OnAxes]:
        """The comparisons at equal budgets."""
        return [
            OnAxes(self.label(on_axes.task), self.label(on_axes.first), self.label(on_axes.second), by_axis)
            for on_axes in pairs
            if (
                by_axis := {
                    axis: new
                    for axis, pair in on_axes.comparisons.items()
                    for new in self.comparisons([pair])
                }
            )
        ]

    def compute(self, fitted: Sequence[ComputeCurve]) -> list[ComputeCurve]:
        """The curves of accuracy against compute of its arms."""
        return [
            replace(curve, arm=self.label(curve.arm), task=self.label(curve.task))
            for curve in fitted
            if curve.arm in self.arms and curve.task in self.tasks
        ]

    def cells(self, grid: Sequence[SweepCell]) -> list[SweepCell]:
        """The cells of a map."""
        return [
            replace(cell, arm=self.label(cell.arm), task=self.label(cell.task))
            for cell in grid
            if cell.arm in self.arms and cell.task in self.tasks
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


def _rows(
    frame: pd.DataFrame,
    arms: Collection[str],
    tasks: Collection[str],
    arm_labels: Mapping[str, str],
    task_labels: Mapping[str, str],
) -> pd.DataFrame:
    if frame.empty:
        return frame
    part_rows = frame[frame["arm"].isin(list(arms)) & frame["task"].isin(list(tasks))]
    return part_rows.assign(
        arm=part_rows["arm"].map({name: arm_labels.get(name, name) for name in arms}),
        task=part_rows["task"].map({name: task_labels.get(name, name) for name in tasks}),
    )
