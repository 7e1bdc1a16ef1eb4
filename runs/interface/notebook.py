"""What a notebook must be told once: how to show a figure."""

from __future__ import annotations

import sys

from matplotlib.figure import Figure

from grpobench.analysis.figures.drawing import Drawing, png_bytes

DPI = 150
"""Dots per inch on the screen."""


def show_figures() -> None:
    """Have the notebook that this runs in, if it is one, show figures as images.

    It would print their names: IPython learns of figures from pyplot, which the report's are made without.
    What it has learnt stays.
    """
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    formatter = shell.display_formatter.formatters["image/png"]
    try:
        formatter.lookup_by_type(Figure)
    except KeyError:
        formatter.for_type(Figure, image)


def image(figure: Figure) -> bytes:
    """A figure as PNG."""
    return png_bytes(Drawing("", "", "", figure), DPI)
