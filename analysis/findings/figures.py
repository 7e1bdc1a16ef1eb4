"""Figures of findings: what each arm measured, and all findings beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import legend_above, new_figure
from grpobench.analysis.figures.style import INK, STYLE
from grpobench.analysis.findings.description import ArmMean, arm_means
from grpobench.analysis.findings.judge import VERDICTS, Judged, Result, Verdict
from grpobench.analysis.findings.outcomes import clip
from grpobench.analysis.findings.record import Record
from grpobench.analysis.statistics.intervals import seed_mean

MARKS: Mapping[Verdict, tuple[str, str]] = {
    "supported": ("o", "#0173b2"),
    "contradicted": ("X", "#b2182b"),
    "equivalent": ("s", "#555555"),
    "unresolved": ("D", "white"),
}
"""Marker and face of each verdict: told apart without color."""
WIDEST = 4.0
"""Effects, in what matters, beyond which an axis of all findings ends."""
SHARES = ("points", "%")


def draw_all(results: Sequence[Result]) -> Drawing:
    """A row for each finding: its primary effect in units of what matters, to the right as claimed."""
    with matplotlib.rc_context(STYLE):
        figure = new_figure(7.0, 0.23 * len(results) + 0.75)
        axes = figure.add_subplot()
        for row, result in enumerate(results):
            _row(axes, len(results) - 1 - row, result)
        axes.axvspan(-1, 1, color="#f0f0f0", zorder=0, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(results)), [_finding_label(one) for one in reversed(results)])
        axes.set_xlim(-WIDEST - 0.35, WIDEST + 0.35)
        axes.set_ylim(-0.6, len(results) - 0.4)
        axes.set_xlabel(
            "primary effect ÷ smallest effect that matters (left: against the claim, right: as claimed)"
        )
        shown = [verdict for verdict in VERDICTS if any(one.verdict == verdict for one in results)]
        legend_above(figure, [_handle(verdict) for verdict in shown], shown)
    return Drawing("findings", "The findings", "", figure)


def _finding_label(result: Result) -> str:
    """A finding's name, and whether it claims that nothing differs: then no side is the claimed one."""
    test = result.primary.test
    return f"{result.finding.name} (claims none)" if test.expect == "same" else result.finding.name


def _handle(verdict: Verdict) -> Line2D:
    marker, face = MARKS[verdict]
    return Line2D([], [], linestyle="", marker=marker, markersize=5, color=INK, markerfacecolor=face)


def _row(axes: Axes, place: int, result: Result) -> None:
    value, low, high = scaled(result.primary)
    marker, face = MARKS[result.verdict]
    if math.isnan(value):
        axes.text(0.08, place, _shares(result.primary), fontsize=6.5, va="center", color=INK)
        return
    ends = [low, high] if math.isfinite(low) else [value, value]
    axes.plot(np.clip(ends, -WIDEST, WIDEST), [place, place], color=INK, linewidth=1.2)
    for end in {math.copysign(WIDEST, end) for end in ends if abs(end) > WIDEST}:
        place_of = end + math.copysign(0.2, end)
        axes.plot(place_of, place, marker="<" if end < 0 else ">", color=INK, markersize=3)
    inside = float(np.clip(value, -WIDEST, WIDEST))
    axes.plot(inside, place, marker=marker, markersize=5.5, color=INK, markerfacecolor=face, zorder=3)


def _shares(judged: Judged) -> str:
    """What stands in the row of A/A, which has no effect."""
    if not judged.test.deals or math.isnan(judged.effect.value):
        return "no effect is known"
    return f"{judged.effect.value:.1%} of deals called different, {judged.test.most:.0%} allowed"


def scaled(judged: Judged) -> tuple[float, float, float]:
    """Effect and interval in units of what matters, above 0 where they are as claimed. Of a test that expects
    no difference the effect as it is; of deals the share called different over what is allowed."""
    test, effect = judged.test, judged.effect
    numbers = [effect.value, effect.low, effect.high]
    if test.deals:
        return math.nan, math.nan, math.nan
    if test.ratio:
        numbers = [math.log(one) if one > 0 else math.nan for one in numbers]
    turned = -1 if test.expect == "lower" else 1
    value, low, high = (turned * one / test.margin for one in numbers)
    return value, min(low, high), max(low, high)


