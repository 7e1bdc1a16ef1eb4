"""What the policy writes: how long, how repetitive, how readable."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.analysis.detect.event import Detector, Event, baseline, sustained
from grpobench.analysis.detect.history import History

MEAN, TRUNCATED = "length/mean", "length/truncated"
REPETITION, UNPARSABLE = "diversity/repetition", "outcome/unparsable"


@dataclass(frozen=True)
class LengthShift(Detector):
    """Completions of another length than the run began with."""

    kind = "length_shift"
    rule = (
        "mean length above 2 times or below half of the baseline's median, or truncated completions 20 "
        "points above it, for 8 steps in a row; severe at 4 times, a quarter, and 40 points"
    )
    source = "ours; longer wrong answers: arXiv:2503.20783"
    needs = ((MEAN, TRUNCATED),)

    times: float = 2.0
    """Multiple of the baseline, and its inverse."""
    truncated: float = 0.20
    """Rise of the truncated share."""

    def find(self, history: History) -> list[Event]:
        found: list[Event] = []
        length, cut = history.updates(MEAN), history.updates(TRUNCATED)
        if begin := baseline(history, length):
            long, short = self.times * begin.median, begin.median / self.times
            found += sustained(self, history, length, long, True, begin, self.times * long)
            found += sustained(self, history, length, short, False, begin, short / self.times)
        if begin := baseline(history, cut):
            most = begin.median + self.truncated
            found += sustained(self, history, cut, most, True, begin, most + self.truncated)
        return sorted(found, key=lambda event: event.onset)


@dataclass(frozen=True)
class Degeneration(Detector):
    """Completions that repeat themselves, or in which no answer can be found any more."""

    kind = "degeneration"
    rule = (
        "30 % or more of the 4-grams repeated, and 10 points above the baseline, or unparsable answers 25 "
        "points above the baseline, for 8 steps in a row; severe at twice the share"
    )
    source = "repeated 4-grams: arXiv:1908.04319; thresholds ours"
    needs = ((REPETITION, UNPARSABLE),)

    repetition: float = 0.30
    """Share of repeated 4-grams."""
    rise: float = 0.10
    """Least rise of that share, for tasks whose good answers repeat."""
    unparsable: float = 0.25
    """Rise of the unparsable share."""

    def find(self, history: History) -> list[Event]:
        found: list[Event] = []
        repeated, unread = history.updates(REPETITION), history.updates(UNPARSABLE)
        if begin := baseline(history, repeated):
            least = max(self.repetition, begin.median + self.rise)
            found += sustained(self, history, repeated, least - 1e-9, True, begin, 2 * least)
        if begin := baseline(history, unread):
            least = begin.median + self.unparsable
            found += sustained(
                self, history, unread, least - 1e-9, True, begin, begin.median + 2 * self.unparsable
            )
        return sorted(found, key=lambda event: event.onset)
