"""The sections of the page in order, and which of their figures and tables are folded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from markupsafe import Markup

from grpobench.analysis.figures.table import PrintedTable

Kind: TypeAlias = Literal["figure", "table"]


class Fold(Enum):
    """Where a part can be seen without a click."""

    OPEN = "open"
    """On the screen and in print."""
    PAPER = "paper"
    """In print; folded on the screen."""
    SCREEN = "screen"
    """Nowhere: folded on the screen and left out of print."""


@dataclass(frozen=True)
class EmbeddedFigure:
    """A figure as the page shows it."""

    name: str
    title: str
    caption: str
    markup: Markup
    narrow: Markup
    """The same figure at the width of a column, for narrow screens."""


@dataclass(frozen=True)
class SectionPart:
    """A figure or a table of a section, by its name."""

    kind: Kind
    name: str
    fold: Fold = Fold.OPEN


@dataclass(frozen=True)
class Section:
    """A section of the page, with a sentence about its figures."""

    title: str
    parts: Sequence[SectionPart]
    lead: str = ""


@dataclass(frozen=True)
class ShownPart:
    """A part with what it shows."""

    kind: Kind
    name: str
    fold: str
    title: str
    first: str
    """The first sentence of the caption, which always stands there unless it is long."""
    other_sentences: str
    """The other sentences, which are folded."""
    item: EmbeddedFigure | PrintedTable


@dataclass(frozen=True)
class ShownSection:
    """A section with its parts."""

    title: str
    anchor: str
    lead: str
    parts: Sequence[ShownPart]

    @property
    def printed(self) -> bool:
        """Whether any of it is printed."""
        return any(part.fold != Fold.SCREEN.value for part in self.parts)


def figures(*names: str, fold: Fold = Fold.OPEN) -> tuple[SectionPart, ...]:
    """Figures as parts."""
    return tuple(SectionPart("figure", name, fold) for name in names)


def tables(*names: str, fold: Fold = Fold.OPEN) -> tuple[SectionPart, ...]:
    """Tables as parts."""
    return tuple(SectionPart("table", name, fold) for name in names)


LINES = "Captions say what lines, bars and bands are. Point at a line to read its values."
DYNAMICS = "Training dynamics"
MOST_OPEN = 40
"""Most rows of a table that is not folded."""
MOST_PRINTED = 60
"""Most rows of a table that is printed."""
FIRST: Sequence[str] = ("final_accuracy",)
"""Figures of the first screen."""
# A topic adds its figures and tables to a section, or a section of its own. A section without content is left
# out.
SECTIONS: Sequence[Section] = (
    Section("Stability map", (*figures("map"), *tables("frontier", "map"))),
    Section(
        "Learning rates",
        (*figures("learning_rates"), *tables("rate_curves"), *tables("learning_rates", fold=Fold.PAPER)),
        "Every arm ran at several multiples of its own learning rate. All other sections show its own rate.",
    ),
    Section(
        "Head to head",
        (
            *figures("differences"),
            *tables("comparisons", "order", fold=Fold.PAPER),
            *tables("unresolved", "noise", "against_base", "aggregate", "improvement", fold=Fold.SCREEN),
        ),
    ),
    Section(
        "Accuracy",
        (*tables("accuracy", "mixture"), *tables("accuracy_sampled", "accuracy_greedy", fold=Fold.SCREEN)),
    ),
    Section("Several turns", (*tables("horizons"), *figures("credit"))),
    Section("Judge", tables("judge")),
    Section("Where a gain comes from", tables("sources", fold=Fold.PAPER)),
    Section(
        "Stability",
        (*figures("survival"), *tables("stability"), *tables("survival", fold=Fold.SCREEN)),
    ),
    Section("Guards", tables("guards")),
    Section("Targets", (*figures("targets"), *tables("targets", "target_pairs"))),
    Section(
        "Learning curves",
        (
            *figures("accuracy_updates"),
            *figures("accuracy_tokens", "accuracy_seconds", fold=Fold.SCREEN),
            *figures("reward"),
            *tables("equal_budgets"),
            *tables("axes", "budgets", fold=Fold.SCREEN),
        ),
        LINES,
    ),
    Section(
        "Compute curves",
        (
            *figures("compute_curve", fold=Fold.PAPER),
            *tables("compute_curves", fold=Fold.SCREEN),
        ),
    ),
    Section("Rewards", (*figures("components"), *tables("rewards"))),
    Section(
        DYNAMICS,
        (
            *figures("entropy"),
            *figures("kl", "gradient", "length", "zero_signal", fold=Fold.PAPER),
            *figures("clip", "sampled", "explained_variance", fold=Fold.SCREEN),
            *tables("critic"),
        ),
    ),
    Section(
        "Bias", (*figures("bias"), *figures("bias_updates", fold=Fold.SCREEN), *tables("bias", "probes"))
    ),
    Section("Many samples", (*figures("sampling"), *tables("pass_at_k", "majority"))),
    Section("Later evaluations", tables("evaluations", "agreement")),
    Section("Costs", (*tables("costs", "gaps"), *figures("seconds", "rates", fold=Fold.SCREEN))),
    Section("Search of settings", tables("search", fold=Fold.SCREEN)),
)
"""The page's sections in order."""
LONGEST_FIRST = 160
"""Longer first sentences (characters) are folded with the others: they define a metric in full."""
SENTENCE = re.compile(r"(.+?[.?!]) +(?=[A-Z0-9(×])", re.DOTALL)


def split_caption(text: str) -> tuple[str, str]:
    """The first sentence of a caption, and the other sentences; a long first sentence is among these."""
    sentence = SENTENCE.match(text)
    first, other_sentences = (sentence[1], text[sentence.end() :]) if sentence else (text, "")
    return (first, other_sentences) if len(first) <= LONGEST_FIRST else ("", text)


def anchor_of(title: str) -> str:
    """The id of a section."""
    return title.lower().replace(" ", "-")


def _shown(part: SectionPart, item: EmbeddedFigure | PrintedTable) -> ShownPart:
    """A part with what it shows. A long table is folded, and a very long one is not printed."""
    fold, caption = part.fold, item.caption if isinstance(item, EmbeddedFigure) else item.note
    if isinstance(item, PrintedTable):
        if len(item.rows) > MOST_PRINTED:
            fold = Fold.SCREEN
        elif len(item.rows) > MOST_OPEN and fold == Fold.OPEN:
            fold = Fold.PAPER
    first, other_sentences = split_caption(caption.strip())
    return ShownPart(part.kind, part.name, fold.value, item.title, first, other_sentences, item)


def visible_sections(
    drawn: Mapping[str, EmbeddedFigure], made: Mapping[str, PrintedTable], notes: Mapping[str, Sequence[str]]
) -> list[ShownSection]:
    """The sections with something to show, of the figures and tables that exist. `notes` are sentences about
    these runs, by the section that has them."""
    shown = []
    for section in SECTIONS:
        parts = []
        for part in section.parts:
            item = (drawn if part.kind == "figure" else made).get(part.name)
            if item is not None:
                parts.append(_shown(part, item))
        if parts:
            lead = " ".join(filter(None, (section.lead, *notes.get(section.title, ()))))
            shown.append(ShownSection(section.title, anchor_of(section.title), lead, parts))
    return shown
