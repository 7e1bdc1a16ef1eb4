"""The page docs/transfer.md: findings at nano scale beside the same findings on a language model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

if TYPE_CHECKING:
    from grpobench.analysis.findings.result import Judged, Result
    from grpobench.analysis.statistics.intervals import Estimate

PAGE = "transfer.md"
FIGURE = "figures/findings/transfer.svg"


def transfer_pages(
    environment: Environment, nano: Sequence[Result], small: Sequence[Result]
) -> dict[str, str]:
    """The page and its figure by path; none without a test at both scales."""
    from grpobench.analysis.figures.drawing import svg_text
    from grpobench.analysis.findings.transfer import agreement, draw_transfer, pairs_of

    pairs = pairs_of(nano, small)
    if not pairs:
        return {}
    verdicts = (
        {one.finding.name: one.verdict for one in nano},
        {one.finding.name: one.verdict for one in small},
    )
    names = list(dict.fromkeys(pair.finding for pair in pairs))
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
        share=share_words(told.same),
        rank=rank_words(told.rank),
        figure=FIGURE,
    )
    return {PAGE: text, FIGURE: svg_text(draw_transfer(pairs))}


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
