"""Every table and figure of a report by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.style import TEXT, Sheet
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.topics.accuracy import accuracy_table, other_mode_table
from grpobench.analysis.topics.bias import bias_table, draw_bias, draw_bias_updates, probes_table
from grpobench.analysis.topics.comparisons import (
    against_base_table,
    aggregate_table,
    comparisons_table,
    improvement_table,
)
from grpobench.analysis.topics.compute import compute_table, draw_compute_curves
from grpobench.analysis.topics.costs import (
    axes_table,
    budgets_table,
    costs_table,
    draw_rates,
    draw_seconds,
    equal_budgets_table,
    gaps_table,
)
from grpobench.analysis.topics.evaluations import agreement_table, later_table
from grpobench.analysis.topics.figure_names import AXES, TRAINING
from grpobench.analysis.topics.guards import guards_table
from grpobench.analysis.topics.judges import judges_table
from grpobench.analysis.topics.mixtures import order_table, parts_table
from grpobench.analysis.topics.noise import noise_table
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.overview import differences_table, overview_table
from grpobench.analysis.topics.rate_views import draw_learning_rates, rate_curves_table, rate_pairs_table
from grpobench.analysis.topics.results import draw_differences, draw_final_accuracy, draw_validation
from grpobench.analysis.topics.runs import runs_table
from grpobench.analysis.topics.sampling import draw_sampling, samples_table
from grpobench.analysis.topics.search import search_table
from grpobench.analysis.topics.sources import sources_table
from grpobench.analysis.topics.stability import draw_survival, stability_table, survival_table
from grpobench.analysis.topics.sweep import SweepAxes, SweepCell, axes_of, draw_map, frontier_table, map_table
from grpobench.analysis.topics.targets import draw_targets, target_pairs_table, targets_table
from grpobench.analysis.topics.training import (
    critic_table,
    draw_components,
    draw_gradients,
    draw_training,
    rewards_table,
)
from grpobench.analysis.topics.turns import draw_credit, horizons_table
from grpobench.analysis.topics.unresolved import unresolved_table


def _other_mode(mode: str, numbers: Numbers) -> PrintedTable | None:
    return other_mode_table(numbers.experiment, numbers.runs, mode, numbers.findings)


def _of_grid(
    table: Callable[[SweepAxes, Sequence[SweepCell]], PrintedTable | None], numbers: Numbers
) -> PrintedTable | None:
    axes = axes_of(numbers.experiment.sweep_values)
    return table(axes, numbers.grid) if axes else None


MakeTable: TypeAlias = Callable[[Numbers], PrintedTable | None]

OF_ACCURACIES: Mapping[str, MakeTable] = {
    "overview": lambda numbers: overview_table(numbers.overview),
    "differences": lambda numbers: differences_table(numbers.overview, numbers.compared),
    "learning_rates": lambda numbers: rate_pairs_table(numbers.rates),
    "rate_curves": lambda numbers: rate_curves_table(numbers.rates),
    "comparisons": lambda numbers: comparisons_table(
        numbers.compared,
        numbers.experiment.plan,
        numbers.experiment.control,
        numbers.rates.words if numbers.rates else None,
    ),
    "unresolved": lambda numbers: unresolved_table(numbers.compared, numbers.experiment.plan),
    "noise": lambda numbers: noise_table(numbers.experiment, numbers.runs),
    "against_base": lambda numbers: against_base_table(numbers.against_base),
    "aggregate": lambda numbers: aggregate_table(numbers.experiment, numbers.runs),
    "improvement": lambda numbers: improvement_table(numbers.experiment, numbers.runs),
    "order": lambda numbers: order_table(numbers.experiment, numbers.runs),
    "accuracy": lambda numbers: accuracy_table(numbers.experiment, numbers.runs),
    "mixture": lambda numbers: parts_table(numbers.experiment, numbers.runs),
}
"""The first tables of a report by name, in its order; none where no run was evaluated."""
OF_LOGS: Mapping[str, MakeTable] = {
    "accuracy_sampled": partial(_other_mode, "sampled"),
    "accuracy_greedy": partial(_other_mode, "greedy"),
    "horizons": lambda numbers: horizons_table(numbers.experiment),
    "sources": lambda numbers: sources_table(numbers.sources),
    "stability": lambda numbers: stability_table(numbers.experiment, numbers.findings, numbers.runs),
    "survival": lambda numbers: survival_table(numbers.experiment, numbers.findings),
    "pass_at_k": lambda numbers: samples_table(numbers.curves, "pass"),
    "majority": lambda numbers: samples_table(numbers.curves, "maj"),
    "targets": lambda numbers: targets_table(numbers.experiment),
    "target_pairs": lambda numbers: target_pairs_table(numbers.experiment),
    "guards": lambda numbers: guards_table(numbers.guards),
    "budgets": lambda numbers: budgets_table(numbers.experiment),
    "equal_budgets": lambda numbers: equal_budgets_table(numbers.experiment),
    "axes": lambda numbers: axes_table(numbers.on_axes),
    "search": lambda numbers: search_table(search) if (search := numbers.experiment.search) else None,
    "compute_curves": lambda numbers: compute_table(numbers.compute),
    "costs": lambda numbers: costs_table(numbers.costs),
    "gaps": lambda numbers: gaps_table(numbers.experiment),
    "rewards": lambda numbers: rewards_table(numbers.experiment),
    "critic": lambda numbers: critic_table(numbers.experiment),
    "bias": lambda numbers: bias_table(numbers.experiment, numbers.bias),
    "judge": lambda numbers: judges_table(numbers.experiment),
    "probes": lambda numbers: probes_table(numbers.experiment, numbers.later),
    "evaluations": lambda numbers: later_table(numbers.later),
    "agreement": lambda numbers: agreement_table(numbers.later),
    "runs": lambda numbers: runs_table(numbers.experiment),
}
"""The tables that follow."""
OF_MAPS: Mapping[str, MakeTable] = {
    "map": partial(_of_grid, map_table),
    "frontier": partial(_of_grid, frontier_table),
    "runs": OF_LOGS["runs"],
}
"""The tables of a map. Its arms are sweep values, whose pairs would be hundreds of rows."""


class Tables(Mapping[str, PrintedTable]):
    """The tables of a report that have rows, by name, each made when it is first used."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._makers = OF_MAPS if numbers.experiment.sweep_values else {**OF_ACCURACIES, **OF_LOGS}
        self._made: dict[str, PrintedTable | None] = {}

    def __getitem__(self, name: str) -> PrintedTable:
        if name in OF_ACCURACIES and not self._numbers.evaluated:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = self._makers[name](self._numbers)
        table = self._made[name]
        if table is None or not table.rows:
            raise KeyError(name)
        return table

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._makers if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


