"""Figures as files for papers: PDF, SVG, PGF or PNG, and beside each what LaTeX needs to set it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from grpobench.analysis.figures.drawing import Drawing, pdf_bytes, png_bytes, svg_text
from grpobench.analysis.figures.style import STYLE
from grpobench.analysis.tools.latex import escape

FORMATS = ("pdf", "svg", "pgf", "png")
TEXERS = ("lualatex", "xelatex", "pdflatex")
DPI = 300


def save(drawing: Drawing, path: Path) -> None:
    """Write a figure in the format that its path ends in. Raises ValueError for another, RuntimeError for
    .pgf where there is no LaTeX."""
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
    """Write commands of pgf, whose text is set in the fonts of the paper. Raises RuntimeError where there is
    no LaTeX, which matplotlib asks for the width of every text."""
    found = next((name for name in TEXERS if shutil.which(name)), None)
    if found is None:
        raise RuntimeError(
            f"{path}: pgf needs LaTeX ({', '.join(TEXERS)}), which measures the text, and none is installed "
            "here; take --format pdf, or install one (Debian: texlive-xetex texlive-latex-recommended)"
        )
    with matplotlib.rc_context({**STYLE, "pgf.texsystem": found, "pgf.rcfonts": False}):
        drawing.figure.savefig(path, format="pgf")


def latex(drawing: Drawing, file: str, wide: bool) -> str:
    """A float with the figure at the size that it was drawn for, its caption and the label `fig:NAME`."""
    floats = "figure*" if wide else "figure"
    package, take = {
        "pgf": ("pgf", rf"\input{{{file}}}"),
        "svg": ("svg", rf"\includesvg{{{file}}}"),
    }.get(file.rpartition(".")[2], ("graphicx", rf"\includegraphics{{{file}}}"))
    inches = drawing.figure.get_figwidth()
    return "\n".join(
        [
            rf"% needs \usepackage{{{package}}}; drawn {inches:.2g} inches wide, so do not scale it",
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
    """Save a figure in each format, and its `.tex`, which takes the first of them that LaTeX reads best."""
    paths = [folder / f"{drawing.name}.{ending}" for ending in formats]
    for path in paths:
        save(drawing, path)
    best = min(formats, key=("pdf", "pgf", "png", "svg").index)
    page = folder / f"{drawing.name}.tex"
    page.write_text(latex(drawing, f"{drawing.name}.{best}", wide), encoding="utf-8")
    return [*paths, page]
