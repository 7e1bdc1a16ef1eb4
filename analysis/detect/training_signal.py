"""What an update can learn from: groups that differ, and a critic that foresees."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grpobench.analysis.detect.event import Detector, Event, baseline, sustained
from grpobench.analysis.detect.history import History, Series

ZERO_SIGNAL = "groups/zero_signal"
LEVEL = ("score/correct", "reward/mean")
EXPLAINED = "critic/explained_variance"


@dataclass(frozen=True)
class ZeroSignal(Detector):
    """Groups whose rewards are all equal, which teach a group baseline nothing."""

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
        known = dict(zip(level.steps.tolist(), level.values.tolist(), strict=True))
        of_step = np.array([known.get(step, np.nan) for step in zero.steps.tolist()])
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
    """Nothing to learn from because everything succeeds: a run that is done, not one that is broken."""

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
    """A critic that is worse than predicting the mean."""

    kind = "critic_failure"
    rule = (
        "the critic explains less than nothing of the returns' variance for 8 steps in a row behind the "
        "baseline; severe below −1"
    )
    source = "explained variance below 0: predicting the mean return explains 0"
    needs = ((EXPLAINED,),)

    least: float = 0.0
    """Explained variance below which a critic has failed."""

    def find(self, history: History) -> list[Event]:
        series = history.updates(EXPLAINED)
        begin = baseline(history, series)
        if begin is None:
            return []
        later = series.steps > begin.end
        return sustained(
            self,
            history,
            Series(series.name, series.steps[later], series.values[later]),
            self.least,
            False,
            severe=self.least - 1.0,
        )
