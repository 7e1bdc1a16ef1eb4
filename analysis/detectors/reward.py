"""Detectors of rewards and of completions: lost or hacked rewards, changed lengths, degenerate text."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from grpobench.analysis.detectors.accuracy import VALIDATION
from grpobench.analysis.detectors.event import Detector, Event, Evidence, baseline, spells, sustained
from grpobench.analysis.detectors.history import Floats, History, Series, slope

REWARD, SPREAD, VERDICT = "reward/mean", "reward/std", "score/correct"
GROUPS, WITHIN = "groups/sampled", "groups/baseline_variance"


@dataclass(frozen=True)
class RewardCollapse(Detector):
    """A reward that the run had and lost, from the second step on. The chance of the fall comes from a
    likelihood ratio that counts problems, not rollouts: the variance of a step's mean is that of its groups'
    mean rewards, from `reward/std` and `groups/baseline_variance`, over the number of groups. Without
    `groups/baseline_variance`, the rollouts of a group count as equal. Without `reward/std` or two groups per
    step, the variance between steps takes its place, and 8 steps must come before the event."""

    kind = "reward_collapse"
    rule = (
        "mean training reward at most a tenth of its own highest value so far, and not above a half of it "
        "for 8 steps in a row, where that value was at least .05; and without a change, the chance that the "
        "mean of these steps falls so far below that of all steps before them is at most .01/n if n steps "
        "could have met the rule; severe below a hundredth; recovered when it is back above a half"
    )
    source = (
        "ours: a run whose reward fell to 0 in its second step used to be an ordinary finished one; deviance "
        "of overdispersed counts: McCullagh and Nelder, 1989, with Chernoff's bound"
    )
    needs = ((REWARD,),)
    reads = (SPREAD, GROUPS, WITHIN)
    family = "collapse"

    left: float = 0.1
    """Share of the highest reward below which it is lost."""
    back: float = 0.5
    """Share of the highest reward above which it is regained."""
    least: float = 0.05
    """Least reward that can be lost."""
    chance: float = 0.01
    """Largest chance of such a fall without a change, at the first step that could meet the rule."""

    def find(self, history: History) -> list[Event]:
        series = history.updates(REWARD)
        highest = np.concatenate([[math.nan], np.maximum.accumulate(series.values)[:-1]])[: len(series)]
        tops = np.where(highest >= self.least, highest, math.nan)
        lost = series.values <= self.left * tops
        # values between the two levels neither start nor end a spell
        state, is_lost = False, np.zeros(len(series), dtype=bool)
        for index in range(len(series)):
            state = bool(lost[index]) or (state and series.values[index] < self.back * tops[index])
            is_lost[index] = state
        variances = variances_of_means(history, series)
        events = []
        for spell in spells(series.steps, is_lost, history.in_a_row):
            indices = np.arange(spell.confirmed, spell.end)
            tried = indices[is_lost[indices]]
            sure = tried[self._is_sure(history, series.values, variances, spell.first, tried)]
            if not len(sure):
                continue
            confirmed = int(sure[0])
            evidence = [
                Evidence(
                    series.name,
                    int(series.steps[i]),
                    float(series.values[i]),
                    float(self.left * tops[i]),
                    False,
                )
                for i in (spell.first, confirmed)
            ]
            lowest = float(series.values[spell.first : spell.end].min())
            severe = lowest <= 0.01 * float(tops[spell.first])
            note = f"highest reward {tops[spell.first]:.3g}"
            note += f"; {history.shortened}" if history.shortened else ""
            detected = replace(spell, confirmed=confirmed, detected=int(series.steps[confirmed]))
            events.append(self.event(detected, evidence, "severe" if severe else "notable", note))
        return events

    def _is_sure(
        self, history: History, values: Floats, variances: Floats, first: int, last: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether the fall from the steps before `first` to those from `first` to each of `last` is beyond
        chance, of the shape of `last`. The variance is that before `first`: steps that were chosen for their
        low rewards have little."""
        logged = variances[:first][np.isfinite(variances[:first])]
        if len(logged):
            variance = float(logged.mean())
        elif first >= history.in_a_row:
            variance = float(values[:first].var(ddof=1))
        else:
            return np.zeros(len(last), dtype=bool)
        sums = np.cumsum(np.maximum(values, 0.0))
        before = sums[first - 1] / first
        overall = sums[last] / (last + 1)
        count = last + 1 - first
        after = np.maximum(sums[last] - sums[first - 1], 0.0) / count
        logs = first * before * np.log(before / overall)
        logs += count * after * np.log(np.where(after > 0, after, 1.0) / overall)
        # A count has a variance equal to its mean: so many times as much do these rewards vary.
        dispersion = variance / before
        trials = last + 1 - history.in_a_row
        return np.asarray((after < before) & (logs > dispersion * np.log(trials / self.chance)))


def variances_of_means(history: History, series: Series) -> Floats:
    """Squared standard error of each step's mean reward, (n,), over its problems: the variance of the groups'
    mean rewards over the number of groups. NaN where it is not known.

    With n rewards in each of G groups, `reward/std`² is the variance between groups plus the mean variance
    inside them (ddof 0), which is n − 1 times the mean variance of a group's mean,
    `groups/baseline_variance`."""
    spread, within, groups = (history.get(name).at(series.steps) for name in (SPREAD, WITHIN, GROUPS))
    inside = max(history.about.group - 1, 0) * np.nan_to_num(within)
    between = np.maximum(spread**2 - inside, 0.0)
    return np.asarray(between / np.where(groups > 1, groups - 1, math.nan))


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
    needs = ((REWARD,), VALIDATION)
    reads = (VERDICT,)

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
        reward, verdict = history.updates(REWARD), history.updates(VERDICT)
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
