"""From kept outcomes to scores with intervals, and to what the data can tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
Scores = Mapping[str, Mapping[int, float]]
"""By algorithm and seed."""


@dataclass(frozen=True)
class Profile:
    """All scores that are kept, and the comparisons on each probe."""

    probes: Mapping[str, Probe]
    scores: Mapping[str, Scores]
    """By probe, at the searched rate."""
    rates: Mapping[str, Mapping[str, float]]
    """The searched rates by algorithm and role."""
    compared: Mapping[str, RankedAlgorithms]
    """By probe with scores of at least two algorithms."""
    below: Mapping[str, Mapping[str, float]]
    """By probe and algorithm: the mean score at the rate below the searched one."""
    above: Mapping[str, Mapping[str, float]]
    gated: Mapping[str, frozenset[str]]
    """By probe: algorithms with runs but without a score, because they do not learn without the dose."""

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Those with a score, in alphabetical order."""
        return tuple(sorted({name for of_probe in self.scores.values() for name in of_probe}))

    def cell(self, probe: str, algorithm: str) -> AlgorithmScore | None:
        """The mean score with its 95 % interval; None where there is none."""
        compared = self.compared.get(probe)
        return compared.cells.get(algorithm) if compared else None

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
    rows_by_algorithm = {name: algorithm_rows for name, algorithm_rows in rows.items() if name in rates}
    scores: dict[str, dict[str, dict[int, float]]] = {}
    below: dict[str, dict[str, float]] = {}
    above: dict[str, dict[str, float]] = {}
    gated: dict[str, set[str]] = {}
    for name, probe in probes.items():
        for algorithm, algorithm_rows in rows_by_algorithm.items():
            searched = rates[algorithm]["policy"]
            score_by_seed = scores_of(probe, probes, algorithm_rows, searched, rates[algorithm].get("critic"))
            if len(score_by_seed) >= FEWEST_SEEDS:
                scores.setdefault(name, {})[algorithm] = score_by_seed
            elif any(row.probe == name for row in algorithm_rows):
                gated.setdefault(name, set()).add(algorithm)
            for table, rate in (
                (below, neighbor(algorithm_rows, searched, -1)),
                (above, neighbor(algorithm_rows, searched, 1)),
            ):
                near = (
                    scores_of(probe, probes, algorithm_rows, rate, None)
                    if rate and probe.runs != "ladder"
                    else {}
                )
                if near:
                    table.setdefault(name, {})[algorithm] = sum(near.values()) / len(near)
    compared = {name: compare_all(of_probe) for name, of_probe in scores.items() if len(of_probe) > 1}
    frozen = {name: frozenset(names) for name, names in gated.items()}
    return Profile(
        probes, scores, {name: rates[name] for name in rows_by_algorithm}, compared, below, above, frozen
    )


def scores_of(
    probe: Probe, probes: Mapping[str, Probe], rows: Sequence[ProbeOutcome], rate: float, critic: float | None
) -> dict[int, float]:
    """Score by seed at a policy's rate. `critic` is the critic's; None takes any."""

    def outcomes(name: str) -> dict[int, float]:
        return {
            row.seed: row.outcome
            for row in rows
            if row.probe == name and row.learning_rate == rate and (critic is None or _same(row, critic))
        }

    if probe.runs == "ladder":
        return _ladder(probe, rows)
    score_by_seed = {
        seed: probe.normalize(x) for seed, x in outcomes(probe.name).items() if not math.isnan(x)
    }
    if not probe.against or not score_by_seed:
        return score_by_seed
    gate = probes[probe.against]
    clean = {seed: gate.normalize(x) for seed, x in outcomes(gate.name).items() if not math.isnan(x)}
    mean = sum(clean.values()) / len(clean) if clean else 0.0
    if mean < GATE_SCORE:
        return {}
    # The mean over seeds is the ratio of mean gains. The loss stays inside its seed, so that a dose that
    # changes nothing scores exactly 1. A ratio inside a seed would divide by the small gain of an unlucky
    # one.
    return {seed: 1 + (score - clean[seed]) / mean for seed, score in score_by_seed.items() if seed in clean}


def _same(row: ProbeOutcome, critic: float) -> bool:
    return math.isnan(row.critic_rate) or row.critic_rate == critic


def _ladder(probe: Probe, rows: Sequence[ProbeOutcome]) -> dict[int, float]:
    """The mean over the rates that every seed has, of seeds that have all of them."""
    by_seed: dict[int, dict[float, float]] = {}
    for row in rows:
        if row.probe == probe.name and not math.isnan(row.outcome):
            by_seed.setdefault(row.seed, {})[row.learning_rate] = probe.normalize(row.outcome)
    most = max(map(len, by_seed.values()), default=0)
    return {seed: sum(of.values()) / most for seed, of in by_seed.items() if len(of) == most > 1}


def neighbor(rows: Sequence[ProbeOutcome], searched: float, side: int) -> float | None:
    """The nearest rate below (−1) or above (1) the searched one at which probes of their own were run."""
    rates = sorted({row.learning_rate for row in rows if row.probe not in ("learn", "ladder", "diversity")})
    beyond = [rate for rate in rates if (rate - searched) * side > 0]
    return (max(beyond) if side < 0 else min(beyond)) if beyond else None
