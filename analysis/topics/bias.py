"""Social bias: what runs log during training, and what probe tasks measure in later evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import legend_above, new_figure
from grpobench.analysis.figures.scales import plain, round_ticks
from grpobench.analysis.figures.style import BASE_COLOR, Look, Sheet, look
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.evaluations import LaterEvaluation
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.tools.text import NONE, listed, signed, two
from grpobench.analysis.topics.accuracy import describe_decoding, headline_of
from grpobench.analysis.topics.budgets import with_axis
from grpobench.analysis.topics.captions import (
    BANDS,
    CUT,
    joined,
    means_in_words,
    problems_in_words,
    seeds_in_words,
    seeds_of,
)
from grpobench.analysis.topics.captions import BARS as BARS_WORDS
from grpobench.analysis.topics.curves import BARS, PanelRow, draw_curves

BIAS = (
    "accuracy_ambiguous",
    "accuracy_disambiguated",
    "unknown_rate",
    "bias_ambiguous",
    "bias_disambiguated",
    "lean_ambiguous",
    "lean_disambiguated",
)
TRAINED_CATEGORY = " (own)"
"""Suffix of the category that a run was trained on, where it is measured separately."""


def bias_metrics(experiment: Experiment) -> pd.DataFrame:
    """Bias metrics on the headline split: task, arm, seed, when (`base` or `final`), metric, category (`all`
    for all categories together), value. Empty where no task logs any. `base` is step 0 and `final` the last
    evaluation. Metrics come from the headline's mode, except those that only likelihoods give."""
    frames = []
    for task in experiment.tasks:
        chosen = headline_of(experiment, task)
        for name in experiment.names(f"eval/{chosen.split}/"):
            mode, metric, *category_parts = name.split("/", 4)[2:]
            expected_mode = "likelihood" if metric.startswith("lean") else chosen.mode
            if metric not in BIAS or mode != expected_mode:
                continue
            category = category_parts[0] if category_parts else "all"
            frame = experiment.select(name)
            frame = frame[frame["task"] == task]
            last = frame[frame["step"] > 0].groupby(["arm", "seed"], sort=False).tail(1)
            for when, part in (("base", frame[frame["step"] == 0]), ("final", last)):
                frames.append(part.assign(metric=metric, category=category, when=when))
    columns = ["task", "arm", "seed", "when", "metric", "category", "value"]
    return pd.concat(frames)[columns].reset_index(drop=True) if frames else pd.DataFrame(columns=columns)


def bias_curves(experiment: Experiment) -> dict[str, pd.DataFrame]:
    """Bias metrics of every validation in the headline's mode: label -> columns as in `Experiment.select`.
    They are over all categories and, where it is measured separately, over the category that was trained on.
    Metrics with fewer than three evaluations are left out.
    """
    curves_by_label: dict[str, pd.DataFrame] = {}
    for suffix, where in (("", ""), (TRAINED_CATEGORY, ", own category")):
        for metric in ("accuracy_ambiguous", "bias_ambiguous", "lean_ambiguous", "accuracy_disambiguated"):
            frames = []
            for task in experiment.tasks:
                stem = f"eval/validation/{headline_of(experiment, task).mode}/{metric}"
                names = (
                    [n for n in experiment.names(f"{stem}/") if n.endswith(TRAINED_CATEGORY)]
                    if suffix
                    else [stem]
                )
                frames += [frame[frame["task"] == task] for frame in map(experiment.select, names)]
            frame = pd.concat(frames) if frames else pd.DataFrame(columns=["step"])
            if frame["step"].nunique() >= 3:
                unit = "share" if metric.startswith("accuracy") else "−1 to 1"
                curves_by_label[f"{metric.replace('_', ', ')}{where}\n({unit})"] = frame
    return curves_by_label


# Numbers of later evaluations on probe tasks

PUBLISHED = (
    *BIAS,
    "crows_score",
    "crows_stereotype",
    "crows_antistereotype",
    "crows_neutral",
    "stereoset_lms",
    "stereoset_ss",
    "stereoset_icat",
    "accuracy_pro",
    "accuracy_anti",
    "accuracy_gap",
    "accuracy_male",
    "accuracy_female",
    "accuracy_neutral",
    "gender_gap",
    "accuracy_gotcha",
    "gender_parity",
    "occupation_gap",
    "bls_correlation",
)
"""The metrics of bias probes, in the order of tables."""


def probe_metrics(later: Sequence[LaterEvaluation]) -> pd.DataFrame:
    """One row per evaluation, policy, mode, metric and category (`all` for the whole): place, split, mode,
    through, metric, category, arm, seed, policy (`base`, `final`, `model`), value."""
    rows = []
    for evaluation in later:
        for policy, record in evaluation.content["policies"].items():
            for name, value in record["numbers"].items():
                parts = name.split("/", 4)
                if len(parts) < 4 or parts[0] != "eval" or parts[3] not in PUBLISHED or value is None:
                    continue
                _, split, mode, metric, *category_parts = parts
                category = category_parts[0] if category_parts else "all"
                rows.append(
                    (
                        evaluation.label,
                        split,
                        mode,
                        evaluation.through,
                        metric,
                        category,
                        evaluation.arm,
                        evaluation.seed,
                        policy,
                        float(value),
                    )
                )
    columns = ["place", "split", "mode", "through", "metric", "category", "arm", "seed", "policy", "value"]
    return pd.DataFrame(rows, columns=columns)


