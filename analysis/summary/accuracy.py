"""Final accuracies: of every run, and of every arm on a task over its seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd

from grpobench.analysis.detect.registry import Findings
from grpobench.analysis.logs.frames import by_cell, by_run, finite_mean
from grpobench.analysis.logs.imported import imported
from grpobench.analysis.logs.matrix import COLLAPSED, CRASHED, DIVERGED, FINISHED, Matrix, Run
from grpobench.analysis.statistics.intervals import item_interval, seed_mean
from grpobench.analysis.summary.events import Collapse, collapses, run_findings
from grpobench.analysis.summary.headline import headline_of

WITHOUT_DATA = "finished without data"
"""How a finished run stands whose logs lack the final accuracy."""


def finals(
    matrix: Matrix, mode: str | None = None, findings: Mapping[str, Findings] | None = None
) -> pd.DataFrame:
    """One row per run: arm, task, seed, state, standing, collapsed_at, base, final, counted, validation_best,
    validation_last, items, item_low, item_high (interval of the final accuracy over problems, which may share
    clusters). `findings` are those of `run_findings`, if they are known already.

    `final` is what a run logged after its last update: of one that its recipe stopped for an event, the last
    that it made. `collapsed_at` is the step at which a collapse began that the run did not recover from.
    `counted` is what means and comparisons use: the final accuracy; 0 for a run that diverged, which the
    algorithm answers for; NaN for one that crashed, which it does not, for one still to come, and for one
    whose logs lack the final accuracy. `standing` is
    the state, `WITHOUT_DATA` for the last, or `collapsed`, also for a run that collapsed and went on to its
    last update.
    """
    rows = []
    fallen = collapses(matrix, run_findings(matrix) if findings is None else findings)
    for task in matrix.tasks:
        chosen = headline_of(matrix, task, mode)
        accuracy = matrix.select(chosen.metric)
        validation = matrix.select(f"eval/validation/{chosen.mode}/correct")
        tested, validated = by_run(accuracy), by_run(validation)
        logged = bool((accuracy["task"] == task).any())
        for run in (run for run in matrix.runs if run.task == task):
            own = tested(run)
            base = _at_start(own)
            final = _at_end(own, run) if run.finished or run.collapsed else math.nan
            collapse = fallen.get(run.name)
            trained = validated(run)
            trained = trained[trained["step"] > 0]
            rows.append(
                {
                    "arm": run.arm,
                    "task": task,
                    "seed": run.seed,
                    "state": run.state,
                    "standing": _standing(run, collapse, lacks(run, logged, final)),
                    "collapsed_at": collapse.step if collapse else math.nan,
                    "split": chosen.split,
                    "mode": chosen.mode,
                    "base": base,
                    "final": final,
                    "counted": 0.0 if run.failed else final,
                    "validation_best": float(trained["value"].max()) if len(trained) else math.nan,
                    "validation_last": float(trained["value"].iloc[-1]) if len(trained) else math.nan,
                }
            )
    frame = pd.DataFrame(rows)
    return frame.merge(_item_intervals(matrix, mode), on=["arm", "task", "seed"], how="left")


def _standing(run: Run, collapse: Collapse | None, lacking: bool) -> str:
    """How a run stands: one that has its last update may lack data, or have collapsed before."""
    if run.finished and lacking:
        return WITHOUT_DATA
    return COLLAPSED if run.finished and collapse else run.state


def _at_start(own: pd.DataFrame) -> float:
    values = own.loc[own["step"] == 0, "value"]
    return float(values.iloc[0]) if len(values) else math.nan


def _at_end(own: pd.DataFrame, run: Run) -> float:
    """The value after the last of the run's updates; NaN where the log ends before. Of an imported run the
    last one that its log has: others do not always evaluate at the end."""
    last = 0 if imported(run) else run.config.get("train", {}).get("steps", run.step)
    last = run.step if run.collapsed else last
    trained = own[(own["step"] > 0) & (own["step"] >= last)]
    return float(trained["value"].iloc[-1]) if len(trained) else math.nan


def lacks(run: Run, logged: bool, final: float) -> bool:
    """Whether a run that has ended should have a final accuracy and has none: its log is empty, or other runs
    of the task have `logged` one."""
    return math.isnan(final) and (logged or not run.rows)


def accounting(matrix: Matrix, runs: pd.DataFrame) -> dict[str, int]:
    """How many of the planned runs stand how, from the rows of `finals`: the numbers add up to the plan. Runs
    that nobody planned are not among them."""
    planned = {(run.arm, run.task, run.seed) for run in matrix.runs if run.planned}
    keys = runs[["arm", "task", "seed"]].itertuples(index=False, name=None)
    counted = Counter(s for key, s in zip(keys, runs["standing"], strict=True) if key in planned)
    order = [FINISHED, COLLAPSED, WITHOUT_DATA, DIVERGED, CRASHED]
    return {name: counted[name] for name in dict.fromkeys([*order, *counted]) if counted[name]}


def _item_intervals(matrix: Matrix, mode: str | None) -> pd.DataFrame:
    """Interval over problems of each run's last evaluation on the headline split."""
    columns = ["arm", "task", "seed", "items", "item_low", "item_high"]
    frame, rows = graded(matrix), []
    if frame.empty:
        return pd.DataFrame(columns=columns)
    for task, own in frame.groupby("task", sort=False):
        chosen = headline_of(matrix, str(task), mode)
        own = own[(own["split"] == chosen.split) & (own["mode"] == chosen.mode) & (own["step"] > 0)]
        for (arm, seed), run in own.groupby(["arm", "seed"], sort=False):
            last = run[run["step"] == run["step"].max()]
            shares = last.groupby("problem")["score/correct"].mean()
            interval, _ = item_interval(shares, clusters_of(last, shares.index))
            rows.append((arm, task, seed, len(shares), interval.low, interval.high))
    return pd.DataFrame(rows, columns=columns)


