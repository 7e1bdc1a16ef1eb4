"""Detectors of infrastructure faults: graders, truncation, stale weights, and the sampler–trainer gap."""

# Except for the gap, these events count as faults of the machinery and never as a collapse of an algorithm.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grpobench.analysis.detectors.event import Detector, Event, Evidence, baseline, sustained
from grpobench.analysis.detectors.gradient import POLICY, GradientInstability
from grpobench.analysis.detectors.history import History, Series

FAILED = ("outcome/infra_error", "reward/failed")
CORRECT, TRUNCATED, SYNC = "score/correct", "length/truncated", "gap/sync"
GROUPS = "groups/sampled"
SAMPLED = tuple(f"eval/validation/{mode}/correct" for mode in ("sampled", "greedy"))


@dataclass(frozen=True)
class GraderFailure(Detector):
    """Answers that could not be graded."""

    kind = "grader_failure"
    rule = (
        "5 % or more of the rollouts not graded for reasons of the machine, or masked because the reward "
        "failed, for 8 steps in a row; severe from a half"
    )
    source = "ours; an error of the machine is never a silent 0"
    needs = (FAILED,)
    family = "infrastructure"
    stops = False

    share: float = 0.05
    """Share of the rollouts of a step."""

    def find(self, history: History) -> list[Event]:
        events: list[Event] = []
        for name in FAILED:
            series = history.updates(name)
            events += sustained(self, history, series, self.share - 1e-9, True, severe=0.5 - 1e-9)
        return sorted(events, key=lambda event: event.onset)


@dataclass(frozen=True)
class GraderSilent(Detector):
    """A grader that accepts no training rollout, while evaluations of the same policy find correct
    answers."""

    kind = "grader_silent"
    rule = (
        "not one training rollout graded as correct in the first 8 steps and in as many problems as the "
        "policy before training, which was right on 10 % or more of the validation problems, would all fail "
        "with a chance of at most 5 %"
    )
    source = "ours; a grader that fails to zero looks like a policy that fails"
    needs = ((CORRECT,), SAMPLED)
    reads = (GROUPS,)
    family = "infrastructure"
    stops = False

    least: float = 0.1
    """Validation accuracy before training."""
    chance: float = 0.05
    """Largest chance of that with a grader that works. Rollouts of one problem tend to fail together, so the
    chance counts problems; a step without `groups/sampled` counts as one."""

    def find(self, history: History) -> list[Event]:
        base = history.first(*SAMPLED)
        series = history.updates(CORRECT)
        if base is None or not len(base) or base.steps[0] or base.values[0] < self.least:
            return []
        problems = np.cumsum(np.nan_to_num(history.get(GROUPS).at(series.steps), nan=1.0))
        enough = np.flatnonzero((1 - base.values[0]) ** problems <= self.chance)
        right = np.flatnonzero(series.values > 0)
        last = max(history.in_a_row - 1, int(enough[0])) if len(enough) else len(series)
        if last >= len(series) or (len(right) and right[0] <= last):
            return []
        over = int(series.steps[right[0]]) if len(right) else None
        first, detected = int(series.steps[0]), int(series.steps[last])
        evidence = (
            Evidence(base.name, 0, float(base.values[0]), self.least, True),
            Evidence(CORRECT, detected, 0.0, 0.0, False),
        )
        return [Event(self.kind, first, detected, evidence, over, "severe", history.shortened)]


@dataclass(frozen=True)
class AllTruncated(Detector):
    """All completions are cut off by the token limit, so the run measures the limit."""

    kind = "all_truncated"
    rule = "99 % or more of the completions cut by the limit of tokens or turns for 8 steps in a row"
    source = "ours; a limit below the answers' length grades the limit"
    needs = ((TRUNCATED,),)
    family = "infrastructure"
    stops = False

    share: float = 0.99
    """Share of the completions of a step."""

    def find(self, history: History) -> list[Event]:
        return sustained(self, history, history.updates(TRUNCATED), self.share - 1e-9, True)


@dataclass(frozen=True)
class StaleWeights(Detector):
    """A sampler that did not receive the trainer's weights."""

    kind = "stale_weights"
    rule = "a probe's log-probabilities more than 1 nat apart after handing over the weights, at any step"
    source = "ours; in bfloat16 as much as 1 nat is let pass (`sampler.max_logprob_gap`)"
    needs = ((SYNC,),)
    family = "infrastructure"
    stops = False

    most: float = 1.0
    """Nats, the greatest over the probe's tokens."""

    def find(self, history: History) -> list[Event]:
        series = history.get(SYNC)
        bad = np.flatnonzero(series.values > self.most)
        if not len(bad):
            return []
        first, last = int(bad[0]), int(bad[-1])
        over = int(series.steps[last + 1]) if last + 1 < len(series) else None
        step = int(series.steps[first])
        evidence = Evidence(SYNC, step, float(series.values[first]), self.most, True)
        return [Event(self.kind, step, step, (evidence,), over, "severe")]


# The gap between sampler and trainer

GAP = "gap/k3"
LAG = "sampler/lag"


def on_current_weights(history: History, series: Series) -> Series:
    """The series without the steps whose rollouts came from earlier weights on purpose."""
    lag = history.get(LAG)
    current = ~np.isin(series.steps, lag.steps[lag.values > 0])
    return Series(series.name, series.steps[current], series.values[current])


@dataclass(frozen=True)
class SamplerGap(Detector):
    """A gap that can collapse a run by itself, or that grows while the gradient norm is still normal."""

    kind = "sampler_gap"
    rule = (
        "k3 gap between sampler and trainer above 1e-2 nats per token for 8 steps in a row, or above 1e-3 "
        "and 10 times the baseline's median for as long while the gradient norm has no spike; severe above "
        ".1; steps that `sampler.lag` delays do not count"
    )
    source = (
        "healthy below 1e-3, and rising ahead of the gradient norm: the definition of gap/k3; thresholds ours"
    )
    needs = ((GAP,),)
    reads = (LAG, POLICY)

    most: float = 1e-2
    """Nats per token."""
    healthy: float = 1e-3
    """Nats per token below which a rise means nothing."""
    times: float = 10.0
    """Multiple of the baseline's median."""

    def find(self, history: History) -> list[Event]:
        series = on_current_weights(history, history.updates(GAP))
        events = sustained(self, history, series, self.most, True, severe=10 * self.most)
        begin = baseline(history, series)
        if begin is None:
            return events
        bound = max(self.healthy, self.times * begin.median)
        if bound < self.most:
            rising = Series(GAP, series.steps, np.where(self._sound(history, series), series.values, 0.0))
            ahead = sustained(self, history, rising, bound, True, begin)
            events += [
                rising_event
                for rising_event in ahead
                if not any(rising_event.onset >= event.onset for event in events)
            ]
        return sorted(events, key=lambda event: event.onset)

    def _sound(self, history: History, series: Series) -> np.ndarray:
        """At which steps of the series the gradient norm is not a spike, (n,)."""
        norms = history.updates(POLICY)
        spikes = norms.steps[GradientInstability().beyond(history, norms)]
        return ~np.isin(series.steps, spikes)
