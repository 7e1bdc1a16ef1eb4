"""Detectors of rewards and of completions: lost or hacked rewards, changed lengths, degenerate text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from grpobench.analysis.detectors.accuracy import VALIDATION
from grpobench.analysis.detectors.event import Detector, Event, Evidence, baseline, spells, sustained
from grpobench.analysis.detectors.history import History, Series, slope


@dataclass(frozen=True)
class RewardCollapse(Detector):
    """A reward that the run had and lost, from the second step on."""

    kind = "reward_collapse"
    rule = (
        "mean training reward at most a tenth of its own highest value so far, and not above a half of it "
        "for 8 steps in a row, where that value was at least .05 and 2 standard errors above 0; severe below "
        "a hundredth of it; recovered when it is back above a half"
    )
    source = (
        "ours: a run whose reward fell to 0 in its second step used to be an ordinary finished one; standard "
        "errors set on broken runs (docs/calibration.md)"
    )
    needs = (("reward/mean",),)
    family = "collapse"

    left: float = 0.1
    """Share of the highest reward below which it is lost."""
    back: float = 0.5
    """Share of the highest reward above which it is regained."""
    least: float = 0.05
    """Least reward that can be lost."""
    errors: float = 2.0
    """Standard errors, of the mean over a step's rollouts, that the highest reward must stand above 0."""

    def find(self, history: History) -> list[Event]:
        series = history.updates("reward/mean")
        tops = self._tops(history, series)
        has_top = np.isfinite(tops)
        lost = has_top & (series.values <= self.left * tops)
        # values between the two levels neither start nor end a spell
        state, is_lost = False, np.zeros(len(series), dtype=bool)
        for index in range(len(series)):
            state = bool(lost[index]) or (state and series.values[index] < self.back * tops[index])
            is_lost[index] = state
        events = []
        for spell in spells(series.steps, is_lost, history.in_a_row):
            evidence = [
                Evidence(
                    series.name,
                    int(series.steps[i]),
                    float(series.values[i]),
                    float(self.left * tops[i]),
                    False,
                )
                for i in (spell.first, spell.confirmed)
            ]
            lowest = float(series.values[spell.first : spell.end].min())
            severe = lowest <= 0.01 * float(tops[spell.first])
            note = f"highest reward {tops[spell.first]:.3g}"
            note += f"; {history.shortened}" if history.shortened else ""
            events.append(self.event(spell, evidence, "severe" if severe else "notable", note))
        return events

    def _tops(self, history: History, series: Series) -> np.ndarray:
        """The highest reward before each step that is large and sure enough to be lost; NaN before there is
        one. (n,)"""
        spread = history.get("reward/std")
        spread_by_step = dict(zip(spread.steps.tolist(), spread.values.tolist(), strict=True))
        count = history.about.rollouts
        best, tops = math.nan, np.full(len(series), math.nan)
        for index, (step, value) in enumerate(zip(series.steps.tolist(), series.values, strict=True)):
            tops[index] = best
            error = spread_by_step.get(step, 0.0) / math.sqrt(count) if count else 0.0
            if value >= self.least and value > self.errors * error and not value <= best:
                best = float(value)
        return tops


@dataclass(frozen=True)
class RewardHacking(Detector):
    """A reward that rises while validation accuracy does not."""

    kind = "reward_hacking"
    rule = (
        "over all updates so far the training reward rises by .05 or more, validation accuracy does not "
        "rise, and the 95 % intervals of their slopes are disjoint, as the reward's is from that of the "
        "verifier's verdict on the training rollouts; at two evaluations in succession, of five or more"
    )
    source = "arXiv:2210.10760 (overoptimization: proxy and gold reward part); slopes with AR(1) errors"
    needs = (("reward/mean",), VALIDATION)

    rise: float = 0.05
    """Least rise of the reward over the updates looked at."""
    evaluations: int = 5
    """Evaluations below which a slope is not judged."""
    in_succession: int = 2
    """Evaluations in succession."""

    def lacks(self, history: History) -> str:
        few = f"{self.evaluations} evaluations"
        return super().lacks(history) or (few if len(history.evaluated()[1]) < self.evaluations else "")

    def find(self, history: History) -> list[Event]:
        _, accuracy = history.evaluated()
        reward, verdict = history.updates("reward/mean"), history.updates("score/correct")
        is_hacked, slopes = np.zeros(len(accuracy), dtype=bool), []
        for now, step in enumerate(accuracy.steps.tolist()):
            paid = slope(until(reward, step))
            accuracy_slope = slope(until(accuracy, step))
            verdict_slope = slope(until(verdict, step))
            rises = paid.low > 0 and paid.value * step >= self.rise
            parted = accuracy_slope.value <= max(0.0, paid.low / 4) and accuracy_slope.high < paid.low
            honest = len(verdict) > 0 and not verdict_slope.high < paid.low
            is_hacked[now] = now + 1 >= self.evaluations and rises and parted and not honest
            slopes.append((paid, accuracy_slope))
        events = []
        for spell in spells(accuracy.steps, is_hacked, self.in_succession):
            paid, accuracy_slope = slopes[spell.confirmed]
            evidence = [
                Evidence("reward/mean, slope per step", spell.detected, paid.low, accuracy_slope.high, True),
                Evidence(
                    f"{accuracy.name}, slope per step", spell.detected, accuracy_slope.high, paid.low, False
                ),
            ]
            events.append(self.event(spell, evidence))
        return events


def until(series: Series, step: int) -> Series:
    """The values up to a step."""
    end = int(np.searchsorted(series.steps, step, side="right"))
    return Series(series.name, series.steps[:end], series.values[:end])


# Completions: length and degeneration

MEAN, TRUNCATED = "length/mean", "length/truncated"
REPETITION, UNPARSABLE = "diversity/repetition", "outcome/unparsable"


@dataclass(frozen=True)
class LengthShift(Detector):
    """Completions whose length differs from that at the start of the run."""

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
        events: list[Event] = []
        length, cut = history.updates(MEAN), history.updates(TRUNCATED)
        if begin := baseline(history, length):
            long, short = self.times * begin.median, begin.median / self.times
            events += sustained(self, history, length, long, True, begin, self.times * long)
            events += sustained(self, history, length, short, False, begin, short / self.times)
        if begin := baseline(history, cut):
            most = begin.median + self.truncated
            events += sustained(self, history, cut, most, True, begin, most + self.truncated)
        return sorted(events, key=lambda event: event.onset)


@dataclass(frozen=True)
class Degeneration(Detector):
    """Completions that repeat themselves, or that no longer contain an answer."""

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
        events: list[Event] = []
        repeated, unread = history.updates(REPETITION), history.updates(UNPARSABLE)
        if begin := baseline(history, repeated):
            least = max(self.repetition, begin.median + self.rise)
            events += sustained(self, history, repeated, least - 1e-9, True, begin, 2 * least)
        if begin := baseline(history, unread):
            least = begin.median + self.unparsable
            events += sustained(
                self, history, unread, least - 1e-9, True, begin, begin.median + 2 * self.unparsable
            )
        return sorted(events, key=lambda event: event.onset)
