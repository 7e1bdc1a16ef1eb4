"""Gradients: spikes of their norm, and what is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpobench.analysis.detect.event import Detector, Event, Evidence, baseline
from grpobench.analysis.detect.history import History, Series

POLICY = "grad_norm/policy"
NONFINITE = "grad/nonfinite"


@dataclass(frozen=True)
class GradientInstability(Detector):
    """Many spikes of the gradient norm before clipping, or any update that was not finite."""

    kind = "gradient_instability"
    rule = (
        "the policy's gradient norm before clipping above the baseline's median by more than 6 median "
        "absolute deviations in more than 5 of the last 100 steps, and in at least 3; or any update with a "
        "loss, reward or gradient that is not finite, which is severe"
    )
    source = "ours; robust spread after Iglewicz and Hoaglin, 1993"
    needs = ((POLICY, NONFINITE),)

    deviations: float = 6.0
    """Median absolute deviations, not scaled, above the median."""
    share: float = 0.05
    """Share of the last steps that may be spikes."""
    over: int = 100
    """Steps looked back upon; of a short run half of it, at least 10."""
    least: int = 3
    """Spikes below which nothing is said."""

    def find(self, history: History) -> list[Event]:
        return sorted([*self._nonfinite(history), *self._spikes(history)], key=lambda event: event.onset)

    def back(self, history: History) -> int:
        """Steps looked back upon in this run."""
        return min(self.over, max(10, history.length // 2))

    def _nonfinite(self, history: History) -> list[Event]:
        series = history.updates(NONFINITE)
        bad = series.steps[series.values > 0]
        if not len(series):
            bad = np.array(history.holes.get(POLICY, ()), dtype=np.int64)
        if not len(bad):
            return []
        first, last, back = int(bad[0]), int(bad[-1]), self.back(history)
        counts = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        evidence = Evidence(NONFINITE, first, counts.get(first, math.nan), 0.0, True)
        over = last + 1 if history.last > last + back else None
        note = f"{len(bad)} steps" if len(bad) > 1 else ""
        return [Event(self.kind, first, first, (evidence,), over, "severe", note)]

    def _spikes(self, history: History) -> list[Event]:
        series, back = history.updates(POLICY), self.back(history)
        spikes = np.flatnonzero(self.beyond(history, series)).tolist()
        found: list[Event] = []
        under_way: list[int] = []
        confirmed = 0
        for place, index in enumerate(spikes):
            step = int(series.steps[index])
            if under_way and step - int(series.steps[under_way[-1]]) > back:
                found.append(self._event(history, series, under_way, confirmed))
                under_way = []
            if under_way:
                under_way.append(index)
                continue
            recent = [i for i in spikes[: place + 1] if series.steps[i] > step - back]
            looked = min(back, int(np.count_nonzero(series.steps <= step)))
            if len(recent) >= self.least and len(recent) > self.share * looked:
                under_way, confirmed = recent, len(recent) - 1
        if under_way:
            found.append(self._event(history, series, under_way, confirmed))
        return found

    def _event(self, history: History, series: Series, spikes: Sequence[int], confirmed: int) -> Event:
        """An event of some spikes, given by their indices; `confirmed` is the place of the one that made them
        too many. It is over when as many steps as are looked back upon have none."""
        bound = self.bound(history, series)
        assert bound is not None  # where there are spikes
        shown = [spikes[i] for i in dict.fromkeys((0, confirmed))]
        evidence = [
            Evidence(POLICY, int(series.steps[i]), float(series.values[i]), bound, True) for i in shown
        ]
        last = int(series.steps[spikes[-1]])
        over = last + 1 if history.last > last + self.back(history) else None
        note = f"{len(spikes)} spikes"
        note += f"; {history.shortened}" if history.shortened else ""
        onset, found = int(series.steps[spikes[0]]), int(series.steps[spikes[confirmed]])
        return Event(self.kind, onset, found, tuple(evidence), over, "notable", note)

    def beyond(self, history: History, series: Series) -> np.ndarray:
        """Which values are spikes, (n,); none before the baseline is complete."""
        bound, begin = self.bound(history, series), baseline(history, series)
        if bound is None or begin is None:
            return np.zeros(len(series), dtype=bool)
        return (series.values > bound) & (series.steps > begin.end)

    def bound(self, history: History, series: Series) -> float | None:
        """The norm above which a step is a spike; None before the baseline is complete, and where half of it
        or more had no gradient at all (no group had a signal), which gives nothing to hold a norm against."""
        begin = baseline(history, series)
        return begin.bound(self.deviations) if begin and begin.median > 0 else None
