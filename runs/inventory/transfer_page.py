"""The page docs/transfer.md: findings and probes at nano scale and on a language model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from jinja2 import Environment

from grpobench.analysis.tools.text import NONE, two
from grpobench.runs.inventory.claims_table import UNDECIDED
from grpobench.runs.settings.findings import Kind

if TYPE_CHECKING:
    from grpobench.analysis.findings.result import Judged, Result
    from grpobench.analysis.findings.transfer import Agreement, ScalePair, Uncompared
    from grpobench.analysis.profile.transfer import ProbeTransfer
    from grpobench.analysis.statistics.intervals import Estimate

PAGE = "transfer.md"
FIGURE = "figures/transfer.svg"
DIFFER = "**differ**"
PROBES_FIGURE = "figures/transfer-probes.svg"
BY_SIZE = "-by-size"
"""How the names of findings end that have the same contrast at four sizes of the model, and its slope."""


def transfer_pages(
    environment: Environment,
    nano: Sequence[Result],
    small: Sequence[Result],
    probes: Sequence[ProbeTransfer],
    uncompared_probes: Mapping[str, str] | None = None,
    kinds: Mapping[str, str] | None = None,
    asked_again: Sequence[str] = (),
) -> dict[str, str]:
    """The page and its figures by path; none without a test or a probe at both scales.
    `uncompared_probes` has reasons by title, `kinds` what each finding is about: "behavior" where it is not
    in there, `asked_again` names the findings that another one is counted instead of."""
    from grpobench.analysis.figures.drawing import svg_text
    from grpobench.analysis.findings.transfer import compare_scales, draw_transfer, rule_difference
    from grpobench.analysis.profile.figures import draw_probes

    sized = [result for result in small if result.finding.name.endswith(BY_SIZE)]
    small = [result for result in small if result not in sized]
    pairs, uncompared = compare_scales(nano, small)
    if not pairs and not probes:
        return {}
    others = {result.finding.name: result for result in small}
    findings = [
        {
            "name": result.finding.name,
            "kind": (kinds or {}).get(result.finding.name, "behavior"),
            "nano": result.verdict,
            "small": others[result.finding.name].verdict,
            "nano_words": by_part(result),
            "small_words": by_part(others[result.finding.name]),
            "difference": rule_difference(result.finding, others[result.finding.name].finding),
        }
        for result in nano
        if result.finding.name in others
    ]
    counted = agreement_by_kind(findings, pairs)
    behavior = [finding for finding in findings if finding["kind"] == "behavior"]
    rows = [effect_row(pair) for pair in sorted(pairs, key=lambda pair: not pair.is_reversed)]
    text = environment.get_template("transfer.md.j2").render(
        rows=rows,
        differ=[row for row in rows if row["signs"] == DIFFER],
        findings=findings,
        columns=[title for title, _ in counted],
        measures=list(zip(MEASURES, *(column for _, column in counted), strict=True)),
        behavior=behavior,
        agreeing=sum(map(agrees, behavior)),
        wider=sum(width(pair.second) > width(pair.first) for pair in pairs),
        sizes=[size_row(result) for result in sized],
        alone=findings_by_reason(uncompared, asked_again),
        tests=sorted((entry for entry in uncompared if entry.test), key=lambda entry: not entry.is_reversed),
        figure=FIGURE,
        probes=[probe_row(transfer) for transfer in probes],
        scores=score_rows(probes),
        probes_figure=PROBES_FIGURE,
        uncompared_probes=probes_by_reason(uncompared_probes or {}),
    )
    figures = {FIGURE: svg_text(draw_transfer(pairs))} if pairs else {}
    if probes:
        figures[PROBES_FIGURE] = svg_text(draw_probes(probes))
    return {PAGE: text, **figures}


MEASURES = (
    "findings at both scales",
    "decided at both scales, with the same conclusion",
    "tests at both scales",
    "tests whose intervals leave 0 out at both scales",
    "of these with the same sign",
    "effect on SmolLM2 ÷ at nano scale (of factors their logarithms), where signs agree: median (range)",
    "rank correlation of the effects (Spearman; bootstrap over findings)",
)
"""Rows of the table of agreement."""


def agreement_by_kind(
    findings: Sequence[Mapping[str, str]], pairs: Sequence[ScalePair]
) -> list[tuple[str, list[str]]]:
    """Columns of the table of agreement with their titles: all findings, those with one rule at both scales,
    and each kind of finding, where these are not all."""
    from grpobench.analysis.findings.transfer import agreement

    names = [finding["name"] for finding in findings]
    alike = [finding["name"] for finding in findings if not finding["difference"]]
    groups = {"all": names, "one rule at both scales": alike}
    for kind in get_args(Kind):
        groups[kind] = [finding["name"] for finding in findings if finding["kind"] == kind]
    return [
        (
            title,
            measures(
                [finding for finding in findings if finding["name"] in group],
                agreement([pair for pair in pairs if pair.finding in group]),
            ),
        )
        for title, group in groups.items()
        if title == "all" or 0 < len(group) < len(names)
    ]


def by_part(result: Result) -> str:
    """The conclusion; of a claim in parts that of each."""
    return result.label if result.parts else result.verdict


def agrees(finding: Mapping[str, str]) -> bool:
    """Whether both scales come to one conclusion; that neither decides is none."""
    return finding["nano"] == finding["small"] not in UNDECIDED


def measures(findings: Sequence[Mapping[str, str]], counts: Agreement) -> list[str]:
    """A column of the table of agreement, in the order of `MEASURES`."""
    clear_findings = f"{counts.clear_findings} finding{'s' * (counts.clear_findings != 1)}"
    return [
        str(len(findings)),
        str(sum(map(agrees, findings))),
        str(counts.pairs),
        str(counts.clear),
        f"{counts.same} of {counts.clear}, in {clear_findings}" if counts.clear else NONE,
        ratio_words(counts),
        rank_words(counts.rank) or "– (too few findings)",
    ]


def ratio_words(counts: Agreement) -> str:
    """How large effects are at the second scale, of those at the first."""
    if math.isnan(counts.ratio):
        return NONE
    return f"{two(counts.ratio)} ({two(counts.smallest_ratio)} to {two(counts.largest_ratio)})"


def effect_row(pair: ScalePair) -> dict[str, Any]:
    """A test's effects at both scales."""
    return {
        "finding": pair.finding,
        "test": pair.first.test.name,
        "also": pair.first.test.also,
        "same_rule": pair.same_rule,
        "nano": cell(pair.first),
        "small": cell(pair.second),
        "signs": DIFFER if pair.is_reversed else "same" if pair.clear else NONE,
    }


