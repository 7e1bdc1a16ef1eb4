"""How figures look: sizes, fonts, one color per arm, and how PDF files embed the fonts."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.backends import _backend_pdf_ps
from matplotlib.ft2font import FT2Font


def use_bundled_fonts() -> None:
    """Prefer the fonts that come with matplotlib. Its cache of fonts may lack them, if another installation
    of the same version wrote it; figures then have other letters, or warn for every text."""
    manager, folder = font_manager.fontManager, Path(matplotlib.get_data_path(), "fonts", "ttf")
    cached = {font.fname for font in manager.ttflist}
    for path in sorted(folder.glob("*.ttf")):
        if str(path) not in cached:
            manager.addfont(path)
    manager.ttflist.sort(key=lambda font: not Path(font.fname).is_relative_to(folder))


use_bundled_fonts()

INK = ".15"
"""The color of text."""
PALETTE = (
    *("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc"),
    *("#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9"),
)
"""Seaborn's color-blind palette, copied with the style because importing seaborn takes a second."""
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
SIZE = 8.0
"""Font size of `STYLE` in points."""
LETTERS = (
    *("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"),
    "legend.fontsize",
)
"""The sizes of letters in `STYLE`."""
NOTE_SIZE = "small"
"""Size of notes inside panels, relative to the font size: 6.7 of 8 points."""
BASE_COLOR = "#555555"
BASE_DASH = (0, (3, 2))
DASHES: tuple[Any, ...] = ("-", (0, (4.5, 1.5)), (0, (1, 1.1)), (0, (6, 1.5, 1, 1.5)), (0, (2.5, 1)))
MARKERS = "os^DvPX<>*"
BAND = 0.16
"""Opacity of the band of an arm's interval."""


@dataclass(frozen=True)
class Sheet:
    """The page on which a figure is printed."""

    width: float
    """Width in inches."""
    across: int
    """Largest number of panels side by side."""
    family: str = "DejaVu Sans"
    size: float = SIZE
    """Font size in points of labels and titles."""

    @property
    def style(self) -> Any:
        """matplotlib's settings for this page. Letters that the font lacks are taken from matplotlib's
        own."""
        sizes = {key: STYLE[key] * self.size / SIZE for key in LETTERS}
        fonts = list(dict.fromkeys([self.family, *STYLE["font.family"]]))
        return {**STYLE, **sizes, "font.family": fonts}

    def columns(self, panels: int) -> int:
        """Panels side by side, with rows of almost equal length (five panels are three and two). Where only
        two fit, no row is half empty."""
        if not panels:
            return 1
        if self.across == 2 and panels % 2 and panels < 5:
            return 1
        return math.ceil(panels / math.ceil(panels / self.across))


TEXT = Sheet(7.0, 4)
"""The text width of a two-column page."""
COLUMN = Sheet(3.4, 2)
"""One column of that page. The report page uses this width on narrow screens."""
SHEETS: Mapping[str, Sheet] = {"column": COLUMN, "text": TEXT}


@dataclass(frozen=True)
class Look:
    """Color, line style and marker of every arm, equal in all figures. Line style and marker distinguish arms
    without color."""

    color: Mapping[str, Any]
    dash: Mapping[str, Any]
    marker: Mapping[str, str]


def look(arms: Sequence[str]) -> Look:
    """Seaborn's color-blind palette, five line styles and ten markers in the order of the recipe; no two of
    the first fifty arms have the same color and line style."""
    return Look(
        {arm: PALETTE[i % 10] for i, arm in enumerate(arms)},
        {arm: DASHES[(i + i // 10) % len(DASHES)] for i, arm in enumerate(arms)},
        {arm: MARKERS[i % len(MARKERS)] for i, arm in enumerate(arms)},
    )


# Fonts in PDF

USUAL = frozenset(map(chr, [*range(32, 127), *range(160, 256)])) | frozenset("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−–—…’‘“”≤≥→ﬀﬁﬂﬃﬄ")
"""Letters and ligatures that the first step keeps. Figures with other letters use the whole font."""


class _Font(io.BytesIO):
    """A font file in memory, for functions that take matplotlib's font paths."""

    face_index = 0


@contextlib.contextmanager
def cut_in_two_steps() -> Iterator[None]:
    """Let matplotlib reduce fonts in two steps inside the block. It works as usual if its own function is not
    the expected one.

    matplotlib parses the whole font for every figure, which takes half as long as drawing. Here the first
    step parses the font once and keeps the usual letters, and the second reduces this smaller font for each
    figure. The bytes of the PDF are the same."""
    subset_glyphs: Callable[[Any, Iterable[int]], Any] | None = getattr(
        _backend_pdf_ps, "get_glyphs_subset", None
    )
    results = getattr(_backend_pdf_ps, "SubsetResults", None)
    if subset_glyphs is None or results is None or isinstance(subset_glyphs, _Cutter):
        yield
        return
    setattr(_backend_pdf_ps, "get_glyphs_subset", _Cutter(subset_glyphs, results))  # noqa: B010
    try:
        yield
    finally:
        setattr(_backend_pdf_ps, "get_glyphs_subset", subset_glyphs)  # noqa: B010


class _Cutter:
    """Replaces `get_glyphs_subset(file, glyphs)`."""

    def __init__(
        self, subset_glyphs: Callable[[Any, Iterable[int]], Any], results: Callable[..., Any]
    ) -> None:
        self.subset_glyphs, self.results = subset_glyphs, results

    def __call__(self, file: Any, glyphs: Iterable[int]) -> Any:
        requested_glyphs = set(glyphs)
        usual, font, glyph_positions = _first_cut(self.subset_glyphs, file)
        if not requested_glyphs <= usual:
            return self.subset_glyphs(file, requested_glyphs)
        return self._second_cut(font, glyph_positions, requested_glyphs)

    @contextlib.contextmanager
    def _second_cut(
        self, font: bytes, glyph_positions: dict[int, int], requested_glyphs: set[int]
    ) -> Iterator[Any]:
        back = {there: here for here, there in glyph_positions.items()}
        with self.subset_glyphs(_Font(font), {glyph_positions[glyph] for glyph in requested_glyphs}) as cut:
            yield self.results(cut.font, {back[glyph]: at for glyph, at in cut.glyph_index_map.items()})


@lru_cache(maxsize=4)
def _first_cut(
    subset_glyphs: Callable[[Any, Iterable[int]], Any], file: Any
) -> tuple[frozenset[int], bytes, dict[int, int]]:
    """The glyphs of the usual letters, the reduced font, and the new index of each glyph. The reduced font
    also has glyphs without a letter, into which combinations of letters may change."""
    charmap = FT2Font(file).get_charmap()
    usual = frozenset(glyph for letter, glyph in charmap.items() if chr(letter) in USUAL)
    with subset_glyphs(file, usual) as cut:
        saved = io.BytesIO()
        cut.font.save(saved, reorderTables=False)
        return usual, saved.getvalue(), dict(cut.glyph_index_map)
