"""Write the report of an experiment; other processes draw its figures while pandas is loading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpobench.analysis.report.crew import drawing_crew
from grpobench.analysis.tools.processes import usable_cores

if TYPE_CHECKING:
    from grpobench.analysis.report.facts import Facts


def report(
    folder: Path,
    formats: Sequence[str],
    show: Callable[[str], None],
    margin: float | None = None,
    strict: bool = False,
    targets: Sequence[float] = (),
) -> tuple[Path, Facts]:
    """Write the report of an experiment. Returns where it is, and every number of it; `show` is told first
    what is damaged and so left out. Raises LogError, if `strict` for anything that is damaged."""
    with drawing_crew(formats, usable_cores()) as drawers:
        # These load pandas and matplotlib, as the crew's helpers do meanwhile.
        from grpobench.analysis.checks.alarms import DAMAGED_TITLE, SPARED
        from grpobench.runs.api.results import load

        results = load(folder, margin=margin, strict=strict, targets=targets)
        for title in (DAMAGED_TITLE, SPARED):
            for fault in results.alarms.get(title, ()):
                show(f"{title[0].lower()}{title[1:]}: {fault}")
        return results.write(drawers, formats=formats), results.facts
