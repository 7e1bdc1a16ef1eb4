"""Set each detector's thresholds on one half of the seeds, and score them on the other half."""

# `set_thresholds` tries listed values and compares precision, recall and false alarms. `set_drift_limit` sets
# the limit h of the early warning (`Drift`, a CUSUM) from healthy runs alone, by a block bootstrap.

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

MIN_RATE = 0.9
"""The goal for precision and for recall: at least this."""
MAX_FALSE_ALARMS = 0.05
"""The goal for false alarms per healthy run: at most this."""


@dataclass(frozen=True)
class ThresholdChoice:
    """The thresholds chosen for one detector, and the scores that they reach.

    The half `set` holds the seeds on which thresholds are chosen, the half `scored` all other seeds.
    """

    kind: str
    """The kind of event that the detector finds, its key in DETECTORS."""
    values: Mapping[str, float]
    """Name -> chosen value, of the thresholds for which several values were tried."""
    default: Mapping[str, float]
    """Name -> default value in DETECTORS, of the same thresholds."""
    num_settings: int
    """The number of combinations that were tried, with the default."""
    on_set: Score
    """The chosen thresholds on the half `set`."""
    on_scored: Score
    """The chosen thresholds on the half `scored`."""
    default_on_scored: Score
    """The default thresholds on the half `scored`."""


def set_thresholds(
    kind: str,
    library: Library,
    experiment: Experiment,
    histories: Mapping[str, History],
) -> ThresholdChoice:
    """Choose the thresholds of the detector `kind` on the half `set` and score them on both halves.

    `library.tried` lists the values to try. `choose_setting` states the rule; a default that meets the goals
    always wins.

    Args:
        histories: run name -> its logged metrics.
    """
    default = DETECTORS[kind]
    settings = list(combine_thresholds(default, library.tried.get(kind, {})))
    on_set = [score(judge_runs(setting, library, experiment, histories, "set")) for setting in settings]
    best = choose_setting(on_set, [compute_distance(setting, default) for setting in settings])
    on_scored, default_on_scored = (
        score(judge_runs(setting, library, experiment, histories, "scored"))
        for setting in (settings[best], default)
    )
    return ThresholdChoice(
        kind,
        select_tried_thresholds(settings[best], settings),
        select_tried_thresholds(default, settings),
        len(settings),
        on_set[best],
        on_scored,
        default_on_scored,
    )


def combine_thresholds(
    default: Detector, values_by_name: Mapping[str, Sequence[float]]
) -> Iterator[Detector]:
    """Yield the detector with its defaults, then with every other combination of the values to try."""
    yield default
    for values in itertools.product(*values_by_name.values()):
        setting = dataclasses.replace(default, **dict(zip(values_by_name, values, strict=True)))
        if setting != default:
            yield setting


def select_tried_thresholds(detector: Detector, settings: Sequence[Detector]) -> dict[str, float]:
    """Name -> value in `detector`, of each threshold that is not the same in all `settings`."""
    rows = [thresholds(setting) for setting in settings]
    return {
        name: value for name, value in thresholds(detector).items() if len({row[name] for row in rows}) > 1
    }


def compute_distance(detector: Detector, default: Detector) -> float:
    """The distance of a detector's thresholds from the defaults: the sum of |log(value / default)|."""
    values, defaults = thresholds(detector), thresholds(default)
    return sum(compute_threshold_distance(values[name], defaults[name]) for name in defaults)


def compute_threshold_distance(value: float, default: float) -> float:
    """|log(value / default)|; 100 · |value − default| if one of them is 0 or their signs differ."""
    return abs(math.log(value / default)) if value * default > 0 else 100 * abs(value - default)


def choose_setting(scores: Sequence[Score], distances: Sequence[float]) -> int:
    """The index of the best setting.

    If any settings meet the goals, this is the nearest of them to the defaults. Otherwise it is the one with
    the highest `worst_rate`, and among equal ones the nearest.
    """

    def rank(index: int) -> tuple[bool, float, float]:
        setting_score = scores[index]
        return (
            not meets_goals(setting_score),
            0.0 if meets_goals(setting_score) else -worst_rate(setting_score),
            distances[index],
        )

    return min(range(len(scores)), key=rank)


def meets_goals(score: Score) -> bool:
    """Whether a score meets the goals. A rate that is NaN counts as met."""
    return (
        not any(value < MIN_RATE for value in (score.precision, score.recall))
        and not score.per_healthy > MAX_FALSE_ALARMS
    )


