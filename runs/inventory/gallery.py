"""The index of findings, docs/findings.md, and a page with figures for each, from kept tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from grpobench.runs.handover.publishing.contributed import Contribution, contributions
from grpobench.runs.inventory import profiles_page, transfer_page, verdicts
from grpobench.runs.inventory.findings.judging import departed, judging_rule
from grpobench.runs.inventory.folders import AGAIN, SET_ASIDE, kept_finding
from grpobench.runs.inventory.labels import algorithm_labels, labels_of
from grpobench.runs.settings.findings import SCALES, FindingFile, findings, read_finding
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.analysis.findings.planned import PlannedTest
    from grpobench.analysis.findings.record import Record
    from grpobench.analysis.findings.result import Judged, Result

PAGE = "findings.md"
"""The index of the findings, below the documents."""
PAGES = "findings"
"""Folder of the findings below the documents: for each its page and its figures."""
FIGURE = "figures/findings.svg"
"""The figure of the index."""

TITLES = {
    "a-a": "A/A",
    "critic-free-compute": "critic-free compute",
    "long-run-collapse": "long-run collapse",
    "one-shot-bias": "one-shot bias",
    "one-shot-susceptibility": "one-shot susceptibility",
    "sampler-gap-collapse": "sampler-gap collapse",
    "std-bias": "SD and length bias",
}
"""Findings whose names in the figure are not the words of their names."""


@dataclass(frozen=True)
class FindingEntry:
    """A finding at a scale with its kept table."""

    study: FindingFile
    record: Record
    result: Result
    again: Record | None = None
    """The same finding with other seeds."""
    earlier: Record | None = None
    """What was kept of it by an earlier rule."""
    contributed: Sequence[tuple[Contribution, Record]] = ()
    """What others' runs say."""

    @property
    def survival(self) -> bool:
        """Whether how long runs last is shown by dose."""
        return bool(self.result.series) and self.result.primary.test.outcome == "lasting"

    @property
    def curves(self) -> bool:
        """Whether its arms sweep one setting over several values."""
        from grpobench.analysis.findings.curves import swept

        return bool(swept(self.record, self.result)[0])

    @property
    def name(self) -> str:
        return f"{self.study.finding.name}-{self.record.registration.scale}"


def gallery_pages(environment: Environment, tables: Path) -> dict[str, str]:
    """Pages and figures by path under the folder of documents; `tables` are the kept tables of findings.
    Empty if there are none. Raises ConfigError for a damaged table."""
    entries = finding_entries(tables)
    if not entries:
        return {}
    nano, small = (once(at_scale(entries, scale)) for scale in ("nano", "small"))
    probes = profiles_page.scale_transfers()
    transfer = transfer_page.transfer_pages(
        environment,
        [entry.result for entry in nano],
        [entry.result for entry in small],
        probes,
        profiles_page.uncompared_probes(probes),
        {entry.study.finding.name: entry.study.kind for entry in entries},
        [entry.study.finding.name for entry in at_scale(entries, "small") if entry.study.asked_again_by],
    )
    verdicts_text = verdicts.as_text([(entry.name, entry.result.label) for entry in entries], tables)
    pages = finding_pages(environment, entries) | finding_figures(entries)
    return pages | transfer | {verdicts.PAGE: verdicts_text}


def at_scale(entries: Sequence[FindingEntry], scale: str) -> list[FindingEntry]:
    return [entry for entry in entries if entry.record.registration.scale == scale]


def once(entries: Sequence[FindingEntry]) -> list[FindingEntry]:
    """Those whose question no other finding asks again."""
    return [entry for entry in entries if not entry.study.asked_again_by]


