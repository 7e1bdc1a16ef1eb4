"""The gap between the probabilities that a sampler draws from and those that the trainer computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpobench.analysis.detect.event import Detector, Event, baseline, sustained
from grpobench.analysis.detect.gradient import POLICY, GradientInstability
from grpobench.analysis.detect.history import History, Series

GAP = "gap/k3"


@dataclass(frozen=True)
class SamplerGap(Detector):
    """A gap that alone can collapse a run, or that grows while the gradient still looks sound."""

    kind = "sampler_gap"
    rule = (
        "k3 gap between sampler and trainer above 1e-2 nats per token for 8 steps in a row, or above 1e-3 "
        "and 10 times the baseline's median for as long while the gradient norm has no spike; severe above "
        ".1"
    )
    source = (
        "healthy below 1e-3, and rising ahead of the gradient norm: the definition of gap/k3; thresholds ours"
    )
    needs = ((GAP,),)

    most: float = 1e-2
    """Nats per token."""
    healthy: float = 1e-3
    """Nats per token below which a rise means nothing."""
    times: float = 10.0
    """Multiple of the baseline's median."""

    def find(self, history: History) -> list[Event]:
        series = history.updates(GAP)
        found = sustained(self, history, series, self.most, True, severe=10 * self.most)
        begin = baseline(history, series)
        if begin is None:
            return found
        bound = max(self.healthy, self.times * begin.median)
        if bound < self.most:
            rising = Series(GAP, series.steps, np.where(self._sound(history, series), series.values, 0.0))
            ahead = sustained(self, history, rising, bound, True, begin)
            found += [one for one in ahead if not any(one.onset >= known.onset for known in found)]
        return sorted(found, key=lambda event: event.onset)

    def _sound(self, history: History, series: Series) -> np.ndarray:
        """At which of the series' steps the gradient norm is no spike, (n,)."""
        norms = history.updates(POLICY)
        spikes = norms.steps[GradientInstability().beyond(history, norms)]
        return ~np.isin(series.steps, spikes)
