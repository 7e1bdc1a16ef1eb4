"""Write the report of an experiment from its logs alone: page, figures, tables and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpobench.analysis.report.crew import FORMATS, drawing_crew
from grpobench.analysis.report.facts import Facts, as_json, gather, json_ready
from grpobench.analysis.report.figures import RenderedFigure, Underway, begin
from grpobench.analysis.report.methods import methods_tex
from grpobench.analysis.report.page import render_page
from grpobench.analysis.report.text import make_bibtex
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.tools.text import json_text, visible
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.paper import accuracy_tex
from grpobench.tasks.data.bounded import FileError


def write_report(
    folder: Path,
    formats: Sequence[str] = FORMATS,
    processes: int = 1,
) -> Path:
    """Build `<folder>/report/` and return its index.html, or the report folder where html is not asked for.

    `processes` draw the figures. Raises ValueError for an unknown format and LogError for logs that cannot be
    read.
    """
    demand_known(formats)  # before logs that may take long to read
    with drawing_crew(formats, processes) as drawers:
        numbers = Numbers(load(Path(folder)))
        figures = begin(numbers, formats, drawers)
        return write(gather(numbers), figures, formats)


def demand_known(formats: Sequence[str]) -> None:
    """Raise ValueError for an unknown format, and for no format at all."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"unknown report format {unknown}; choose from {', '.join(FORMATS)}")


def write(
    facts: Facts,
    figures: Underway,
    formats: Sequence[str] = FORMATS,
    folder: Path | None = None,
    papers: Mapping[str, str] | None = None,
) -> Path:
    """Write the report of gathered facts, into `folder` if one is given. It replaces the files of an earlier
    report in these formats and leaves those in other formats. Other files in `folder` raise ValueError, and a
    file where a folder would be raises FileError."""
    demand_known(formats)
    if folder is None:
        folder = facts.experiment.folder / "report"
    else:
        _demand_own(folder)
    for path in (folder, folder / "figures", folder / "tables"):
        if path.exists() and not path.is_dir():
            raise FileError(path, "a file, where a folder of the report would be; move or delete it")
    _clear(folder, formats)
    for table in facts.tables.values():
        if "csv" in formats:
            (folder / "tables" / f"{table.name}.csv").write_text(table.csv(), encoding="utf-8", newline="")
        if "tex" in formats:
            (folder / "tables" / f"{table.name}.tex").write_text(
                table.relabeled(facts.numbers.shown.labels).latex(), encoding="utf-8"
            )
    if "tex" in formats:
        write_paper(facts, folder, papers or {})
    if "json" in formats:
        text = json.dumps(json_ready(as_json(facts)), indent=1, allow_nan=False, ensure_ascii=False)
        (folder / "report.json").write_text(json_text(text) + "\n", encoding="utf-8")
    drawn, embedded = figures.finish()
    _save(drawn, folder / "figures", formats)
    if "html" not in formats:
        return folder
    home = Path(os.path.relpath(facts.experiment.folder, folder)).as_posix()
    (folder / "index.html").write_text(visible(render_page(facts, embedded, home, papers)), encoding="utf-8")
    return folder / "index.html"


def write_paper(facts: Facts, folder: Path, papers: Mapping[str, str]) -> None:
    """Write the table of accuracies for a paper, the methods paragraph and the BibTeX entries."""
    if table := accuracy_tex(facts.numbers):
        (folder / "tables" / "accuracy_paper.tex").write_text(table, encoding="utf-8")
    (folder / "methods.tex").write_text(methods_tex(facts, papers), encoding="utf-8")
    (folder / "references.bib").write_text(
        f"{visible(make_bibtex(facts.experiment, papers))}\n", encoding="utf-8"
    )


WRITTEN: Mapping[str, Sequence[str]] = {
    "html": ("index.html",),
    "pdf": ("figures/*.pdf",),
    "svg": ("figures/*.svg",),
    "tex": ("methods.tex", "references.bib", "tables/*.tex"),
    "csv": ("tables/*.csv",),
    "json": ("report.json",),
}
"""The files of a report by format."""


def _demand_own(folder: Path) -> None:
    """Raise ValueError for a folder with other files, which `_clear` could remove."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names and not names & {"index.html", "report.json", "methods.tex"}:
        raise ValueError(
            f"{folder}: contains files that are not a report; choose a folder that is new or empty"
        )


def _clear(folder: Path, formats: Sequence[str]) -> None:
    """Make the folders, and remove what an earlier report wrote in these formats: these logs may have no such
    figure or table any more."""
    for part in ("figures", "tables"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name in formats:
        for pattern in WRITTEN[name]:
            for stale in folder.glob(pattern):
                stale.unlink()


def _save(figures: Sequence[RenderedFigure], folder: Path, formats: Sequence[str]) -> None:
    """Write the figures as files."""
    for figure in figures:
        if "svg" in formats:
            (folder / f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")
        if "pdf" in formats:
            (folder / f"{figure.name}.pdf").write_bytes(figure.pdf)
