"""Setting a detector's thresholds on one half of the seeds and scoring them on the other."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from grpobench.analysis.calibration.library import Half, Library
from grpobench.analysis.calibration.scores import Outcome, Score, lost, score
from grpobench.analysis.detect.event import Detector
from grpobench.analysis.detect.history import History
from grpobench.analysis.detect.registry import DETECTORS, thresholds
from grpobench.analysis.logs.matrix import Matrix

LEAST = 0.9
"""Precision and recall that are asked for."""
MOST = 0.05
"""False alarms per healthy run that are borne."""


@dataclass(frozen=True)
class Setting:
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

    @property
    def kept(self) -> bool:
        """Whether the defaults stay."""
        return dict(self.values) == dict(self.default)


def set_thresholds(
    kind: str,
    library: Library,
    matrix: Matrix,
    histories: Mapping[str, History],
) -> Setting:
    """The default where it meets the goals on the first half, else what `chosen` says."""
    default = DETECTORS[kind]
    settings = list(variants(default, library.tried.get(kind, {})))
    on_set = [score(outcomes(one, library, matrix, histories, "set")) for one in settings]
    best = settings[chosen(on_set, [distance(one, default) for one in settings])]
    return Setting(
        kind,
        differing(best, settings),
        differing(default, settings),
        len(settings),
        score(outcomes(best, library, matrix, histories, "set")),
        score(outcomes(best, library, matrix, histories, "scored")),
        score(outcomes(default, library, matrix, histories, "scored")),
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
    rows = [thresholds(one) for one in settings]
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
        own = scores[index]
        return (not meets(own), 0.0 if meets(own) else -worst(own), distances[index])

    return min(range(len(scores)), key=rank)


def meets(score: Score) -> bool:
    """Whether a score meets the goals, as far as it has them."""
    return (
        not any(value < LEAST for value in (score.precision, score.recall)) and not score.per_healthy > MOST
    )


def worst(score: Score) -> float:
    """The worst of what is asked for, as far as it is defined."""
    told = (score.precision, score.recall, 1 - score.per_healthy)
    return min((value for value in told if not math.isnan(value)), default=0.0)


def outcomes(
    detector: Detector, library: Library, matrix: Matrix, histories: Mapping[str, History], half: Half
) -> list[Outcome]:
    """What a detector says of every run of a half that it can judge."""
    found = []
    for run in library.of_half(matrix, half):
        history = histories[run.name]
        case = library.case(run.arm)
        label = case.label(detector.kind)
        if detector.lacks(history) and label != "must":
            continue
        events = [] if detector.lacks(history) else detector.find(history)
        _, accuracy = history.evaluated()
        steps = tuple(sorted(event.found for event in events))
        found.append(Outcome(label, case.healthy, steps, case.since, lost(accuracy)))
    return found
