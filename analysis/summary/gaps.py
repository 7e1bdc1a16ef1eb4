"""How far samplers with weights of their own were from the trainer."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from grpobench.analysis.logs.frames import by_cell
from grpobench.analysis.logs.matrix import Matrix

GAPS: Mapping[str, tuple[str, str]] = {
    "mean": ("gap/mean", "mean"),
    "largest": ("gap/max", "max"),
    "effective": ("gap/ess", "min"),
    "after_sync": ("gap/sync", "max"),
    "weight": ("correction/weight_mean", "mean"),
    "clipped": ("correction/clipped", "mean"),
}
"""Column of `gaps` -> metric, and how its values are taken together."""


def sampler_gaps(matrix: Matrix) -> pd.DataFrame:
    """Per task and arm, over all updates of all seeds: how far the sampler's log-probabilities were from the
    trainer's in nats (mean and largest |Δ log p|, smallest effective sample size, largest after a weight
    synchronisation), and what the correction made of it. Only where some arm decodes with weights of its own
    or corrects."""
    if not (matrix.has("gap/sync") or matrix.has("correction/weight_mean")):
        return pd.DataFrame(columns=["task", "arm", *GAPS])
    logged = {name: (by_cell(matrix.select(metric)), how) for name, (metric, how) in GAPS.items()}
    rows = []
    for task in matrix.tasks:
        for arm in matrix.arms:
            own = {name: (cell(arm, task)["value"], how) for name, (cell, how) in logged.items()}
            if any(len(values) for values, _ in own.values()):
                rows.append({"task": task, "arm": arm} | {name: v.agg(how) for name, (v, how) in own.items()})
    return pd.DataFrame(rows, columns=["task", "arm", *GAPS])
