"""How steadily each arm trained: collapses and recoveries, how long runs last, spikes, drawdown, spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpobench.analysis.detect.gradient import POLICY, GradientInstability
from grpobench.analysis.detect.history import History, Series, no_answers
from grpobench.analysis.detect.registry import DETECTORS, Findings
from grpobench.analysis.detect.slopes import slope
from grpobench.analysis.logs.frames import finite_mean
from grpobench.analysis.logs.matrix import Matrix, Run
from grpobench.analysis.statistics.comparison import pairs_of
from grpobench.analysis.statistics.permutation import holm
from grpobench.analysis.statistics.survival import Survival, kaplan_meier, log_rank
from grpobench.analysis.summary.events import KEYS, collapse_of, history_of
from grpobench.analysis.summary.headline import headline_of

LATE = 1 / 3
"""Share of a run's evaluations, its last ones, whose slope is the late slope; at least three."""


@dataclass(frozen=True)
class Lasted:
    """The runs of an arm on a task: how long each lasted and whether it collapsed then."""

    runs: Sequence[Run]
    steps: Sequence[int]
    collapsed: Sequence[bool]

    @property
    def curve(self) -> Survival:
        """Kaplan–Meier."""
        return kaplan_meier(self.steps, self.collapsed)


def lasted(matrix: Matrix, findings: Mapping[str, Findings]) -> dict[tuple[str, str], Lasted]:
    """By (task, arm), over the runs that logged a step; one that did not collapse is censored at its last."""
    last = matrix.metrics.groupby(KEYS, sort=False)["step"].max().to_dict()
    found: dict[tuple[str, str], list[tuple[Run, int, bool]]] = {}
    for task in matrix.tasks:
        for arm in matrix.arms:
            found[task, arm] = []
    for run in matrix.runs:
        if (key := (run.arm, run.task, run.seed)) in last:
            end = collapse_of(run, findings.get(run.name))
            step = end.step if end else int(last[key])
            found[run.task, run.arm].append((run, step, end is not None))
    return {key: Lasted(*zip(*own, strict=True)) for key, own in found.items() if own}


def stability(matrix: Matrix, findings: Mapping[str, Findings], runs: pd.DataFrame) -> pd.DataFrame:
    """One row per task and arm, from what was found in each run and the rows of `finals`: runs; collapsed and
    recovered (runs); first (median step of collapse); surviving (Kaplan–Meier share at the end) and
    half_life (its median step, NaN where more than half remain); spikes (per 100 updates); drawdown (best
    minus last validation accuracy); spread (standard deviation of final accuracies over seeds); late_slope
    (change of validation accuracy per 100 updates over the last third of the evaluations); events and
    infrastructure (kind: runs and median onset, as text)."""
    modes = {task: headline_of(matrix, task).mode for task in matrix.tasks}
    names = [POLICY, *(f"eval/validation/{mode}/correct" for mode in dict.fromkeys(modes.values()))]
    kept = matrix.metrics[matrix.metrics["metric"].isin(names)]
    logged = dict(iter(kept.groupby(KEYS, sort=False)))
    none = kept.iloc[:0]
    rows = []
    for (task, arm), own in lasted(matrix, findings).items():
        measured = [
            _measured(run, logged.get((run.arm, run.task, run.seed), none), modes[task]) for run in own.runs
        ]
        rows.append({"task": task, "arm": arm, **_cell(findings, runs, own, measured)})
    return pd.DataFrame(rows)


def _cell(
    findings: Mapping[str, Findings],
    runs: pd.DataFrame,
    own: Lasted,
    measured: Sequence[Mapping[str, float]],
) -> dict[str, Any]:
    known = [findings[run.name] for run in own.runs if run.name in findings]
    ends = [step for step, fell in zip(own.steps, own.collapsed, strict=True) if fell]
    task, arm = own.runs[0].task, own.runs[0].arm
    counted = runs.loc[(runs["task"] == task) & (runs["arm"] == arm), "counted"].dropna()
    half_life = own.curve.median
    return {
        "runs": len(own.runs),
        "collapsed": sum(own.collapsed),
        "recovered": sum(
            any(event.recovered is not None for event in one.of_family("collapse")) and one.collapse() is None
            for one in known
        ),
        "first": float(np.median(ends)) if ends else math.nan,
        "surviving": own.curve.last,
        "half_life": half_life if math.isfinite(half_life) else math.nan,
        **{
            name: finite_mean(pd.Series([one[name] for one in measured]))
            for name in ("spikes", "drawdown", "late_slope")
        },
        "spread": float(counted.std(ddof=1)) if len(counted) > 1 else math.nan,
        "events": told(known, ("collapse", "instability")),
        "infrastructure": told(known, ("infrastructure",)),
    }