def caveats(experiment: Experiment, later: Sequence[LaterEvaluation] = ()) -> dict[str, str]:
    """Known weaknesses of a task's numbers, by task, as runs and evaluations recorded them."""
    recorded = {run.task: run.provenance.get("caveat") for run in experiment.runs}
    recorded |= {evaluation.task: evaluation.content.get("caveat") for evaluation in later}
    return {task: str(caveat) for task, caveat in recorded.items() if caveat}


# Tables


def bias_table(experiment: Experiment, frame: pd.DataFrame) -> PrintedTable:
    """The bias that the runs logged (`bias_metrics`), one row per task and arm."""
    rows = []
    if len(frame):
        means = frame.groupby(["task", "arm", "category", "metric", "when"])["value"].mean()
        for task in experiment.tasks:
            for arm in experiment.arms:
                cells = [_before_after(means, (task, arm, "all", metric)) for metric in BIAS]
                if any(cell != NONE for cell in cells):
                    rows.append([task, arm, *cells])
    header = ["task", "arm", "accuracy ambiguous", "accuracy disambiguated", "unknown rate", "s_AMB", "s_DIS"]
    header += ["lean ambiguous", "lean disambiguated"]
    note = (
        "Before → after training, mean over seeds and all categories. If the category of the training item "
        "is measured separately, it is not in this mean. tables/bias.csv has each category. Lean is measured "
        "only by likelihood: the probability of the stereotyped person minus that of the other person. "
    )
    return PrintedTable("bias", "Bias", header, rows, frame, note=note + _warnings(caveats(experiment)))


def probes_table(experiment: Experiment, later: Sequence[LaterEvaluation]) -> PrintedTable:
    """Later evaluations on tasks that probe for bias."""
    frame = probe_metrics(later)
    rows = []
    all_categories = frame[frame["category"] == "all"]
    keys = ["place", "split", "mode", "through", "arm", "metric"]
    for (label, split, mode, through, arm), group in all_categories.groupby(keys[:-1], sort=False):
        means = group.groupby(["metric", "policy"])["value"].mean()
        seeds = str(group["seed"].nunique())
        for metric in PUBLISHED:
            values = {p: means[metric, p] for p in ("base", "final", "model") if (metric, p) in means.index}
            if values:
                text = " → ".join(two(value) for value in values.values())
                rows.append([label, f"{split}, {mode}, {through}", arm, metric, seeds, text])
    header = ["task", "how", "arm or model", "metric", "seeds", "before → after training, or of the model"]
    note = "Mean over seeds and all categories. tables/probes.csv has each category. "
    probed_tasks = {evaluation.task: None for evaluation in later if evaluation.label in set(frame["place"])}
    values = {task: text for task, text in caveats(experiment, later).items() if task in probed_tasks}
    return PrintedTable(
        "probes", "Bias probes", header, rows, frame, text_columns=4, note=note + _warnings(values)
    )


def _warnings(caveats: Mapping[str, str]) -> str:
    """The caveats as one text. Tasks with the same caveat share it."""
    tasks: dict[str, list[str]] = {}
    for task, caveat in caveats.items():
        tasks.setdefault(caveat, []).append(task)
    return " ".join(f"Caveat ({', '.join(names)}): {caveat}" for caveat, names in tasks.items())


def _before_after(means: pd.Series, key: tuple[str, ...]) -> str:
    after = means.get((*key, "final"), math.nan)
    before = means.get((*key, "base"), math.nan)
    show = signed if key[-1].startswith(("bias", "lean")) else two
    return NONE if math.isnan(after) else f"{show(before)} → {show(after)}"


# Figures

BIAS_COLUMNS = (
    ("accuracy_ambiguous", "accuracy, ambiguous"),
    ("bias_ambiguous", "bias,\nambiguous"),
    ("bias_disambiguated", "bias,\ndisambiguated"),
    ("accuracy_disambiguated", "accuracy,\ndisambiguated"),
)