# Figures


@dataclass(frozen=True)
class Kind:
    """A figure that can be drawn for any experiment that logs its metrics."""

    make: Callable[[Numbers, Sheet], Drawing | None]
    """Draws the figure; returns None where the logs lack its metrics."""
    logs_alone: bool = False
    """Whether it shows logged values only, and no numbers computed over runs."""

    def __call__(self, experiment: Experiment | Numbers, sheet: Sheet = TEXT) -> Drawing | None:
        """The figure with title, caption and layout; None where the logs lack its metrics."""
        numbers, left_out = (experiment if isinstance(experiment, Numbers) else Numbers(experiment)).drawn
        with matplotlib.rc_context(sheet.style):
            drawing = self.make(numbers, sheet)
            if drawing is None:
                return None
            lay_out(drawing.figure)
        apart = f" {numbers.experiment.apart}" if numbers.experiment.apart else ""
        return replace(drawing, caption=drawing.caption + left_out + apart)

    def serves(self, experiment: Experiment | Numbers) -> bool:
        """Whether the logs contain anything to draw."""
        numbers, _ = (experiment if isinstance(experiment, Numbers) else Numbers(experiment)).drawn
        with matplotlib.rc_context(TEXT.style):
            return self.make(numbers, TEXT) is not None


def lay_out(figure: Figure) -> None:
    """Compute the layout once, so that it is not computed again for each format."""
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")


def _validation(axis: str, numbers: Numbers, sheet: Sheet) -> Drawing | None:
    return draw_validation(numbers.experiment, axis, sheet)


def _training(name: str, numbers: Numbers, sheet: Sheet) -> Drawing | None:
    title, rows = TRAINING[name]
    return draw_training(numbers.experiment, name, title, rows, sheet)


FIGURES: Mapping[str, Kind] = {
    "map": Kind(lambda numbers, sheet: draw_map(numbers.experiment, numbers.grid, sheet)),
    "learning_rates": Kind(
        lambda numbers, sheet: draw_learning_rates(numbers.experiment, numbers.rates, sheet)
    ),
    "final_accuracy": Kind(
        lambda numbers, sheet: draw_final_accuracy(numbers.experiment, numbers.runs, sheet)
    ),
    "sampling": Kind(lambda numbers, sheet: draw_sampling(numbers.experiment, numbers.curves, sheet)),
    "survival": Kind(lambda numbers, sheet: draw_survival(numbers.experiment, numbers.findings, sheet)),
    "differences": Kind(lambda numbers, sheet: draw_differences(numbers.experiment, numbers.compared, sheet)),
    "targets": Kind(lambda numbers, sheet: draw_targets(numbers.experiment, sheet)),
    **{f"accuracy_{axis}": Kind(partial(_validation, axis), True) for axis in AXES},
    "compute_curve": Kind(
        lambda numbers, sheet: draw_compute_curves(numbers.experiment, numbers.compute, sheet)
    ),
    **{name: Kind(partial(_training, name), True) for name in TRAINING},
    "components": Kind(lambda numbers, sheet: draw_components(numbers.experiment, sheet), True),
    "credit": Kind(lambda numbers, sheet: draw_credit(numbers.experiment, sheet), True),
    "gradient": Kind(lambda numbers, sheet: draw_gradients(numbers.experiment, sheet), True),
    "bias": Kind(lambda numbers, sheet: draw_bias(numbers.experiment, numbers.bias, sheet)),
    "bias_updates": Kind(lambda numbers, sheet: draw_bias_updates(numbers.experiment, sheet), True),
    "seconds": Kind(lambda numbers, sheet: draw_seconds(numbers.experiment, numbers.costs, sheet)),
    "rates": Kind(lambda numbers, sheet: draw_rates(numbers.experiment, numbers.costs, sheet)),
}
"""All figures, in the order of the report. `FIGURE_SUMMARIES` says what each shows."""


def names_of(numbers: Numbers) -> list[str]:
    """Names of the figures that a report tries to draw. For a map these are only the map and survival,
    because its arms are sweep values and would be dozens of lines in every panel."""
    return ["map", "survival"] if numbers.experiment.sweep_values else list(FIGURES)


def figure(experiment: Experiment | Numbers, name: str) -> Figure:
    """One figure by name. Raises ValueError for an unknown name, and LogError where the logs lack its
    metrics."""
    if name not in FIGURES:
        raise ValueError(f"unknown figure {name!r}; known: {', '.join(FIGURES)}")
    numbers = experiment if isinstance(experiment, Numbers) else Numbers(experiment)
    drawing = FIGURES[name](numbers)
    if drawing is None:
        raise LogError(f"{numbers.experiment.folder}: nothing is logged that figure {name!r} shows")
    return drawing.figure
