"""A table, and its forms: text, Markdown, LaTeX, HTML and CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from markupsafe import escape as escape_html

from grpobench.analysis.tools.text import cell, escape, visible

if TYPE_CHECKING:
    import pandas as pd

PAIR = " − "
"""Between the names of two arms in one cell."""
MANY = 12
"""Columns from which on a page sets a table in smaller letters."""
SHORT, LONG = 20, 28
"""Characters up to which a page keeps a cell on one line, and beyond which it gives it more room."""


@dataclass(frozen=True)
class PrintedTable:
    """A table as it is printed (strings) and as data (a frame)."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    frame: pd.DataFrame = None  # of a table that is printed only; see `plain`
    text_columns: int = 2
    """Number of leading columns with names, aligned left. The last `wide` columns contain text."""
    wide: int = 0
    note: str = ""
    sentence_heading: str = ""
    """Heading for the last column if it contains sentences. The page lists these sentences below the table,
    because a column of sentences would be too wide."""

    @property
    def columns(self) -> int:
        """Number of columns that are printed as columns."""
        return len(self.header) - bool(self.sentence_heading)

    def relabeled(self, labels: Mapping[str, str]) -> PrintedTable:
        """The table with the names that figures use, in its head and its columns with names."""

        def name(text: str) -> str:
            return PAIR.join(labels.get(part, part) for part in text.split(PAIR))

        last = self.text_columns
        rows = [[*map(name, row[:last]), *row[last:]] for row in self.rows]
        return replace(self, header=[labels.get(head, head) for head in self.header], rows=rows)

    @property
    def sentences(self) -> Sequence[tuple[str, str]]:
        """(subject, sentence) of each row with a sentence."""
        names = [", ".join(row[: self.text_columns]) for row in self.rows] if self.sentence_heading else []
        return [(name, row[-1]) for name, row in zip(names, self.rows, strict=False) if row[-1]]

    def is_number(self, column: int) -> bool:
        """Whether a column has numbers, which Markdown, LaTeX and HTML align right."""
        return self.text_columns <= column < len(self.header) - self.wide

    def _lines(self) -> list[list[str]]:
        """The head and the rows, without a column of sentences."""
        return [list(row[: self.columns]) for row in (self.header, *self.rows)]

    def text(self, numbers_right: bool = False) -> list[str]:
        """Lines for a terminal, their columns aligned."""
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return [
            "  ".join(
                text.rjust(width) if numbers_right and self.is_number(column) else text.ljust(width)
                for column, (text, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]

    def markdown(self, padded: bool = False) -> list[str]:
        """Lines of a Markdown table; with `padded` its columns are aligned in the source too."""
        cells = [[_markdown_cell(text) for text in line] for line in self._lines()]
        widths = [max(3, *map(len, column)) if padded else 0 for column in zip(*cells, strict=True)]
        ruler = [
            "-" * (width - 1 if padded else 3) + ":" if self.is_number(column) else "-" * max(width, 3)
            for column, width in enumerate(widths)
        ]
        lines = [
            [
                text.rjust(width) if self.is_number(column) else text.ljust(width)
                for column, (text, width) in enumerate(zip(line, widths, strict=True))
            ]
            for line in cells
        ]
        return [f"| {' | '.join(line)} |" for line in (lines[0], ruler, *lines[1:])]

    def latex(self) -> str:
        """A booktabs tabular, without a column of sentences."""
        head, *rows = (" & ".join(map(escape, line)) + r" \\" for line in self._lines())
        align = "".join("r" if self.is_number(column) else "l" for column in range(self.columns))
        lines = [r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{{align}}}", r"\toprule", head]
        lines.append(r"\midrule")
        for row_index, (row, line) in enumerate(zip(self.rows, rows, strict=True)):
            if row_index and self.text_columns > 1 and row[0] != self.rows[row_index - 1][0]:
                lines.append(r"\addlinespace")
            lines.append(line)
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def html(self) -> str:
        """A table element, with the sentences in a list below it."""
        return "\n".join([*self._html_grid(), *self._html_sentences(), ""])

    def _html_grid(self) -> Iterator[str]:
        head, *rows = self._lines()
        kinds = ["number" if self.is_number(column) else "text" for column in range(self.columns)]
        kinds = [
            f"{kind} phrase" if column >= max(self.text_columns, len(self.header) - self.wide) else kind
            for column, kind in enumerate(kinds)
        ]
        yield f'  <div class="scroll"><table class="grid{" many" * (self.columns >= MANY)}">'
        yield "    <thead><tr>"
        for kind, text in zip(kinds, head, strict=True):
            yield f'      <th class="{kind}">{escape_html(text)}</th>'
        yield "    </tr></thead>\n    <tbody>"
        before = None
        for row in rows:
            again = self.text_columns > 1 and row[0] == before
            yield "      <tr>" if again or self.text_columns <= 1 else '      <tr class="group">'
            for column, (kind, text) in enumerate(zip(kinds, row, strict=True)):
                size = " short" * (len(text) <= SHORT) + " long" * (len(text) > LONG)
                shown = str(escape_html(text))
                if again and column == 0:
                    shown = f'<span class="repeat">{shown}</span>'
                yield f'        <td class="{kind}{size}">{shown}</td>'
            yield "      </tr>"
            before = row[0]
        yield "    </tbody>\n  </table></div>"

    def _html_sentences(self) -> Iterator[str]:
        if not self.sentences:
            return
        yield f'  <details class="said"><summary>{escape_html(self.sentence_heading)}</summary><ul>'
        for name, sentence in self.sentences:
            yield f"    <li><b>{escape_html(name)}:</b> {escape_html(sentence)}</li>"
        yield "  </ul></details>"

    def csv(self) -> str:
        """The data, with text that a spreadsheet would run as a formula made harmless."""
        return str(self.frame.map(cell).rename(columns=cell).to_csv(index=False))


def plain(
    header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1, wide: int = 0
) -> PrintedTable:
    """A table that is printed only."""
    return PrintedTable("", "", header, rows, text_columns=text_columns, wide=wide)


def _markdown_cell(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", visible(text)).strip().replace("|", "\\|")
