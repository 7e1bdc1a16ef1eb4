"""Arms over learning rates: each arm's curve, and whether a difference between arms is one of their rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pandas as pd

from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.best_rates import BestRatePair, compare_best_rates
from grpobench.analysis.statistics.comparison import Comparison, compare, pairs_of
from grpobench.analysis.statistics.intervals import Estimate, seed_mean
from grpobench.analysis.statistics.rates import (
    TOLERANCE,
    RateCurve,
    sensitivity,
    shared_rates,
    width_in_octaves,
)
from grpobench.analysis.statistics.verdicts import OF_FIRST, Verdict, no_difference, shown
from grpobench.analysis.tools.text import percent, points, sweep_value
from grpobench.analysis.topics.comparisons import find_missing_seeds

Conclusion: TypeAlias = Literal[
    "rate-robust", "depends on the rate", "best rate at an edge", "no difference", "unresolved", "waits"
]
Direction: TypeAlias = tuple[str, str, str]
"""(better arm, worse arm, task)."""
ROBUST: Conclusion = "rate-robust"
DEPENDS: Conclusion = "depends on the rate"
EDGE: Conclusion = "best rate at an edge"
WAITS: Conclusion = "waits"


@dataclass(frozen=True)
class ArmAtRate:
    """The runs of an arm on a task at one learning rate."""

    factor: float
    """Multiple of the arm's own rate."""
    rate: float
    """Learning rate of the policy."""
    scores: Mapping[int, float]
    """Seed → counted final accuracy, of runs with a result."""
    failed: tuple[int, ...]
    """Seeds whose run collapsed, diverged or ended below its base."""
    missing: Mapping[int, str]
    """Seed without a result → the seed with the status of its run, in words."""

    @property
    def accuracy(self) -> Estimate:
        """Mean over seeds with its t interval."""
        return seed_mean([*self.scores.values()])

    @property
    def failed_share(self) -> float:
        """Share of the runs with a result that failed; NaN without one."""
        return len(self.failed) / len(self.scores) if self.scores else math.nan


@dataclass(frozen=True)
class ArmCurve:
    """One arm on one task over its learning rates."""

    task: str
    arm: str
    points: tuple[ArmAtRate, ...]
    """By ascending rate."""
    margin: float

    @property
    def curve(self) -> RateCurve:
        """Scores by rate and seed, for the tests."""
        return RateCurve.of({point.rate: point.scores for point in self.points})

    @property
    def best(self) -> ArmAtRate | None:
        """The rate with the highest mean over the seeds that all rates have; None without such seeds."""
        curve = self.curve
        return self.points[curve.best] if curve.seeds else None

    @property
    def at_own_rate(self) -> ArmAtRate:
        """The runs at the rate that the recipe gives the arm."""
        return next(point for point in self.points if point.factor == 1)

    @property
    def text(self) -> str:
        """The curve in a line: `sums: a: 58.0 % at 5e−5, 62.0 % at 1e−4 (own rate, best), 58.0 % at 2e−4`."""
        at_rates = []
        for point in self.points:
            marks = ["own rate"] * (point.factor == 1) + ["best"] * (point is self.best)
            marks += [f"{len(point.failed)} failed"] * bool(point.failed)
            beside = f" ({', '.join(marks)})" * bool(marks)
            at_rates.append(f"{percent(point.accuracy.value)} % at {sweep_value(point.rate)}{beside}")
        return f"{self.task}: {self.arm}: {', '.join(at_rates)}"

    def loss(self, side: int) -> float:
        """How much accuracy the arm loses at half (−1) or twice (1) its best rate, cross-fitted; NaN where no
        such rate was tried. It has no interval: the seeds share the choice of the rate."""
        return seed_mean([*sensitivity(self.curve, side).values()]).value

    @property
    def octaves(self) -> tuple[float, bool, bool]:
        """`width_in_octaves` within the margin; NaN without seeds."""
        curve = self.curve
        return width_in_octaves(curve, self.margin) if curve.seeds else (math.nan, True, True)


