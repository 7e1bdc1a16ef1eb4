"""Every figure by its name, in the order of the report: the report draws them all, a notebook any one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from grpobench.analysis.figures.bias import draw_bias, draw_bias_updates
from grpobench.analysis.figures.costs import draw_rates, draw_seconds
from grpobench.analysis.figures.definitions import DEFINITIONS
from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.results import draw_differences, draw_final_accuracy, draw_validation
from grpobench.analysis.figures.sampling import draw_sampling
from grpobench.analysis.figures.style import STYLE
from grpobench.analysis.figures.training import TRAINING, draw_components, draw_gradients, draw_training
from grpobench.analysis.logs.files import LogError
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.budgets import AXES
from grpobench.analysis.summary.results import Results

Definitions: TypeAlias = Mapping[str, str]
"""Metric -> what it means."""


@dataclass(frozen=True)
class Kind:
    """A figure that can be drawn of any matrix that logs what it shows."""

    about: str
    """What it shows, in a line."""
    make: Callable[[Results, Definitions], Drawing | None]
    """None where the logs hold nothing to draw."""

    def __call__(self, matrix: Matrix | Results, definitions: Definitions | None = None) -> Drawing | None:
        """The figure with its title and caption, laid out; None where the logs hold nothing to draw.
        `definitions` are quoted in the caption, before those of `DEFINITIONS`."""
        results = matrix if isinstance(matrix, Results) else Results(matrix)
        with matplotlib.rc_context(STYLE):
            drawing = self.make(results, {**DEFINITIONS, **(definitions or {})})
            if drawing is not None:
                FigureCanvasAgg(drawing.figure)
                drawing.figure.draw_without_rendering()  # lay out once, not once per format
                drawing.figure.set_layout_engine("none")
        return drawing


def _validation(axis: str, results: Results, definitions: Definitions) -> Drawing | None:
    return draw_validation(results.matrix, axis, definitions)


def _training(name: str, results: Results, definitions: Definitions) -> Drawing | None:
    title, rows = TRAINING[name]
    return draw_training(results.matrix, name, title, rows, definitions)


FIGURES: Mapping[str, Kind] = {
    "final_accuracy": Kind(
        "final accuracy of every seed and arm, with the level before training",
        lambda results, _: draw_final_accuracy(results.matrix, results.runs),
    ),
    "sampling": Kind(
        "pass@k and majority votes against k, before and after training",
        lambda results, _: draw_sampling(results.matrix, results.curves),
    ),
    "differences": Kind(
        "paired differences of final accuracy between arms",
        lambda results, _: draw_differences(results.matrix, results.compared),
    ),
    **{
        f"accuracy_{axis}": Kind(f"validation accuracy against {meaning}", partial(_validation, axis))
        for axis, meaning in AXES.items()
    },
    **{
        name: Kind(f"{title[0].lower()}{title[1:]}, against updates", partial(_training, name))
        for name, (title, _) in TRAINING.items()
    },
    "components": Kind(
        "every part of the reward, and the verifier's verdict on the same rollouts",
        lambda results, known: draw_components(results.matrix, known),
    ),
    "gradient": Kind(
        "gradient norm of every trained role, against updates",
        lambda results, known: draw_gradients(results.matrix, known),
    ),
    "bias": Kind("bias scores by category", lambda results, _: draw_bias(results.matrix)),
    "bias_updates": Kind(
        "bias on the validation split against updates", lambda results, _: draw_bias_updates(results.matrix)
    ),
    "seconds": Kind("seconds per update, by phase", lambda results, _: draw_seconds(results.matrix)),
    "rates": Kind("tokens per second and peak memory", lambda results, _: draw_rates(results.matrix)),
}
"""In the order of the report."""


def draw(matrix: Matrix | Results, definitions: Definitions | None = None) -> Iterator[Drawing]:
    """All figures that the logs allow, one at a time."""
    results = matrix if isinstance(matrix, Results) else Results(matrix)
    for kind in FIGURES.values():
        if (drawing := kind(results, definitions)) is not None:
            yield drawing


def figure(matrix: Matrix | Results, name: str) -> Figure:
    """One figure by its name. Raises ValueError for a name that there is not, and LogError where the logs
    hold nothing to draw."""
    if name not in FIGURES:
        raise ValueError(f"unknown figure {name!r}; known: {', '.join(FIGURES)}")
    results = matrix if isinstance(matrix, Results) else Results(matrix)
    drawing = FIGURES[name](results)
    if drawing is None:
        raise LogError(f"{results.matrix.folder}: nothing is logged that figure {name!r} shows")
    return drawing.figure
