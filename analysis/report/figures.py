"""Draw the figures of a report in several processes, in the formats that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from markupsafe import Markup

from grpobench.analysis.figures.drawing import pdf_bytes, svg_text
from grpobench.analysis.figures.style import SHEETS
from grpobench.analysis.report.catalog import FIGURES, names_of
from grpobench.analysis.report.crew import NEEDS
from grpobench.analysis.report.page import element
from grpobench.analysis.report.sections import EmbeddedFigure
from grpobench.analysis.tools.processes import Crew, exclude_old_objects
from grpobench.analysis.topics.numbers import Numbers

TEXT, COLUMN = "text", "column"
Job: TypeAlias = tuple[str, str]
"""A figure and its width."""


@dataclass(frozen=True)
class RenderedFigure:
    """A figure at one width, in the requested formats; other formats are empty."""

    name: str
    title: str
    caption: str
    svg: str
    pdf: bytes
    markup: Markup
    """The figure as an element of the page."""


@dataclass(frozen=True)
class Underway:
    """The figures of a report while they are being drawn."""

    formats: Sequence[str]
    names: Sequence[str]
    draw: Callable[[Job], RenderedFigure | None]
    local_jobs: Sequence[Job]
    """Jobs that this process does."""
    helper_jobs: Sequence[Job]
    crew: Crew

    def finish(self) -> tuple[list[RenderedFigure], list[EmbeddedFigure]]:
        """Draw the remaining figures. Returns all in the order of the catalog: for files at text width, and
        for a page, if there is one, at both widths."""
        with exclude_old_objects():  # a figure is thousands of objects that refer to each other
            made = [*map(self.draw, self.local_jobs), *self.crew.finish()]
        by_job = dict(zip([*self.local_jobs, *self.helper_jobs], made, strict=True))
        wide = [drawn for name in self.names if (drawn := by_job[name, TEXT]) is not None]
        embedded = []
        for figure in wide if "html" in self.formats else ():
            narrow = by_job[figure.name, COLUMN] or figure
            embedded.append(
                EmbeddedFigure(figure.name, figure.title, figure.caption, figure.markup, narrow.markup)
            )
        return wide, embedded


def begin(numbers: Numbers, formats: Sequence[str], crew: Crew) -> Underway:
    """Let helpers draw the figures that need only logs, while this process computes all numbers. This process
    later draws the figures of these numbers itself, because each helper would compute them again."""
    names = names_of(numbers) if NEEDS & {*formats} else []
    widths = (TEXT, COLUMN) if "html" in formats else (TEXT,)
    jobs = [(name, width) for width in widths for name in names]
    local_jobs = [job for job in jobs if not FIGURES[job[0]].logs_alone]
    helper_jobs = [job for job in jobs if FIGURES[job[0]].logs_alone]
    draw = partial(draw_one, numbers, frozenset(formats))
    if helper_jobs:  # arms may be chosen by their results; computed here, these travel with the numbers
        _ = numbers.chosen
    crew.ask(draw, helper_jobs)
    return Underway(formats, names, draw, local_jobs, helper_jobs, crew)


def draw_one(numbers: Numbers, formats: frozenset[str], job: Job) -> RenderedFigure | None:
    """Draw a figure at one width; None where the logs lack its metrics."""
    name, width = job
    drawing = FIGURES[name](numbers, SHEETS[width])
    if drawing is None:
        return None
    svg = svg_text(drawing) if formats & {"html", "svg"} else ""
    label = name if width == TEXT else f"{name}-{width}"
    return RenderedFigure(
        name,
        drawing.title,
        drawing.caption,
        svg if width == TEXT and "svg" in formats else "",
        pdf_bytes(drawing) if width == TEXT and "pdf" in formats else b"",
        element(drawing, svg, label) if "html" in formats else Markup(""),
    )
