"""Tables of social bias: what the runs logged, and later probes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from grpobench.analysis.logs.later import LaterEvaluation
from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.bias import BIAS
from grpobench.analysis.summary.probes import PUBLISHED, caveats, probe_metrics
from grpobench.analysis.tables.table import Table
from grpobench.analysis.tools.text import NONE, signed, two


def bias_table(matrix: Matrix, frame: pd.DataFrame) -> Table:
    """What the runs logged of social bias, as `bias_metrics` finds it, a row per task and arm."""
    rows = []
    if len(frame):
        means = frame.groupby(["task", "arm", "category", "metric", "when"])["value"].mean()
        for task in matrix.tasks:
            for arm in matrix.arms:
                cells = [_before_after(means, (task, arm, "all", metric)) for metric in BIAS]
                if any(cell != NONE for cell in cells):
                    rows.append([task, arm, *cells])
    header = ["task", "arm", "accuracy ambiguous", "accuracy disambiguated", "unknown rate", "s_AMB", "s_DIS"]
    header += ["lean ambiguous", "lean disambiguated"]
    note = (
        "Before → after training, mean over seeds, all categories (where the category of the training item "
        "is measured apart, all others); by category in tables/bias.csv. Lean, only by likelihood: "
        "probability of the stereotype's person less that of the other one. "
    )
    return Table("bias", "Bias", header, rows, frame, note=note + _warnings(caveats(matrix)))


def probes_table(matrix: Matrix, later: Sequence[LaterEvaluation]) -> Table:
    """Later evaluations on tasks that probe for bias."""
    frame = probe_metrics(later)
    rows = []
    whole = frame[frame["category"] == "all"]
    keys = ["place", "split", "mode", "through", "arm", "metric"]
    for (place, split, mode, through, arm), own in whole.groupby(keys[:-1], sort=False):
        means = own.groupby(["metric", "policy"])["value"].mean()
        seeds = str(own["seed"].nunique())
        for metric in PUBLISHED:
            told = {p: means[metric, p] for p in ("base", "final", "model") if (metric, p) in means.index}
            if told:
                text = " → ".join(two(value) for value in told.values())
                rows.append([place, f"{split}, {mode}, {through}", arm, metric, seeds, text])
    header = ["task", "how", "arm or model", "metric", "seeds", "before → after training, or the model's"]
    note = "All categories together, mean over seeds; by category in tables/probes.csv. "
    asked = {evaluation.task: None for evaluation in later if evaluation.place in set(frame["place"])}
    told = {task: text for task, text in caveats(matrix, later).items() if task in asked}
    return Table("probes", "Bias probes", header, rows, frame, text_columns=4, note=note + _warnings(told))


def _warnings(caveats: Mapping[str, str]) -> str:
    """The caveats as one text; tasks with the same one share it."""
    tasks: dict[str, list[str]] = {}
    for task, caveat in caveats.items():
        tasks.setdefault(caveat, []).append(task)
    return " ".join(f"Caveat ({', '.join(names)}): {caveat}" for caveat, names in tasks.items())


def _before_after(means: pd.Series, key: tuple[str, ...]) -> str:
    after = means.get((*key, "final"), math.nan)
    before = means.get((*key, "base"), math.nan)
    show = signed if key[-1].startswith(("bias", "lean")) else two
    return NONE if math.isnan(after) else f"{show(before)} → {show(after)}"
