"""All numbers of one experiment, each computed when a table or figure first asks for it, and only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from grpobench.analysis.detectors.registry import Findings
from grpobench.analysis.runfolder.evaluations import LaterEvaluation, read_later
from grpobench.analysis.runfolder.experiment import Experiment, read_digests
from grpobench.analysis.statistics.comparison import Comparison
from grpobench.analysis.topics.accuracy import finals
from grpobench.analysis.topics.axes import OnAxes, compare_on_axes
from grpobench.analysis.topics.bias import bias_metrics
from grpobench.analysis.topics.comparisons import compare_arms, compare_arms_with_base
from grpobench.analysis.topics.costs import update_costs
from grpobench.analysis.topics.events import run_findings
from grpobench.analysis.topics.overview import Overview, make_overview
from grpobench.analysis.topics.sampling import run_samples, sample_curves
from grpobench.analysis.topics.sweep import Cell, classify_runs, group_cells

MOST_DRAWN = 20
"""Most arms in a figure: ten colors in two line styles. Readers cannot tell more apart."""


@dataclass(frozen=True)
class Numbers:
    """A loaded experiment and its numbers, each computed at first use and then kept."""

    experiment: Experiment

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run with its accuracies; see `finals`."""
        return finals(self.experiment, findings=self.findings)

    @cached_property
    def findings(self) -> Mapping[str, Findings]:
        """What the detectors find in each run, by its name."""
        return run_findings(self.experiment)

    @cached_property
    def every(self) -> pd.DataFrame:
        """The rows of `runs` joined with `Experiment.statuses`."""
        return self.runs.merge(self.experiment.statuses.drop(columns="state"), on=["arm", "task", "seed"])

    @cached_property
    def grid(self) -> Sequence[Cell]:
        """The cells of a map; empty where the experiment is not a map."""
        if not self.experiment.sweep_values:
            return ()
        classified = classify_runs(self.experiment, self.runs)
        return group_cells(self.experiment.sweep_values, self.experiment.tasks, classified.to_dict("records"))

    @cached_property
    def compared(self) -> Sequence[Comparison]:
        """Every pair of arms on every task; empty for a map, whose arms are sweep values, and across
        experiments."""
        return (
            ()
            if self.experiment.sweep_values or self.experiment.apart
            else compare_arms(self.experiment, self.runs)
        )

    @cached_property
    def against_base(self) -> Sequence[Comparison]:
        """Every arm on every task against its accuracy before training; empty for a map."""
        return () if self.experiment.sweep_values else compare_arms_with_base(self.experiment, self.runs)

    @cached_property
    def overview(self) -> Overview:
        """All arms on all tasks, with the verdicts of `against_base` and `compared`."""
        return make_overview(self.experiment, self.runs, self.against_base, self.compared)

    @cached_property
    def bias(self) -> pd.DataFrame:
        """The result of `bias_metrics`."""
        return bias_metrics(self.experiment)

    @cached_property
    def costs(self) -> pd.DataFrame:
        """The result of `update_costs`."""
        return update_costs(self.experiment)

    def only(self, arms: Sequence[str]) -> Numbers:
        """The numbers of some arms. Comparisons over all arms stay, because p is corrected for all pairs."""
        part = Numbers(self.experiment.only(arms))
        part.__dict__.update(  # where cached_property keeps what was computed
            runs=self.runs[self.runs["arm"].isin(arms)],
            findings=self.findings,
            grid=self.grid,
            bias=self.bias[self.bias["arm"].isin(arms)],
            costs=self.costs[self.costs["arm"].isin(arms)],
            on_axes=self.on_axes,
            against_base=[pair for pair in self.against_base if pair.first in arms],
            compared=[pair for pair in self.compared if {pair.first, pair.second} <= {*arms}],
            _later=self._later,
            curves=self.curves[self.curves["arm"].isin(arms) | (self.curves["policy"] == "model")],
        )
        return part

    @cached_property
    def on_axes(self) -> Sequence[OnAxes]:
        """Every pair of arms at equal updates, tokens and seconds; empty for a map and across experiments."""
        return (
            ()
            if self.experiment.sweep_values or self.experiment.apart
            else compare_on_axes(self.experiment, self.runs)
        )

    @cached_property
    def drawn(self) -> tuple[Numbers, str]:
        """The numbers that figures show, and what captions say about arms that are left out. With at most
        `MOST_DRAWN` arms, figures show all. Otherwise they show the first arm, with which the others are
        compared, and about equally many arms with the highest and with the lowest final accuracy (mean over
        tasks). Without accuracies they show the first arms."""
        arms = self.experiment.arms
        if len(arms) <= MOST_DRAWN or self.experiment.sweep_values:  # a map shows its arms as sweep values
            return self, ""
        by_task = self.runs.groupby(["task", "arm"], sort=False)["counted"].mean()
        final = by_task.groupby("arm", sort=False).mean().drop(arms[0]).dropna()
        ranked = list(final.sort_values(ascending=False, kind="stable").index)
        chosen, how = arms[:MOST_DRAWN], f"the first {MOST_DRAWN}"
        if len(ranked) >= MOST_DRAWN:
            high, low = MOST_DRAWN // 2, MOST_DRAWN - 1 - MOST_DRAWN // 2
            chosen = (arms[0], *ranked[:high], *ranked[-low:])
            how = f"{arms[0]}, the {high} with the highest and the {low} with the lowest final accuracy"
        note = f" The figure shows {MOST_DRAWN} of {len(arms)} arms: {how}. The tables have all arms."
        return self.only(chosen), note

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
        return sample_curves(run_samples(self.experiment), self.later)