def finding_pages(environment: Environment, entries: Sequence[FindingEntry]) -> dict[str, str]:
    """The index, and the page of each finding with all its scales."""
    from grpobench.analysis.findings.errors import count_secondary, error_words

    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_name.setdefault(entry.study.finding.name, []).append(row(entry))
    nano = at_scale(entries, "nano")
    changes = {
        entry.study.finding.name: change(entry)
        for entry in entries
        if entry.earlier and entry.record.registration.scale == next(iter(entry.study.scales))
    }
    template = environment.get_template("finding.md.j2")
    pages = {
        f"{PAGES}/{name}.md": template.render(name=name, scales=scales, change=changes.get(name))
        for name, scales in by_name.items()
    }
    pages[PAGE] = environment.get_template("findings.md.j2").render(
        rows=[scale_row for scales in by_name.values() for scale_row in scales],
        claims=len(once(nano)),
        counted=counted([entry.result.verdict for entry in once(nano)]),
        errors=error_words(
            [entry.result.finding for entry in entries],
            sum(count_secondary(entry.record) for entry in entries),
        ),
        weak=weak_conclusions(entries),
        missing=[name for name in findings() if name not in by_name],
        changes=len(changes),
        changed=sum(
            conclusion_change["before"] != conclusion_change["now"] for conclusion_change in changes.values()
        ),
        folder=PAGES,
        figure=FIGURE,
    )
    return pages


def weak_conclusions(entries: Sequence[FindingEntry]) -> list[str]:
    """Links to the conclusions with a deciding test whose power is below 80 %, as far as its runs tell."""
    from grpobench.analysis.findings.planned import planned_of

    return [
        f"[{entry.name}]({PAGES}/{entry.study.finding.name}.md#{entry.record.registration.scale}-scale)"
        for entry in entries
        if any(planned_of(judged).is_weak for judged in entry.result.tests if not judged.test.also)
    ]


def finding_figures(entries: Sequence[FindingEntry]) -> dict[str, str]:
    """The figures of all findings, and that of the index."""
    from grpobench.analysis.figures.drawing import svg_text
    from grpobench.analysis.findings.curves import draw_curves
    from grpobench.analysis.findings.figures import draw_all, draw_arms
    from grpobench.analysis.findings.survival import draw_survival

    drawn = {}
    for entry in entries:
        stem, record, result = f"{PAGES}/{entry.name}", entry.record, entry.result
        names = {name for run in record.states for name in run[:2]}
        drawn[f"{stem}.svg"] = svg_text(draw_arms(record, result, labels_of(names)))
        if entry.survival:
            drawn[f"{stem}-survival.svg"] = svg_text(draw_survival(record, result))
        if entry.curves:
            drawn[f"{stem}-curves.svg"] = svg_text(draw_curves(record, result))
    nano = [entry.result for entry in at_scale(entries, "nano")]
    drawn[FIGURE] = svg_text(draw_all(nano, {**algorithm_labels(), **TITLES}))
    return drawn


def counted(verdicts: Sequence[str]) -> str:
    """`5 supported, 2 contradicted and 3 unresolved`."""
    from grpobench.analysis.findings.result import VERDICTS

    counts = [f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts]
    return " and ".join(filter(None, [", ".join(counts[:-1]), *counts[-1:]]))


def finding_entries(tables: Path) -> list[FindingEntry]:
    """The kept tables, in the order of names and scales."""
    from grpobench.analysis.findings.record import read_kept
    from grpobench.analysis.runfolder.files import LogError

    entries = []
    for name in findings():
        study = read_finding(name)
        for scale in SCALES:
            paths = [kept_finding(tables.parent, name, scale, beside) for beside in ("", AGAIN, SET_ASIDE)]
            try:
                record, again, earlier = (read_kept(path) if path.exists() else None for path in paths)
                theirs = [
                    (contribution, contributed)
                    for contribution in contributions(tables.parent)
                    if (contributed := contribution.record(name, scale))
                ]
            except LogError as error:
                raise ConfigError([str(error)]) from error
            if record and again and again.registration.finding.digest != record.registration.finding.digest:
                again = None  # a rerun by an earlier rule
            if record:
                result = record.result(judging_rule(study, record))
                entries.append(FindingEntry(study, record, result, again, earlier, theirs))
    return entries


def lacks_seeds(judged: Judged, planned: PlannedTest) -> bool:
    """Whether more seeds are what an unresolved test needs, rather than more bases, or runs of one kind."""
    is_counted = not judged.test.deals and judged.two_parts is None
    return judged.verdict == "unresolved" and is_counted and not planned.needs_bases


