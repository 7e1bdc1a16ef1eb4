"""The numbers of a matrix: its logs with what several figures and tables are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from grpobench.analysis.detect.registry import Findings
from grpobench.analysis.logs.later import LaterEvaluation, read_later
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.statistics.comparison import Comparison
from grpobench.analysis.summary.accuracy import finals
from grpobench.analysis.summary.axes import OnAxes, compare_on_axes
from grpobench.analysis.summary.comparisons import compare_arms, compare_arms_with_base
from grpobench.analysis.summary.doses import Cell, cells, outcomes
from grpobench.analysis.summary.events import run_findings
from grpobench.analysis.summary.sampling import run_samples, sample_curves


@dataclass(frozen=True)
class Numbers:
    """A loaded matrix. Everything else is computed when it is first asked for, and once."""

    matrix: Matrix

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row per run with its accuracies, as `finals` describes them."""
        return finals(self.matrix, findings=self.findings)

    @cached_property
    def findings(self) -> Mapping[str, Findings]:
        """What the detectors find in each run, by its name."""
        return run_findings(self.matrix)

    @cached_property
    def every(self) -> pd.DataFrame:
        """The rows of `runs` with everything else that `Matrix.statuses` says of each."""
        return self.runs.merge(self.matrix.statuses.drop(columns="state"), on=["arm", "task", "seed"])

    @cached_property
    def grid(self) -> Sequence[Cell]:
        """The cells of a map; none where the matrix is no map."""
        if not self.matrix.doses:
            return ()
        found = outcomes(self.matrix, self.runs)
        return cells(self.matrix.doses, self.matrix.tasks, found.to_dict("records"))

    @cached_property
    def compared(self) -> Sequence[Comparison]:
        """Every pair of arms on every task; none in a map, whose arms are doses."""
        return () if self.matrix.doses else compare_arms(self.matrix, self.runs)

    @cached_property
    def against_base(self) -> Sequence[Comparison]:
        """Every arm on every task against what it was before training; none in a map."""
        return () if self.matrix.doses else compare_arms_with_base(self.matrix, self.runs)

    @cached_property
    def on_axes(self) -> Sequence[OnAxes]:
        """Every pair of arms at equal updates, tokens and seconds; none in a map."""
        return () if self.matrix.doses else compare_on_axes(self.matrix, self.runs)

    @cached_property
    def later(self) -> Sequence[LaterEvaluation]:
        """What was evaluated after the runs. Raises LogError where a record is damaged."""
        return read_later(self.matrix)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """pass@k and majority votes against k, as `sample_curves` describes them."""
        return sample_curves(run_samples(self.matrix), self.later)
