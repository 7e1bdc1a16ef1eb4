"""The table of docs/claims.md: every claim with its conclusion and the registered rule with its power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from grpobench.analysis.findings.planned import PlannedTest, planned_of
from grpobench.analysis.statistics.verdicts import spread_of
from grpobench.runs.inventory.findings.judging import judging_rule
from grpobench.runs.inventory.findings.powers import planned_tests
from grpobench.runs.inventory.folders import SET_ASIDE, kept_finding
from grpobench.runs.inventory.templating import cell, reworded
from grpobench.runs.settings.findings import FindingFile, findings, read_finding

if TYPE_CHECKING:
    from grpobench.analysis.findings.record import Record
    from grpobench.analysis.findings.result import Judged, Result

SCALE = "nano"
HEAD = (
    "| claim | source | before | now | power at what matters | rates | bases | state |",
    "|---|---|---|---|---|---|---|---|",
)
UNDECIDED = ("unresolved", "insensitive")


def claims_table(tables: Path) -> list[str]:
    """The rows of all findings at nano scale, without those that another one asks again. `tables` are the
    kept tables of findings."""
    studies = [study for name in findings() if not (study := read_finding(name)).asked_again_by]
    return [*HEAD, *(_row(study, tables) for study in studies if SCALE in study.scales)]


def _row(study: FindingFile, tables: Path) -> str:
    name = study.finding.name
    current, earlier = (_read(tables, name, beside) for beside in ("", SET_ASIDE))
    decided = current is not None and judging_rule(study, current).digest == study.finding.digest
    before, now = (
        None if record is None else record.result(judging_rule(study, record))
        for record in ((earlier, current) if decided else (current, None))
    )
    planned, bases = plans(study, tables, now), study.bases(SCALE)
    power = smallest_power(planned)
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
        _state(now, planned) if now else "registered",
    )
    return f"| {' | '.join(map(cell, cells))} |"


def _state(result: Result, planned: Sequence[PlannedTest]) -> str:
    if not any(verdict in label(result) for verdict in UNDECIDED):
        return "decided"
    needs = what_would_decide(result, planned)
    return f"undecided: {needs}" if needs else "undecided"


def _read(tables: Path, name: str, beside: str) -> Record | None:
    from grpobench.analysis.findings.record import read_kept

    path = kept_finding(tables.parent, name, SCALE, beside)
    return read_kept(path) if path.exists() else None


def label(result: Result | None) -> str:
    """The conclusion of a kept table; a rule without checks and controls is judged without asking for any."""
    if result is None:
        return "–"
    return result.label if result.checks or result.controls else result.unchecked


def plans(study: FindingFile, tables: Path, result: Result | None) -> list[PlannedTest]:
    """The deciding tests with the deviation that their runs show; before the runs with the one that is
    expected. At best rates it is the larger one of the contrasts at the arms' own rates and of the
    cross-fitted ones; the test, which knows no best rate, finds less."""
    seeds = len(study.seeds(SCALE))
    before = planned_tests(study, SCALE, seeds, tables.parent) if result is None or _at_best(result) else []
    if result is None:
        return before
    expected = {planned.test.name: planned for planned in before}
    return [_planned(test, expected.get(test.test.name)) for test in _deciding(result)]


def _planned(judged: Judged, expected: PlannedTest | None) -> PlannedTest:
    if expected is None or not judged.test.best_rate:
        return planned_of(judged)
    sd = max(expected.sd, spread_of(judged.contrasts))
    return replace(expected, seeds=len(judged.contrasts), sd=sd)


def smallest_power(planned: Sequence[PlannedTest]) -> float:
    """NaN if the power of no test is known."""
    return min((test.power for test in planned if not math.isnan(test.power)), default=math.nan)


def what_would_decide(result: Result, planned: Sequence[PlannedTest]) -> str:
    """What the undecided parts of the claim need: seeds, bases, rates, or runs that can show an effect."""
    undecided = [
        test
        for test in _deciding(result)
        if test.verdict in UNDECIDED and result.parts.get(test.test.part, test.verdict) in UNDECIDED
    ]
    by_name = {test.test.name: test for test in planned}
    needs = []
    if any(test.verdict == "insensitive" for test in undecided):
        needs.append("runs whose checks and controls hold")
    if any(test.at_edge for test in undecided):
        needs.append("more rates")
    few = [by_name[test.test.name] for test in undecided if test.verdict == "unresolved" and not test.at_edge]
    if any(test.needs_bases for test in few):
        needs.append("more bases")
    elif measured := [test for test in few if not math.isnan(test.sd)]:
        needs.append(max(measured, key=lambda test: test.seeds_to_decide).to_decide_words)
    return " and ".join(needs)


def _deciding(result: Result) -> list[Judged]:
    return [test for test in result.tests if not (test.test.also or test.test.deals)]


def _at_best(result: Result) -> bool:
    return any(test.test.best_rate for test in _deciding(result))


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
