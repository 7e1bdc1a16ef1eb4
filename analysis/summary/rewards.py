"""What each arm was paid for, at both ends of training."""

from __future__ import annotations

import pandas as pd

from grpobench.analysis.logs.matrix import Matrix

BESIDE_COMPONENTS = ("mean", "std", "failed", "model_cut", "correct")
"""What is logged below ``reward/`` and is no part of the reward, or the verdict once more."""
VERDICT = "score/correct"
LAST_TENTH = 0.1
"""Share of a run's updates that its end is, at least one update."""


def reward_components(matrix: Matrix) -> list[str]:
    """Names of the parts of the reward that were logged, where any arm could be paid for something else than
    the verifier's verdict; else none. The verdict itself is left to `VERDICT`."""
    names = [name.removeprefix("reward/") for name in matrix.names("reward/")]
    return [name for name in names if name not in BESIDE_COMPONENTS]


def reward_parts(matrix: Matrix) -> pd.DataFrame:
    """The reward, its components and the verdict at both ends of training: task, arm, seed, metric, start
    (the first update, whose rollouts the base policy wrote), end (mean over the last tenth of updates)."""
    names = [f"reward/{part}" for part in reward_components(matrix)]
    rows = []
    for name in (*names, "reward/mean", VERDICT) if names else ():
        for (task, arm, seed), own in matrix.select(name).groupby(["task", "arm", "seed"], sort=False):
            values = own.sort_values("step")["value"].to_numpy()
            last = max(1, round(LAST_TENTH * len(values)))
            rows.append((task, arm, seed, name, values[0], values[-last:].mean()))
    return pd.DataFrame(rows, columns=["task", "arm", "seed", "metric", "start", "end"])
