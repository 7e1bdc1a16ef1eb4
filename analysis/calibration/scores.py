"""How good a detector is on labeled runs: precision, recall, false alarms, delay and lead.

The second half is the library of labeled runs: which are healthy, which are broken, and which events each
kind of broken run must show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from grpobench.analysis.detectors.history import Series
from grpobench.analysis.runfolder.experiment import Experiment, Run

LOST = 0.5
"""Share of its highest value below which accuracy counts as lost."""


@dataclass(frozen=True)
class Outcome:
    """What one detector said of one run."""

    label: Label
    healthy: bool
    found: tuple[int, ...] = ()
    """The steps at which each of its events was found, in order."""
    since: int = 1
    """The first update that the fault acts on."""
    lost: int | None = None
    """The step at which held-out accuracy was lost for good, if it was."""


@dataclass(frozen=True)
class Score:
    """Counts over runs, and what follows from them; NaN where there is nothing to divide by."""

    must: int
    """Runs that have to show it."""
    hits: int
    """Of these, those that do."""
    never: int
    """Runs that must not show it, healthy and broken in another way."""
    false: int
    """Of these, those that do."""
    healthy: int
    """Healthy runs."""
    alarms: int
    """Events in healthy runs that must not show them."""
    delay: float
    """Median of the steps from the fault's first update until it was found, over the hits."""
    lead: float
    """Median of the steps from when it was found until accuracy was lost for good, over the hits whose
    accuracy was; negative: found later."""
    leads: int
    """Runs that this median is over."""

    @property
    def precision(self) -> float:
        """Share of the runs with an alarm that have to show it."""
        alarms = self.hits + self.false
        return self.hits / alarms if alarms else math.nan

    @property
    def recall(self) -> float:
        """Share of the runs that have to show it in which it was found."""
        return self.hits / self.must if self.must else math.nan

    @property
    def per_healthy(self) -> float:
        """False alarms per healthy run."""
        return self.alarms / self.healthy if self.healthy else math.nan

    def row(self) -> dict[str, Any]:
        """As JSON has it: None for what is not defined."""
        told = asdict(self) | {name: getattr(self, name) for name in ("precision", "recall", "per_healthy")}
        return {name: plain(value) for name, value in told.items()}


def plain(value: Any) -> Any:
    """A number as JSON has it: rounded, None where it is not finite."""
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else None
    return value


def score(outcomes: Iterable[Outcome]) -> Score:
    """Of one detector over labeled runs. A run counts once, however many events it has; false alarms in
    healthy runs are counted event by event. Where a label says `may`, a run counts neither way."""
    told = list(outcomes)
    must = [one for one in told if one.label == "must"]
    never = [one for one in told if one.label == "never"]
    hits = [one for one in must if one.found]
    healthy = [one for one in told if one.healthy]
    leads = [one.lost - one.found[0] for one in hits if one.lost is not None]
    return Score(
        must=len(must),
        hits=len(hits),
        never=len(never),
        false=sum(bool(one.found) for one in never),
        healthy=len(healthy),
        alarms=sum(len(one.found) for one in healthy if one.label == "never"),
        delay=middle([one.found[0] - one.since for one in hits]),
        lead=middle(leads),
        leads=len(leads),
    )


def middle(values: Sequence[int]) -> float:
    """The median; NaN of nothing."""
    return float(np.median(values)) if values else math.nan


def lost(accuracy: Series) -> int | None:
    """The step of the first evaluation from which on accuracy stays below half of its highest value until
    then; None where the last evaluation is not below. No detector's rule."""
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
    """One kind of run, an arm of the library's recipe, with the labels that were given to it beforehand."""

    arm: str
    what: str
    """The fault in a sentence."""
    healthy: bool = False
    since: int = 1
    """The first update that the fault acts on."""
    must: tuple[str, ...] = ()
    """Kinds of events that it has to show."""
    may: tuple[str, ...] = ()
    """Kinds that it may show: neither right nor wrong. Every other kind is a false alarm."""

    def label(self, kind: str) -> Label:
        """What a kind of event is in such a run."""
        if kind in self.must:
            return "must"
        return "may" if kind in self.may else "never"


@dataclass(frozen=True)
class Library:
    """Cases, the seeds that thresholds are set on (all others score them), and the values tried for each."""

    cases: Sequence[Case]
    pool: str
    """The healthy arm with most seeds, of which A/A pairs are drawn."""
    set_on: Literal["even", "odd"] = "even"
    """Which seeds set thresholds; the others score them."""
    tried: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    """Kind -> threshold -> its values that are tried."""

    def case(self, arm: str) -> Case:
        """The case of an arm; raises KeyError for an arm without one."""
        return next(case for case in self.cases if case.arm == arm) if self.has_labels(arm) else _unknown(arm)

    def has_labels(self, arm: str) -> bool:
        """Whether an arm has labels."""
        return any(case.arm == arm for case in self.cases)

    def half(self, seed: int) -> Half:
        """Which half a seed belongs to."""
        return "set" if (seed % 2 == 0) == (self.set_on == "even") else "scored"

    def of_half(self, experiment: Experiment, half: Half) -> list[Run]:
        """The runs of a half that have a result."""
        return [
            run
            for run in experiment.runs
            if run.settled and self.has_labels(run.arm) and self.half(run.seed) == half
        ]


def _unknown(arm: str) -> Case:
    raise KeyError(f"{arm}: no case of the library")
