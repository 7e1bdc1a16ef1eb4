"""Figures of findings: the measurements of each arm, and all findings in one figure."""

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
from grpobench.analysis.figures.panels import legend_above, new_figure, text_width
from grpobench.analysis.figures.scales import round_ticks
from grpobench.analysis.figures.style import INK, NOTE_SIZE, SIZE, STYLE
from grpobench.analysis.findings.description import ArmMean, arm_means, effect_words, matters_words
from grpobench.analysis.findings.record import Record
from grpobench.analysis.findings.result import VERDICTS, Judged, Result, Verdict, test_row
from grpobench.analysis.measure import SHARES as SHARE_KINDS
from grpobench.analysis.measure import Measure
from grpobench.analysis.statistics.intervals import Estimate, seed_mean
from grpobench.analysis.tools.metrics import find
from grpobench.analysis.tools.text import human, percent
from grpobench.analysis.topics.captions import counted
from grpobench.analysis.topics.figure_names import AXES

MARKS: Mapping[Verdict, tuple[str, str]] = {
    "supported": ("o", "#0173b2"),
    "contradicted": ("X", "#b2182b"),
    "dose-dependent": ("^", "#de8f05"),
    "equivalent": ("s", "#555555"),
    "unresolved": ("D", "white"),
    "insensitive": ("o", "white"),
}
"""Marker and face of each verdict: told apart without color."""
WIDEST = 4.0
"""Effects, in what matters, beyond which an axis of all findings ends."""
INSIDE = WIDEST - 0.2
"""Where the marker of a larger effect stands."""
SHARES = ("points", "%")
GAP = 8.0
"""Points between the axis and the columns of numbers beside it."""
CLAIMS = {"same": " (claims none)", "not lower": " (claims no loss)", "not higher": " (claims no rise)"}
"""What a test expects beside a difference, for the name of its finding."""
ORDER: Sequence[Verdict] = tuple(VERDICTS)


def draw_all(results: Sequence[Result], labels: Mapping[str, str] | None = None) -> Drawing:
    """A row for each finding, by conclusion: the effect of the test that decides it in units of what matters,
    to the right as claimed, and its numbers. `labels` are names of findings and of what they are about, as
    for `human`."""
    groups = {verdict: sorted_group(results, verdict) for verdict in ORDER}
    lines: list[Verdict | Result] = []
    for verdict, group in groups.items():
        lines += [verdict, *group] if group else []
    with matplotlib.rc_context(STYLE):
        figure = new_figure(7.0, 0.2 * len(lines) + 0.75)
        axes = figure.add_subplot()
        _columns(axes, lines)
        names = []
        for row_y, line in enumerate(lines):
            if isinstance(line, Result):
                _row(axes, row_y, line)
                names.append(finding_label(line, labels))
            else:
                names.append(f"{line.capitalize()} ({len(groups[line])})")
        axes.axvspan(-1, 1, color="#f0f0f0", zorder=0, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(lines)), names)
        for tick, line in zip(axes.get_yticklabels(), lines, strict=True):
            tick.set_fontweight("normal" if isinstance(line, Result) else "bold")
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.set_xlim(-WIDEST - 0.35, WIDEST + 0.35)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_xlabel("effect ÷ smallest effect that matters\n← against the claim     as claimed →")
        sns.despine(figure, left=True)
    seeds = counted(
        [len(result.deciding.repetitions) for result in results if not result.deciding.test.deals], "seed"
    )
    caption = (
        f"Effect of the test that decides each finding, over {seeds}, with its 95% interval, by conclusion. "
        "The axis is in units of the smallest effect that matters, above 0 as claimed. An arrow marks an "
        "interval that goes on beyond the axis."
    )
    return Drawing("findings", "The findings by conclusion", caption, figure)


