"""Detectors of the policy: its entropy, its distance from the reference, and slow drift (CUSUM)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grpobench.analysis.detectors.event import Detector, Event, Evidence, baseline, sustained
from grpobench.analysis.detectors.history import Floats, History, Series

ENTROPY = "policy/entropy"
REFERENCE = ("policy/kl_reference_k3", "policy/kl_reference_k2", "policy/kl_reference_k1")
OLD = "trained/kl_old"


@dataclass(frozen=True)
class Entropy(Detector):
    """Entropy H against that of the run's start H₀: the median of the baseline, or the first step's where
    that is larger, for a policy that narrows at once."""

    needs: ClassVar[tuple[tuple[str, ...], ...]] = ((ENTROPY,),)

    floor: float = 1e-3
    """Nats per token below which a policy has no entropy to speak of at its start."""

    @abstractmethod
    def bounds(self, start: float) -> tuple[float, bool, float]:
        """By H₀: the threshold, whether events are above it, and the threshold of severe ones."""

    def find(self, history: History) -> list[Event]:
        series = history.updates(ENTROPY)
        begin = baseline(history, series)
        if begin is None or max(begin.median, begin.first) < self.floor:
            return []
        threshold, above, severe = self.bounds(max(begin.median, begin.first))
        return sustained(self, history, series, threshold, above, begin, severe)


@dataclass(frozen=True)
class EntropyCollapse(Entropy):
    """A policy that always writes the same text."""

    kind = "entropy_collapse"
    rule = (
        "H/H₀ below .1 for 8 steps in a row, H₀ the entropy of the baseline (median) or of the first step, "
        "whichever is larger; severe below .025"
    )
    source = (
        "arXiv:2505.22617 (entropy is traded for reward until none is left); threshold set on healthy and "
        "broken runs (docs/calibration.md)"
    )

    share: float = 0.1
    """Share of H₀ below which entropy has collapsed."""

    def bounds(self, start: float) -> tuple[float, bool, float]:
        return self.share * start, False, self.share * start / 4


@dataclass(frozen=True)
class EntropyExplosion(Entropy):
    """A policy that writes at random."""

    kind = "entropy_explosion"
    rule = (
        "H/H₀ above 2 for 8 steps in a row, H₀ the entropy of the baseline (median) or of the first step, "
        "whichever is larger; severe above 4"
    )
    source = "ours; threshold set on runs with too large an entropy bonus (docs/calibration.md)"

    times: float = 2.0
    """Multiple of H₀ above which entropy has exploded."""

    def bounds(self, start: float) -> tuple[float, bool, float]:
        return self.times * start, True, 2 * self.times * start


@dataclass(frozen=True)
class KLBlowUp(Detector):
    """A policy that moves away from its reference, or from itself within a step, faster than at the start.
    The divergence from the reference starts at 0 and rises in every run, so ratios alone are not informative,
    and there is a floor below which no event is found."""

    kind = "kl_blowup"
    rule = (
        "KL to the old policy within a step, or to the reference, more than 6 robust standard deviations and "
        "more than 10 times the median of the baseline, for 8 steps in a row, and above .05 (old) or .5 "
        "(reference) nats per token"
    )
    source = "robust z: Iglewicz and Hoaglin, 1993; floors ours, to be calibrated"
    needs = ((OLD, *REFERENCE),)

    z: float = 6.0
    """Robust standard deviations, 1.4826 median absolute deviations each."""
    times: float = 10.0
    """Multiple of the baseline's median."""
    floor_old: float = 0.05
    """Nats per token within a step."""
    floor_reference: float = 0.5
    """Nats per token from the reference."""

    def find(self, history: History) -> list[Event]:
        events: list[Event] = []
        measured = [history.first(OLD), history.first(*REFERENCE)]
        for series, floor in zip(measured, (self.floor_old, self.floor_reference), strict=True):
            begin = baseline(history, history.updates(series.name)) if series is not None else None
            if series is None or begin is None:
                continue
            updates = history.updates(series.name)
            bound = max(begin.bound(1.4826 * self.z), self.times * abs(begin.median), floor)
            events += sustained(self, history, updates, float(np.float64(bound)), True, begin, 4 * bound)
        return sorted(events, key=lambda event: event.onset)


# Early warning: small changes that add up

VERDICT = ("score/correct", "reward/mean")


@dataclass(frozen=True)
class Drift(Detector):
    """The verdict on training rollouts falls slowly, or entropy rises slowly. In healthy runs both move the
    other way."""

    kind = "drift"
    rule = (
        "one-sided CUSUM, S ← max(0, S + z − .5), of the verdict on the training rollouts downwards or of "
        "entropy upwards, above the limit h; z in robust standard deviations from the baseline's median, "
        "each at least 5 % of that median; over when S is back at 0. A warning: of the healthy runs that h "
        "was set on one in twenty may have it"
    )
    source = (
        "Page, 1954 (CUSUM); h from blocks of healthy runs resampled, because the metrics of training are "
        "autocorrelated (docs/calibration.md)"
    )
    needs = ((*VERDICT, ENTROPY),)

    limit: float = 20.0
    """h, in standard deviations added up."""
    slack: float = 0.5
    """k, what S loses at each step: half of the shift that is to be found, in standard deviations."""

    def find(self, history: History) -> list[Event]:
        events: list[Event] = []
        for series, sign in streams(history):
            sums = cusum(history, series, sign, self.slack)
            if sums is not None:
                events += self._events(series, sums)
        return sorted(events, key=lambda event: event.onset)

    def _events(self, series: Series, sums: Floats) -> list[Event]:
        """From the first step at which the sum is above 0 to the next at which it is 0 again, where it passes
        the limit in between."""
        events, start, alarm = [], 0, -1
        for index, value in enumerate(sums.tolist()):
            if value <= 0:
                if alarm >= 0:
                    events.append(self._event(series, sums, start, alarm, int(series.steps[index])))
                start, alarm = index + 1, -1
            elif alarm < 0 and value > self.limit:
                alarm = index
        if alarm >= 0:
            events.append(self._event(series, sums, start, alarm, None))
        return events

    def _event(self, series: Series, sums: Floats, start: int, alarm: int, over: int | None) -> Event:
        step = int(series.steps[alarm])
        evidence = Evidence(f"{series.name}, CUSUM", step, float(sums[alarm]), self.limit, True)
        return Event(self.kind, int(series.steps[start]), step, (evidence,), over)


def streams(history: History) -> list[tuple[Series, float]]:
    """The watched series, each with the sign that makes a change for the worse positive."""
    verdict = history.first(*VERDICT)
    watched = [(history.updates(verdict.name), -1.0)] if verdict is not None else []
    return [*watched, (history.updates(ENTROPY), 1.0)]


def cusum(history: History, series: Series, sign: float, slack: float) -> Floats | None:
    """S at each value, (n,), 0 until the baseline is complete; None without a baseline that has a scale."""
    begin = baseline(history, series)
    if begin is None:
        return None
    scale = max(1.4826 * begin.mad, 0.05 * abs(begin.median))
    if scale <= 0:
        return None
    z = sign * (series.values - begin.median) / scale
    sums, total = np.zeros(len(series)), 0.0
    for index, step in enumerate(series.steps.tolist()):
        if step > begin.end:
            total = max(0.0, total + float(z[index]) - slack)
            sums[index] = total
    return sums