def draw_arms(record: Record, result: Result) -> Drawing:
    """What the primary test measures of every run, by arm, with the mean over seeds. Where the outcome ends
    with the run nothing stands beyond its end, and runs that reached it are triangles and counted."""
    test = result.primary.test
    arms = arm_means(record, test.name)
    tasks = {one.task for one in arms}
    factor = 100 if test.unit in SHARES else 1
    ends = {one.horizon for one in arms if math.isfinite(one.horizon)}
    with matplotlib.rc_context(STYLE):
        figure = new_figure(5.2, 0.26 * len(arms) + 0.55 + 0.2 * bool(ends))
        axes = figure.add_subplot()
        for place, one in enumerate(reversed(arms)):
            _strip(axes, place, one, factor)
            if ends:
                text = f"{one.reached} of {len(one.values)}"
                axes.text(1.01, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=6.5)
        names = [one.arm if len(tasks) == 1 else f"{one.arm}, {one.task}" for one in reversed(arms)]
        axes.set_yticks(range(len(arms)), names)
        axes.set_ylim(-0.6, len(arms) - 0.4)
        axes.set_xlabel(axis_words(test.outcome, test.unit))
        if ends:
            _draw_end(axes, max(ends))
            legend_above(figure, [_censored_handle()], ["reached the end without a collapse (count: right)"])
        sns.despine(figure)
    return Drawing(result.finding.name, result.finding.claim, "", figure)


def _draw_end(axes: Axes, end: float) -> None:
    """Where runs end, which is as far as the axis goes."""
    axes.axvline(end, color=INK, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_xlim(-0.02 * end, 1.02 * end)
    axes.xaxis.set_major_locator(FixedLocator([round(end * part / 4, 2) for part in range(5)]))


def _censored_handle() -> Line2D:
    return Line2D([], [], linestyle="", marker=">", markersize=4, color="#0173b2")


def _strip(axes: Axes, place: int, one: ArmMean, factor: float) -> None:
    own = [factor * value for value in one.values]
    spread = np.linspace(-0.14, 0.14, len(own)) if len(own) > 1 else np.zeros(len(own))
    ended = np.array([value >= one.horizon for value in one.values], dtype=bool)  # NaN: none
    for chosen, marker in ((~ended, "o"), (ended, ">")):
        if chosen.any():
            x, y = np.array(own)[chosen], (place + spread)[chosen]
            axes.plot(x, y, linestyle="", marker=marker, markersize=3, color="#0173b2", alpha=0.45)
    mean = seed_mean(own)
    if math.isfinite(one.horizon):
        mean = clip(mean, 0.0, factor * one.horizon)
    if math.isfinite(mean.low):
        axes.plot([mean.low, mean.high], [place, place], color=INK, linewidth=1.2)
    if own:
        axes.plot(mean.value, place, marker="|", markersize=9, markeredgewidth=1.6, color=INK)


def axis_words(outcome: str, unit: str) -> str:
    """An outcome as an axis has it: `accuracy, sampled (%)`."""
    kind, _, what = outcome.partition(":")
    words = {
        "accuracy": "final accuracy",
        "gain": "gain in accuracy",
        "evaluated": "final",
        "shift": "change of",
        "also": "final",
        "also_shift": "change of",
        "training": "",
        "lasting": "updates before collapse",
        "pass": f"pass@{what}",
        "pass_gain": f"pass@{what} less the base's",
        "equal": f"validation accuracy at equal {what}",
        "wrong_length": "length of wrong answers (tokens)",
    }[kind]
    named = ("accuracy", "gain", "evaluated", "shift", "also", "also_shift")
    told = what.replace("_", " ").replace("/", " ") if kind in named else ""
    if kind == "training":
        told = what.replace("_", " ").rpartition(":")[0].replace("time/", "").replace("+", " + ") + " "
        told = f"{told.strip()} ({what.rpartition(':')[2]})"
    shown = f"{words} {told}".strip()
    return f"{shown} (%)" if unit in SHARES else shown