def sorted_group(results: Sequence[Result], verdict: Verdict) -> list[Result]:
    """The findings with a conclusion, the largest effect in the direction of the claim first."""

    def effect(result: Result) -> float:
        value = scaled(result.deciding)[0]
        return -value if math.isfinite(value) else math.inf

    return sorted((result for result in results if result.verdict == verdict), key=effect)


def finding_label(result: Result, labels: Mapping[str, str] | None = None) -> str:
    """A finding's name in words, and whether it claims that nothing differs, so that no side is the claimed
    one, or that nothing is lost."""
    label_by_name = labels or {}
    name = result.finding.name
    words = label_by_name.get(name) or " ".join(human(word, label_by_name) for word in name.split("-"))
    test = result.deciding.test
    return f"{words[0].upper()}{words[1:]}{CLAIMS.get(test.expect, '')}"


def _columns(axes: Axes, lines: Sequence[Verdict | Result]) -> None:
    """Effect with interval and smallest effect that matters, right of the axis."""
    cells = {row_y: _numbers(line) for row_y, line in enumerate(lines) if isinstance(line, Result)}
    heads = ("effect (95 % interval)", "matters from")
    size = 0.833 * SIZE
    width = 72 * max(text_width(effect, size) for effect, _ in [*cells.values(), heads])
    for row_y, texts in [(-0.9, heads), *cells.items()]:
        for text, shift in zip(texts, (GAP, 2 * GAP + width), strict=True):
            axes.annotate(
                text,
                xy=(1, row_y),
                xycoords=axes.get_yaxis_transform(),
                xytext=(shift, 0),
                textcoords="offset points",
                va="center",
                fontsize=NOTE_SIZE,
                color=INK,
                fontweight="bold" if row_y < 0 else "normal",
                annotation_clip=False,
            )


def _numbers(result: Result) -> tuple[str, str]:
    """The deciding effect with its interval, and the smallest effect that matters."""
    row = test_row(result.deciding)
    if row["deals"]:
        shares = [percent(math.nan if row[key] is None else row[key]) for key in ("value", "low", "high")]
        return f"{shares[0]} % of deals differ ({shares[1]} to {shares[2]})", f"{percent(row['most'])} %"
    return effect_words({**row, "reached": None}), matters_words(row)


def _row(axes: Axes, row_y: int, result: Result) -> None:
    value, low, high = scaled(result.deciding)
    marker, face = MARKS[result.verdict]
    if math.isnan(value):
        return
    ends = [low, high] if math.isfinite(low) else [value, value]
    axes.plot(np.clip(ends, -WIDEST, WIDEST), [row_y, row_y], color=INK, linewidth=1.2)
    for end in {math.copysign(WIDEST, end) for end in ends if abs(end) > WIDEST}:
        arrow_x = end + math.copysign(0.22, end)
        axes.plot(arrow_x, row_y, marker="<" if end < 0 else ">", color=INK, markersize=3)
    inside = float(np.clip(value, -INSIDE, INSIDE))  # beside the arrow
    axes.plot(inside, row_y, marker=marker, markersize=5.5, color=INK, markerfacecolor=face, zorder=3)


def scaled(judged: Judged) -> tuple[float, float, float]:
    """Effect and interval in units of what matters, above 0 where they are as claimed. Of a test that expects
    no difference the effect as it is; NaN for deals, which have no effect."""
    test, effect = judged.test, judged.effect
    numbers = [effect.value, effect.low, effect.high]
    if test.deals:
        return math.nan, math.nan, math.nan
    if test.ratio:
        numbers = [math.log(ratio) if ratio > 0 else math.nan for ratio in numbers]
    turned = -1 if test.expect in ("lower", "not higher") else 1
    value, low, high = (turned * number / test.margin for number in numbers)
    return value, min(low, high), max(low, high)


