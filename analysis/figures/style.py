"""How figures look: sizes, fonts, and one colour per arm everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import seaborn as sns

STYLE: Any = {
    **sns.axes_style("ticks"),
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
WIDTH = 7.0
"""Inches: the text width of a two-column page. One column is 3.4."""
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)))
"""Line styles for arms beyond the ten colours of the palette."""
BASE_COLOUR = "#555555"
BASE_DASH = (0, (3, 2))


@dataclass(frozen=True)
class Look:
    """Colour and line style of every arm, the same in all figures."""

    colour: Mapping[str, Any]
    dash: Mapping[str, Any]


def look(arms: Sequence[str]) -> Look:
    """Seaborn's colour-blind palette in the order of the recipe; line styles change after ten arms."""
    palette = sns.color_palette("colorblind", 10)
    return Look(
        {arm: palette[i % 10] for i, arm in enumerate(arms)},
        {arm: DASHES[i // 10 % len(DASHES)] for i, arm in enumerate(arms)},
    )


def marker_of(position: int) -> str:
    """The marker of an arm: it changes where the ten colours start again."""
    return "os^"[position // 10 % 3]
