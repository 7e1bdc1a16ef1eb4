"""Detectors of gradients and of their signal: spikes, non-finite updates, groups without signal, critics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grpobench.analysis.detectors.event import Detector, Event, Evidence, baseline, sustained
from grpobench.analysis.detectors.history import History, Series

POLICY = "grad_norm/policy"
NONFINITE = "grad/nonfinite"


@dataclass(frozen=True)
class GradientInstability(Detector):
    """Many spikes of the gradient norm before clipping, or any update that was not finite."""

    kind = "gradient_instability"
    rule = (
        "the policy's gradient norm before clipping above the baseline's median by more than 6 median "
        "absolute deviations, and above 3 times it, in more than 5 of the last 100 steps, and in at least 3; "
        "or any update with a loss, reward or gradient that is not finite, which is severe"
    )
    source = (
        "ours; robust spread after Iglewicz and Hoaglin, 1993; the multiple, because the deviation of a "
        "baseline of three steps says little, and healthy brief runs double their norm"
    )
    needs = ((POLICY, NONFINITE),)

    deviations: float = 6.0
    """Median absolute deviations, not scaled, above the median."""
    times: float = 3.0
    """Multiple of the baseline's median that a spike must pass as well."""
    share: float = 0.05
    """Share of the last steps that may be spikes."""
    over: int = 100
    """Steps looked back upon; of a short run half of it, at least 10."""
    least: int = 3
    """Fewest spikes of an event."""

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
        events: list[Event] = []
        under_way: list[int] = []
        confirmed = 0
        for count, index in enumerate(spikes):
            step = int(series.steps[index])
            if under_way and step - int(series.steps[under_way[-1]]) > back:
                events.append(self._event(history, series, under_way, confirmed))
                under_way = []
            if under_way:
                under_way.append(index)
                continue
            recent = [i for i in spikes[: count + 1] if series.steps[i] > step - back]
            looked = min(back, int(np.count_nonzero(series.steps <= step)))
            if len(recent) >= self.least and len(recent) > self.share * looked:
                under_way, confirmed = recent, len(recent) - 1
        if under_way:
            events.append(self._event(history, series, under_way, confirmed))
        return events

    def _event(self, history: History, series: Series, spikes: Sequence[int], confirmed: int) -> Event:
        """An event of some spikes, given by their indices; `confirmed` is the place of the one that made them
        too many. It is over when as many steps as are looked back upon have none."""
        bound = self.bound(history, series)
        assert bound is not None  # where there are spikes
        indices = [spikes[i] for i in dict.fromkeys((0, confirmed))]
        evidence = [
            Evidence(POLICY, int(series.steps[i]), float(series.values[i]), bound, True) for i in indices
        ]
        last = int(series.steps[spikes[-1]])
        over = last + 1 if history.last > last + self.back(history) else None
        note = f"{len(spikes)} spikes"
        note += f"; {history.shortened}" if history.shortened else ""
        onset, detected = int(series.steps[spikes[0]]), int(series.steps[spikes[confirmed]])
        return Event(self.kind, onset, detected, tuple(evidence), over, "notable", note)

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
        if begin is None or begin.median <= 0:
            return None
        return max(begin.bound(self.deviations), self.times * begin.median)


# Signal: groups without signal, and critics

ZERO_SIGNAL = "groups/zero_signal"
LEVEL = ("score/correct", "reward/mean")
EXPLAINED = "critic/explained_variance"
SPREAD = "reward/std"


@dataclass(frozen=True)
class ZeroSignal(Detector):
    """Groups with equal rewards, from which a group baseline learns nothing."""

    needs: ClassVar[tuple[tuple[str, ...], ...]] = ((ZERO_SIGNAL,), LEVEL)

    share: float = 0.9
    """Share of groups without signal."""
    middle: float = 0.5
    """Mean score between starvation and saturation."""

    def lacks(self, history: History) -> str:
        if history.about.group == 1:
            return "groups of one completion have no signal of their own"
        return super().lacks(history)

    def where(self, history: History, low: bool) -> list[Event]:
        """Steps above `share`, with a mean score below or above the middle."""
        zero, level = history.updates(ZERO_SIGNAL), history.first(*LEVEL)
        if level is None:
            return []
        of_step = level.at(zero.steps)
        chosen = of_step < self.middle if low else of_step >= self.middle
        masked = Series(zero.name, zero.steps, np.where(chosen, zero.values, 0.0))
        return sustained(self, history, masked, self.share, True, severe=0.999)


@dataclass(frozen=True)
class SignalStarvation(ZeroSignal):
    """Nothing to learn from because nothing succeeds."""

    kind = "signal_starvation"
    rule = (
        "more than 90 % of the groups without signal for 8 steps in a row, while fewer than half of the "
        "answers are right"
    )
    source = "arXiv:2503.14476 (dynamic sampling); threshold ours"

    def find(self, history: History) -> list[Event]:
        return self.where(history, low=True)


@dataclass(frozen=True)
class SignalSaturation(ZeroSignal):
    """Nothing to learn from because everything succeeds: the run is finished, not broken."""

    kind = "signal_saturation"
    rule = (
        "more than 90 % of the groups without signal for 8 steps in a row, while half of the answers or more "
        "are right; never severe"
    )
    stops = False
    source = "arXiv:2503.14476 (dynamic sampling); threshold ours"

    def find(self, history: History) -> list[Event]:
        return [dataclasses.replace(event, severity="notable") for event in self.where(history, low=False)]


@dataclass(frozen=True)
class CriticFailure(Detector):
    """A critic that is worse than predicting the mean, while there is something to predict."""

    kind = "critic_failure"
    rule = (
        "the critic explains less than nothing of the returns' variance for 8 steps in a row behind the "
        "baseline, not counting steps whose rewards are all equal or have less than half of the highest "
        "standard deviation so far; severe below −1"
    )
    source = (
        "explained variance below 0: predicting the mean return explains 0. Where rewards are all equal, "
        "λ-returns vary with the critic's own values alone; at half of the standard deviation the same error "
        "weighs four times as much, so that a critic that explains half falls to −1 without changing"
    )
    needs = ((EXPLAINED,),)
    reads = (SPREAD,)

    least: float = 0.0
    """Explained variance below which a critic has failed."""
    varies: float = 0.5
    """Least standard deviation of a step's rewards, as a share of the highest so far."""

    def find(self, history: History) -> list[Event]:
        series = history.updates(EXPLAINED)
        begin = baseline(history, series)
        if begin is None:
            return []
        later = (series.steps > begin.end) & self._judged(history, series)
        return sustained(
            self,
            history,
            Series(series.name, series.steps[later], series.values[later]),
            self.least,
            False,
            severe=self.least - 1.0,
        )

    def _judged(self, history: History, series: Series) -> np.ndarray:
        """Whether the rewards of each step vary enough for the share to say anything, (n,); everywhere where
        their spread was not logged."""
        spread = history.updates(SPREAD)
        # The highest so far, not of the whole run, so that later steps never unmake an event.
        most = np.maximum.accumulate(spread.values)
        enough = (spread.values > 0) & (spread.values >= self.varies * most)
        judged = Series(SPREAD, spread.steps, enough.astype(np.float64)).at(series.steps)
        return np.asarray(judged != 0)  # NaN, a step without a logged spread, is judged
