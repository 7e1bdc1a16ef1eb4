"""What critics explained of the returns that they were to predict, from the metrics that arms log."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from grpobench.analysis.load import Matrix, Run

EXPLAINED = "critic/explained_variance"
"""1 − Var(R − V)/Var(R) over written tokens, before the update; logged by whatever trains a value."""
GROUP = "critic/group_explained"
"""The same if the value were the mean reward of the group's other rollouts."""
TRAINED = ("grad_norm/critic", "grad_norm/value_head")
"""Logged where a value is trained, whether or not what it explains is."""
END = 0.25
"""Share of a run's updates over which the mean is taken, its last ones, at least one."""
LITTLE = 0.1
"""Below this share a critic is said to explain too little to be one: predicting the mean return explains
0."""
COLUMNS = ["task", "arm", "seed", "updates", "explained", "group"]


def explained(matrix: Matrix) -> pd.DataFrame:
    """One row per run that trains a value: task, arm, seed, updates (how many the means are over),
    explained and group (mean share of the returns' variance; NaN where none of these updates has a finite
    value)."""
    rows = []
    trained = pd.concat([matrix.metrics[matrix.metrics["metric"] == name] for name in (EXPLAINED, *TRAINED)])
    known = set(zip(trained["task"], trained["arm"], trained["seed"], strict=True))
    own, others = matrix.select(EXPLAINED), matrix.select(GROUP)
    for run in matrix.runs:
        if (run.task, run.arm, run.seed) not in known:
            continue
        steps = trained.loc[of(trained, run), "step"]
        first = _first(int(steps.max()))
        last = own[of(own, run) & (own["step"] >= first)]
        group = others[of(others, run) & (others["step"] >= first)]
        rows.append((run.task, run.arm, run.seed, len(last), last["value"].mean(), group["value"].mean()))
    return pd.DataFrame(rows, columns=COLUMNS)


def _first(last: int) -> int:
    """First of the last quarter of updates 1 to `last`."""
    return last - max(1, round(END * last)) + 1


def of(frame: pd.DataFrame, run: Run) -> pd.Series:
    """Which rows are a run's."""
    return (frame["arm"] == run.arm) & (frame["task"] == run.task) & (frame["seed"] == run.seed)


def warnings(frame: pd.DataFrame) -> Iterator[str]:
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
        beside = "" if dim["group"].isna().all() else f"; the group's other rollouts {share(dim['group'])} %"
        yield (
            f"{where}: the critic explained {share(dim['explained'])} % of the variance of the returns over "
            f"the last quarter of the updates{beside}"
        )


def share(values: pd.Series) -> str:
    """Percent of the least and the greatest of some shares, one number where they print alike."""
    ends = [f"{round(100 * value):d}".replace("-", "−") for value in (values.min(), values.max())]
    return " to ".join(dict.fromkeys(ends))