def told(known: Sequence[Findings], families: Sequence[str]) -> str:
    """`entropy collapse: 2 runs, from step 40; …`, each kind with the median of its onsets."""
    lines = []
    for kind, detector in DETECTORS.items():
        if detector.family not in families:
            continue
        onsets = [min(own) for one in known if (own := [e.onset for e in one.events if e.kind == kind])]
        if onsets:
            count = f"{len(onsets)} run{'s' * (len(onsets) > 1)}"
            lines.append(f"{words(kind)}: {count}, from step {np.median(onsets):g}")
    return "; ".join(lines)


def words(kind: str) -> str:
    """A kind of event as a sentence has it."""
    return kind.replace("_", " ").replace("kl ", "KL ")


def _measured(run: Run, rows: pd.DataFrame, mode: str) -> dict[str, float]:
    """Spikes per 100 updates, drawdown and late slope of a run from its logged rows; NaN where they are not
    logged."""
    name = f"eval/validation/{mode}/correct"
    history = history_of(run, rows, int(rows["step"].max()) if len(rows) else 0, no_answers)
    accuracy, norms = history.get(name), history.updates(POLICY)
    found = {"spikes": _spikes(history), "drawdown": math.nan, "late_slope": math.nan}
    if len(accuracy):
        found["drawdown"] = float(accuracy.values.max() - accuracy.values[-1])
    late = max(3, round(LATE * len(accuracy)))
    if len(accuracy) >= 3:
        tail = Series(name, accuracy.steps[-late:], accuracy.values[-late:])
        found["late_slope"] = 100 * slope(tail).value
    return found if len(norms) else found | {"spikes": math.nan}


def _spikes(history: History) -> float:
    """Spikes of the gradient norm per 100 updates behind the baseline, as the detector counts them."""
    norms, detector = history.updates(POLICY), GradientInstability()
    behind = int(np.count_nonzero(norms.steps > history.about.warmup + history.window))
    if detector.bound(history, norms) is None or not behind:
        return math.nan
    return 100 * int(detector.beyond(history, norms).sum()) / behind


def sentence(row: Mapping[str, Any]) -> str:
    """How an arm fared on a task, in plain words, from a row of `stability`."""
    runs, collapsed, recovered = row["runs"], row["collapsed"], row["recovered"]
    if not collapsed:
        told = f"None of {runs} runs collapsed" if runs > 1 else "Its only run did not collapse"
    elif runs == 1:
        told = f"Its only run collapsed at step {row['first']:g}"
    else:
        when = "at step" if collapsed == 1 else "at the median step"
        told = f"{collapsed} of {runs} runs collapsed, {when} {row['first']:g}"
    if recovered:
        told += f"; {recovered} fell and recovered"
    if row["events"] and not collapsed:
        told += ", yet not all was steady"
    if row["infrastructure"]:
        told += "; the machinery failed in some"
    return f"{told}."


@dataclass(frozen=True)
class Outlasting:
    """Two arms on a task: how long their runs last."""

    task: str
    first: str
    second: str
    collapsed: tuple[int, int]
    runs: tuple[int, int]
    p: float
    """Log-rank by permutation, two-sided."""
    p_holm: float
    """Corrected for the pairs of the task."""


def outlasting(matrix: Matrix, findings: Mapping[str, Findings]) -> list[Outlasting]:
    """The pairs of arms (`pairs_of`) on the tasks on which a run collapsed."""
    found: list[Outlasting] = []
    every = lasted(matrix, findings)
    for task in matrix.tasks:
        arms = {arm: own for (where, arm), own in every.items() if where == task}
        if not any(any(own.collapsed) for own in arms.values()):
            continue
        pairs = pairs_of(list(arms))
        p = [
            log_rank((arms[a].steps, arms[a].collapsed), (arms[b].steps, arms[b].collapsed)) for a, b in pairs
        ]
        known = [1.0 if math.isnan(value) else value for value in p]
        for (a, b), value, adjusted in zip(pairs, p, holm(known), strict=True):
            counts = tuple(sum(arms[one].collapsed) for one in (a, b))
            sizes = tuple(len(arms[one].runs) for one in (a, b))
            found.append(
                Outlasting(task, a, b, (counts[0], counts[1]), (sizes[0], sizes[1]), value, float(adjusted))
            )
    return found