@dataclass(frozen=True)
class RatePair:
    """Two arms on one task over learning rates. Effects are first − second, as shares."""

    task: str
    first: str
    second: str
    best_rates: tuple[float, float]
    """Of the first and of the second arm; NaN where a run is missing."""
    at_best: BestRatePair
    verdict: Verdict
    """On the first arm, each at its best rate."""
    at_half: float
    """The effect with both arms at half their best rates, or at the nearest rate tried beyond; NaN where
    there is none."""
    at_twice: float
    at_own: Comparison | None
    """At the arms' own rates; None where they share no seed."""
    at_equal: Mapping[float, Comparison]
    """By learning rate, where both arms ran at it."""
    conclusion: Conclusion
    why: str

    @property
    def direction(self) -> Direction:
        """The better arm, the worse arm and the task, by the evidence at best rates."""
        better, worse = (
            (self.first, self.second) if self.at_best.first_is_better else (self.second, self.first)
        )
        return better, worse, self.task

    @property
    def words(self) -> str:
        """The conclusion as tables print it."""
        if self.conclusion == "no difference":
            return f"{no_difference(self.margin)} at best rates"
        return "waits for runs" if self.conclusion == WAITS else self.conclusion

    @property
    def text(self) -> str:
        """The conclusion in a line: `sums: a − b: rate-robust: +3.1 points at best rates, …`."""
        return f"{self.task}: {self.first} − {self.second}: {self.words}: {self.why}"

    @property
    def margin(self) -> float:
        """Differences smaller than this do not matter."""
        return self.at_own.margin if self.at_own else math.nan

    def row(self) -> dict[str, Any]:
        """The numbers as plain values."""
        best = self.at_best
        return {
            "task": self.task,
            "first": self.first,
            "second": self.second,
            "conclusion": self.conclusion,
            "why": self.why,
            "best_rate_first": self.best_rates[0],
            "best_rate_second": self.best_rates[1],
            "verdict_at_best": self.verdict,
            "effect_at_best": best.effect,
            "low": best.low,
            "high": best.high,
            "p": best.p,
            "p_adjusted": best.p_adjusted,
            "p_equivalence": best.p_equivalence,
            "p_equivalence_holm": best.p_equivalence_holm,
            "seeds": len(best.seeds),
            "effect_at_half": self.at_half,
            "effect_at_twice": self.at_twice,
            "effect_at_own": self.at_own.effect if self.at_own else math.nan,
            "verdict_at_own": self.at_own.verdict if self.at_own else None,
            "at_equal": {
                f"{rate:g}": {"effect": pair.effect, "p_adjusted": pair.p_adjusted, "verdict": pair.verdict}
                for rate, pair in self.at_equal.items()
            },
        }


@dataclass(frozen=True, repr=False)
class RateStudy:
    """All arms over learning rates."""

    curves: tuple[ArmCurve, ...]
    """One per task and arm."""
    pairs: tuple[RatePair, ...]
    """One per task and pair of arms, or pair with the control."""

    def __repr__(self) -> str:
        """A line per curve and per pair."""
        return "\n".join([*(curve.text for curve in self.curves), *(pair.text for pair in self.pairs)])

    def pair(self, task: str, first: str, second: str) -> RatePair | None:
        """The comparison of two arms, in whichever order."""
        arms = {first, second}
        return next(
            (pair for pair in self.pairs if pair.task == task and {pair.first, pair.second} == arms), None
        )

    @property
    def words(self) -> dict[tuple[str, str, str], str]:
        """(task, first, second) → what holds over learning rates, in words."""
        return {(pair.task, pair.first, pair.second): pair.words for pair in self.pairs}

    def rows(self) -> dict[str, Any]:
        """The numbers as plain values, for report.json."""
        return {
            "curves": [_curve_row(curve) for curve in self.curves],
            "pairs": [p.row() for p in self.pairs],
        }


def study_rates(experiment: Experiment, runs: pd.DataFrame) -> RateStudy | None:
    """The curves and pairs of an experiment; None where it has one learning rate an arm. `runs` are rows of
    `finals` at all rates."""
    all_rates = experiment.at_all_rates
    if not all_rates.rate_arms:
        return None
    curves = [curve for task in experiment.tasks for curve in read_curves(all_rates, runs, task)]
    return study_curves(curves, experiment.control)


def study_curves(curves: Sequence[ArmCurve], control: str = "") -> RateStudy:
    """The curves and their pairs on each task."""
    tasks = dict.fromkeys(curve.task for curve in curves)
    pairs = [
        pair
        for task in tasks
        for pair in compare_curves(task, [curve for curve in curves if curve.task == task], control)
    ]
    return RateStudy(tuple(curves), tuple(pairs))