def draw_arms(record: Record, result: Result, labels: Mapping[str, str] | None = None) -> Drawing:
    """What the primary test measures of every run, by arm, with the mean over seeds. Where the outcome is
    censored nothing stands beyond its largest value, and runs with it are triangles and counted. `labels`
    are names of arms and tasks in the figure."""
    test = result.primary.test
    arms = arm_means(record, test.name)
    tasks = {arm_mean.task for arm_mean in arms}
    factor = 100 if test.unit in SHARES else 1
    ends = {arm_mean.horizon for arm_mean in arms if math.isfinite(arm_mean.horizon)}
    label_by_name = labels or {}
    with matplotlib.rc_context(STYLE):
        figure = new_figure(5.2, 0.26 * len(arms) + 0.55 + 0.2 * bool(ends))
        axes = figure.add_subplot()
        for row_y, arm_mean in enumerate(reversed(arms)):
            _strip(axes, row_y, arm_mean, factor)
            if ends:
                text = f"{arm_mean.reached} of {len(arm_mean.values)}"
                axes.text(
                    1.01, row_y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=NOTE_SIZE
                )
        names = [label_by_name.get(arm_mean.arm, arm_mean.arm) for arm_mean in reversed(arms)]
        if len(tasks) > 1:
            names = [
                f"{name}, {label_by_name.get(arm_mean.task, arm_mean.task)}"
                for name, arm_mean in zip(names, reversed(arms), strict=True)
            ]
        axes.set_yticks(range(len(arms)), names)
        axes.set_ylim(-0.6, len(arms) - 0.4)
        axes.set_xlabel(axis_words(test.outcome, test.unit))
        axes.xaxis.set_major_locator(round_ticks(6))
        if ends:
            _draw_end(axes, max(ends))
            legend_above(figure, [_censored_handle()], [f"{CENSORED_RUNS[arms[0].kind]} (count: right)"])
        sns.despine(figure)
    seeds = counted([len(arm_mean.values) for arm_mean in arms], "seed")
    caption = f"Points are {seeds} per arm; bars are means over seeds with 95% t intervals."
    if ends:
        of = {
            "lasting": f"how many of the {max(ends):g} planned updates a run lasts on average",
            "reach": f"what a run spends of {max(ends):g} until it reaches the level",
        }[arms[0].kind]
        caption = f"Points are {seeds} per arm; bars are restricted means, {of}, with 95% intervals."
    return Drawing(result.finding.name, result.finding.claim, caption, figure)


CENSORED_RUNS: Mapping[str, str] = {
    "lasting": "reached the end without a collapse",
    "reach": "did not reach the level",
}


