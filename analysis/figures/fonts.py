"""The font that PDF figures embed, cut down to their letters in two steps.

matplotlib parses the whole font anew for every figure and cuts it down to the letters of that one: half as
long as drawing takes. Here the whole is parsed once, for the letters that figures usually have, and the font
of a figure is cut from what that left. The bytes are the same: what a letter needs the first cut keeps, and
the second asks for it again.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from matplotlib.backends import _backend_pdf_ps
from matplotlib.ft2font import FT2Font

USUAL = frozenset(map(chr, [*range(32, 127), *range(160, 256)])) | frozenset("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−–—…’‘“”≤≥→ﬀﬁﬂﬃﬄ")
"""Letters and ligatures that the first cut keeps. A figure with any other has its font cut from the whole."""


class _Font(io.BytesIO):
    """A font file in memory, for what takes matplotlib's paths of fonts."""

    face_index = 0


@contextlib.contextmanager
def cut_in_two_steps() -> Iterator[None]:
    """Within it matplotlib cuts fonts down so; as ever where its own function is not the one known here."""
    whole: Callable[[Any, Iterable[int]], Any] | None = getattr(_backend_pdf_ps, "get_glyphs_subset", None)
    results = getattr(_backend_pdf_ps, "SubsetResults", None)
    if whole is None or results is None or isinstance(whole, _Cutter):
        yield
        return
    setattr(_backend_pdf_ps, "get_glyphs_subset", _Cutter(whole, results))  # noqa: B010
    try:
        yield
    finally:
        setattr(_backend_pdf_ps, "get_glyphs_subset", whole)  # noqa: B010


class _Cutter:
    """In the place of `get_glyphs_subset(file, glyphs)`."""

    def __init__(self, whole: Callable[[Any, Iterable[int]], Any], results: Callable[..., Any]) -> None:
        self.whole, self.results = whole, results

    def __call__(self, file: Any, glyphs: Iterable[int]) -> Any:
        asked = set(glyphs)
        usual, font, places = _first_cut(self.whole, file)
        if not asked <= usual:
            return self.whole(file, asked)
        return self._second_cut(font, places, asked)

    @contextlib.contextmanager
    def _second_cut(self, font: bytes, places: dict[int, int], asked: set[int]) -> Iterator[Any]:
        back = {there: here for here, there in places.items()}
        with self.whole(_Font(font), {places[glyph] for glyph in asked}) as cut:
            yield self.results(cut.font, {back[glyph]: at for glyph, at in cut.glyph_index_map.items()})


@lru_cache(maxsize=4)
def _first_cut(
    whole: Callable[[Any, Iterable[int]], Any], file: Any
) -> tuple[frozenset[int], bytes, dict[int, int]]:
    """The glyphs of the usual letters, the font with them, and where in it the glyphs of the whole are. It
    has more glyphs, which those may become beside each other, but knows no letter for these."""
    known = FT2Font(file).get_charmap()
    usual = frozenset(glyph for letter, glyph in known.items() if chr(letter) in USUAL)
    with whole(file, usual) as cut:
        saved = io.BytesIO()
        cut.font.save(saved, reorderTables=False)
        return usual, saved.getvalue(), dict(cut.glyph_index_map)