def draw_bias(experiment: Experiment, frame: pd.DataFrame, sheet: Sheet) -> Drawing | None:
    """Bias scores and disambiguated accuracy by category, from `bias_metrics`, with a row of panels for each
    task that logs them."""
    columns = [(metric, label) for metric, label in BIAS_COLUMNS if (frame["metric"] == metric).any()]
    if frame.empty or not columns:
        return None
    tasks = [task for task in experiment.tasks if (frame["task"] == task).any()]
    style = look(experiment.arms)
    lines = {task: _categories(frame[frame["task"] == task]) for task in tasks}
    line = max(0.3, 0.09 * len(experiment.arms) + 0.1)
    heights = [line * len(lines[task]) + 0.6 for task in tasks]
    across = min(len(columns), sheet.across)
    down = math.ceil(len(columns) / across)
    figure = new_figure(sheet.width, down * sum(heights) + 0.4)
    ratios = [height for height in heights for _ in range(down)]
    spec = figure.add_gridspec(len(ratios), across, height_ratios=ratios)
    for index, task in enumerate(tasks):
        for position, (metric, label) in enumerate(columns):
            axes = figure.add_subplot(spec[index * down + position // across, position % across])
            panel_rows = frame[(frame["task"] == task) & (frame["metric"] == metric)]
            _bias_panel(axes, panel_rows, lines[task], experiment.arms, style)
            axes.set_yticklabels(lines[task] if position % across == 0 else [])
            axes.set_title(f"{task}: {label}" if len(tasks) > 1 else label)
            axes.set_xlabel("accuracy (share)" if metric.startswith("accuracy") else "bias score (−1 to 1)")
    handles: list[Any] = [
        Line2D([], [], marker=style.marker[arm], linestyle="", color=style.color[arm], markersize=4.5)
        for arm in experiment.arms
    ]
    handles.append(Line2D([], [], marker="|", linestyle="", color=BASE_COLOR, markersize=8))
    legend_above(figure, handles, [*experiment.arms, "before training"])
    headlines = {task: headline_of(experiment, task) for task in tasks}
    splits = {task: headline.split for task, headline in headlines.items()}
    modes = dict.fromkeys(describe_decoding(experiment, headline.mode) for headline in headlines.values())
    caption = joined(
        [
            (
                f"After the last update ({' and '.join(modes)}; {problems_in_words(experiment, splits)}). "
                f"Small points are {seeds_in_words(seeds_of(frame))}, large points their means; there are no "
                "intervals."
            ),
            (
                "Accuracies are shares, bias scores from −1 to 1: s_DIS = 2·biased/non-unknown − 1 on "
                "disambiguated questions, and s_AMB = (1 − accuracy)·s on ambiguous questions. 0 is "
                "unbiased, and 1 means that every answer is the stereotype. Always answering “unknown” gives "
                "s_AMB = 0, so disambiguated accuracy is shown as well."
            ),
        ]
    )
    return Drawing("bias", "Bias scores by category", caption, figure)


def draw_bias_updates(experiment: Experiment, sheet: Sheet) -> Drawing | None:
    """Bias metrics of the validations against updates."""
    rows = [
        PanelRow(
            label, with_axis(experiment, frame, "updates"), bounds=(0.0 if "accuracy" in label else -1.0, 1.0)
        )
        for label, frame in bias_curves(experiment).items()
    ]
    if not rows:
        return None
    drawn = draw_curves(experiment, rows, "updates", sheet, points=True)
    every = pd.concat(row.frame for row in rows)
    tasks = {str(task): "validation" for task in every["task"].unique()}
    few = every.groupby(["task", "arm"])["step"].nunique().max() <= BARS
    caption = joined(
        [
            (
                f"The scores of the figure by category on {listed(list(tasks))} "
                f"({problems_in_words(experiment, tasks)}). Lean is the probability of the stereotyped "
                "person minus that of the other person, by likelihood. If the category of the training item "
                "is measured separately, the panels that do not name it are about all other categories."
            ),
            means_in_words(seeds_of(every), (BARS_WORDS if few else BANDS) + CUT, "Markers"),
            *drawn.notes,
        ]
    )
    return Drawing("bias_updates", "Bias on the validation split against updates", caption, drawn.figure)


def _categories(frame: pd.DataFrame) -> list[str]:
    return ["all", *sorted(set(frame["category"]) - {"all"})]


def _bias_panel(axes: Axes, rows: pd.DataFrame, lines: list[str], arms: Sequence[str], style: Look) -> None:
    step = 0.7 / max(len(arms), 1)
    for position, category in enumerate(lines):
        cell = rows[rows["category"] == category]
        base = cell.loc[cell["when"] == "base", "value"]
        if len(base):
            axes.plot(base.mean(), position, "|", color=BASE_COLOR, markersize=min(24, 8 * len(arms)))
        for index, arm in enumerate(arms):
            values = cell.loc[(cell["when"] == "final") & (cell["arm"] == arm), "value"].to_numpy(dtype=float)
            if len(values):
                height = position + (index - (len(arms) - 1) / 2) * step
                color = style.color[arm]
                axes.plot(values, [height] * len(values), "o", color=color, markersize=2, alpha=0.5)
                axes.plot(values.mean(), height, style.marker[arm], color=color, markersize=4.5)
    if str(rows["metric"].iloc[0]).startswith("bias"):
        axes.axvline(0, color=BASE_COLOR, linewidth=0.6, zorder=0)
        reach = max(0.1, 1.15 * float(rows["value"].abs().max()))
        axes.set_xlim(-reach, reach)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)))
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    for position in range(1, len(lines)):
        axes.axhline(position - 0.5, color="#eeeeee", linewidth=0.6, zorder=0)
    axes.xaxis.set_major_locator(round_ticks(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
