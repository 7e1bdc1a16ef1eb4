"""The page docs/transfer.md: findings and probes at nano scale beside the same on a language model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from grpobench.analysis.tools.text import NONE, two

if TYPE_CHECKING:
    from grpobench.analysis.findings.result import Judged, Result
    from grpobench.analysis.profile.transfer import ProbeTransfer
    from grpobench.analysis.statistics.intervals import Estimate

PAGE = "transfer.md"
FIGURE = "figures/findings/transfer.svg"
PROBES_FIGURE = "figures/findings/transfer-probes.svg"


def transfer_pages(
    environment: Environment, nano: Sequence[Result], small: Sequence[Result], probes: Sequence[ProbeTransfer]
) -> dict[str, str]:
    """The page and its figures by path; none without a test or a probe at both scales."""
    from grpobench.analysis.figures.drawing import svg_text
    from grpobench.analysis.findings.transfer import agreement, draw_transfer, pairs_of
    from grpobench.analysis.profile.transfer import draw_probes

    pairs = pairs_of(nano, small)
    if not pairs and not probes:
        return {}
    verdicts = (
        {one.finding.name: one.verdict for one in nano},
        {one.finding.name: one.verdict for one in small},
    )
    names = [one.finding.name for one in nano if one.finding.name in verdicts[1]]
    told = agreement(pairs)
    text = environment.get_template("transfer.md.j2").render(
        rows=[
            {
                "finding": pair.finding,
                "test": pair.first.test.name,
                "also": pair.first.test.also,
                "nano": cell(pair.first),
                "small": cell(pair.second),
                "decided": pair.clear,
                "same": pair.same_sign,
            }
            for pair in pairs
        ],
        findings=[{"name": name, "nano": verdicts[0][name], "small": verdicts[1][name]} for name in names],
        same=sum(verdicts[0][name] == verdicts[1][name] for name in names),
        told=told,
        wider=sum(width(pair.second) > width(pair.first) for pair in pairs),
        share=share_words(told.same),
        rank=rank_words(told.rank),
        figure=FIGURE,
        probes=[probe_row(one) for one in probes],
        scores=[score_row(name, probes) for name in sorted({name for one in probes for name in one.first})],
        probes_figure=PROBES_FIGURE,
    )
    figures = {FIGURE: svg_text(draw_transfer(pairs))} if pairs else {}
    if probes:
        figures[PROBES_FIGURE] = svg_text(draw_probes(probes))
    return {PAGE: text, **figures}


def width(one: Judged) -> float:
    """Of the interval of an effect, in units of what matters."""
    from grpobench.analysis.findings.figures import scaled

    _, low, high = scaled(one)
    return high - low


def probe_row(one: ProbeTransfer) -> dict[str, Any]:
    """A probe's orders at both scales."""
    return {
        "title": one.probe.title,
        "algorithms": len(one.first),
        "rank": rank_words(one.rank) or "–",
        "told_apart": one.told_apart,
        "same": one.same,
        "reversed": one.reversed,
        "neither": one.told_apart - one.same - one.reversed,
        "other": one.other,
    }


def score_row(name: str, probes: Sequence[ProbeTransfer]) -> dict[str, Any]:
    """An algorithm's scores on all probes, at both scales."""
    cells = [
        f"{two(one.first[name].mean)} / {two(one.second[name].mean)}" if name in one.first else NONE
        for one in probes
    ]
    return {"name": name, "cells": cells}


def cell(judged: Judged) -> dict[str, Any]:
    """A test's effect, interval, number of seeds and what it says."""
    from grpobench.analysis.findings.description import effect_words
    from grpobench.analysis.findings.result import test_row

    return {
        "effect": effect_words(test_row(judged)),
        "seeds": len(judged.seeds),
        "says": judged.verdict,
    }


def share_words(share: Estimate) -> str:
    if math.isnan(share.value):
        return ""
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"


def rank_words(rank: Estimate) -> str:
    if math.isnan(rank.value):
        return ""
    interval = "" if math.isnan(rank.low) else f" ({rank.low:.2f} to {rank.high:.2f})"
    return f"{rank.value:.2f}{interval}".replace("-", "−")
