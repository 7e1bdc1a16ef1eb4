"""Metrics of social bias that the runs logged: at both ends of training, and over the validations."""

from __future__ import annotations

import pandas as pd

from grpobench.analysis.logs.matrix import Matrix
from grpobench.analysis.summary.headline import headline_of

BIAS = (
    "accuracy_ambiguous",
    "accuracy_disambiguated",
    "unknown_rate",
    "bias_ambiguous",
    "bias_disambiguated",
    "lean_ambiguous",
    "lean_disambiguated",
)
OWN = " (own)"
"""Ends the name of the category that a run was trained on, where it is measured apart."""


def bias_metrics(matrix: Matrix) -> pd.DataFrame:
    """Bias metrics on the headline split: task, arm, seed, when (`base` or `final`), metric, category (`all`
    for the whole), value. Empty where no task logs any. The base is step 0, the final the last evaluation.
    In the headline's mode, but for those that only likelihoods give."""
    frames = []
    for task in matrix.tasks:
        chosen = headline_of(matrix, task)
        for name in matrix.names(f"eval/{chosen.split}/"):
            mode, metric, *rest = name.split("/", 4)[2:]
            wanted = "likelihood" if metric.startswith("lean") else chosen.mode
            if metric not in BIAS or mode != wanted:
                continue
            category = rest[0] if rest else "all"
            frame = matrix.select(name)
            frame = frame[frame["task"] == task]
            last = frame[frame["step"] > 0].groupby(["arm", "seed"], sort=False).tail(1)
            for when, part in (("base", frame[frame["step"] == 0]), ("final", last)):
                frames.append(part.assign(metric=metric, category=category, when=when))
    columns = ["task", "arm", "seed", "when", "metric", "category", "value"]
    return pd.concat(frames)[columns].reset_index(drop=True) if frames else pd.DataFrame(columns=columns)


def bias_curves(matrix: Matrix) -> dict[str, pd.DataFrame]:
    """Bias metrics of every validation in the headline's mode, over all categories and, where it is apart,
    over the one that was trained on: label -> columns as `Matrix.select`. Only what was measured three times.
    """
    found: dict[str, pd.DataFrame] = {}
    for suffix, where in (("", ""), (OWN, ",\nown category")):
        for metric in ("accuracy_ambiguous", "bias_ambiguous", "lean_ambiguous", "accuracy_disambiguated"):
            frames = []
            for task in matrix.tasks:
                stem = f"eval/validation/{headline_of(matrix, task).mode}/{metric}"
                names = [n for n in matrix.names(f"{stem}/") if n.endswith(OWN)] if suffix else [stem]
                frames += [frame[frame["task"] == task] for frame in map(matrix.select, names)]
            frame = pd.concat(frames) if frames else pd.DataFrame(columns=["step"])
            if frame["step"].nunique() >= 3:
                found[metric.replace("_", ",\n") + where] = frame
    return found
