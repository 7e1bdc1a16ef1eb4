"""What origin.json says of a run that was imported from a log of another library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpobench.analysis.logs.matrix import Run


def imported(run: Run) -> Mapping[str, Any]:
    """How it was imported: format, names, files, rows, faults; empty for a run of our own."""
    found = run.origin.get("imported")
    return found if isinstance(found, Mapping) else {}