def clusters_of(rows: pd.DataFrame, problems: pd.Index) -> list[str]:
    """The cluster (template) of each problem; a problem without one is its own."""
    if "trait/cluster" not in rows:
        return [str(problem) for problem in problems]
    known = rows.drop_duplicates("problem").set_index("problem")["trait/cluster"]
    return [str(problem) if pd.isna(known[problem]) else str(known[problem]) for problem in problems]


def graded(matrix: Matrix) -> pd.DataFrame:
    """Evaluated answers that have a score `correct`; what an infrastructure error left ungraded is out."""
    frame = matrix.evaluations
    if "score/correct" not in frame:
        return frame.iloc[:0]
    return frame[frame["outcome"] != "infra_error"] if "outcome" in frame else frame


def accuracies(matrix: Matrix, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per task and arm from the rows of `finals`: means over seeds, the t interval, failures."""
    rows, cell = [], by_cell(runs)
    for task in matrix.tasks:
        for arm in matrix.arms:
            own = cell(arm, task)
            if own.empty:
                continue
            counted = own.dropna(subset=["counted"])
            mean = seed_mean(counted["counted"])
            base = finite_mean((counted if len(counted) else own)["base"])  # of the same seeds
            rows.append(
                {
                    "task": task,
                    "arm": arm,
                    "split": own["split"].iloc[0],
                    "mode": own["mode"].iloc[0],
                    "base": base,
                    "final": mean.value,
                    "low": float(np.maximum(mean.low, 0.0)),  # an accuracy is from 0 to 1; NaN stays NaN
                    "high": float(np.minimum(mean.high, 1.0)),
                    "final_of_finished": finite_mean(own.loc[own["standing"] == FINISHED, "counted"]),
                    "gain": mean.value - base,
                    "seeds": len(counted),
                    "failed": int((own["state"] == DIVERGED).sum()),
                    "collapsed": int((own["standing"] == COLLAPSED).sum()),
                    "waiting": int(own["counted"].isna().sum()),
                    "validation_best": finite_mean(own["validation_best"]),
                    "validation_last": finite_mean(own["validation_last"]),
                }
            )
    return pd.DataFrame(rows)