def read_curves(experiment: Experiment, runs: pd.DataFrame, task: str) -> list[ArmCurve]:
    """The curve of every arm of the recipe that has runs on the task; none where all have one rate, since a
    recipe may run several rates on some of its tasks only (`rate_tasks`)."""
    missing = find_missing_seeds(experiment, runs, task)
    rates = {
        run.arm: rate
        for run in experiment.runs
        if run.task == task and (rate := rate_of_policy(run.config)) is not None
    }
    points: dict[str, list[ArmAtRate]] = {}
    for name in experiment.arms:
        if name not in rates:
            continue
        origin = experiment.rate_arms.get(name)
        rows = runs[(runs["task"] == task) & (runs["arm"] == name)]
        counted = rows.dropna(subset=["counted"])
        failed = counted[counted["collapsed_at"].notna() | (counted["counted"] < counted["base"])]
        point = ArmAtRate(
            factor=origin.factor if origin else 1.0,
            rate=rates[name],
            scores=dict(zip(counted["seed"].astype(int), counted["counted"].astype(float), strict=True)),
            failed=tuple(failed["seed"].astype(int)),
            missing=missing.get(name, {}),
        )
        points.setdefault(origin.arm if origin else name, []).append(point)
    if all(len(listed) < 2 for listed in points.values()):
        return []
    return [
        ArmCurve(task, arm, tuple(sorted(listed, key=lambda point: point.rate)), experiment.margin)
        for arm, listed in points.items()
        if any(point.factor == 1 for point in listed)
    ]


def rate_of_policy(config: Mapping[str, Any]) -> float | None:
    """The policy's learning rate in run.toml; None where it has none, as in imported logs."""
    rates = config.get("train", {}).get("learning_rate", {})
    rate = rates.get("policy") if isinstance(rates, Mapping) else None
    return float(rate) if isinstance(rate, int | float) else None


# Pairs


def compare_curves(task: str, curves: Sequence[ArmCurve], control: str = "") -> list[RatePair]:
    """The pairs of arms on one task, or those of the control. Corrections are over the pairs of the task: at
    best rates, at own rates, and at each equal rate, since these are separate questions."""
    by_arm = {curve.arm: curve for curve in curves}
    pairs = pairs_of([*by_arm], control)
    if not pairs:
        return []
    margin = curves[0].margin
    at_own = _compared(task, {arm: curve.at_own_rate for arm, curve in by_arm.items()}, margin, control)
    equal = {
        rate: _compared(task, _at_rate(by_arm, rate), margin, control)
        for rate in shared_rates([[point.rate for point in curve.points] for curve in curves])
    }
    best = compare_best_rates({arm: curve.curve for arm, curve in by_arm.items()}, pairs, margin)
    return [
        _rate_pair(
            task,
            (by_arm[a], by_arm[b]),
            at_best,
            at_own.get((a, b)),
            {rate: compared[a, b] for rate, compared in equal.items() if (a, b) in compared},
        )
        for (a, b), at_best in zip(pairs, best, strict=True)
    ]


def _at_rate(curves: Mapping[str, ArmCurve], rate: float) -> dict[str, ArmAtRate]:
    """The arms that ran at a learning rate."""
    return {
        arm: point
        for arm, curve in curves.items()
        for point in curve.points
        if rate <= point.rate * TOLERANCE and point.rate <= rate * TOLERANCE
    }


def _compared(
    task: str, points: Mapping[str, ArmAtRate], margin: float, control: str
) -> dict[tuple[str, str], Comparison]:
    """The pairs of arms at one rate each."""
    compared = compare(
        task,
        {arm: point.scores for arm, point in points.items()},
        {arm: point.missing for arm, point in points.items()},
        margin=margin,
        control=control if control in points else "",
    )
    return {(pair.first, pair.second): pair for pair in compared}


def _rate_pair(
    task: str,
    curves: tuple[ArmCurve, ArmCurve],
    at_best: BestRatePair,
    at_own: Comparison | None,
    equal: Mapping[float, Comparison],
) -> RatePair:
    first, second = curves
    bests = (first.best, second.best)
    at_half, at_twice = (_effect_beyond(first.curve, second.curve, side) for side in (-1, 1))
    late = [
        f"{curve.arm} at {sweep_value(point.rate)}, seed {', '.join(point.missing.values())}"
        for curve in curves
        for point in curve.points
        if point.missing
    ]
    verdict = _verdict(at_best, curves) if not late else "unresolved"
    conclusion, why = _conclude(curves, at_best, verdict, (at_half, at_twice), at_own, equal)
    if late or None in bests:
        conclusion, why = WAITS, "; ".join(late) or "no seed has a result at every rate"
    return RatePair(
        task=task,
        first=first.arm,
        second=second.arm,
        best_rates=(bests[0].rate if bests[0] else math.nan, bests[1].rate if bests[1] else math.nan),
        at_best=at_best,
        verdict=verdict,
        at_half=at_half,
        at_twice=at_twice,
        at_own=at_own,
        at_equal=equal,
        conclusion=conclusion,
        why=why,
    )


