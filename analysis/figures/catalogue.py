"""Every figure by its name, in the order of the report: the report draws them all, a notebook any one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from grpobench.analysis.figures.bias import draw_bias, draw_bias_updates
from grpobench.analysis.figures.costs import draw_rates, draw_seconds
from grpobench.analysis.figures.definitions import DEFINITIONS
from grpobench.analysis.figures.doses import draw_map
from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.results import draw_differences, draw_final_accuracy, draw_validation
from grpobench.analysis.figures.sampling import draw_sampling
from grpobench.analysis.figures.stability import draw_survival
from grpobench.analysis.figures.style import STYLE, TEXT, Sheet
from grpobench.analysis.figures.training import TRAINING, draw_components, draw_gradients, draw_training
from grpobench.analysis.logs.files import LogError
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.budgets import AXES
from grpobench.analysis.summary.numbers import Numbers

Definitions: TypeAlias = Mapping[str, str]
"""Metric -> what it means."""


@dataclass(frozen=True)
class Kind:
    """A figure that can be drawn of any matrix that logs what it shows."""

    about: str
    """What it shows, in a line."""
    make: Callable[[Numbers, Definitions, Sheet], Drawing | None]
    """None where the logs hold nothing to draw."""
    logs_alone: bool = False
    """Whether it shows what was logged and nothing that is computed over runs."""

    def __call__(
        self, matrix: Matrix | Numbers, definitions: Definitions | None = None, sheet: Sheet = TEXT
    ) -> Drawing | None:
        """The figure with its title and caption, laid out; None where the logs hold nothing to draw.
        `definitions` are quoted in the caption, before those of `DEFINITIONS`."""
        numbers, left_out = (matrix if isinstance(matrix, Numbers) else Numbers(matrix)).drawn
        with matplotlib.rc_context(STYLE):
            drawing = self.make(numbers, {**DEFINITIONS, **(definitions or {})}, sheet)
            if drawing is None:
                return None
            lay_out(drawing.figure)
        apart = f" {numbers.matrix.apart}" if numbers.matrix.apart else ""
        return replace(drawing, caption=drawing.caption + left_out + apart)

    def serves(self, matrix: Matrix | Numbers) -> bool:
        """Whether the logs hold anything to draw."""
        numbers, _ = (matrix if isinstance(matrix, Numbers) else Numbers(matrix)).drawn
        with matplotlib.rc_context(STYLE):
            return self.make(numbers, DEFINITIONS, TEXT) is not None


def lay_out(figure: Figure) -> None:
    """Place the panels once and for all, not anew for each format."""
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")


def _validation(axis: str, numbers: Numbers, definitions: Definitions, sheet: Sheet) -> Drawing | None:
    return draw_validation(numbers.matrix, axis, definitions, sheet)


def _training(name: str, numbers: Numbers, definitions: Definitions, sheet: Sheet) -> Drawing | None:
    title, rows = TRAINING[name]
    return draw_training(numbers.matrix, name, title, rows, definitions, sheet)


FIGURES: Mapping[str, Kind] = {
    "map": Kind(
        "where each arm learns, stalls, drifts and collapses over the doses of a map",
        lambda numbers, _, sheet: draw_map(numbers.matrix, numbers.grid, sheet),
    ),
    "final_accuracy": Kind(
        "final accuracy of every seed and arm, with the level before training",
        lambda numbers, _, sheet: draw_final_accuracy(numbers.matrix, numbers.runs, sheet),
    ),
    "sampling": Kind(
        "pass@k and majority votes against k, before and after training",
        lambda numbers, _, sheet: draw_sampling(numbers.matrix, numbers.curves, sheet),
    ),
    "survival": Kind(
        "share of runs that have not collapsed, by step, of tasks and doses at which one did",
        lambda numbers, _, sheet: draw_survival(numbers.matrix, numbers.findings, sheet),
    ),
    "differences": Kind(
        "paired differences of final accuracy between arms",
        lambda numbers, _, sheet: draw_differences(numbers.matrix, numbers.compared, sheet),
    ),
    **{
        f"accuracy_{axis}": Kind(f"validation accuracy against {meaning}", partial(_validation, axis), True)
        for axis, meaning in AXES.items()
    },
    **{
        name: Kind(f"{title[0].lower()}{title[1:]}, against updates", partial(_training, name), True)
        for name, (title, _) in TRAINING.items()
    },
    "components": Kind(
        "every part of the reward, and the verifier's verdict on the same rollouts",
        lambda numbers, known, sheet: draw_components(numbers.matrix, known, sheet),
        True,
    ),
    "gradient": Kind(
        "gradient norm of every trained role, against updates",
        lambda numbers, known, sheet: draw_gradients(numbers.matrix, known, sheet),
        True,
    ),
    "bias": Kind(
        "bias scores by category",
        lambda numbers, _, sheet: draw_bias(numbers.matrix, numbers.bias, sheet),
    ),
    "bias_updates": Kind(
        "bias on the validation split against updates",
        lambda numbers, _, sheet: draw_bias_updates(numbers.matrix, sheet),
        True,
    ),
    "seconds": Kind(
        "seconds per update, by phase",
        lambda numbers, _, sheet: draw_seconds(numbers.matrix, numbers.costs, sheet),
    ),
    "rates": Kind(
        "tokens per second and peak memory",
        lambda numbers, _, sheet: draw_rates(numbers.matrix, numbers.costs, sheet),
    ),
}
"""In the order of the report."""


def draw(matrix: Matrix | Numbers, definitions: Definitions | None = None) -> Iterator[Drawing]:
    """All figures that the logs allow, one at a time."""
    numbers = matrix if isinstance(matrix, Numbers) else Numbers(matrix)
    for name in names_of(numbers):
        if (drawing := FIGURES[name](numbers, definitions)) is not None:
            yield drawing


def names_of(numbers: Numbers) -> list[str]:
    """The figures that a report tries to draw: of a map, whose arms are doses and would be dozens of lines in
    every panel, the map and how long runs last."""
    return ["map", "survival"] if numbers.matrix.doses else list(FIGURES)


def figure(matrix: Matrix | Numbers, name: str) -> Figure:
    """One figure by its name. Raises ValueError for a name that there is not, and LogError where the logs
    hold nothing to draw."""
    if name not in FIGURES:
        raise ValueError(f"unknown figure {name!r}; known: {', '.join(FIGURES)}")
    numbers = matrix if isinstance(matrix, Numbers) else Numbers(matrix)
    drawing = FIGURES[name](numbers)
    if drawing is None:
        raise LogError(f"{numbers.matrix.folder}: nothing is logged that figure {name!r} shows")
    return drawing.figure
