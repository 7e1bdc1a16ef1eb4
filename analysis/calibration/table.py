"""The calibration of verdicts and detectors as one table that is kept and printed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from grpobench.analysis import record
from grpobench.analysis.calibration.scores import Case, DetectorResult, Half, Library, Score, score
from grpobench.analysis.calibration.thresholds import (
    MAX_FALSE_ALARMS,
    MIN_RATE,
    DriftLimit,
    ThresholdChoice,
    judge_runs,
    meets_goals,
    set_drift_limit,
    set_thresholds,
)
from grpobench.analysis.detectors.history import History
from grpobench.analysis.detectors.policy import Drift
from grpobench.analysis.detectors.registry import DETECTORS
from grpobench.analysis.runfolder.experiment import MARGIN, Experiment
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.statistics.comparison import compare
from grpobench.analysis.statistics.intervals import wilson
from grpobench.analysis.statistics.verdicts import ALPHA, Verdict
from grpobench.analysis.tools.text import json_number
from grpobench.analysis.topics.accuracy import finals
from grpobench.analysis.topics.events import histories

COMPARISONS = 300
"""Comparisons of each design."""
DESIGNS = ((2, 6), (2, 8), (2, 10), (3, 8))
"""(arms, seeds) of each design; those are left out for which the pool is too small."""


@dataclass(frozen=True)
class SameArm:
    """Comparisons of an arm with itself: disjoint sets of runs, drawn from one pool, act as arms."""

    arms: int
    seeds: int
    pool: int
    """Runs to draw from."""
    comparisons: int
    false: int
    """Comparisons in which any pair of arms was called different."""
    equivalent: int
    """Comparisons in which all arms were correctly called equivalent."""
    wrongly_equivalent: int
    """Comparisons in which the last arm, after a shift by the margin, was called equivalent to another."""

    @property
    def rate(self) -> float:
        """Share of comparisons with a false difference."""
        return self.false / self.comparisons

    @property
    def wrong_rate(self) -> float:
        """Share of comparisons with a false equivalence."""
        return self.wrongly_equivalent / self.comparisons

    def row(self) -> dict[str, Any]:
        """The row for JSON, with Wilson's interval as if the comparisons were independent."""
        interval = wilson(self.false, self.comparisons)
        rates = {"rate": self.rate, "wrong_rate": self.wrong_rate}
        fields = asdict(self) | rates | {"low": interval.low, "high": interval.high}
        return {name: json_number(value, 4) for name, value in fields.items()}


def same_arm(values: ArrayLike, arms: int, seeds: int, comparisons: int = COMPARISONS) -> SameArm:
    """Draw `comparisons` times `arms` disjoint sets of `seeds` of the final accuracies `values` (n,), pair
    them in the order drawn, and let the report's comparison judge them, once as they are and once with the
    last arm lower by the margin.

    Every difference found is a false positive, and so is every equivalence where the last arm is shifted."""
    pool = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng([0, arms, seeds])
    false = equivalent = wrong = 0
    for _ in range(comparisons):
        drawn = rng.choice(pool, size=(arms, seeds), replace=False)
        unmoved = verdicts(drawn)
        false += any(verdict in ("better", "worse") for verdict in unmoved.values())
        equivalent += all(verdict == "equivalent" for verdict in unmoved.values())
        drawn[-1] -= MARGIN
        moved = verdicts(drawn)
        wrong += any(verdict == "equivalent" and arms - 1 in pair for pair, verdict in moved.items())
    return SameArm(arms, seeds, pool.size, comparisons, false, equivalent, wrong)


def verdicts(values: ArrayLike) -> dict[tuple[int, int], Verdict]:
    """The verdict of the report on each pair of these arms, (arms, seeds), at its level and margin."""
    rows = [dict(enumerate(map(float, row))) for row in np.asarray(values)]
    comparisons = compare("pool", {str(arm): row for arm, row in enumerate(rows)}, alpha=ALPHA, margin=MARGIN)
    return {(int(pair.first), int(pair.second)): pair.verdict for pair in comparisons}


NAME = "calibration"
"""Kind and name of the kept file."""
MOST_FALSE = 0.07
"""Share of A/A comparisons that may be called different at a nominal 5 %."""


def calibrate(experiment: Experiment, library: Library, command: str) -> dict[str, Any]:
    """The content of a kept calibration. Raises LogError if a run of the library has no result."""
    lacking = [run for run in experiment.runs if run.arm in library.by_arm and not run.settled]
    if lacking:
        names = ", ".join(f"{run.name} ({run.state})" for run in lacking[:5])
        raise LogError(
            f"{experiment.folder}: {len(lacking)} runs without result: {names}; start again to go on"
        )
    read = histories(experiment)
    limit = set_drift_limit(_healthy(experiment, library, read))
    settings = [
        set_thresholds(kind, library, experiment, read)
        if kind != Drift.kind
        else _warning(library, experiment, read, limit)
        for kind in DETECTORS
    ]
    runs = finals(experiment)
    pool = runs.loc[runs["arm"] == library.pool].sort_values("seed")["counted"].dropna()
    same = [same_arm(pool, arms, seeds) for arms, seeds in DESIGNS if arms * seeds <= pool.size]
    either = {half: score(_either(library, experiment, read, settings, half)) for half in ("set", "scored")}
    content = {
        "set_on": library.set_on,
        "pool": library.pool,
        "cases": [_case(case, library, experiment) for case in library.cases],
        "detectors": [_setting(setting) for setting in settings],
        "collapse": {half: scores.row() for half, scores in either.items()},
        "warning": dataclasses.asdict(limit),
        "same_arm": [design.row() for design in same],
        "goals": _goals(settings, either["scored"], same),
    }
    made = dataclasses.replace(record.provenance_of(experiment), command=command)
    return record.content_of(NAME, NAME, made, content)


