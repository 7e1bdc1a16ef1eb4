"""All numbers of one experiment, each computed when a table or figure first asks for it, and only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from grpobench.analysis.detectors.registry import Findings
from grpobench.analysis.runfolder.evaluations import LaterEvaluation, read_later
from grpobench.analysis.runfolder.experiment import RUN_KEYS, Experiment, read_digests
from grpobench.analysis.statistics.comparison import Comparison
from grpobench.analysis.topics.accuracy import answers_at_ends, finals
from grpobench.analysis.topics.axes import OnAxes, compare_on_axes
from grpobench.analysis.topics.bias import bias_metrics
from grpobench.analysis.topics.comparisons import compare_arms, compare_arms_with_base
from grpobench.analysis.topics.compute import ComputeCurve, fit_curves, trajectories
from grpobench.analysis.topics.costs import update_costs
from grpobench.analysis.topics.events import run_findings
from grpobench.analysis.topics.guards import GuardedChange, measure_guards
from grpobench.analysis.topics.overview import Overview, make_overview
from grpobench.analysis.topics.parts import Shown
from grpobench.analysis.topics.rates import RateStudy, study_rates
from grpobench.analysis.topics.sampling import sample_curves
from grpobench.analysis.topics.sources import Sources, find_sources
from grpobench.analysis.topics.sweep import SweepCell, classify_runs, group_cells

MOST_DRAWN = 20
"""Most arms in a figure: ten colors in two line styles. Readers cannot tell more apart."""


@dataclass(frozen=True)
class Numbers:
    """A loaded experiment and its numbers, each computed at first use and then kept."""

    experiment: Experiment
    shown: Shown = field(default_factory=Shown)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run with its accuracies; see `finals`."""
        return finals(self.experiment, findings=self.findings)

    @cached_property
    def findings(self) -> Mapping[str, Findings]:
        """What the detectors find in each run, by its name; also in runs at other learning rates."""
        return run_findings(self.experiment.at_all_rates)

    @cached_property
    def runs_at_all_rates(self) -> pd.DataFrame:
        """The rows of `runs`, and those of the runs at other learning rates than the arms' own."""
        if self.experiment.over_rates is None:
            return self.runs
        return finals(self.experiment.at_all_rates, findings=self.findings)

    @cached_property
    def evaluated(self) -> bool:
        """Whether any run logged an evaluation. Without one there are no accuracies to compare."""
        return bool(self.experiment.at_all_rates.names("eval/"))

    @cached_property
    def rates(self) -> RateStudy | None:
        """Arms over learning rates; None where each arm has one, or no run was evaluated."""
        return study_rates(self.experiment, self.runs_at_all_rates) if self.evaluated else None

    @cached_property
    def every(self) -> pd.DataFrame:
        """The rows of `runs` joined with `Experiment.statuses`."""
        return self.runs.merge(self.experiment.statuses.drop(columns="state"), on=RUN_KEYS)

    @cached_property
    def grid(self) -> Sequence[SweepCell]:
        """The cells of a map; empty where the experiment is not a map."""
        if not self.experiment.sweep_values:
            return ()
        classified = classify_runs(self.experiment, self.runs)
        return group_cells(self.experiment.sweep_values, self.experiment.tasks, classified.to_dict("records"))

    @cached_property
    def compared(self) -> Sequence[Comparison]:
        """Every pair of arms on every task, or those with the control; empty for a map, whose arms are sweep
        values, across experiments, and where no run was evaluated."""
        apart = self.experiment.sweep_values or self.experiment.apart
        return () if apart or not self.evaluated else compare_arms(self.experiment, self.runs)

    @cached_property
    def against_base(self) -> Sequence[Comparison]:
        """Every arm on every task against its accuracy before training; empty for a map."""
        return () if self.experiment.sweep_values else compare_arms_with_base(self.experiment, self.runs)

    @cached_property
    def sources(self) -> Sources:
        """Where the gain of every run and arm comes from."""
        return find_sources(self.experiment, self.runs)

    @cached_property
    def overview(self) -> Overview:
        """All arms on all tasks, with the verdicts of `against_base` and `compared`."""
        return make_overview(self.experiment, self.runs, self.against_base, self.compared)

    @cached_property
    def bias(self) -> pd.DataFrame:
        """The result of `bias_metrics`."""
        return bias_metrics(self.experiment)

    @cached_property
    def guards(self) -> Sequence[GuardedChange]:
        """What training changed of what it must not destroy."""
        return measure_guards(self.experiment)

    @cached_property
    def costs(self) -> pd.DataFrame:
        """The result of `update_costs`."""
        return update_costs(self.experiment)

    @cached_property
    def compute(self) -> Sequence[ComputeCurve]:
        """Accuracy against compute with fitted curves; empty for a map, whose arms are sweep values."""
        if self.experiment.sweep_values:
            return ()
        return fit_curves(trajectories(self.experiment, self.runs), self.experiment.margin)

    def showing(self, shown: Shown) -> Numbers:
        """The same numbers, of which figures show other parts. What was computed stays."""
        part = Numbers(self.experiment, shown)
        part.__dict__.update(
            {k: v for k, v in self.__dict__.items() if k not in ("shown", "drawn", "labeled", "chosen")}
        )
        return part

    @cached_property
    def on_axes(self) -> Sequence[OnAxes]:
        """Every pair of arms at equal updates, tokens and seconds; empty for a map and across experiments."""
        apart = self.experiment.sweep_values or self.experiment.apart
        return () if apart else compare_on_axes(self.experiment, self.runs)

    @cached_property
    def drawn(self) -> tuple[Numbers, str]:
        """The numbers that figures show, under the names that figures use, and what captions say about arms
        that are left out."""
        arms, note = self.chosen
        tasks = self.shown.tasks or self.experiment.tasks
        has_all = set(arms) == set(self.recipe_arms) and set(tasks) == set(self.experiment.tasks)
        if has_all and not self.shown.labels:
            return self, note
        return self._part(arms, tasks), note

    @cached_property
    def labeled(self) -> Numbers:
        """The numbers of all arms and tasks under the names that figures use."""
        if not self.shown.labels:
            return self
        return self._part(self.recipe_arms, self.experiment.tasks)

    def _part(self, arms: Sequence[str], tasks: Sequence[str]) -> PartNumbers:
        part = Shown(tuple(arms), tuple(tasks), self.shown.labels)
        return PartNumbers(part.experiment(self.experiment), all_numbers=self, part=part)

    @property
    def recipe_arms(self) -> tuple[str, ...]:
        """The arms of the recipe; those of a map are not its sweep values."""
        points = self.experiment.sweep_values
        return tuple(dict.fromkeys(point.arm for point in points.values())) or self.experiment.arms

    @cached_property
    def chosen(self) -> tuple[Sequence[str], str]:
        """The arms that figures show, and what captions say about others. Without `shown.arms` these are all
        where they are at most `MOST_DRAWN`. Otherwise they are the arm with which the others are compared
        (the control, else the first), and about equally many arms with the highest and with the lowest final
        accuracy (mean over tasks). Without accuracies they are the first arms."""
        arms = self.recipe_arms
        if self.shown.arms:
            return [arm for arm in arms if arm in self.shown.arms], ""
        if len(arms) <= MOST_DRAWN or self.experiment.sweep_values:  # a map shows its arms as sweep values
            return arms, ""
        by_task = self.runs.groupby(["task", "arm"], sort=False)["counted"].mean()
        against = self.experiment.control or arms[0]
        final = by_task.groupby("arm", sort=False).mean().drop(against).dropna()
        ranked = list(final.sort_values(ascending=False, kind="stable").index)
        chosen, how = arms[:MOST_DRAWN], f"the first {MOST_DRAWN}"
        label = self.shown.labels.get(against, against)
        if len(ranked) >= MOST_DRAWN:
            high, low = MOST_DRAWN // 2, MOST_DRAWN - 1 - MOST_DRAWN // 2
            chosen = (against, *ranked[:high], *ranked[-low:])
            how = f"{label}, the {high} with the highest and the {low} with the lowest final accuracy"
        note = f" The figure shows {MOST_DRAWN} of {len(arms)} arms: {how}. The tables have all arms."
        return [arm for arm in arms if arm in chosen], note

    @cached_property
    def _later(self) -> tuple[Sequence[LaterEvaluation], Sequence[str]]:
        faults: list[str] = []
        return read_later(self.experiment, faults), faults

    @property
    def later(self) -> Sequence[LaterEvaluation]:
        """Evaluations made after the runs, without damaged records."""
        return self._later[0]

    @cached_property
    def damage(self) -> Sequence[str]:
        """Files that could not be read and are not counted: file, line if known, fault and remedy."""
        return [*self.experiment.damage, *self._later[1]]

    @cached_property
    def spared(self) -> Sequence[str]:
        """Damaged files that no number needs (problems, which checks compare), in the form of `damage`."""
        return read_digests(self.experiment)[1]

    @cached_property
    def curves(self) -> pd.DataFrame:
        """pass@k and majority votes against k; see `sample_curves`."""
        return sample_curves(answers_at_ends(self.experiment, "sampled"), self.later)


