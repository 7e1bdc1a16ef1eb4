"""Write the report of a matrix from its logs alone: a page, figures, tables, JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpobench.analysis.figures.catalogue import FIGURES, draw
from grpobench.analysis.figures.drawing import svg_text, write_pdf
from grpobench.analysis.figures.style import COLUMN
from grpobench.analysis.logs.load import load
from grpobench.analysis.report.facts import Facts, gather
from grpobench.analysis.report.machine import as_json, json_ready
from grpobench.analysis.report.page import Shown, embed, render_page
from grpobench.analysis.tables.table import tex
from grpobench.analysis.tools.visible import cell, json_text, visible

FORMATS = ("html", "pdf", "svg", "tex", "csv", "json")


def write_report(
    folder: Path, formats: Sequence[str] = FORMATS, definitions: Mapping[str, str] | None = None
) -> Path:
    """Build `<folder>/report/` and return its index.html, or the report folder where html is not asked for.

    `definitions` are metric name -> definition, quoted in captions. Raises ValueError for an unknown format
    and LogError for logs that cannot be read.
    """
    demand_known(formats)  # before logs that may take long to read
    return write(gather(load(Path(folder))), formats, definitions)


def demand_known(formats: Sequence[str]) -> None:
    """Raises ValueError for a format that there is not, and for none at all."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"unknown report format {unknown}; choose from {', '.join(FORMATS)}")


def write(
    facts: Facts,
    formats: Sequence[str] = FORMATS,
    definitions: Mapping[str, str] | None = None,
    folder: Path | None = None,
    papers: Mapping[str, str] | None = None,
) -> Path:
    """`write_report` of what was gathered already, into `folder` if one is given. Raises ValueError where
    that holds other things than an earlier report, of which nothing is left."""
    demand_known(formats)
    if folder is None:
        folder = facts.matrix.folder / "report"
    else:
        _demand_own(folder)
    _clear(folder)
    drawn = _write_figures(facts, folder / "figures", formats, definitions)
    for table in facts.tables.values():
        if "csv" in formats:
            safe = table.frame.map(cell).rename(columns=cell)
            safe.to_csv(folder / "tables" / f"{table.name}.csv", index=False)
        if "tex" in formats:
            (folder / "tables" / f"{table.name}.tex").write_text(tex(table), encoding="utf-8")
    if "json" in formats:
        text = json.dumps(json_ready(as_json(facts)), indent=1, allow_nan=False, ensure_ascii=False)
        (folder / "report.json").write_text(json_text(text) + "\n", encoding="utf-8")
    if "html" not in formats:
        return folder
    home = Path(os.path.relpath(facts.matrix.folder, folder)).as_posix()
    (folder / "index.html").write_text(visible(render_page(facts, drawn, home, papers)), encoding="utf-8")
    return folder / "index.html"


def _demand_own(folder: Path) -> None:
    """Raises ValueError for a folder with files of others, which `_clear` could take away."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names and not names & {"index.html", "report.json"}:
        raise ValueError(f"{folder}: holds other things than a report; give a folder that is new or empty")


def _clear(folder: Path) -> None:
    """Make the folders, and remove what an earlier report left, which these logs may no longer support."""
    for part, suffixes in (("figures", ("pdf", "svg")), ("tables", ("csv", "tex"))):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for suffix in suffixes:
            for stale in (folder / part).glob(f"*.{suffix}"):
                stale.unlink()


def _write_figures(
    facts: Facts, folder: Path, formats: Sequence[str], definitions: Mapping[str, str] | None
) -> list[Shown]:
    """Save every figure in the formats asked for; what the page embeds of them."""
    shown: list[Shown] = []
    if not {"html", "pdf", "svg"} & set(formats):
        return shown
    for drawing in draw(facts.numbers, definitions):
        svg = svg_text(drawing) if {"html", "svg"} & set(formats) else ""
        if "svg" in formats:
            (folder / f"{drawing.name}.svg").write_text(svg, encoding="utf-8")
        if "pdf" in formats:
            write_pdf(drawing, folder / f"{drawing.name}.pdf")
        if "html" in formats:
            column = FIGURES[drawing.name](facts.numbers, definitions, COLUMN)
            shown.append(embed(drawing, svg, column or drawing))
    return shown
