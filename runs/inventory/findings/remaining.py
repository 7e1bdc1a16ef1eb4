"""How long the findings that `grpobench finding run all` has not finished will take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpobench.runs.inventory.findings.records import kept_path
from grpobench.runs.runfolder.logs import settled
from grpobench.runs.settings.findings import read_finding
from grpobench.runs.tools import machine
from grpobench.runs.tools.progress import duration


@dataclass(frozen=True)
class Remaining:
    """What is left of a finding."""

    name: str
    runs: int
    """Runs without a result."""
    seconds: float
    """Their time on one core, by the kept table's mean over its runs; NaN where nothing is kept."""


def remaining(name: str, scale: str, out: Path, sets: Sequence[str] = ()) -> Remaining:
    """With the overrides of `--set`. Raises ConfigError for a finding without the scale."""
    from grpobench.analysis.findings.record import read_kept

    study = read_finding(name)
    recipe = study.recipe(scale, sets)
    runs = sum(not settled(out / recipe.name / config.folder) for config in recipe.runs())
    path = kept_path(study, scale)
    record = read_kept(path) if path else None
    each = record.provenance.seconds / len(record.states) if record and record.states else math.nan
    return Remaining(name, runs, runs * each if runs else 0.0)


def time_left(left: Sequence[Remaining], workers: int | None) -> str:
    """`about 6:10:00 left with 2 workers, without baseline, whose runs were never timed`."""
    count = workers or machine.count_worker_slots(None)
    seconds_left = sum(finding.seconds for finding in left if math.isfinite(finding.seconds)) / count
    untimed = [finding.name for finding in left if not math.isfinite(finding.seconds)]
    if not any(finding.runs for finding in left):
        return "no run is left"
    estimate = f"about {duration(seconds_left)} left with {count} worker{'s' * (count > 1)}"
    return estimate + (f", without {', '.join(untimed)}, whose runs were never timed" if untimed else "")
