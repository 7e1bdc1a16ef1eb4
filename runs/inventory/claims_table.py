"""The table of docs/claims.md: every claim with its conclusion and the registered rule with its power."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from grpobench.analysis.findings.planned import planned_of
from grpobench.runs.inventory.findings.judging import judging_rule
from grpobench.runs.inventory.findings.powers import planned_tests
from grpobench.runs.inventory.folders import SET_ASIDE, kept_finding
from grpobench.runs.inventory.templating import cell, reworded
from grpobench.runs.settings.findings import FindingFile, findings, read_finding

if TYPE_CHECKING:
    from grpobench.analysis.findings.record import Record
    from grpobench.analysis.findings.result import Result

SCALE = "nano"
HEAD = (
    "| claim | source | before | now | power at what matters | rates | bases | state |",
    "|---|---|---|---|---|---|---|---|",
)


def claims_table(tables: Path) -> list[str]:
    """The rows of all findings at nano scale; `tables` are the kept tables of findings."""
    studies = [read_finding(name) for name in findings()]
    return [*HEAD, *(_row(study, tables) for study in studies if SCALE in study.scales)]


def _row(study: FindingFile, tables: Path) -> str:
    name = study.finding.name
    current, earlier = (_read(tables, name, beside) for beside in ("", SET_ASIDE))
    decided = current is not None and judging_rule(study, current).digest == study.finding.digest
    before, now = (
        None if record is None else record.result(judging_rule(study, record))
        for record in ((earlier, current) if decided else (current, None))
    )
    power, bases = smallest_power(study, tables, now), study.bases(SCALE)
    page = f"findings/{name}.md"
    claim = f"[{name}]({page}): {study.finding.claim}" if current else f"`{name}`: {study.finding.claim}"
    cells = (
        reworded(claim),
        study.finding.source,
        label(before),
        label(now),
        # Before the runs nobody knows how far bases differ.
        "not known"
        if math.isnan(power)
        else "at most " * (now is None and bases > 1) + f"{power:.0%}".replace("%", " %"),
        rates_words(study),
        str(bases),
        _state(label(now)) if now else "registered",
    )
    return f"| {' | '.join(map(cell, cells))} |"


def _state(conclusion: str) -> str:
    return "undecided" if "unresolved" in conclusion or "insensitive" in conclusion else "decided"


def _read(tables: Path, name: str, beside: str) -> Record | None:
    from grpobench.analysis.findings.record import read_kept

    path = kept_finding(tables.parent, name, SCALE, beside)
    return read_kept(path) if path.exists() else None


def label(result: Result | None) -> str:
    """The conclusion of a kept table; a rule without checks and controls is judged without asking for any."""
    if result is None:
        return "–"
    return result.label if result.checks or result.controls else result.unchecked


def smallest_power(study: FindingFile, tables: Path, result: Result | None) -> float:
    """The least power of the deciding tests: by the runs, or before them by what is expected; NaN if that of
    none is known."""
    if result:
        powers = [planned_of(test).power for test in result.tests if not (test.test.also or test.test.deals)]
    else:
        seeds = len(study.seeds(SCALE))
        powers = [planned.power for planned in planned_tests(study, SCALE, seeds, tables.parent)]
    return min((power for power in powers if not math.isnan(power)), default=math.nan)


def rates_words(study: FindingFile) -> str:
    """How many learning rates the arms of the deciding tests have."""
    table = study.scales[SCALE]
    deciding = [test for test in study.finding.test if not test.also]
    if any(test.best_rate for test in deciding):
        return f"best of {len(table['rates'])}"
    swept = table.get("over", {}).get("train.learning_rate")
    if swept or table.get("rates"):
        return str(len(swept or table["rates"]))
    arms = {name.partition("@")[0] for test in deciding for name in test.contrast}
    by_algorithm: dict[str, set[str]] = {}
    for arm in table["arm"]:
        if arm.get("name", arm["algorithm"]) in arms:
            rate = arm.get("train", {}).get("learning_rate", "common")
            if rate:  # without one nothing is trained
                by_algorithm.setdefault(arm["algorithm"], set()).add(str(rate))
    return str(max(map(len, by_algorithm.values()), default=1))