def worst_rate(score: Score) -> float:
    """The least of precision, recall and 1 − false alarms per healthy run, without NaN; 0 if all are NaN."""
    rates = (score.precision, score.recall, 1 - score.per_healthy)
    return min((value for value in rates if not math.isnan(value)), default=0.0)


def judge_runs(
    detector: Detector, library: Library, experiment: Experiment, histories: Mapping[str, History], half: Half
) -> list[DetectorResult]:
    """The result of a detector on each run of a half.

    A run without the metrics that the detector needs is left out, unless it must show the event: then it
    counts as a miss.
    """
    results = []
    for run in library.of_half(experiment, half):
        history = histories[run.name]
        case = library.by_arm[run.arm]
        label = case.label(detector.kind)
        if detector.lacks(history) and label != "must":
            continue
        events = [] if detector.lacks(history) else detector.find(history)
        _, accuracy = history.evaluated()
        steps = tuple(sorted(event.found for event in events))
        results.append(DetectorResult(label, case.healthy, steps, case.since, lost(accuracy)))
    return results


NUM_DRAWS = 2000
"""Resampled runs from which the limit is computed."""
BLOCK_STEPS = 8
"""Consecutive steps in a block: as many as other detectors demand in a row."""


@dataclass(frozen=True)
class DriftLimit:
    """The limit of the early warning, and the runs that it was computed from."""

    limit: float
    """h, in standard deviations added up."""
    runs: int
    """The number of healthy runs that were resampled."""
    draws: int
    """The number of resampled runs."""
    block: int
    """Steps in a block."""
    above: int
    """How many of the healthy runs pass the limit without resampling."""


def set_drift_limit(histories: Sequence[History], draws: int = NUM_DRAWS) -> DriftLimit:
    """The limit that the largest CUSUM of at most 5 % of the resampled runs exceeds.

    A resampled run is the mean over all runs at each step, plus the residuals of one run in a new order. The
    order consists of blocks of `BLOCK_STEPS` consecutive steps that begin at random and wrap around from the
    last step to the first. All metrics share it. Blocks preserve autocorrelation, and taking residuals from
    one run preserves the differences between runs.

    Args:
        histories: logged metrics of healthy runs. Runs with fewer steps than the longest are left out.

    Raises:
        ValueError: `histories` is empty.
    """
    if not histories:
        raise ValueError("an early warning is set on healthy runs; there is none")
    detector = Drift()
    watched = [(series.name, sign) for series, sign in streams(histories[0])]
    logged = [min(len(history.updates(name)) for name, _ in watched) for history in histories]
    histories = [history for history, count in zip(histories, logged, strict=True) if count == max(logged)]
    values = {name: np.array([history.updates(name).values for history in histories]) for name, _ in watched}
    steps = histories[0].updates(watched[0][0]).steps
    rng = np.random.default_rng(0)
    largest_sums = np.zeros(draws)
    for draw in range(draws):
        run, order = int(rng.integers(len(histories))), draw_block_order(len(steps), BLOCK_STEPS, rng)
        for name, sign in watched:
            mean = values[name].mean(axis=0)
            series = Series(name, steps, mean + (values[name][run] - mean)[order])
            sums = cusum(histories[run], series, sign, detector.slack)
            largest_sums[draw] = max(largest_sums[draw], 0.0 if sums is None else float(sums.max()))
    limit = round_up_quantile(largest_sums, MAX_FALSE_ALARMS)
    above = sum(compute_largest_sum(history) > limit for history in histories)
    return DriftLimit(limit, len(histories), draws, BLOCK_STEPS, above)


def draw_block_order(count: int, block: int, rng: np.random.Generator) -> np.ndarray:
    """Positions from 0 to count − 1, (count,), in blocks of `block` consecutive ones with random starts."""
    starts = rng.integers(count, size=-(-count // block))
    return ((starts[:, None] + np.arange(block)) % count).ravel()[:count]


def round_up_quantile(values: Floats, share: float) -> float:
    """The least of `values` that at most this share of them exceeds, rounded up to a tenth."""
    ascending = np.sort(values)
    return float(np.ceil(10 * ascending[len(ascending) - 1 - int(share * len(ascending))]) / 10)


def compute_largest_sum(history: History) -> float:
    """The largest CUSUM of a run over its watched metrics; 0 if none has a baseline."""
    stream_sums = [cusum(history, series, sign, Drift().slack) for series, sign in streams(history)]
    return max((float(sums.max()) for sums in stream_sums if sums is not None and len(sums)), default=0.0)
