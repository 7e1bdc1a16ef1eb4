"""The processes that draw the figures of a report."""

# Importing this module takes no time, so a command can start the processes before it imports what it needs.

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from grpobench.analysis.tools.processes import Crew, crew

FORMATS = ("html", "pdf", "svg", "tex", "csv", "json")
NEEDS = frozenset({"html", "pdf", "svg"})
"""The report formats that contain figures."""


def drawing_crew(formats: Sequence[str], processes: int) -> AbstractContextManager[Crew]:
    """A crew of `processes` processes, including this one, or of this process alone without figures."""
    return crew(processes if NEEDS & {*formats} else 1, "grpobench.analysis.report.figures")
