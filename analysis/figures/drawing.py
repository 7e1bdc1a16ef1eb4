"""A finished figure, and the formats that it is saved in.

Figures are made without pyplot, so nothing is kept open, and saved without dates and with a fixed hash salt,
so the same logs give the same bytes.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from grpobench.analysis.figures.fonts import cut_in_two_steps
from grpobench.analysis.figures.style import STYLE
from grpobench.analysis.tools.visible import visible


@dataclass(frozen=True)
class Drawing:
    """A finished figure with what stands around it."""

    name: str
    title: str
    caption: str
    figure: Figure


TIP = "tip: "


def tip(text: str) -> str:
    """What an artist's `gid` is to be so that who points at it in SVG reads this text."""
    return TIP + visible(text)


def with_tips(svg: str) -> str:
    """The SVG with the texts of `tip` as titles of their groups."""
    return re.sub(rf'<g id="{TIP}([^"]*)">', r"<g><title>\1</title>", svg)


def svg_text(drawing: Drawing) -> str:
    """The figure as SVG text, without a date."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):  # straight to the canvas: savefig would draw everything twice
        canvas: Any = FigureCanvasSVG(drawing.figure)
        canvas.print_svg(buffer, metadata={"Date": None})
    return visible(with_tips(buffer.getvalue()))


def png_bytes(drawing: Drawing, dpi: int = 200) -> bytes:
    """The figure as a PNG image."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        drawing.figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def pdf_bytes(drawing: Drawing) -> bytes:
    """The figure as PDF, without a date."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE), cut_in_two_steps():
        canvas: Any = FigureCanvasPdf(drawing.figure)
        canvas.print_pdf(buffer, metadata={"CreationDate": None})
    return buffer.getvalue()