@dataclass(frozen=True)
class PartNumbers(Numbers):
    """The numbers of a part of an experiment. Those that are computed over all arms, such as p values that
    are corrected for all pairs, are those of the whole."""

    all_numbers: Numbers = field(kw_only=True)
    part: Shown = field(kw_only=True)

    def _rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        return self.part.rows(frame, self.all_numbers.experiment)

    @cached_property
    def runs(self) -> pd.DataFrame:
        return self._rows(self.all_numbers.runs)

    @cached_property
    def findings(self) -> Mapping[str, Findings]:
        return self.all_numbers.findings

    @cached_property
    def grid(self) -> Sequence[SweepCell]:
        return self.part.entries(self.all_numbers.grid)

    @cached_property
    def runs_at_all_rates(self) -> pd.DataFrame:
        return self.all_numbers.runs_at_all_rates

    @cached_property
    def rates(self) -> RateStudy | None:
        study = self.all_numbers.rates
        if study is None:
            return None
        return RateStudy(tuple(self.part.entries(study.curves)), tuple(self.part.entries(study.pairs)))

    @cached_property
    def compared(self) -> Sequence[Comparison]:
        return self.part.entries(self.all_numbers.compared)

    @cached_property
    def against_base(self) -> Sequence[Comparison]:
        return self.part.entries(self.all_numbers.against_base)

    @cached_property
    def compute(self) -> Sequence[ComputeCurve]:
        return self.part.entries(self.all_numbers.compute)

    @cached_property
    def on_axes(self) -> Sequence[OnAxes]:
        return self.part.on_axes(self.all_numbers.on_axes)

    @cached_property
    def bias(self) -> pd.DataFrame:
        return self._rows(self.all_numbers.bias)

    @cached_property
    def guards(self) -> Sequence[GuardedChange]:
        return self.part.entries(self.all_numbers.guards)

    @cached_property
    def costs(self) -> pd.DataFrame:
        return self._rows(self.all_numbers.costs)

    @cached_property
    def _later(self) -> tuple[Sequence[LaterEvaluation], Sequence[str]]:
        return self.part.later(self.all_numbers.later), self.all_numbers._later[1]

    @cached_property
    def curves(self) -> pd.DataFrame:
        return self.part.curves(self.all_numbers.curves, self.all_numbers.experiment.tasks)
