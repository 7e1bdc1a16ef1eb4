"""An early warning: small changes that add up, long before a level is crossed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpobench.analysis.detect.event import Detector, Event, Evidence, baseline
from grpobench.analysis.detect.history import Floats, History, Series

VERDICT = ("score/correct", "reward/mean")
ENTROPY = "policy/entropy"


@dataclass(frozen=True)
class Drift(Detector):
    """The verdict on the training rollouts that sinks, or entropy that rises, a little at a time. Healthy
    runs move the other way in both."""

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
        found: list[Event] = []
        for series, sign in streams(history):
            sums = cusum(history, series, sign, self.slack)
            if sums is not None:
                found += self._events(series, sums)
        return sorted(found, key=lambda event: event.onset)

    def _events(self, series: Series, sums: Floats) -> list[Event]:
        """From the first step at which the sum is above 0 to the next at which it is 0 again, where it passes
        the limit in between."""
        found, start, alarm = [], 0, -1
        for index, value in enumerate(sums.tolist()):
            if value <= 0:
                if alarm >= 0:
                    found.append(self._event(series, sums, start, alarm, int(series.steps[index])))
                start, alarm = index + 1, -1
            elif alarm < 0 and value > self.limit:
                alarm = index
        if alarm >= 0:
            found.append(self._event(series, sums, start, alarm, None))
        return found

    def _event(self, series: Series, sums: Floats, start: int, alarm: int, over: int | None) -> Event:
        step = int(series.steps[alarm])
        evidence = Evidence(f"{series.name}, CUSUM", step, float(sums[alarm]), self.limit, True)
        return Event(self.kind, int(series.steps[start]), step, (evidence,), over)


def streams(history: History) -> list[tuple[Series, float]]:
    """What is watched, with the sign that makes a change for the worse positive."""
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
