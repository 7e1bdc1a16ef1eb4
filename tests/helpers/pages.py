"""The words of a report."""

from __future__ import annotations

from pathlib import Path

from grpobench.analysis.logs.load import load
from grpobench.analysis.report.facts import gather
from grpobench.analysis.report.page import render_page
from grpobench.analysis.tools.visible import visible


def words(root: Path) -> str:
    """The report's page of a matrix as it is written, but for the figures: they take most of its time."""
    return visible(render_page(gather(load(root)), []))
