"""Seconds of each phase of an update, tokens per second and peak memory."""

from __future__ import annotations

import math

import pandas as pd

from grpobench.analysis.logs.frames import by_cell, finite_mean
from grpobench.analysis.logs.matrix import Matrix

PHASES = ("sample", "verify", "read", "backward", "optimise", "sync", "other")
"""Parts of time/step, in the order in which a step runs them."""


def update_costs(matrix: Matrix) -> pd.DataFrame:
    """Per task and arm, means over all updates of all seeds: seconds of each phase per update, tokens per
    second of training, tokens per second of sampling; and the highest peak memory in GB."""
    rows = []
    phases = {phase: by_cell(matrix.select(f"time/{phase}")) for phase in PHASES}
    step, memory = by_cell(matrix.select("time/step")), by_cell(matrix.select("cost/peak_memory_gb"))
    tokens = by_cell(matrix.select("cost/generated_tokens"))
    for task in matrix.tasks:
        for arm in matrix.arms:
            own = {name: cell(arm, task) for name, cell in phases.items()}
            total, spent = step(arm, task), tokens(arm, task)
            if total.empty and spent.empty and all(frame.empty for frame in own.values()):
                continue
            generated = float(spent.groupby("seed")["value"].max().sum()) if len(spent) else math.nan
            peak = memory(arm, task)["value"]
            rows.append(
                {"task": task, "arm": arm, "seconds": finite_mean(total["value"])}
                | {phase: finite_mean(frame["value"]) for phase, frame in own.items()}
                | {
                    "tokens_per_second": _ratio(generated, float(total["value"].sum())),
                    "sampling_tokens_per_second": _ratio(generated, float(own["sample"]["value"].sum())),
                    "peak_memory_gb": float(peak.max()) if len(peak) else math.nan,
                }
            )
    rates = ["tokens_per_second", "sampling_tokens_per_second", "peak_memory_gb"]
    return pd.DataFrame(rows, columns=["task", "arm", "seconds", *PHASES, *rates])


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan
