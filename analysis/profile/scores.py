"""From kept outcomes to scores with intervals, and to what the data can tell apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grpobench.analysis.profile.curves import NO_CURVE, NO_RUNS, ProbeCurve, RatePoint
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.probe import Probe
from grpobench.analysis.statistics.moderated import (
    AlgorithmPair,
    AlgorithmScore,
    RankedAlgorithms,
    compare_all,
    compare_one,
)

GATE_SCORE = 0.2
"""Score on the gate below which an algorithm does not learn, so that a robustness score says nothing."""
FEWEST_SEEDS = 4
"""Seeds of an algorithm whose score is compared; with three the level does not hold."""
COMMON_RATE = 1e-3
"""The learning rate at which all algorithms are compared besides their best ones."""
Scores = Mapping[str, Mapping[int, float]]
"""By algorithm and seed."""


@dataclass(frozen=True)
class AtRate:
    """All algorithms at one learning rate each: their best one, or the common one."""

    points: Mapping[str, Mapping[str, RatePoint]]
    """By probe and algorithm, of those with runs."""

    @cached_property
    def scores(self) -> Mapping[str, Scores]:
        """By probe, of algorithms with `FEWEST_SEEDS` scores; a run that failed has none."""
        scored = {
            probe: {name: point.scores for name, point in of.items() if len(point.scores) >= FEWEST_SEEDS}
            for probe, of in self.points.items()
        }
        return {probe: of for probe, of in scored.items() if of}

    @cached_property
    def gated(self) -> Mapping[str, frozenset[str]]:
        """By probe: algorithms with runs but without a score, because they do not learn without the dose or
        too many runs fail."""
        without = {probe: {*of} - {*self.scores.get(probe, {})} for probe, of in self.points.items()}
        return {probe: frozenset(names) for probe, names in without.items() if names}

    @cached_property
    def compared(self) -> Mapping[str, RankedAlgorithms]:
        """By probe with scores of at least two algorithms."""
        return {name: compare_all(of) for name, of in self.scores.items() if len(of) > 1}

    def only(self, probe: str, names: Iterable[str]) -> AtRate:
        """One probe with some of its algorithms."""
        of_probe = self.points.get(probe, {})
        return AtRate({probe: {name: of_probe[name] for name in names if name in of_probe}})


@dataclass(frozen=True)
class Profile:
    """All scores that are kept, and the comparisons on each probe."""

    probes: Mapping[str, Probe]
    rates: Mapping[str, Mapping[str, float]]
    """The best rates by algorithm and role: those of the search."""
    curves: Mapping[str, Mapping[str, ProbeCurve]]
    """By probe with runs of its own, and by algorithm."""
    best: AtRate
    """At the best rates."""
    common: AtRate
    """At `COMMON_RATE`, without probes that average over rates."""

    @property
    def scores(self) -> Mapping[str, Scores]:
        """By probe, at the best rates."""
        return self.best.scores

    @property
    def compared(self) -> Mapping[str, RankedAlgorithms]:
        """By probe with scores of at least two algorithms, at the best rates."""
        return self.best.compared

    @property
    def gated(self) -> Mapping[str, frozenset[str]]:
        """By probe: algorithms with runs but without a score at the best rates."""
        return self.best.gated

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Those with a score, in alphabetical order."""
        return tuple(sorted({name for of_probe in self.scores.values() for name in of_probe}))

    def cell(self, probe: str, algorithm: str) -> AlgorithmScore | None:
        """The mean score with its 95 % interval; None where there is none."""
        compared = self.compared.get(probe)
        return compared.cells.get(algorithm) if compared else None

    def at_best(self, probe: str, algorithm: str) -> RatePoint:
        """The runs at the best rate."""
        return self.best.points.get(probe, {}).get(algorithm, NO_RUNS)

    def at_common(self, probe: str, algorithm: str) -> RatePoint:
        """The runs at the common rate."""
        return self.common.points.get(probe, {}).get(algorithm, NO_RUNS)

    def curve(self, probe: str, algorithm: str) -> ProbeCurve:
        """The scores over learning rates; without points where there are no runs."""
        return self.curves.get(probe, {}).get(algorithm, NO_CURVE)

    def row(self, algorithm: str) -> dict[str, Any]:
        """An algorithm's numbers as plain values: its best rates, and by probe the score at the best rate and
        the curve over rates."""
        probes: dict[str, Any] = {}
        for probe in self.probes:
            point, cell = self.at_best(probe, algorithm), self.cell(probe, algorithm)
            if self.curve(probe, algorithm).points or point.runs:
                probes[probe] = {
                    "score": cell.mean if cell else math.nan,
                    "low": cell.low if cell else math.nan,
                    "high": cell.high if cell else math.nan,
                    "at_best": point.row(),
                    "at_common": self.at_common(probe, algorithm).row(),
                    **self.curve(probe, algorithm).row(),
                }
        return {"rates": dict(self.rates.get(algorithm, {})), "probes": probes}

    def against(self, algorithm: str, probe: str) -> list[AlgorithmPair]:
        """An algorithm against every other one on a probe; empty where it has no score."""
        of_probe = self.scores.get(probe, {})
        return compare_one(of_probe, algorithm) if algorithm in of_probe and len(of_probe) > 1 else []


def build(
    rows: Mapping[str, Sequence[ProbeOutcome]],
    probes: Mapping[str, Probe],
    rates: Mapping[str, Mapping[str, float]],
) -> Profile:
    """The profile of kept outcomes. `rates` are the searched ones; an algorithm without them is left out."""
    best: dict[str, dict[str, RatePoint]] = {}
    common: dict[str, dict[str, RatePoint]] = {}
    curves: dict[str, dict[str, ProbeCurve]] = {}
    rows_by_algorithm = {
        name: _by_probe(algorithm_rows) for name, algorithm_rows in rows.items() if name in rates
    }
    for name, probe in probes.items():
        for algorithm, by_probe in rows_by_algorithm.items():
            of_probe = by_probe.get(name, [])
            if probe.runs == "ladder":
                if of_probe:
                    best.setdefault(name, {})[algorithm] = _ladder(probe, of_probe)
                continue
            tried = sorted({row.learning_rate for row in of_probe})
            critic = rates[algorithm].get("critic")
            points = [point_at(probe, probes, by_probe, rate, critic) for rate in tried]
            curve = ProbeCurve(rates[algorithm]["policy"], tuple(point for point in points if point.runs))
            if curve.points:
                curves.setdefault(name, {})[algorithm] = curve
            for table, rate in ((best, curve.best), (common, COMMON_RATE)):
                if (point := curve.at(rate)).runs:
                    table.setdefault(name, {})[algorithm] = point
    return Profile(
        probes, {name: rates[name] for name in rows_by_algorithm}, curves, AtRate(best), AtRate(common)
    )


def _by_probe(rows: Sequence[ProbeOutcome]) -> dict[str, list[ProbeOutcome]]:
    by_probe: dict[str, list[ProbeOutcome]] = {}
    for row in rows:
        by_probe.setdefault(row.probe, []).append(row)
    return by_probe


def point_at(
    probe: Probe,
    probes: Mapping[str, Probe],
    rows: Mapping[str, Sequence[ProbeOutcome]],
    rate: float,
    critic: float | None,
) -> RatePoint:
    """An algorithm's runs on a probe at a rate of the policy. `rows` are those of the algorithm by probe,
    `critic` is the critic's rate; None takes any."""

    def at_rate(name: str) -> list[ProbeOutcome]:
        of_probe = rows.get(name, ())
        return [r for r in of_probe if r.learning_rate == rate and (critic is None or _same(r, critic))]

    of_probe = at_rate(probe.name)
    scores = _scores_of(probe, of_probe)
    if probe.against and scores:
        scores = _shares(scores, _scores_of(probes[probe.against], at_rate(probe.against)))
    recorded = all(row.failed is not None for row in of_probe)
    failed = tuple(sorted(row.seed for row in of_probe if row.failed)) if recorded else None
    return RatePoint(rate, scores, failed, len(of_probe))


def _scores_of(probe: Probe, rows: Sequence[ProbeOutcome]) -> dict[int, float]:
    """By seed, without runs that failed and runs without an outcome."""
    return {
        row.seed: probe.normalize(row.outcome)
        for row in rows
        if not row.failed and not math.isnan(row.outcome)
    }


def _shares(scores: Mapping[int, float], clean: Mapping[int, float]) -> dict[int, float]:
    """The shares of the gain without the dose; none for an algorithm that does not learn there.

    The mean over seeds is the ratio of mean gains. The loss stays inside its seed, so that a dose that
    changes nothing scores exactly 1. A ratio inside a seed would divide by the small gain of an unlucky
    one."""
    mean = sum(clean.values()) / len(clean) if clean else 0.0
    if mean < GATE_SCORE:
        return {}
    return {seed: 1 + (score - clean[seed]) / mean for seed, score in scores.items() if seed in clean}


def _same(row: ProbeOutcome, critic: float) -> bool:
    return math.isnan(row.critic_rate) or row.critic_rate == critic


def _ladder(probe: Probe, rows: Sequence[ProbeOutcome]) -> RatePoint:
    """The mean over the rates that every seed has, of seeds that have all of them. Runs that fail count as
    they end: at the largest rates they are what the probe measures."""
    by_seed: dict[int, dict[float, float]] = {}
    for row in rows:
        if not math.isnan(row.outcome):
            by_seed.setdefault(row.seed, {})[row.learning_rate] = probe.normalize(row.outcome)
    most = max(map(len, by_seed.values()), default=0)
    scores = {seed: sum(of.values()) / most for seed, of in by_seed.items() if len(of) == most > 1}
    return RatePoint(math.nan, scores, None, len(by_seed))
