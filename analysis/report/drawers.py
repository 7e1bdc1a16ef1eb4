"""The processes that draw the figures of a report. Importing this takes no time, so that they can be started
before this process imports what it needs itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from grpobench.analysis.tools.crew import Crew, crew

FORMATS = ("html", "pdf", "svg", "tex", "csv", "json")
NEEDS = frozenset({"html", "pdf", "svg"})
"""The formats of a report that have figures."""


def drawing_crew(formats: Sequence[str], processes: int) -> AbstractContextManager[Crew]:
    """So many processes, this one included, where there are figures to draw; else this one alone."""
    return crew(processes if NEEDS & {*formats} else 1, "grpobench.analysis.report.drawn")
