"""The gallery of findings: docs/findings.md and its figures, from kept tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from grpobench.runs.settings.findings import SCALES, Study, findings, read_finding
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.analysis.findings.judge import Result
    from grpobench.analysis.findings.record import Record

PAGE = "findings.md"
AGAIN = "again"
"""Folder beside the kept findings, with the same structure, for reruns on other seeds."""
FIGURES = "figures/findings"
"""Folder of figures below the documents: one for each kept table, and `all.svg`."""


@dataclass(frozen=True)
class FindingEntry:
    """A finding at a scale with its kept table."""

    study: Study
    record: Record
    result: Result
    again: Record | None = None
    """The same finding with other seeds."""

    @property
    def name(self) -> str:
        return f"{self.study.finding.name}-{self.record.registration.scale}"


def pages(environment: Environment, tables: Path) -> dict[str, str]:
    """Text by path under the folder of documents; `tables` are the kept tables of findings. Empty if there
    are none. Raises ConfigError for a damaged table."""
    found = finding_entries(tables)
    if not found:
        return {}
    from grpobench.analysis.figures.drawing import svg_text
    from grpobench.analysis.findings.figures import draw_all, draw_arms

    nano = [one for one in found if one.record.registration.scale == "nano"]
    drawn = {f"{FIGURES}/{one.name}.svg": svg_text(draw_arms(one.record, one.result)) for one in found}
    drawn[f"{FIGURES}/all.svg"] = svg_text(draw_all([one.result for one in nano]))
    known = {one.study.finding.name for one in found}
    text = environment.get_template("findings.md.j2").render(
        rows=[row(one) for one in nano],
        others=[row(one) for one in found if one not in nano],
        missing=[name for name in findings() if name not in known],
        counts=counts([one.result.verdict for one in nano]),
        figures=FIGURES,
    )
    return {PAGE: text, **drawn}


def counts(verdicts: Sequence[str]) -> dict[str, int]:
    from grpobench.analysis.findings.judge import VERDICTS

    return {name: verdicts.count(name) for name in VERDICTS}


def finding_entries(tables: Path) -> list[FindingEntry]:
    """The kept tables, in the order of names and scales."""
    from grpobench.analysis.findings.record import read_kept
    from grpobench.analysis.runfolder.files import LogError

    found = []
    for name in findings():
        study = read_finding(name)
        for scale in SCALES:
            places = [
                folder / f"{name}-{scale}.json" for folder in (tables, tables.parent / AGAIN / tables.name)
            ]
            try:
                record, again = (read_kept(place) if place.exists() else None for place in places)
            except LogError as error:
                raise ConfigError([str(error)]) from error
            if record:
                found.append(FindingEntry(study, record, record.result(), again))
    return found


def row(one: FindingEntry) -> Mapping[str, Any]:
    """The page's entry for a finding."""
    from grpobench.analysis.findings.description import (
        arm_means,
        arm_words,
        effect_words,
        matters_words,
        result_words,
    )
    from grpobench.analysis.findings.judge import as_row

    told = as_row(one.result)
    registration = one.record.registration
    for test in told["tests"]:
        test |= {"effect": effect_words(test), "least": matters_words(test)}
    primary = told["tests"][0]
    means = [mean for mean in arm_means(one.record, primary["name"]) if mean.values]
    arms = [{"arm": own.arm, "task": own.task, "mean": arm_words(own, primary["unit"])} for own in means]
    states = list(one.record.states.values())
    return told | {
        "published": registration.finding.published,
        "stands_for": registration.finding.stands_for if registration.scale == "nano" else "",
        "scale": registration.scale,
        "key": one.name,
        "primary": primary,
        "arms": arms,
        "horizon": max((own.horizon for own in means), default=math.nan),
        "seeds": len({run[2] for run in one.record.states}),
        "runs": len(states),
        "ended": {state: states.count(state) for state in dict.fromkeys(states) if state != "finished"},
        "minutes": one.record.seconds / 60,
        "registered": registration.registered,
        "commit": registration.commit,
        "rule": registration.finding.digest,
        "departures": one.record.departed(one.study.finding),
        "words": result_words(one.result),
        "again": again(one.again, one.study) if one.again else None,
    }


def again(record: Record, study: Study) -> Mapping[str, Any]:
    """The result of a rerun: its verdict, its primary effect, and its seeds."""
    from grpobench.analysis.findings.description import effect_words
    from grpobench.analysis.findings.judge import as_row

    told = as_row(record.result())
    seeds = sorted({run[2] for run in record.states})
    return {
        "verdict": told["verdict"],
        "effect": effect_words(told["tests"][0]),
        "seeds": f"{seeds[0]}-{seeds[-1]}",
        "departures": record.departed(study.finding),
    }
