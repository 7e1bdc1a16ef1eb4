"""What critics explained of the returns that they were to predict, from the metrics that arms log."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from grpobench.analysis.logs.frames import by_run
from grpobench.analysis.logs.matrix import Matrix

EXPLAINED = "critic/explained_variance"
"""1 − Var(R − V)/Var(R) over written tokens, before the update; logged by whatever trains a value."""
GROUP = "critic/group_explained"
"""The same if the value were the mean reward of the group's other rollouts."""
TRAINED = ("grad_norm/critic", "grad_norm/value_head")
"""Logged where a value is trained, whether or not what it explains is."""
LAST_QUARTER = 0.25
"""Share of a run's updates over which the mean is taken, its last ones, at least one."""
LITTLE = 0.1
"""Below this share a critic is said to explain too little to be one: predicting the mean return explains
0."""
COLUMNS = ["task", "arm", "seed", "updates", "explained", "group"]


def critic_explained(matrix: Matrix) -> pd.DataFrame:
    """One row per run that trains a value: task, arm, seed, updates (how many the means are over),
    explained and group (mean share of the returns' variance; NaN where none of these updates has a finite
    value)."""
    rows = []
    trained = pd.concat([matrix.metrics[matrix.metrics["metric"] == name] for name in (EXPLAINED, *TRAINED)])
    known = set(zip(trained["task"], trained["arm"], trained["seed"], strict=True))
    own, others, every = by_run(matrix.select(EXPLAINED)), by_run(matrix.select(GROUP)), by_run(trained)
    for run in matrix.runs:
        if (run.task, run.arm, run.seed) not in known:
            continue
        steps = every(run)["step"]
        first = _first(int(steps.max()))
        last, group = (part.loc[part["step"] >= first, "value"] for part in (own(run), others(run)))
        rows.append((run.task, run.arm, run.seed, len(last), last.mean(), group.mean()))
    return pd.DataFrame(rows, columns=COLUMNS)


def _first(last: int) -> int:
    """First of the last quarter of updates 1 to `last`."""
    return last - max(1, round(LAST_QUARTER * last)) + 1


def critic_warnings(frame: pd.DataFrame) -> Iterator[str]:
    """A sentence for each arm and task some of whose seeds ended with a critic that explains less than
    `LITTLE`."""
    for (task, arm), own in frame.groupby(["task", "arm"], sort=False):
        dim = own[~(own["explained"] >= LITTLE)]
        if dim.empty:
            continue
        seeds = ", ".join(str(seed) for seed in dim["seed"])
        where = f"{arm} on {task}, seed{'s' * (len(dim) > 1)} {seeds}"
        if dim["explained"].isna().all():
            yield f"{where}: no share of the returns' variance is known that the critic explained"
            continue
        beside = "" if dim["group"].isna().all() else f"; the group's other rollouts {_share(dim['group'])} %"
        yield (
            f"{where}: the critic explained {_share(dim['explained'])} % of the variance of the returns over "
            f"the last quarter of the updates{beside}"
        )


def _share(values: pd.Series) -> str:
    """Percent of the least and the greatest of some shares, one number where they print alike."""
    ends = [f"{round(100 * value):d}".replace("-", "−") for value in (values.min(), values.max())]
    return " to ".join(dict.fromkeys(ends))