def _healthy(experiment: Experiment, library: Library, read: Mapping[str, History]) -> list[History]:
    """The histories of the pool's half that sets thresholds."""
    return [read[run.name] for run in library.of_half(experiment, "set") if run.arm == library.pool]


def _warning(
    library: Library, experiment: Experiment, read: Mapping[str, History], limit: DriftLimit
) -> ThresholdChoice:
    """The early warning, whose limit is set on healthy runs alone and not by goals."""
    made = dataclasses.replace(Drift(), limit=limit.limit)
    halves: tuple[Half, Half] = ("set", "scored")
    on_set, on_scored = (score(judge_runs(made, library, experiment, read, half)) for half in halves)
    default = score(judge_runs(Drift(), library, experiment, read, "scored"))
    values, before = {"limit": made.limit}, {"limit": Drift().limit}
    return ThresholdChoice(Drift.kind, values, before, 1, on_set, on_scored, default)


def _either(
    library: Library,
    experiment: Experiment,
    read: Mapping[str, History],
    settings: Sequence[ThresholdChoice],
    half: Half,
) -> list[DetectorResult]:
    """Whether each run of a half collapsed: any event of the family counts, with the thresholds that were
    set."""
    detectors = [
        dataclasses.replace(DETECTORS[setting.kind], **setting.values)
        for setting in settings
        if DETECTORS[setting.kind].family == "collapse"
    ]
    each = [judge_runs(detector, library, experiment, read, half) for detector in detectors]
    return [either(run_outcomes) for run_outcomes in zip(*each, strict=True)]


def either(run_outcomes: Sequence[DetectorResult]) -> DetectorResult:
    """Combine several detectors of one run. The label is `must` if any label is, else `may` if any is."""
    labels = {outcome.label for outcome in run_outcomes}
    label = next(name for name in ("must", "may", "never") if name in labels)
    steps = tuple(sorted(step for outcome in run_outcomes for step in outcome.detected))
    return dataclasses.replace(run_outcomes[0], label=label, detected=steps)


def _case(case: Case, library: Library, experiment: Experiment) -> dict[str, Any]:
    halves: tuple[Half, Half] = ("set", "scored")
    runs = {half: sum(run.arm == case.arm for run in library.of_half(experiment, half)) for half in halves}
    return dataclasses.asdict(case) | {"runs": runs}


def _setting(setting: ThresholdChoice) -> dict[str, Any]:
    return {
        "kind": setting.kind,
        "family": DETECTORS[setting.kind].family,
        "values": dict(setting.values),
        "default": dict(setting.default),
        "tried": setting.num_settings,
        "set": setting.on_set.row(),
        "scored": setting.on_scored.row(),
        "default_scored": setting.default_on_scored.row(),
        "meets": meets_goals(setting.on_scored) if setting.on_scored.must else None,
    }


def _goals(
    settings: Sequence[ThresholdChoice], either: Score, same: Sequence[SameArm]
) -> list[dict[str, Any]]:
    """Each goal with its value, and whether it was met."""
    goals = [
        goal(f"{setting.kind}: {name}", value, bound, above)
        for setting in settings
        if DETECTORS[setting.kind].family == "collapse"
        for name, value, bound, above in _score_rows(setting.on_scored)
    ]
    goals += [
        goal((f"either collapse: {name}"), value, bound, above)
        for name, value, bound, above in _score_rows(either)
    ]
    goals += [
        goal(f"A/A, {design.arms} arms of {design.seeds} seeds: {name}", rate, MOST_FALSE, False)
        for design in same
        for name, rate in (("called different", design.rate), ("wrongly equivalent", design.wrong_rate))
    ]
    return goals


def _score_rows(scores: Score) -> list[tuple[str, float, float, bool]]:
    return [
        ("precision", scores.precision, MIN_RATE, True),
        ("recall", scores.recall, MIN_RATE, True),
        ("false alarms per healthy run", scores.per_healthy, MAX_FALSE_ALARMS, False),
    ]


def goal(name: str, value: float, bound: float, above: bool) -> dict[str, Any]:
    """One goal. The value must be at or above the bound, or at or below it. An undefined value meets no
    goal."""
    met = (value >= bound if above else value <= bound) and math.isfinite(value)
    shown = json_number(value, 4)
    return {"goal": name, "value": shown, "bound": bound, "at_least": above, "met": bool(met)}


def read(path: Path) -> Mapping[str, Any]:
    """Read a kept calibration. Raises LogError if the file is not one."""
    return record.read(path, NAME, dict)
