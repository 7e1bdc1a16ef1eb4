"""Accuracy by task in mixtures, and the order of arms with each task left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.runfolder.experiment import Experiment, by_run, finite_mean
from grpobench.analysis.tools.text import NONE, number, percent, points
from grpobench.analysis.topics.accuracy import at_end, at_start


def mixed_tasks(experiment: Experiment) -> dict[str, list[str]]:
    """The tasks that each mixture of the experiment mixes."""
    mixed: dict[str, list[str]] = {}
    for run in experiment.runs:
        task = run.config.get("task", {})
        settings = task.get("settings", {}) if isinstance(task, Mapping) else {}
        if isinstance(shares := settings.get("mixture"), Mapping):
            mixed.setdefault(run.task, list(map(str, shares)))
    return mixed


def part_finals(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per run of a mixture and task in it: arm, task, part, seed, share (of the groups that it
    sampled), base, final. They count as `runs`, the rows of `finals`: 0 for a run that diverged, NaN for one
    without a result."""
    counted = {(row.arm, row.task, row.seed): row for row in runs.itertuples()}
    rows = []
    for task, parts in mixed_tasks(experiment).items():
        sampled = {part: by_run(experiment.select(f"groups/sampled/{part}")) for part in parts}
        for part in parts:
            for run in (run for run in experiment.runs if run.task == task):
                row = counted[run.arm, task, run.seed]
                name = f"eval/{row.split}/{row.mode}/accuracy/{part}"
                values = by_run(experiment.select(name))(run)
                final = 0.0 if run.failed else at_end(values, run)
                groups = {name: float(of_part(run)["value"].sum()) for name, of_part in sampled.items()}
                rows.append(
                    {
                        "arm": run.arm,
                        "task": task,
                        "part": part,
                        "seed": run.seed,
                        "share": groups[part] / total if (total := sum(groups.values())) else math.nan,
                        "base": at_start(values),
                        "final": math.nan if math.isnan(row.counted) else final,
                    }
                )
    return pd.DataFrame(rows, columns=["arm", "task", "part", "seed", "share", "base", "final"])


def parts_table(experiment: Experiment, runs: pd.DataFrame) -> PrintedTable | None:
    """Accuracy by task of every mixture, one row per task and arm; None without a mixture."""
    frame = part_finals(experiment, runs)
    if frame.empty:
        return None
    rows = []
    for (task, part, arm), seeds in frame.groupby(["task", "part", "arm"], sort=False):
        counted = seeds.dropna(subset=["final"])
        base, final = finite_mean(counted["base"]), finite_mean(counted["final"])
        share = percent(finite_mean(seeds["share"]))
        cells = [share, percent(base), percent(final), points(final - base), str(len(counted))]
        rows.append([str(task), str(part), str(arm), *cells])
    note = (
        "Accuracy in percent on the problems of one task, mean over seeds, in split and decoding of "
        "the mixture's final accuracy. Share: of the groups that training sampled. A run that diverged "
        "counts as 0."
    )
    header = ["mixture", "task", "arm", "share", "before", "after", "gain", "seeds"]
    title = "Accuracy by task of a mixture"
    return PrintedTable("mixture", title, header, rows, frame, text_columns=3, note=note)


# The order of arms


def arm_means(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Mean final accuracy over seeds, a row per arm and a column per task; a mixture is its tasks. Arms
    without any result are left out, and tasks without a result of every other arm."""
    mixed = mixed_tasks(experiment)
    plain = runs[~runs["task"].isin(mixed)]
    scores = list(plain[["arm", "task", "counted"]].itertuples(index=False, name=None))
    scores += [
        (row.arm, f"{row.task}/{row.part}", row.final) for row in part_finals(experiment, runs).itertuples()
    ]
    frame = pd.DataFrame(scores, columns=["arm", "task", "final"])
    table = frame.pivot_table(index="arm", columns="task", values="final", aggfunc="mean", sort=False)
    return table.reindex([arm for arm in experiment.arms if arm in table.index]).dropna(axis=1)


def order_table(experiment: Experiment, runs: pd.DataFrame) -> PrintedTable | None:
    """The order of the arms over all tasks, and with each task left out; None for one task or one arm."""
    means = arm_means(experiment, runs)
    if len(means) < 2 or len(means.columns) < 2:
        return None
    over_all = means.mean(axis=1)
    rows, ranks = [], {}
    for left_out in (None, *means.columns):
        scores = over_all if left_out is None else means.drop(columns=left_out).mean(axis=1)
        ordered = scores.sort_values(ascending=False, kind="stable")
        changed, tau = (NONE, NONE) if left_out is None else _agreement(list(over_all), list(scores))
        lead = points(ordered.iloc[0] - ordered.iloc[1])
        rows.append([left_out or "nothing", *map(str, ordered.index[:2]), lead, changed, tau])
        ranks[left_out or "nothing"] = scores.rank(ascending=False)
    note = (
        "Arms by their mean accuracy over tasks, where each task counts the same and a mixture counts as its "
        "tasks. Lead: of the first arm over the second, in points. Pairs: of arms that are in another order "
        "than over all tasks. Kendall's τ-b with the order over all tasks. An order is no verdict: pairs are "
        "tested in Head to head."
    )
    header = ["left out", "first", "second", "lead", "pairs in another order", "Kendall's τ"]
    frame = pd.DataFrame(ranks).rename_axis("arm").reset_index()
    return PrintedTable(
        "order", "Order of arms with each task left out", header, rows, frame, text_columns=3, note=note
    )


def _agreement(over_all: Sequence[float], scores: Sequence[float]) -> tuple[str, str]:
    """(pairs in another order, Kendall's τ-b) of two lists of scores, in words."""
    from scipy import stats  # the import takes a second, and listings import this file

    pairs = [(i, j) for i in range(len(over_all)) for j in range(i)]
    changed = sum((over_all[i] - over_all[j]) * (scores[i] - scores[j]) < 0 for i, j in pairs)
    tau = float(stats.kendalltau(over_all, scores).statistic)
    return f"{changed} of {len(pairs)}", number(tau, 2)