def _effect_beyond(first: RateCurve, second: RateCurve, side: int) -> float:
    """First − second with both at half (−1) or twice (1) their best rates; NaN where one was not tried."""
    if not (first.seeds and second.seeds):
        return math.nan
    beyond = (first.neighbor(first.best, side), second.neighbor(second.best, side))
    if beyond[0] is None or beyond[1] is None:
        return math.nan
    means = (first.scores[beyond[0]].mean(), second.scores[beyond[1]].mean())
    return float(means[0] - means[1])


def _verdict(at_best: BestRatePair, curves: tuple[ArmCurve, ArmCurve]) -> Verdict:
    """The verdict on the first arm, each at its best rate, by `verdicts.shown`. Arms are not called
    equivalent where the best rate of one is at an edge: a better rate beyond it may end that."""
    margin = curves[0].margin
    effect, _ = shown(
        at_best.first_is_better,
        at_best.p_adjusted,
        at_best.p_equivalence_holm,
        (at_best.low, at_best.high),
        (-margin, margin),
    )
    verdict = OF_FIRST[effect]
    return "unresolved" if verdict == "equivalent" and any(map(_edges, curves)) else verdict


def _conclude(
    curves: tuple[ArmCurve, ArmCurve],
    at_best: BestRatePair,
    verdict: Verdict,
    beyond: tuple[float, float],
    at_own: Comparison | None,
    equal: Mapping[float, Comparison],
) -> tuple[Conclusion, str]:
    """What holds over learning rates, and why."""
    effect = f"{points(at_best.effect)} points at best rates"
    by_rate = [("own rates", at_own), *((sweep_value(rate), pair) for rate, pair in equal.items())]
    differ_at = [
        f"{words} ({points(pair.effect)})"
        for words, pair in by_rate
        if pair is not None and pair.verdict in ("better", "worse")
    ]
    edges = "".join(f"; {text}" for curve in curves for text in _edges(curve))
    if verdict in ("better", "worse"):
        if edges:
            return EDGE, f"{effect}{edges}"
        sign = 1 if verdict == "better" else -1
        around = f"{points(beyond[0])} at half and {points(beyond[1])} at twice the best rates"
        if all(sign * change > 0 for change in beyond):
            return ROBUST, f"{effect}, {around}"
        return DEPENDS, f"{effect}, but {around}"
    if differ_at:
        is_equal = verdict == "equivalent"
        at_best_words = no_difference(curves[0].margin) if is_equal else f"unresolved{edges}"
        not_there = f"{points(at_best.effect)} points at best rates is {at_best_words}"
        return DEPENDS, f"differs at {', '.join(differ_at)}, but {not_there}"
    if verdict == "equivalent":
        return "no difference", effect
    return "unresolved", f"{effect}, adjusted p {at_best.p_adjusted:.3g}{edges}"


def _edges(curve: ArmCurve) -> list[str]:
    """On which side of its best rate an arm lacks a neighbor."""
    grid, best = curve.curve, curve.best
    if best is None:
        return []
    sides = [(-1, "half of it or less"), (1, "twice it or more")]
    return [
        f"{curve.arm} is best at {sweep_value(best.rate)}, and no rate of {beyond} was tried"
        for side, beyond in sides
        if grid.neighbor(grid.best, side) is None
    ]


def _curve_row(curve: ArmCurve) -> dict[str, Any]:
    """The numbers of a curve as plain values."""
    best, (octaves, open_below, open_above) = curve.best, curve.octaves
    return {
        "task": curve.task,
        "arm": curve.arm,
        "best_rate": best.rate if best else None,
        "own_rate": curve.at_own_rate.rate,
        "loss_at_half": curve.loss(-1),
        "loss_at_twice": curve.loss(1),
        "octaves": octaves,
        "octaves_open_below": open_below,
        "octaves_open_above": open_above,
        "points": [
            {
                "factor": point.factor,
                "rate": point.rate,
                "accuracy": point.accuracy.value,
                "low": point.accuracy.low,
                "high": point.accuracy.high,
                "failed": list(point.failed),
                "missing": list(point.missing.values()),
                "scores": {str(seed): score for seed, score in point.scores.items()},
            }
            for point in curve.points
        ],
    }