def size_row(result: Result) -> dict[str, Any]:
    """The effect at each size, smallest first, and its slope: the one test that decides."""
    (slope,) = [judged for judged in result.tests if not judged.test.also]
    is_sound = all(check.passed for check in result.checks)
    return {
        "finding": result.finding.name,
        "verdict": result.label + "; a check failed" * (not is_sound),
        "effects": [cell(judged) for judged in result.tests if judged.test.also],
        "slope": cell(slope),
    }


def findings_by_reason(uncompared: Sequence[Uncompared], asked_again: Sequence[str]) -> dict[str, list[str]]:
    """Names of the findings that are at one scale alone, or that another one is counted instead of."""
    reasons = {"asked again by another": [*asked_again]} if asked_again else {}
    for entry in uncompared:
        if not entry.test:
            reasons.setdefault(entry.reason, []).append(entry.finding)
    return reasons


def probes_by_reason(uncompared: Mapping[str, str]) -> dict[str, list[str]]:
    """Titles of probes that are not compared."""
    reasons: dict[str, list[str]] = {}
    for title, reason in uncompared.items():
        reasons.setdefault(reason, []).append(title)
    return reasons


def width(judged: Judged) -> float:
    """Of the interval of an effect, in units of what matters."""
    from grpobench.analysis.findings.figures import scaled

    _, low, high = scaled(judged)
    return high - low


def probe_row(transfer: ProbeTransfer) -> dict[str, Any]:
    """A probe's orders at both scales."""
    return {
        "title": transfer.probe.title,
        "algorithms": len(transfer.first),
        "rank": rank_words(transfer.rank) or "–",
        "told_apart": transfer.told_apart,
        "same": transfer.same,
        "reversed": transfer.reversed,
        "neither": transfer.told_apart - transfer.same - transfer.reversed,
        "other": transfer.other,
    }


def score_rows(probes: Sequence[ProbeTransfer]) -> list[dict[str, Any]]:
    """Of every algorithm, by name."""
    names = {name for transfer in probes for name in transfer.first}
    return [score_row(name, probes) for name in sorted(names)]


def score_row(name: str, probes: Sequence[ProbeTransfer]) -> dict[str, Any]:
    """An algorithm's scores on all probes, at both scales."""
    cells = [
        f"{two(transfer.first[name].mean)} / {two(transfer.second[name].mean)}"
        if name in transfer.first
        else NONE
        for transfer in probes
    ]
    return {"name": name, "cells": cells}


def cell(judged: Judged) -> dict[str, Any]:
    """A test's effect, interval, number of seeds and what it says."""
    from grpobench.analysis.findings.description import effect_words
    from grpobench.analysis.findings.result import test_row

    return {
        "effect": effect_words(test_row(judged)),
        "seeds": len(judged.repetitions),
        "says": judged.verdict,
    }


def rank_words(rank: Estimate) -> str:
    """Empty without an interval: too few would agree or disagree by chance."""
    if math.isnan(rank.low):
        return ""
    return f"{rank.value:.2f} ({rank.low:.2f} to {rank.high:.2f})".replace("-", "−")
