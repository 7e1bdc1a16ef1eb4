"""Set a detector's thresholds on one half of the seeds, and score them on the other half."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grpobench.analysis.calibration.scores import DetectorResult, Half, Library, Score, lost, score
from grpobench.analysis.detectors.event import Detector
from grpobench.analysis.detectors.history import Floats, History, Series
from grpobench.analysis.detectors.policy import Drift, cusum, streams
from grpobench.analysis.detectors.registry import DETECTORS, thresholds
from grpobench.analysis.runfolder.experiment import Experiment

LEAST = 0.9
"""Precision and recall that are asked for."""
MOST = 0.05
"""False alarms per healthy run that are borne."""


@dataclass(frozen=True)
class ThresholdChoice:
    """A detector's thresholds as the first half of the seeds sets them, and how they do on both halves."""

    kind: str
    values: Mapping[str, float]
    """The thresholds that were tried, as they were set."""
    default: Mapping[str, float]
    """The same as the registry has them."""
    tried: int
    """Settings tried."""
    on_set: Score
    on_scored: Score
    default_on_scored: Score


def set_thresholds(
    kind: str,
    library: Library,
    experiment: Experiment,
    histories: Mapping[str, History],
) -> ThresholdChoice:
    """The default where it meets the goals on the first half, else what `chosen` says."""
    default = DETECTORS[kind]
    settings = list(variants(default, library.tried.get(kind, {})))
    on_set = [score(outcomes(setting, library, experiment, histories, "set")) for setting in settings]
    best = settings[chosen(on_set, [distance(setting, default) for setting in settings])]
    return ThresholdChoice(
        kind,
        differing(best, settings),
        differing(default, settings),
        len(settings),
        score(outcomes(best, library, experiment, histories, "set")),
        score(outcomes(best, library, experiment, histories, "scored")),
        score(outcomes(default, library, experiment, histories, "scored")),
    )


def variants(default: Detector, tried: Mapping[str, Sequence[float]]) -> Iterator[Detector]:
    """The detector with its defaults, then with every combination of the values tried."""
    yield default
    for values in itertools.product(*tried.values()):
        made = dataclasses.replace(default, **dict(zip(tried, values, strict=True)))
        if made != default:
            yield made


def differing(detector: Detector, settings: Sequence[Detector]) -> dict[str, float]:
    """The thresholds of a detector in which any of the settings differ."""
    rows = [thresholds(setting) for setting in settings]
    return {
        name: value for name, value in thresholds(detector).items() if len({row[name] for row in rows}) > 1
    }


def distance(detector: Detector, default: Detector) -> float:
    """How far thresholds are from the defaults: factors, as logarithms, added up."""
    now, then = thresholds(detector), thresholds(default)
    return sum(apart(now[name], then[name]) for name in then)


def apart(value: float, default: float) -> float:
    """The logarithm of a factor; of what has no factor a hundred times the difference."""
    return abs(math.log(value / default)) if value * default > 0 else 100 * abs(value - default)


def chosen(scores: Sequence[Score], distances: Sequence[float]) -> int:
    """Which setting: of those that meet the goals the nearest to the defaults; where none does, the one whose
    worst of precision, recall and 1 − false alarms per healthy run is best, of equal ones the nearest."""

    def rank(index: int) -> tuple[bool, float, float]:
        setting_score = scores[index]
        return (
            not meets(setting_score),
            0.0 if meets(setting_score) else -worst(setting_score),
            distances[index],
        )

    return min(range(len(scores)), key=rank)


def meets(score: Score) -> bool:
    """Whether a score meets the goals, as far as it has them."""
    return (
        not any(value < LEAST for value in (score.precision, score.recall)) and not score.per_healthy > MOST
    )


def worst(score: Score) -> float:
    """The worst of what is asked for, as far as it is defined."""
    rates = (score.precision, score.recall, 1 - score.per_healthy)
    return min((value for value in rates if not math.isnan(value)), default=0.0)


def outcomes(
    detector: Detector, library: Library, experiment: Experiment, histories: Mapping[str, History], half: Half
) -> list[DetectorResult]:
    """What a detector says of every run of a half that it can judge."""
    run_outcomes = []
    for run in library.of_half(experiment, half):
        history = histories[run.name]
        case = library.by_arm[run.arm]
        label = case.label(detector.kind)
        if detector.lacks(history) and label != "must":
            continue
        events = [] if detector.lacks(history) else detector.find(history)
        _, accuracy = history.evaluated()
        steps = tuple(sorted(event.found for event in events))
        run_outcomes.append(DetectorResult(label, case.healthy, steps, case.since, lost(accuracy)))
    return run_outcomes


DRAWS = 2000
BLOCK = 8
"""Steps that stay together, as many as a rule asks for in a row."""


@dataclass(frozen=True)
class Limit:
    """A limit and what it stands on."""

    limit: float
    runs: int
    """Healthy runs that were resampled."""
    draws: int
    block: int
    above: int
    """Of these runs as they are, those whose sum passes it."""


def set_limit(histories: Sequence[History], draws: int = DRAWS, block: int = BLOCK, seed: int = 0) -> Limit:
    """The value that the largest sum of at most one in twenty resampled runs exceeds.

    A resampled run is the mean course of all runs plus residuals of one of them, in blocks of `block` steps
    that begin anywhere and go on at the run's first step behind its last; every metric takes the same
    blocks. So what is autocorrelated stays so within a block, and a run that learns faster than others stays
    one. Runs that logged fewer steps than others are left out; raises ValueError where there is none.
    """
    if not histories:
        raise ValueError("an early warning is set on healthy runs; there is none")
    detector = Drift()
    watched = [(series.name, sign) for series, sign in streams(histories[0])]
    logged = [min(len(history.updates(name)) for name, _ in watched) for history in histories]
    histories = [history for history, count in zip(histories, logged, strict=True) if count == max(logged)]
    values = {name: np.array([history.updates(name).values for history in histories]) for name, _ in watched}
    steps = histories[0].updates(watched[0][0]).steps
    rng = np.random.default_rng(seed)
    highs = np.zeros(draws)
    for draw in range(draws):
        run, order = int(rng.integers(len(histories))), blocks(len(steps), block, rng)
        for name, sign in watched:
            mean = values[name].mean(axis=0)
            series = Series(name, steps, mean + (values[name][run] - mean)[order])
            sums = cusum(histories[run], series, sign, detector.slack)
            highs[draw] = max(highs[draw], 0.0 if sums is None else float(sums.max()))
    limit = upper(highs, MOST)
    return Limit(limit, len(histories), draws, block, sum(highest(history) > limit for history in histories))


def blocks(count: int, block: int, rng: np.random.Generator) -> np.ndarray:
    """`count` positions in blocks of `block` that follow each other, each begun at random, (count,)."""
    starts = rng.integers(count, size=-(-count // block))
    return ((starts[:, None] + np.arange(block)) % count).ravel()[:count]


def upper(highs: Floats, share: float) -> float:
    """The least of the values that at most this share of them exceeds, rounded up to a tenth."""
    order = np.sort(highs)
    return float(np.ceil(10 * order[len(order) - 1 - int(share * len(order))]) / 10)


def highest(history: History) -> float:
    """The largest sum of a run as it is."""
    stream_sums = [cusum(history, series, sign, Drift().slack) for series, sign in streams(history)]
    return max((float(sums.max()) for sums in stream_sums if sums is not None and len(sums)), default=0.0)
