"""How figures look: sizes, fonts, and one colour per arm everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

INK = ".15"
"""The colour of text."""
PALETTE = (
    *("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc"),
    *("#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9"),
)
"""Seaborn's colour-blind palette. It and the style stand here because seaborn takes a second to import."""
STYLE: Any = {
    # seaborn's style "ticks"
    "figure.facecolor": "white",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "white",
    "axes.edgecolor": INK,
    "axes.spines.left": True,
    "axes.spines.bottom": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.direction": "out",
    "ytick.direction": "out",
    "xtick.bottom": True,
    "xtick.top": False,
    "ytick.left": True,
    "ytick.right": False,
    "grid.linestyle": "-",
    "lines.solid_capstyle": "round",
    "patch.edgecolor": "w",
    "patch.force_edgecolor": True,
    # ours
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same figure on every machine
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "grpobench",
}
BASE_COLOUR = "#555555"
BASE_DASH = (0, (3, 2))
DASHES: tuple[Any, ...] = ("-", (0, (4.5, 1.5)), (0, (1, 1.1)), (0, (6, 1.5, 1, 1.5)), (0, (2.5, 1)))
MARKERS = "os^DvPX<>*"
BAND = 0.16
"""How opaque the band of an arm's seeds is."""
FAINT = 0.22
"""How opaque one seed is."""


@dataclass(frozen=True)
class Sheet:
    """What a figure is printed on."""

    width: float
    """Inches."""
    across: int
    """Most panels side by side."""

    def columns(self, panels: int) -> int:
        """Panels side by side, with rows as even as they can be (five are three and two), and none that is
        half empty where only two fit."""
        if not panels:
            return 1
        if self.across == 2 and panels % 2 and panels < 5:
            return 1
        return math.ceil(panels / math.ceil(panels / self.across))


TEXT = Sheet(7.0, 4)
"""The text width of a two-column page."""
COLUMN = Sheet(3.4, 2)
"""One column of it; the page shows these where the screen is as narrow."""
SHEETS: Mapping[str, Sheet] = {"column": COLUMN, "text": TEXT}


@dataclass(frozen=True)
class Look:
    """Colour, line style and marker of every arm, the same in all figures. Line style and marker tell arms
    apart where there is no colour."""

    colour: Mapping[str, Any]
    dash: Mapping[str, Any]
    marker: Mapping[str, str]


def look(arms: Sequence[str]) -> Look:
    """Seaborn's colour-blind palette, five line styles and ten markers in the order of the recipe; no two of
    the first fifty arms have the same colour and line style."""
    return Look(
        {arm: PALETTE[i % 10] for i, arm in enumerate(arms)},
        {arm: DASHES[(i + i // 10) % len(DASHES)] for i, arm in enumerate(arms)},
        {arm: MARKERS[i % len(MARKERS)] for i, arm in enumerate(arms)},
    )
