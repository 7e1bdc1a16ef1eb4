"""Pages for which figures are drawn: the widths of columns and of text blocks, and the letters on them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from matplotlib import font_manager

from grpobench.analysis.figures.style import SIZE, Sheet
from grpobench.analysis.tools.text import nearest

WIDTHS: Mapping[str, float] = {
    "column": 3.4,
    "text": 7.0,
    "neurips": 5.5,
    "icml": 3.25,
    "icml-text": 6.75,
    "acl": 3.03,
    "acl-text": 6.3,
}
"""Name of a width -> inches: a column and the text block of a two-column page; NeurIPS has one column; for
ICML and ACL a column, and with `-text` both columns."""
BOTH_COLUMNS = ("text", "icml-text", "acl-text")
"""Widths that take both columns of a page: a `figure*`."""
NARROWEST, WIDEST = 2.0, 20.0
"""Inches between which a figure can be drawn."""
PANEL_WIDTH = 1.5
"""Least inches for a panel with its numbers."""
SMALLEST, LARGEST = 7.5, 16.0
"""Font sizes in points. Below the smallest, the smallest letters of a figure would be less than 6 points
high."""
FAMILIES: Mapping[str, str] = {"sans": "DejaVu Sans", "serif": "STIXGeneral", "mono": "DejaVu Sans Mono"}
"""Fonts that come with matplotlib, so that a figure is the same on every machine; STIXGeneral looks like
Times."""


def sheet_of(width: str | float, font: str = "") -> Sheet:
    """The page for a width (inches, or a name of `WIDTHS`) and a font: a family, a size in points or both,
    such as ``serif``, ``9`` or ``Times New Roman 9``. Raises ValueError for an unknown name or a size out of
    range."""
    inches = _inches(str(width))
    family, size = _font(font)
    return Sheet(inches, max(1, int(inches / PANEL_WIDTH)), family, size)


def takes_both_columns(width: str | float) -> bool:
    """Whether a figure of this width spans both columns of a two-column page."""
    return str(width).strip() in BOTH_COLUMNS


def _inches(text: str) -> float:
    if text in WIDTHS:
        return WIDTHS[text]
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) *(?:in|inches)?", text.strip())
    if match is None:
        raise ValueError(f"unknown width {text!r} ({nearest(text, WIDTHS)}); a number is inches")
    inches = float(match[1])
    if not NARROWEST <= inches <= WIDEST:
        raise ValueError(
            f"width {text.strip()}: a figure is drawn from {NARROWEST:g} to {WIDEST:g} inches wide"
        )
    return inches


def _font(text: str) -> tuple[str, float]:
    words = text.split()
    size = SIZE
    if words and re.fullmatch(r"\d+(\.\d+)?(pt)?", words[-1]):
        size = float(words.pop().removesuffix("pt"))
    if not SMALLEST <= size <= LARGEST:
        raise ValueError(
            f"font: {size:g} pt; choose {SMALLEST:g} to {LARGEST:g}, so that all text can be read"
        )
    family = " ".join(words) or "sans"
    if family in FAMILIES:
        return FAMILIES[family], size
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    if family not in installed:
        fonts = {**FAMILIES, **dict.fromkeys(sorted(installed))}
        raise ValueError(f"font: no font {family!r} is installed; {nearest(family, fonts)}")
    return family, size
