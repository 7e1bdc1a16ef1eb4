"""What many samples of a problem give: pass@k and majority votes against k."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from grpobench.analysis.figures.drawing import Drawing
from grpobench.analysis.figures.panels import arm_handle, grid_of, leftmost, legend_above, panel_height
from grpobench.analysis.figures.style import BAND, BASE_COLOR, BASE_DASH, MARKERS, Look, Sheet, look
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.evaluations import LaterEvaluation
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.intervals import seed_means
from grpobench.analysis.statistics.samples import majority_curve, pass_curve, solved
from grpobench.analysis.tools.text import each_seed, percent, points
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.captions import BANDS, CUT, joined, means_in_words, problems_in_words

IN_RUNS = ", in the runs"
"""How the place of samples ends that runs drew themselves."""
LEAST = 4
"""Fewest samples per problem for which pass@k and votes are reported; k = 2 needs them."""


def sample_curves(in_runs: pd.DataFrame, later: Sequence[LaterEvaluation]) -> pd.DataFrame:
    """pass@k and maj@k of every seed, for k = 1, 2, 4, …: columns place, source, arm, seed, policy, kind
    (`pass` or `maj`), k, value.

    They come from samples of the runs (`in_runs`: graded rows of `Experiment.evaluations` before and after
    training) and from later evaluations, wherever each problem has at least four samples. A model that
    answered the same problems is shown next to the runs.
    """
    rows: list[tuple[Any, ...]] = []
    for (task, arm, seed, step), rows_of_run in in_runs.groupby(["task", "arm", "seed", "step"], sort=False):
        if rows_of_run.groupby("problem").size().min() >= LEAST:
            label = f"{task}\n{rows_of_run['split'].iloc[0]}{IN_RUNS}"
            answers, correct = _by_problem(rows_of_run.to_dict("records"), lambda row: row["score/correct"])
            rows += _curves((label, "run", arm, seed, "final" if step else "base"), answers, correct)
    labels = _labels(later)
    for evaluation in later:
        for policy in evaluation.content["policies"]:
            sampled = evaluation.of(policy, "sampled")
            if all("correct" in row["scores"] for row in sampled):
                answers, correct = _by_problem(sampled, lambda row: row["scores"]["correct"])
                for label in labels.get(evaluation.path, ()):
                    head = (label, evaluation.through, evaluation.arm, evaluation.seed, policy)
                    rows += _curves(head, answers, correct)
    return pd.DataFrame(rows, columns=["place", "source", "arm", "seed", "policy", "kind", "k", "value"])


def _labels(later: Sequence[LaterEvaluation]) -> dict[Path, list[str]]:
    """The panels in which the curves of an evaluation are drawn, by question and by the task of training. A
    model is drawn in the panels of all runs that answered the same question, or in its own panel."""
    sampled = [evaluation for evaluation in later if any(row["mode"] == "sampled" for row in evaluation.rows)]
    beside: dict[str, list[str]] = {}
    for evaluation in sampled:
        if evaluation.trained_task:
            beside.setdefault(evaluation.question, []).append(_label(evaluation))
    labels = {}
    for evaluation in sampled:
        runs = [] if evaluation.trained_task else beside.get(evaluation.question, [])
        labels[evaluation.path] = list(dict.fromkeys(runs or [_label(evaluation)]))
    return labels


def _label(evaluation: LaterEvaluation) -> str:
    settings = evaluation.content["settings"]
    how = f"{evaluation.split}, {settings['samples']} samples, T = {settings['temperature']:g}"
    return f"{evaluation.label}\n{how}{', lm-eval' if evaluation.through == 'lm-eval' else ''}"


def _by_problem(
    rows: Iterable[Mapping[str, Any]], score: Callable[[Mapping[str, Any]], float]
) -> tuple[list[list[str | None]], list[list[float]]]:
    """Answers and scores of each problem, in the order of the samples."""
    problems: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        problems.setdefault(row["problem"], []).append(row)
    ordered = [sorted(samples, key=lambda row: row["sample"]) for samples in problems.values()]
    answers = [
        [row["answer"] if isinstance(row["answer"], str) else None for row in samples] for samples in ordered
    ]
    return answers, [[float(score(row)) for row in samples] for samples in ordered]


def _curves(
    head: tuple[Any, ...], answers: list[list[str | None]], correct: list[list[float]]
) -> list[tuple[Any, ...]]:
    if min(map(len, correct), default=0) < LEAST:
        return []
    passed = pass_curve([len(scores) for scores in correct], [solved(scores) for scores in correct])
    voted = majority_curve(answers, correct)
    return [(*head, "pass", k, value) for k, value in passed.items()] + [
        (*head, "maj", k, value) for k, value in voted.items()
    ]


# Tables

SAMPLES = {
    "pass": ("pass_at_k", "pass@k"),
    "maj": ("majority", "Majority vote"),
}
"""Kind -> name and title of its table."""
SAMPLES_NOTES = {
    "pass": (
        "Share of problems in percent that at least one of k samples solves, by the unbiased estimator "
        "1 − C(n−c, k)/C(n, k) for c correct of n samples, with n ≥ 2k. k = 1 is the accuracy of one sample."
    ),
    "maj": (
        "Accuracy in percent of the most frequent of k sampled answers, as the verifier parses them. Answers "
        "that it cannot parse have no vote, and a tie goes to the answer that was given first. Mean over "
        "votes on disjoint samples."
    ),
}


def samples_table(curves: pd.DataFrame, kind: str) -> PrintedTable:
    """pass@k or majority votes, one row for each k."""
    rows = []
    chosen = by_place(curves[curves["kind"] == kind])
    for (label, arm, k), group in chosen.groupby(["place", "arm", "k"], sort=False):
        before = group.loc[group["policy"] == "base", "value"].mean()
        seeds = group.loc[group["policy"] != "base"].sort_values("seed")["value"]
        after = seeds.mean()
        cells = [str(label).replace("\n", ", "), arm, str(k), percent(before), percent(after)]
        rows.append([*cells, points(after - before), each_seed(list(seeds))])
    header = ["task", "arm or model", "k", "before", "after", "gain", "each seed"]
    return PrintedTable(*SAMPLES[kind], header, rows, chosen, note=SAMPLES_NOTES[kind])


def by_place(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort rows by place, places in the order of their first rows."""
    order = {name: number for number, name in enumerate(dict.fromkeys(frame["place"]))}
    return frame.sort_values("place", key=lambda names: names.map(order), kind="stable")


