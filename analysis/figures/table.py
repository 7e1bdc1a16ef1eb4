"""A table of the report, and its form in LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from grpobench.analysis.tools.text import escape

PAIR = " − "
"""Between the names of two arms in one cell."""


@dataclass(frozen=True)
class Table:
    """A table as it is printed (strings) and as data (a frame)."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    frame: pd.DataFrame
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

    def relabeled(self, labels: Mapping[str, str]) -> Table:
        """The table with the names that figures use, in its head and its columns with names."""

        def name(cell: str) -> str:
            return PAIR.join(labels.get(part, part) for part in cell.split(PAIR))

        last = self.text_columns
        rows = [[*map(name, row[:last]), *row[last:]] for row in self.rows]
        return replace(self, header=[labels.get(head, head) for head in self.header], rows=rows)

    @property
    def sentences(self) -> Sequence[tuple[str, str]]:
        """(subject, sentence) of each row with a sentence."""
        names = [", ".join(row[: self.text_columns]) for row in self.rows] if self.sentence_heading else []
        return [(name, row[-1]) for name, row in zip(names, self.rows, strict=False) if row[-1]]


def text_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows for a terminal, their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def tex(table: Table) -> str:
    """The printed cells as a booktabs tabular, without a column of sentences."""
    last = table.columns
    left = set(range(table.text_columns)) | set(range(len(table.header) - table.wide, len(table.header)))
    align = "".join("l" if i in left else "r" for i in range(last))
    lines = [r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
    lines.append(" & ".join(map(escape, table.header[:last])) + r" \\")
    lines.append(r"\midrule")
    before = None
    for row in table.rows:
        if before is not None and row[0] != before and table.text_columns > 1:
            lines.append(r"\addlinespace")
        before = row[0]
        lines.append(" & ".join(map(escape, row[:last])) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
