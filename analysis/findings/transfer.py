"""Findings at two scales beside each other: does what nano policies show hold for a language model?

Tests that a finding has at both scales, by the same rule, are pairs. Effects stand in units of the smallest
effect that matters, above 0 as claimed, so that points, updates and factors have one axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import seaborn as sns
from matplotlib.ticker import NullLocator

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import legend_above, new_figure
from grpobench.analysis.figures.scales import plain
from grpobench.analysis.figures.style import INK, STYLE
from grpobench.analysis.findings.figures import scaled
from grpobench.analysis.findings.result import Judged, Result
from grpobench.analysis.statistics.intervals import Estimate, wilson
from grpobench.analysis.statistics.ranks import spearman

TICKS = (-1000, -300, -100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100, 300, 1000)
LINEAR = 4.0
"""Effects, in what matters, up to which the axes are linear; beyond they are logarithmic."""


@dataclass(frozen=True)
class ScalePair:
    """One test of a finding at both scales."""

    finding: str
    first: Judged
    """At the smaller scale."""
    second: Judged

    @property
    def clear(self) -> bool:
        """Whether both 95 % intervals leave 0 out."""
        return all(low > 0 or high < 0 for _, low, high in map(scaled, (self.first, self.second)))

    @property
    def same_sign(self) -> bool:
        return math.copysign(1, scaled(self.first)[0]) == math.copysign(1, scaled(self.second)[0])


@dataclass(frozen=True)
class Agreement:
    """How far two scales agree, over all pairs."""

    pairs: int
    findings: int
    clear: int
    """Pairs whose intervals leave 0 out at both scales."""
    same: Estimate
    """Share of the clear pairs with the same sign, with Wilson's interval."""
    rank: Estimate
    """Spearman's rank correlation of the effects, with the percentile interval of a bootstrap over findings;
    its ends are NaN with fewer than four."""


def pairs_of(first: Sequence[Result], second: Sequence[Result]) -> list[ScalePair]:
    """The tests that both scales have under one name, of the same outcome and with an effect, in the order of
    the first."""
    others = {(one.finding.name, judged.test.name): judged for one in second for judged in one.tests}
    found = []
    for result in first:
        for judged in result.tests:
            other = others.get((result.finding.name, judged.test.name))
            if other is None or judged.test.deals or judged.test.outcome != other.test.outcome:
                continue
            if all(math.isfinite(scaled(one)[0]) for one in (judged, other)):
                found.append(ScalePair(result.finding.name, judged, other))
    return found


def agreement(pairs: Sequence[ScalePair], seed: int = 0) -> Agreement:
    clear = [pair for pair in pairs if pair.clear]
    same = sum(pair.same_sign for pair in clear)
    return Agreement(
        len(pairs),
        len({pair.finding for pair in pairs}),
        len(clear),
        wilson(same, len(clear)) if clear else Estimate(math.nan, math.nan, math.nan),
        rank_correlation(pairs, seed),
    )


def rank_correlation(pairs: Sequence[ScalePair], seed: int = 0) -> Estimate:
    """Spearman's correlation of the effects. Findings are resampled and not tests, since the tests of one
    finding share runs."""
    names = sorted({pair.finding for pair in pairs})
    return spearman(
        [
            np.array([(scaled(p.first)[0], scaled(p.second)[0]) for p in pairs if p.finding == name])
            for name in names
        ],
        seed,
    )


def draw_transfer(pairs: Sequence[ScalePair], names: tuple[str, str] = ("nano", "small")) -> Drawing:
    """Each pair's effect at one scale against the other, with 95 % intervals; filled where the test decides
    the finding."""
    with matplotlib.rc_context(STYLE):
        figure = new_figure(4.6, 4.4)
        axes = figure.add_subplot()
        axes.axhspan(-1, 1, color="#f0f0f0", zorder=0, linewidth=0)
        axes.axvspan(-1, 1, color="#f0f0f0", zorder=0, linewidth=0)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.axvline(0, color=INK, linewidth=0.8)
        for pair in pairs:
            (x, *across), (y, *along) = scaled(pair.first), scaled(pair.second)
            if all(map(math.isfinite, across)):
                axes.plot(across, [y, y], color=INK, linewidth=0.9, alpha=0.6)
            if all(map(math.isfinite, along)):
                axes.plot([x, x], along, color=INK, linewidth=0.9, alpha=0.6)
            face = "white" if pair.first.test.also else "#0173b2"
            axes.plot(x, y, marker="o", markersize=5, color=INK, markerfacecolor=face, zorder=3)
        ends = [abs(end) for pair in pairs for one in (pair.first, pair.second) for end in scaled(one)]
        most = 1.15 * max(filter(math.isfinite, ends), default=LINEAR)
        axes.axline((0, 0), slope=1, color=INK, linewidth=0.8, linestyle=":", zorder=0)
        ticks = [tick for tick in TICKS if abs(tick) <= most]
        axes.set_xscale("symlog", linthresh=LINEAR, linscale=1.5)
        axes.set_yscale("symlog", linthresh=LINEAR, linscale=1.5)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, [plain(tick) for tick in ticks], minor=False)
            axis.set_minor_locator(NullLocator())
        axes.set_xlim(-most, most)
        axes.set_ylim(-most, most)
        axes.set_xlabel(f"effect at {names[0]} scale ÷ smallest effect that matters")
        axes.set_ylabel(f"effect at {names[1]} scale ÷ smallest effect that matters")
        marks = [
            matplotlib.lines.Line2D(
                [], [], linestyle="", marker="o", markersize=5, color=INK, markerfacecolor=c
            )
            for c in ("#0173b2", "white")
        ]
        legend_above(figure, marks, ["decides the finding", "stands beside"])
        sns.despine(figure)
    findings = len({pair.finding for pair in pairs})
    caption = (
        f"Effects of {len(pairs)} tests of {findings} findings at two scales, with 95% intervals, in units "
        "of the smallest effect that matters and above 0 as claimed. Effects in the gray bands are too small "
        "to matter; on the dotted line they are equal. Axes are linear up to "
        f"{LINEAR:g} and logarithmic beyond."
    )
    return Drawing("transfer", "Findings at two scales", caption, figure)
