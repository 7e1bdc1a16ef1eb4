"""The verdict on a finding: by its registered rule, how far it is exploratory, what reruns and others say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from grpobench.analysis.findings.planned import PlannedTest
from grpobench.analysis.findings.record import Record
from grpobench.analysis.findings.result import Result, as_row
from grpobench.analysis.runfolder.files import LogError
from grpobench.runs.handover.publishing.contributed import contributions
from grpobench.runs.inventory import folders
from grpobench.runs.inventory.findings.judging import departed, judging_rule
from grpobench.runs.inventory.findings.parts import read_part, without_part
from grpobench.runs.inventory.findings.powers import demand_power, planned_tests
from grpobench.runs.inventory.findings.records import Records, find_records, kept_path
from grpobench.runs.inventory.findings.registration import register
from grpobench.runs.settings.findings import FindingFile, read_finding
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError

First: TypeAlias = Literal["whole", "kept", "runs"]


def judge(
    name: str, scale: str = "nano", out: Path = Path("results/findings"), powers: bool = True
) -> dict[str, Any]:
    """The verdict on a finding, as ``grpobench finding judge --json`` prints it. Without `powers` the rows of
    its tests lack them, which takes less time. Raises ConfigError where there are neither runs nor a kept
    table."""
    study = read_finding(name)
    row = verdict(study, scale, out, powers=powers)
    if row is None:
        folder = out / f"{study.finding.name}-{scale}"
        raise ConfigError(
            [f"{study.finding.name}: neither runs in {folder} nor a kept table; run `grpobench finding run`"]
        )
    return row


def verdict(
    study: FindingFile, scale: str, out: Path, first: First = "whole", powers: bool = False
) -> dict[str, Any] | None:
    """The verdict by the first of these that exists: the runs below `out` if they are the whole finding, the
    kept table, these runs; with "kept" the kept table comes first, with "runs" the runs, whole or not. None
    where there is neither. Raises DataError and LogError."""
    records = find_records(study, scale, out)
    by_first = {"whole": records.judged, "kept": records.listed, "runs": records.runs or records.judged}
    record = by_first[first]
    return describe(study, record, records, powers) if record else None


def summary(name: str, scale: str, out: Path) -> dict[str, Any]:
    """A finding as a listing has it, with its verdict at a scale, null where it has none."""
    study = read_finding(name)
    records = find_records(study, scale, out)
    return {
        "name": name,
        "claim": study.finding.claim,
        "source": study.finding.source,
        "scales": list(study.scales),
        "scale": scale,
        "verdict": judge_record(study, records.listed).label if records.listed else None,
        "rerun": records.rerun,
        "contributed": contributed(study, scale),
    }


def announce(
    study: FindingFile, scale: str, out: Path, sets: Sequence[str] = (), registers: bool = True
) -> tuple[Recipe, Record | None, list[PlannedTest]]:
    """The recipe of the runs that a finding still needs, the part of it that is kept already, and its tests
    with their power. The finding is registered first, unless `registers` is False. With other settings or
    seeds, `sets`, parts do not count. Raises ConfigError for a new rule with too little power, unless `sets`
    change it or its file says why."""
    recipe = study.recipe(scale, sets)
    planned = planned_tests(study, scale, len(recipe.head.seeds), out)
    if not sets:
        demand_power(study, scale, planned, out)
    part = None if sets else read_part(study.finding.name, scale)
    if registers:
        register(study.finding, scale, recipe, out, part)
    return without_part(recipe, part), part, planned


def powers(study: FindingFile, scale: str, out: Path) -> list[PlannedTest]:
    """The deciding tests of a finding with the power of its registered seeds; none at a scale that it
    lacks."""
    if scale not in study.scales:
        return []
    return planned_tests(study, scale, len(study.seeds(scale)), out)


def rerun_of(study: FindingFile, scale: str, out: Path) -> dict[str, Any] | None:
    """The runs below `out` beside a kept table; None without a kept table."""
    return find_records(study, scale, out).rerun if kept_path(study, scale) else None


def describe(study: FindingFile, record: Record, records: Records, powers: bool) -> dict[str, Any]:
    """The verdict of one of the records by the registered rule, how far it is exploratory, and the rerun
    beside it. Raises DataError."""
    row = as_row(judge_record(study, record), powers) | {"rerun": records.rerun}
    seeds = {run[2] for run in record.states}
    row |= {
        "scale": record.registration.scale,
        "seeds": len(seeds),
        "registered": record.registration.registered,
        "commit": record.registration.commit,
        "rule": record.registration.finding.digest,
        "departures": departed(study, record),
        "exploratory": None,
        "contributed": contributed(study, record.registration.scale),
    }
    if study.finding.digest != judging_rule(study, record).digest:
        row["exploratory"] = exploratory(study, record)
    return row


def contributed(study: FindingFile, scale: str) -> list[dict[str, Any]]:
    """What contributions say of a finding."""
    results = folders.results_folder()
    if results is None:
        return []
    return [
        {
            **theirs.whose,
            "verdict": judge_record(study, record).verdict,
            "departures": departed(study, record),
        }
        for theirs in contributions(results)
        if (record := theirs.record(study.finding.name, scale))
    ]


def judge_record(study: FindingFile, record: Record) -> Result:
    """Judge a record by its registered rule, or the correction of it. Raises DataError."""
    try:
        return record.result(judging_rule(study, record))
    except LogError as error:
        raise DataError(f"{study.finding.name}: {error}; run the finding anew in another --out") from error


def exploratory(study: FindingFile, record: Record) -> str:
    """The verdict by today's rule, where what it asks for was measured."""
    if not study.finding.outcomes <= record.registration.finding.outcomes:
        return "measures something else; run it anew"
    try:
        return record.result(study.finding).verdict
    except LogError as error:
        return f"{error}; run it anew"
