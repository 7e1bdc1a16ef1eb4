"""Events of instability, and the parts from which all detectors are built."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from grpobench.analysis.detectors.history import Floats, History, Series

Severity: TypeAlias = Literal["notable", "severe"]
Family: TypeAlias = Literal["collapse", "instability", "infrastructure"]
"""`collapse`: the run lost what it had learned. `infrastructure`: a fault of the machinery and not of the
algorithm."""


@dataclass(frozen=True)
class Evidence:
    """A value that triggered a rule, and the threshold that it crossed."""

    metric: str
    step: int
    value: float
    threshold: float
    above: bool
    """Whether the rule holds above the threshold; otherwise it holds below."""

    def __str__(self) -> str:
        side = "above" if self.above else "below"
        return f"{self.metric} {self.value:.3g} at step {self.step}, {side} {self.threshold:.3g}"


@dataclass(frozen=True)
class Event:
    """One problem in one run."""

    kind: str
    onset: int
    """Its first step."""
    found: int
    """The step at which the rule was met."""
    evidence: tuple[Evidence, ...]
    recovered: int | None = None
    """The first step after it; None if it lasts until the end of the logs."""
    severity: Severity = "notable"
    note: str = ""
    """Adaptations of the rule and other details, in words."""

    def row(self) -> dict[str, Any]:
        """As a line of events.jsonl."""
        return asdict(self) | {"evidence": [asdict(evidence) for evidence in self.evidence]}


@dataclass(frozen=True)
class Detector(ABC):
    """One kind of event. The fields are its thresholds."""

    kind: ClassVar[str]
    rule: ClassVar[str]
    """The rule in one sentence, with the default thresholds."""
    source: ClassVar[str]
    """The source of the rule or of its thresholds."""
    needs: ClassVar[tuple[tuple[str, ...], ...]]
    """Required metrics: at least one of each entry must be logged."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Further metrics that the rule reads where they are logged."""
    family: ClassVar[Family] = "instability"
    stops: ClassVar[bool] = True
    """Whether a recipe may stop a run for this event."""

    def lacks(self, history: History) -> str:
        """Why the run cannot be judged; empty if it can."""
        for choice in self.needs:
            if not any(history.matching(name) for name in choice):
                return f"not logged: {' or '.join(choice)}"
        return ""

    @abstractmethod
    def find(self, history: History) -> list[Event]:
        """The events of a run so far, ordered by onset. Further rows may end an event or make it severe. They
        never change its `onset` or `found`, and never remove it."""

    def event(
        self,
        spell: Spell,
        evidence: Sequence[Evidence],
        severity: Severity = "notable",
        note: str = "",
    ) -> Event:
        """An event of this kind over a spell."""
        return Event(self.kind, spell.onset, spell.detected, tuple(evidence), spell.recovered, severity, note)


@dataclass(frozen=True)
class Spell:
    """A range of steps over which a condition holds."""

    onset: int
    detected: int
    """The step at which the condition had held long enough."""
    recovered: int | None
    first: int
    """Index of the onset."""
    confirmed: int
    """Index of the value that made the spell long enough."""
    end: int
    """Index after its last value."""


def spells(steps: Sequence[int] | Any, met: Any, in_a_row: int) -> list[Spell]:
    """Ranges in which a condition is met at least `in_a_row` times in a row. A spell ends at the first of
    `in_a_row` successive values that do not meet it."""
    met = np.asarray(met, dtype=bool)
    if int(met.sum()) < in_a_row:
        return []
    return list(_spells(steps, met, in_a_row))


def _spells(steps: Any, met: Any, in_a_row: int) -> Iterator[Spell]:
    start, first, confirmed = 0, -1, -1
    for index in range(len(met)):
        inside = first >= 0
        if met[index] == inside:  # the state does not change, so the count of opposite values restarts
            start = index + 1
        elif index - start + 1 == in_a_row and not inside:
            first, confirmed, start = start, index, index + 1
        elif index - start + 1 == in_a_row:
            yield Spell(int(steps[first]), int(steps[confirmed]), int(steps[start]), first, confirmed, start)
            first, start = -1, index + 1
    if first >= 0:
        yield Spell(int(steps[first]), int(steps[confirmed]), None, first, confirmed, len(met))


@dataclass(frozen=True)
class Baseline:
    """The level of a metric in the first steps after the warm-up."""

    median: float
    mad: float
    """Median absolute deviation from the median, not scaled."""
    first: float
    """The first value."""
    end: int
    """Its last step. No events are found before it."""

    def bound(self, deviations: float, least: float = 0.0) -> float:
        """The median plus `deviations` median absolute deviations. A deviation is at least 5 % of the median,
        so that an almost constant baseline does not turn every change into an alarm. The bound is at least
        `least` above the median."""
        return self.median + max(deviations * max(self.mad, 0.05 * abs(self.median)), least)


def baseline(history: History, series: Series) -> Baseline | None:
    """The baseline of a metric; None until all its steps are logged."""
    begin, end = history.about.warmup, history.about.warmup + history.window
    values = series.values[(series.steps > begin) & (series.steps <= end)]
    if history.last < end or len(values) < min(2, history.window):
        return None
    median = float(np.median(values))
    return Baseline(median, float(np.median(np.abs(values - median))), float(values[0]), end)


def sustained(
    detector: Detector,
    history: History,
    series: Series,
    threshold: float | Floats,
    above: bool,
    start: Baseline | None = None,
    severe: float = math.nan,
) -> list[Event]:
    """Events of a metric that stays beyond a threshold (one, or one per value) for `history.in_a_row` steps;
    severe where it also passes `severe`. Nothing is found before the baseline is complete."""
    bounds = np.broadcast_to(np.asarray(threshold, dtype=np.float64), series.values.shape)
    met = series.values > bounds if above else series.values < bounds
    events = []
    for spell in spells(series.steps, met, history.in_a_row):
        if start is not None and spell.detected < start.end:
            spell = replace(spell, detected=start.end)
        inside = series.values[spell.first : spell.end]
        worst = inside.max() if above else inside.min()
        grave = worst > severe if above else worst < severe
        indices = [spell.first, spell.confirmed]
        evidence = [
            Evidence(series.name, int(series.steps[i]), float(series.values[i]), float(bounds[i]), above)
            for i in indices
        ]
        events.append(detector.event(spell, evidence, "severe" if grave else "notable", history.shortened))
    return events
