"""How good a detector is on labeled runs: precision, recall, false alarms, delay and lead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from grpobench.analysis.detectors.history import Series
from grpobench.analysis.runfolder.experiment import Experiment, Run
from grpobench.analysis.tools.text import json_number

LOST = 0.5
"""Share of its highest value below which accuracy counts as lost."""


@dataclass(frozen=True)
class DetectorResult:
    """The result of one detector on one run."""

    label: Label
    healthy: bool
    detected: tuple[int, ...] = ()
    """The steps at which each of its events was found, in order."""
    since: int = 1
    """The first update that the fault acts on."""
    lost: int | None = None
    """The step at which held-out accuracy was lost for good, if it was."""


@dataclass(frozen=True)
class Score:
    """Counts over runs and rates from them; NaN where the denominator is 0."""

    must: int
    """Runs that must show the event."""
    hits: int
    """How many of these show it."""
    never: int
    """Runs that must not show it: healthy runs, and runs that are broken in another way."""
    false: int
    """How many of these show it."""
    healthy: int
    """Healthy runs."""
    alarms: int
    """Events in healthy runs that must not show them."""
    delay: float
    """Median of the steps from the fault's first update until it was found, over the hits."""
    lead: float
    """Median number of steps from the detection until accuracy was lost for good, over hits that lost it;
    negative if the detection came later."""
    leads: int
    """Number of runs in this median."""

    @property
    def precision(self) -> float:
        """Share of runs with an alarm that must show the event."""
        alarms = self.hits + self.false
        return self.hits / alarms if alarms else math.nan

    @property
    def recall(self) -> float:
        """Share of runs that must show the event in which it was detected."""
        return self.hits / self.must if self.must else math.nan

    @property
    def per_healthy(self) -> float:
        """False alarms per healthy run."""
        return self.alarms / self.healthy if self.healthy else math.nan

    def row(self) -> dict[str, Any]:
        """The row for JSON; None for undefined values."""
        fields = asdict(self) | {name: getattr(self, name) for name in ("precision", "recall", "per_healthy")}
        return {name: json_number(value, 4) for name, value in fields.items()}


def score(outcomes: Iterable[DetectorResult]) -> Score:
    """Score one detector on labeled runs. A run counts once, however many events it has; false alarms in
    healthy runs are counted event by event. Runs with the label `may` are not counted."""
    listed = list(outcomes)
    must = [outcome for outcome in listed if outcome.label == "must"]
    never = [outcome for outcome in listed if outcome.label == "never"]
    hits = [outcome for outcome in must if outcome.detected]
    healthy = [outcome for outcome in listed if outcome.healthy]
    leads = [outcome.lost - outcome.detected[0] for outcome in hits if outcome.lost is not None]
    return Score(
        must=len(must),
        hits=len(hits),
        never=len(never),
        false=sum(bool(outcome.detected) for outcome in never),
        healthy=len(healthy),
        alarms=sum(len(outcome.detected) for outcome in healthy if outcome.label == "never"),
        delay=middle([outcome.detected[0] - outcome.since for outcome in hits]),
        lead=middle(leads),
        leads=len(leads),
    )


def middle(values: Sequence[int]) -> float:
    """The median; NaN for no values."""
    return float(np.median(values)) if values else math.nan


def lost(accuracy: Series) -> int | None:
    """The first evaluation from which accuracy stays below half of its highest earlier value until the end;
    None if the last evaluation is not below. This is not the rule of a detector."""
    if not len(accuracy):
        return None
    low = accuracy.values < LOST * np.maximum.accumulate(accuracy.values)
    high = np.flatnonzero(~low)
    first = int(high[-1]) + 1 if len(high) else 0
    return int(accuracy.steps[first]) if first < len(accuracy) else None


Label: TypeAlias = Literal["must", "may", "never"]
Half: TypeAlias = Literal["set", "scored"]


@dataclass(frozen=True)
class Case:
    """One kind of run (an arm of the library's recipe) with labels that were fixed beforehand."""

    arm: str
    what: str
    """The fault in a sentence."""
    healthy: bool = False
    since: int = 1
    """The first update that the fault acts on."""
    must: tuple[str, ...] = ()
    """Kinds of events that it must show."""
    may: tuple[str, ...] = ()
    """Kinds that it may show, which count neither way. All other kinds are false alarms."""

    def label(self, kind: str) -> Label:
        """The label of a kind of event in such a run."""
        if kind in self.must:
            return "must"
        return "may" if kind in self.may else "never"


@dataclass(frozen=True)
class Library:
    """Labeled cases, the seeds on which thresholds are set, and the values to try for each threshold."""

    cases: Sequence[Case]
    pool: str
    """The healthy arm with most seeds, from which A/A pairs are drawn."""
    set_on: Literal["even", "odd"] = "even"
    """Which seeds set thresholds; the others score them."""
    tried: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    """Kind -> threshold -> its values that are tried."""

    @cached_property
    def by_arm(self) -> Mapping[str, Case]:
        return {case.arm: case for case in self.cases}

    def half(self, seed: int) -> Half:
        """Which half a seed belongs to."""
        return "set" if (seed % 2 == 0) == (self.set_on == "even") else "scored"

    def of_half(self, experiment: Experiment, half: Half) -> list[Run]:
        """The runs of a half that have a result."""
        return [
            run
            for run in experiment.runs
            if run.settled and run.arm in self.by_arm and self.half(run.seed) == half
        ]
