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
from grpobench.analysis.topics.sampling import run_samples, sample_curves
from grpobench.analysis.topics.sweep import Cell, cells, outcomes

MOST_DRAWN = 20
"""Most arms in a figure: ten colors in two line styles. Readers cannot tell more apart."""


@dataclass(frozen=True)
class Numbers:
    """A loaded experiment. Everything else is computed when it is first asked for, and once."""

    experiment: Experiment

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row per run with its accuracies, as `finals` describes them."""
        return finals(self.experiment, findings=self.findings)

    @cached_property
    def findings(self) -> Mapping[str, Findings]:
        """What the detectors find in each run, by its name."""
        return run_findings(self.experiment)

    @cached_property
    def every(self) -> pd.DataFrame:
        """The rows of `runs` with everything else that `Experiment.statuses` says of each."""
        return self.runs.merge(self.experiment.statuses.drop(columns="state"), on=["arm", "task", "seed"])

    @cached_property
    def grid(self) -> Sequence[Cell]:
        """The cells of a map; none where the experiment is no map."""
        if not self.experiment.sweep_values:
            return ()
        classified = outcomes(self.experiment, self.runs)
        return cells(self.experiment.sweep_values, self.experiment.tasks, classified.to_dict("records"))

    @cached_property
    def compared(self) -> Sequence[Comparison]:
        """Every pair of arms on every task; none in a map, whose arms are sweep values, and none across
        experiments."""
        return (
            ()
            if self.experiment.sweep_values or self.experiment.apart
            else compare_arms(self.experiment, self.runs)
        )

    @cached_property
    def against_base(self) -> Sequence[Comparison]:
        """Every arm on every task against what it was before training; none in a map."""
        return () if self.experiment.sweep_values else compare_arms_with_base(self.experiment, self.runs)

    @cached_property
    def bias(self) -> pd.DataFrame:
        """What `bias_metrics` finds."""
        return bias_metrics(self.experiment)

    @cached_property
    def costs(self) -> pd.DataFrame:
        """What `update_costs` finds."""
        return update_costs(self.experiment)

    def only(self, arms: Sequence[str]) -> Numbers:
        """Those of some arms. What was computed over all of them stays: Holm corrects for all pairs."""
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
        """Every pair of arms at equal updates, tokens and seconds; none in a map and none across
        experiments."""
        return (
            ()
            if self.experiment.sweep_values or self.experiment.apart
            else compare_on_axes(self.experiment, self.runs)
        )

    @cached_property
    def drawn(self) -> tuple[Numbers, str]:
        """What figures show, and what their captions say of the arms that are left out: all and nothing up to
        `MOST_DRAWN` arms. Of more the first, with which the others are compared, and of these about as many
        with the highest as with the lowest final accuracy, mean over tasks; without accuracies the first."""
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
        """What was evaluated after the runs, without damaged records."""
        return self._later[0]

    @cached_property
    def damage(self) -> Sequence[str]:
        """What could not be read and so counts nowhere: file, line where there is one, fault and remedy."""
        return [*self.experiment.damage, *self._later[1]]

    @cached_property
    def spared(self) -> Sequence[str]:
        """What could not be read and no number needs: problems, which checks compare. As `damage` has it."""
        return read_digests(self.experiment)[1]

    @cached_property
    def curves(self) -> pd.DataFrame:
        """pass@k and majority votes against k, as `sample_curves` describes them."""
        return sample_curves(run_samples(self.experiment), self.later)