def row(entry: FindingEntry) -> Mapping[str, Any]:
    """The page's entry for a finding."""
    from grpobench.analysis.findings import description
    from grpobench.analysis.findings.planned import planned_of
    from grpobench.analysis.findings.result import as_row

    result_row = as_row(entry.result)
    registration = entry.record.registration
    for test in (*result_row["tests"], *result_row["control"]):
        test |= {
            "effect": description.effect_words(test),
            "least": description.matters_words(test),
            "parts": description.parts_words(test),
        }
    for test, judged in zip(result_row["tests"], entry.result.tests, strict=True):
        planned = planned_of(judged)
        test["power"] = planned.power
        test["to_decide"] = planned.to_decide_words if lacks_seeds(judged, planned) else ""
    for check in result_row["checks"]:
        check["words"] = description.check_words(check)
    primary, states = result_row["tests"][0], list(entry.record.states.values())
    means = [mean for mean in description.arm_means(entry.record, primary["name"]) if mean.values]
    arms = [
        {"arm": arm_mean.arm, "task": arm_mean.task, "mean": description.arm_words(arm_mean, primary["unit"])}
        for arm_mean in means
    ]
    return result_row | {
        "published": registration.finding.published,
        "caveat": entry.study.caveat.get(registration.scale, ""),
        "correction": entry.study.correction if entry.result.finding != registration.finding else "",
        "underpowered": entry.study.underpowered.get(registration.scale, ""),
        "stands_for": registration.finding.stands_for
        if registration.scale == next(iter(entry.study.scales))
        else "",
        "scale": registration.scale,
        "key": entry.name,
        "provenance": entry.record.provenance.words,
        "doses": [description.series_words(series, entry.result) for series in entry.result.series],
        "survival": entry.survival,
        "curves": entry.curves,
        "primary": primary,
        "bases": description.bases_words(primary),
        "deciding": _deciding_words(entry.result, {test["name"]: test for test in result_row["tests"]}),
        "arms": arms,
        "kind": means[0].kind if means else "",
        "horizon": max((arm_mean.horizon for arm_mean in means), default=math.nan),
        "seeds": len({run[2] for run in entry.record.states}),
        "runs": len(states),
        "ended": {state: states.count(state) for state in dict.fromkeys(states) if state != "finished"},
        "minutes": entry.record.provenance.seconds / 60,
        "registered": registration.registered,
        "commit": registration.commit,
        "rule": registration.finding.digest,
        "departures": departed(entry.study, entry.record),
        "words": description.result_words(entry.result),
        "again": again(entry.again, entry.study) if entry.again else None,
        "contributed": [
            {**theirs.whose, **again(record, entry.study)} for theirs, record in entry.contributed
        ],
    }


def _deciding_words(result: Result, rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, str]:
    """The effect of the test that decides, or of those that decide the parts of the claim, and the smallest
    one that matters; `rows` are the rows of the tests by name."""
    by_part = {part: judged.test.name for part, judged in result.deciding_by_part.items()}
    effects = [f"{f'{part}: ' * bool(part)}{rows[name]['effect']}" for part, name in by_part.items()]
    names = [name for name in by_part.values() if not (result.parts or name == result.primary.test.name)]
    least = dict.fromkeys(rows[name]["least"] for name in by_part.values())
    return {"effect": ": ".join(["; ".join(effects), *names]), "least": "; ".join(least)}


def change(entry: FindingEntry) -> Mapping[str, str]:
    """A finding's conclusion by its earlier rule and its kept one, and what changed in between. Rules without
    checks and controls are judged without asking for any."""
    assert entry.earlier is not None
    before = entry.earlier.result()
    return {
        "name": entry.study.finding.name,
        "before": before.verdict if before.checks or before.controls else before.unchecked,
        "now": entry.result.verdict,
        "why": entry.study.redesign,
    }


def again(record: Record, study: FindingFile) -> Mapping[str, Any]:
    """The result of a rerun: its verdict, its primary effect, and its seeds."""
    from grpobench.analysis.findings.description import effect_words
    from grpobench.analysis.findings.result import as_row

    result_row = as_row(record.result(judging_rule(study, record)))
    seeds = sorted({run[2] for run in record.states})
    return {
        "verdict": result_row["verdict"],
        "effect": effect_words(result_row["tests"][0]),
        "seeds": f"{seeds[0]}-{seeds[-1]}",
        "departures": departed(study, record),
    }
