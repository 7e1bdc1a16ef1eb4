"""One table in all its forms: the same cells, and no cell that breaks out of its place."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
from markdown_it import MarkdownIt

from grpobench.analysis.figures.table import PrintedTable, plain

SMALL = plain(["arm", "points", "why"], [["grpo", "7", "up"], ["mine", "−12", ""]], 1, wide=1)
WRONG = "a|b & <b>c</b>\n_d_ \x1b[1m"
"""A cell that means something to each of the formats."""


def cells_of(text: str) -> list[str]:
    """The texts of the cells of an HTML table, in order."""
    cell_texts: list[str] = []

    class Cells(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag in ("td", "th"):
                cell_texts.append("")

        def handle_data(self, data: str) -> None:
            if cell_texts:
                cell_texts[-1] += data

    Cells().feed(text)
    return [" ".join(cell.split()) for cell in cell_texts]


def test_forms_of_a_small_table() -> None:
    assert SMALL.text() == ["arm   points  why", "grpo  7       up", "mine  −12"]
    assert SMALL.text(numbers_right=True) == ["arm   points  why", "grpo       7  up", "mine     −12"]
    assert SMALL.markdown() == [
        *("| arm | points | why |", "| --- | ---: | --- |", "| grpo | 7 | up |", "| mine | −12 |  |"),
    ]
    assert SMALL.markdown(padded=True) == [
        "| arm  | points | why |",
        "| ---- | -----: | --- |",
        "| grpo |      7 | up  |",
        "| mine |    −12 |     |",
    ]
    assert SMALL.latex().splitlines()[1:6] == [
        r"\begin{tabular}{lrl}",
        r"\toprule",
        r"arm & points & why \\",
        r"\midrule",
        r"grpo & 7 & up \\",
    ]
    assert cells_of(SMALL.html()) == ["arm", "points", "why", "grpo", "7", "up", "mine", "−12", ""]
    assert '<td class="number short">−12</td>' in SMALL.html()


def test_a_cell_stays_in_its_cell() -> None:
    table = plain(["arm", "n"], [[WRONG, "1"]])
    read = MarkdownIt().enable("table").render("\n".join(table.markdown()))
    assert len(table.markdown()) == 3 and len(cells_of(read)) == 4
    assert len(cells_of(table.html())) == 4 and "&lt;b&gt;" in table.html()
    assert r"\_d\_" in table.latex() and r"\&" in table.latex()
    assert "\x1b" not in table.latex() + "".join(table.markdown())


def test_rows_of_one_group_stand_together() -> None:
    table = PrintedTable("t", "T", ["task", "arm", "n"], [["a", "x", "1"], ["a", "y", "2"], ["b", "x", "3"]])
    assert table.latex().count(r"\addlinespace") == 1
    assert table.html().count('<tr class="group">') == 2 and table.html().count('class="repeat"') == 1
    alone = replace(table, text_columns=1)
    assert "addlinespace" not in alone.latex() and 'class="group"' not in alone.html()


def test_sentences_stand_below_the_table_and_only_on_a_page() -> None:
    table = PrintedTable(
        *("t", "T", ["task", "arm", "n", "why"], [["a", "x", "1", "<it> fell."], ["a", "y", "2", ""]]),
        wide=1,
        sentence_heading="Why",
    )
    assert table.html().endswith(
        "<summary>Why</summary><ul>\n    <li><b>a, x:</b> &lt;it&gt; fell.</li>\n  </ul></details>\n"
    )
    assert not any("fell" in form for form in (table.latex(), *table.text(), *table.markdown()))


def test_a_formula_in_the_data_is_text_for_a_spreadsheet() -> None:
    table = replace(SMALL, frame=pd.DataFrame({"=arm": ["=1+1", "grpo"], "n": [0.5, 2.0]}))
    assert [*csv.reader(io.StringIO(table.csv()))] == [["'=arm", "n"], ["'=1+1", "0.5"], ["grpo", "2.0"]]
