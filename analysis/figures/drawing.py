"""A finished figure, and the formats in which it is saved."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from grpobench.analysis.figures.style import STYLE, cut_in_two_steps
from grpobench.analysis.tools.text import escape, visible


@dataclass(frozen=True)
class Drawing:
    """A finished figure with its title and caption."""

    name: str
    title: str
    caption: str
    figure: Figure


TIP = "tip: "


def tip(text: str) -> str:
    """The `gid` that gives an artist this text as a tooltip in SVG."""
    return TIP + visible(text)


def with_tips(svg: str) -> str:
    """The SVG with the texts of `tip` as tooltips of their groups."""
    return re.sub(rf'<g id="{TIP}([^"]*)">', r"<g><title>\1</title>", svg)


def svg_text(drawing: Drawing) -> str:
    """The figure as SVG text, without a date."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):  # use the canvas directly, because savefig draws everything twice
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


# Files for papers

FORMATS = ("pdf", "svg", "pgf", "png")
TEXERS = ("lualatex", "xelatex", "pdflatex")
DPI = 300


def save(drawing: Drawing, path: Path) -> None:
    """Write a figure in the format of its path's suffix. Raises ValueError for an unknown suffix, and
    RuntimeError for .pgf without LaTeX.

    Files have no date and a fixed hash salt, so the same figure gives the same bytes."""
    ending = path.suffix.removeprefix(".")
    if ending == "pdf":
        path.write_bytes(pdf_bytes(drawing))
    elif ending == "svg":
        path.write_text(svg_text(drawing), encoding="utf-8")
    elif ending == "png":
        path.write_bytes(png_bytes(drawing, DPI))
    elif ending == "pgf":
        write_pgf(drawing, path)
    else:
        raise ValueError(f"{path}: a figure is saved as {', '.join(f'.{name}' for name in FORMATS)}")


def write_pgf(drawing: Drawing, path: Path) -> None:
    """Write the figure as pgf commands, which use the fonts of the paper. Raises RuntimeError without LaTeX,
    which matplotlib needs to measure text."""
    program = next((name for name in TEXERS if shutil.which(name)), None)
    if program is None:
        raise RuntimeError(
            f"{path}: pgf needs LaTeX ({', '.join(TEXERS)}), which measures the text, and none is installed "
            "here; take --format pdf, or install one (Debian: texlive-xetex texlive-latex-recommended)"
        )
    with matplotlib.rc_context({**STYLE, "pgf.texsystem": program, "pgf.rcfonts": False}):
        drawing.figure.savefig(path, format="pgf")


def latex(drawing: Drawing, file: str, wide: bool) -> str:
    """A LaTeX float with the figure at its original size, its caption and the label `fig:NAME`."""
    floats = "figure*" if wide else "figure"
    package, take = {
        "pgf": ("pgf", rf"\input{{{file}}}"),
        "svg": ("svg", rf"\includesvg{{{file}}}"),
    }.get(file.rpartition(".")[2], ("graphicx", rf"\includegraphics{{{file}}}"))
    inches = drawing.figure.get_figwidth()
    return "\n".join(
        [
            rf"% needs \usepackage{{{package}}}; drawn {inches:g} inches wide, so do not scale it",
            "% where the file is not beside the paper, write in the preamble, with its folder:",
            r"% \graphicspath{{figures/}}",
            rf"\begin{{{floats}}}[t]",
            r"  \centering",
            f"  {take}",
            rf"  \caption{{{escape(drawing.title)}. {escape(drawing.caption)}}}",
            rf"  \label{{fig:{drawing.name.replace('_', '-')}}}",
            rf"\end{{{floats}}}",
            "",
        ]
    )


def write_files(drawing: Drawing, folder: Path, formats: Sequence[str], wide: bool) -> list[Path]:
    """Save a figure in each format, a `.tex` file that includes the format that suits LaTeX best, and a
    `.txt` file with the caption."""
    paths = [folder / f"{drawing.name}.{ending}" for ending in formats]
    for path in paths:
        save(drawing, path)
    best = min(formats, key=("pdf", "pgf", "png", "svg").index)
    page, caption = (folder / f"{drawing.name}.{ending}" for ending in ("tex", "txt"))
    page.write_text(latex(drawing, f"{drawing.name}.{best}", wide), encoding="utf-8")
    caption.write_text(visible(f"{drawing.title}. {drawing.caption}\n"), encoding="utf-8")
    return [*paths, page, caption]
