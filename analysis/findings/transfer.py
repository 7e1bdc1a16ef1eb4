"""Findings at two scales: whether effects of nano policies hold for a language model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import matplotlib
import numpy as np
import seaborn as sns
from matplotlib.ticker import NullLocator

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import legend_above, new_figure
from grpobench.analysis.figures.scales import plain
from grpobench.analysis.figures.style import INK, STYLE
from grpobench.analysis.findings.description import effect_words
from grpobench.analysis.findings.figures import scaled
from grpobench.analysis.findings.result import Judged, Result, test_row
from grpobench.analysis.findings.rule import Finding
from grpobench.analysis.statistics.intervals import Estimate
from grpobench.analysis.statistics.ranks import spearman

TICKS = (-1000, -300, -100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100, 300, 1000)
SCALES = ("at nano scale", "on SmolLM2")
"""Words for the smaller and the larger scale."""
LINEAR = 4.0
"""Effects, in what matters, up to which the axes are linear; beyond they are logarithmic."""


@dataclass(frozen=True)
class ScalePair:
    """One test of a finding at both scales.

    A test that a finding has at both scales is a pair, even if the rest of the finding's rule differs.
    Effects are in units of the smallest effect that matters, above 0 as claimed, so that points, updates and
    factors share one axis."""

    finding: str
    first: Judged
    """At the smaller scale."""
    second: Judged
    same_rule: bool = True
    """Whether the finding has the same rule at both scales; the test itself is always the same."""

    @property
    def clear(self) -> bool:
        """Whether both 95 % intervals leave 0 out."""
        return all(low > 0 or high < 0 for _, low, high in map(scaled, (self.first, self.second)))

    @property
    def same_sign(self) -> bool:
        return math.copysign(1, scaled(self.first)[0]) == math.copysign(1, scaled(self.second)[0])

    @property
    def is_reversed(self) -> bool:
        """Whether the signs differ, clearly."""
        return self.clear and not self.same_sign


@dataclass(frozen=True)
class Uncompared:
    """A finding, or one test of it, that is kept at a scale and is no pair."""

    finding: str
    reason: str
    test: str = ""
    """Empty for the whole finding."""
    is_reversed: bool = False
    """Whether the signs of the test differ, clearly, where both scales measure something by its name."""


@dataclass(frozen=True)
class Agreement:
    """How far two scales agree, over these pairs."""

    pairs: int
    findings: int
    clear: int
    """Pairs whose intervals leave 0 out at both scales."""
    clear_findings: int
    """Findings with such pairs. The pairs of one share runs, so that their number alone says little."""
    same: int
    """Clear pairs with the same sign."""
    ratio: float
    """Median of the second scale's effect ÷ the first's over these; of logarithms where effects are factors.
    NaN without such pairs."""
    smallest_ratio: float
    largest_ratio: float
    rank: Estimate
    """Spearman's rank correlation of the effects, with the percentile interval of a bootstrap over findings;
    its ends are NaN with fewer than `ranks.FEWEST`."""


def compare_scales(
    first: Sequence[Result], second: Sequence[Result]
) -> tuple[list[ScalePair], list[Uncompared]]:
    """The tests that can be compared, in the order of the first scale, everything else with its reason."""
    others = {result.finding.name: result for result in second}
    pairs: list[ScalePair] = []
    uncompared: list[Uncompared] = []
    for result in first:
        name = result.finding.name
        other = others.pop(name, None)
        if other is None:
            uncompared.append(Uncompared(name, f"kept {SCALES[0]} alone"))
            continue
        same_rule = result.finding.digest == other.finding.digest
        judged = [{entry.test.name: entry for entry in side.tests} for side in (result, other)]
        for test in dict.fromkeys(entry.name for side in (result, other) for entry in side.finding.test):
            reason = _uncompared_reason(test, (result, other))
            pair = None
            if test in judged[0] and test in judged[1]:
                pair = ScalePair(name, judged[0][test], judged[1][test], same_rule)
            if pair and not reason:
                pairs.append(pair)
            else:
                uncompared.append(Uncompared(name, reason, test, bool(pair and pair.is_reversed)))
    uncompared += [Uncompared(name, f"kept {SCALES[1]} alone") for name in others]
    return pairs, uncompared


def _uncompared_reason(name: str, results: tuple[Result, Result]) -> str:
    """Why this test of a finding is no pair; empty if it is one."""
    rules = [{test.name: test for test in result.finding.test}.get(name) for result in results]
    judged = [{entry.test.name: entry for entry in result.tests}.get(name) for result in results]
    for test, of_scale, scale in zip(rules, judged, SCALES, strict=True):
        if test is None:
            return f"the rule {scale} lacks this test"
        if of_scale is None or not (test.deals or math.isfinite(scaled(of_scale)[0])):
            return f"no runs of its arms {scale}"
    if any(test and test.deals for test in rules):
        return "it counts deals, and no effect is measured"
    if rules[0] and rules[1] and replace(rules[0], also=rules[1].also) != rules[1]:
        effects = [
            f"{effect_words(test_row(entry))} {scale}"
            for entry, scale in zip(judged, SCALES, strict=True)
            if entry
        ]
        return f"the test differs: {', '.join(effects)}"
    return ""


def rule_difference(first: Finding, second: Finding) -> str:
    """A sentence on how the rules of a finding differ between the scales; empty if they do not."""
    if first.digest == second.digest:
        return ""
    kinds = [
        [{entry.name: entry for entry in getattr(rule, kind)} for rule in (first, second)]
        for kind in ("test", "check", "control")
    ]
    parts = []
    for scale, (mine, theirs) in zip(SCALES, ((0, 1), (1, 0)), strict=True):
        counts = [len(of[mine].keys() - of[theirs].keys()) for of in kinds]
        words = [
            f"{n} {kind}{'s' * (n > 1)}"
            for n, kind in zip(counts, ("test", "check", "control"), strict=True)
            if n
        ]
        parts += [f"the rule {scale} has {', '.join(words)} that the other lacks"] if words else []
    parts += [
        f"another version of “{name}”"
        for before, after in kinds
        for name in before
        if after.get(name, before[name]) != before[name]
    ]
    return f"The rules differ: {'; '.join(parts) or 'in their texts'}."


def agreement(pairs: Sequence[ScalePair], seed: int = 0) -> Agreement:
    clear = [pair for pair in pairs if pair.clear]
    ratios = [scaled(pair.second)[0] / scaled(pair.first)[0] for pair in clear if pair.same_sign]
    return Agreement(
        len(pairs),
        len({pair.finding for pair in pairs}),
        len(clear),
        len({pair.finding for pair in clear}),
        sum(pair.same_sign for pair in clear),
        float(np.median(ratios)) if ratios else math.nan,
        min(ratios, default=math.nan),
        max(ratios, default=math.nan),
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


def draw_transfer(pairs: Sequence[ScalePair]) -> Drawing:
    """Each pair's effect at one scale against the other, with 95 % intervals; filled where the test decides
    the finding, a diamond where the rules of the finding differ."""
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
            marker = "o" if pair.same_rule else "D"
            axes.plot(x, y, marker=marker, markersize=5, color=INK, markerfacecolor=face, zorder=3)
        ends = [
            abs(end)
            for pair in pairs
            for test_result in (pair.first, pair.second)
            for end in scaled(test_result)
        ]
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
        axes.set_xlabel(f"effect {SCALES[0]} ÷ smallest effect that matters")
        axes.set_ylabel(f"effect {SCALES[1]} ÷ smallest effect that matters")
        looks = [("o", "#0173b2"), ("o", "white")]
        looks += [("D", "#999999")] * any(not pair.same_rule for pair in pairs)
        marks = [
            matplotlib.lines.Line2D(
                [], [], linestyle="", marker=marker, markersize=5, color=INK, markerfacecolor=face
            )
            for marker, face in looks
        ]
        words = ["decides the finding", "stands beside", "the rules differ"]
        legend_above(figure, marks, words[: len(marks)])
        sns.despine(figure)
    findings = len({pair.finding for pair in pairs})
    caption = (
        f"Effects of {len(pairs)} tests of {findings} findings at two scales, with 95% intervals, in units "
        "of the smallest effect that matters and above 0 as claimed. Effects in the gray bands are too small "
        "to matter; on the dotted line they are equal. Axes are linear up to "
        f"{LINEAR:g} and logarithmic beyond."
    )
    return Drawing("transfer", "Findings at two scales", caption, figure)