# Figure

KINDS = (("pass", "pass@k (%)"), ("maj", "majority vote of k (%)"))


def draw_sampling(experiment: Experiment, curves: pd.DataFrame | None, sheet: Sheet) -> Drawing | None:
    """pass@k and majority votes against k, before and after training."""
    if curves is None or curves.empty:
        return None
    kinds = [(kind, label) for kind, label in KINDS if (curves["kind"] == kind).any()]
    labels = list(dict.fromkeys(curves["place"]))
    figure, grid = grid_of(len(kinds), labels, sheet, panel_height(len(kinds), labels, sheet, 1.9))
    style = look(experiment.arms)
    for (row, panel_label), axes in grid.items():
        kind, label = kinds[row]
        panel_rows = curves[(curves["place"] == panel_label) & (curves["kind"] == kind)]
        _sampling_panel(axes, panel_rows, experiment.arms, style)
        if panel_label == leftmost(labels, panel_label, sheet):
            axes.set_ylabel(label)
        if row == 0:
            axes.set_title(panel_label)
        if row == len(kinds) - 1:
            axes.set_xlabel("samples k")
    drawn = set(curves.loc[curves["policy"] == "final", "arm"])
    arms = [arm for arm in experiment.arms if arm in drawn]
    handles: list[Any] = [arm_handle(arm, style) for arm in arms]
    if (curves["policy"] == "base").any():
        handles.append(Line2D([], [], color=BASE_COLOR, linestyle=BASE_DASH, linewidth=1.6))
        arms.append("before training")
    models = list(dict.fromkeys(curves.loc[curves["policy"] == "model", "arm"]))
    handles += [
        Line2D([], [], color="#000000", marker=MARKERS[i % 10], markersize=3) for i in range(len(models))
    ]
    legend_above(figure, handles, [*arms, *models], handlelength=2.6)
    trained = curves[curves["policy"] == "final"]
    seeds = [int(n) for n in trained.groupby(["place", "arm"])["seed"].nunique()]
    splits = {
        str(task): headline_of(experiment, str(task), "sampled").split
        for task in experiment.tasks
        if any(label.startswith(f"{task}\n") and label.endswith(IN_RUNS) for label in labels)
    }
    caption = joined(
        [
            (
                "pass@k in %: share of problems that at least one of k samples solves, by the unbiased "
                "estimator, up to half of the samples."
            ),
            "Votes are over parsed answers; a tie goes to the answer that was given first."
            * (len(kinds) > 1),
            means_in_words(seeds, BANDS + CUT),
            f"In the runs: {problems_in_words(experiment, splits)}." * bool(splits),
        ]
    )
    return Drawing("sampling", "Accuracy with more samples", caption, figure)


def _sampling_panel(axes: Axes, panel_rows: pd.DataFrame, arms: Sequence[str], style: Look) -> None:
    """Draw one panel: the mean of each arm (before training, of all arms), its seeds and their band."""
    base = panel_rows[panel_rows["policy"] == "base"]
    series: list[tuple[pd.DataFrame, Any, Any, str | None]] = [(base, BASE_COLOR, BASE_DASH, None)]
    for arm in arms:
        trained = panel_rows[(panel_rows["policy"] == "final") & (panel_rows["arm"] == arm)]
        series.append((trained, style.color[arm], style.dash[arm], style.marker[arm]))
    models = panel_rows[panel_rows["policy"] == "model"]
    for index, (_, rows) in enumerate(models.groupby("arm", sort=False)):
        series.append((rows, "#000000", "-", MARKERS[index % 10]))
    for rows, color, dash, marker in series:
        if rows.empty:
            continue
        table = rows.pivot_table(index="k", columns=["arm", "seed"], values="value")
        mean, low, high = seed_means(table)
        if table.shape[1] > 1:
            axes.fill_between(
                table.index, np.maximum(low, 0), np.minimum(high, 1), color=color, alpha=BAND, linewidth=0
            )
        axes.plot(table.index, mean, color=color, linewidth=1.5, linestyle=dash, marker=marker, markersize=3)
    axes.set_xscale("log", base=2)
    ticks = sorted(set(panel_rows["k"]))
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