def _draw_end(axes: Axes, end: float) -> None:
    """Where runs end, which is as far as the axis goes."""
    axes.axvline(end, color=INK, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_xlim(-0.02 * end, 1.02 * end)
    axes.xaxis.set_major_locator(FixedLocator([round(end * part / 4, 2) for part in range(5)]))


def _censored_handle() -> Line2D:
    return Line2D([], [], linestyle="", marker=">", markersize=4, color="#0173b2")


def _strip(axes: Axes, row_y: int, arm_mean: ArmMean, factor: float) -> None:
    run_values = [factor * value for value in arm_mean.values]
    spread = np.linspace(-0.14, 0.14, len(run_values)) if len(run_values) > 1 else np.zeros(len(run_values))
    ended = np.array([value >= arm_mean.horizon for value in arm_mean.values], dtype=bool)  # NaN: none
    for chosen, marker in ((~ended, "o"), (ended, ">")):
        if chosen.any():
            x, y = np.array(run_values)[chosen], (row_y + spread)[chosen]
            axes.plot(x, y, linestyle="", marker=marker, markersize=3, color="#0173b2", alpha=0.45)
    mean = seed_mean(run_values)
    if math.isfinite(arm_mean.horizon):
        mean = Estimate(
            *(factor * end for end in (arm_mean.mean.value, arm_mean.mean.low, arm_mean.mean.high))
        )
    if math.isfinite(mean.low):
        axes.plot([mean.low, mean.high], [row_y, row_y], color=INK, linewidth=1.2)
    if run_values:
        axes.plot(mean.value, row_y, marker="|", markersize=9, markeredgewidth=1.6, color=INK)


REDUCED = {
    "first": "at the first update",
    "last": "last tenth of updates",
    "mean": "mean over updates",
    "max": "largest of all updates",
    "min": "smallest of all updates",
    "sum": "sum over updates",
    "end": "at the last update",
    "tenth": "last tenth of updates",
    "quarter": "last quarter of updates",
}


def metric_words(name: str) -> str:
    """A metric of training, or the sum of several, as the catalog labels it."""
    if name == "time/forward+time/backward+time/optimize":
        return "seconds of forward, backward and optimizer"
    metric = find(name)
    return metric.label if metric and metric.label else human(name.replace("/", " ").replace("+", " and "))


def _target_words(argument: str) -> str:
    level, _, axis = argument.partition(":")
    return f"{AXES.get(axis, axis.upper())} until accuracy is {level}" if axis else ""


AT_RATES: Mapping[str, str] = {
    "loss-at-half": "accuracy lost at half the learning rate",
    "loss-at-twice": "accuracy lost at twice the learning rate",
    "octaves": "width of the learning rate (octaves)",
}


def axis_words(outcome: str, unit: str) -> str:
    """An outcome as an axis has it: `final accuracy, sampled (%)`."""
    measure = Measure.read(outcome)
    kind, argument = measure.kind, measure.argument
    mode, _, metric = argument.partition("/")
    if kind == "training":
        words = f"{metric_words(argument)}, {REDUCED[measure.reduction]}"
        return f"{words} (%)" if unit in SHARES else f"{words} ({unit})" if unit else words
    if kind == "best_rate":
        return f"log2 of the learning rate with the best {axis_words(argument, '')}"
    if kind in SHARE_KINDS:
        limit, _, inner = argument.partition(":")
        runs = "runs (%)" if unit in SHARES else "runs"
        others = f" less those below −{limit}" if kind == "net_above" else ""
        return f"{runs} with {axis_words(inner, '')} above {limit}{others}"
    if kind == "when":
        first, other, level = argument.split(":")
        words = f"{metric_words(first)} where {human(other.replace('/', ' '))} reaches {level}"
        return f"{words} (%)" if unit in SHARES else f"{words} ({unit})" if unit else words
    if kind == "log_ratio":
        return f"log ratio of {' and '.join(human(name.replace('/', ' ')) for name in measure.metrics)}"
    if kind in ("also", "also_shift"):
        task, mode, metric = argument.split("/", 2)
        metric = f"{metric} on {task}"
    metric_and_mode = f"{human(metric.replace('accuracy_', 'accuracy, '))}, {mode}"
    words = {
        "accuracy": f"final accuracy{', ' * bool(argument)}{argument}",
        "gain": f"gain in accuracy{', ' * bool(argument)}{argument}",
        "base": f"accuracy before training{', ' * bool(argument)}{argument}",
        "evaluated": f"final {metric_and_mode}",
        "shift": f"change of {metric_and_mode}",
        "also": f"final {metric_and_mode}",
        "also_shift": f"change of {metric_and_mode}",
        "lasting": f"updates before a collapse{f' ({human(argument)})' if argument else ''}",
        "reach": _target_words(argument),
        "pass": f"pass@{argument}",
        "pass_gain": f"gain in pass@{argument}",
        "pass_base": f"pass@{argument} before training",
        "equal": f"validation accuracy at equal {AXES.get(argument, argument.upper())}",
        "ceiling": f"ceiling of accuracy against {AXES.get(argument, argument.upper())}",
        "midpoint": f"{AXES.get(argument, argument.upper())} for half of the gain",
        "wrong_length": "length of wrong answers (tokens)",
        "rate": AT_RATES.get(argument, ""),
    }[kind]
    if unit not in SHARES:
        return words
    differs = kind in ("gain", "shift", "also_shift", "pass_gain") or argument.startswith("loss-")
    return f"{words} (points)" if differs else f"{words} (%)"
