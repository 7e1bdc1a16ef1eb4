"""All detectors by the kind of event that they find, and `detect`, which applies them to one run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from grpobench.analysis.detectors.accuracy import AccuracyCollapse, DiversityLoss
from grpobench.analysis.detectors.event import Detector, Event
from grpobench.analysis.detectors.gradient import (
    CriticFailure,
    GradientInstability,
    SignalSaturation,
    SignalStarvation,
)
from grpobench.analysis.detectors.history import History
from grpobench.analysis.detectors.infrastructure import (
    AllTruncated,
    GraderFailure,
    GraderSilent,
    SamplerGap,
    StaleWeights,
)
from grpobench.analysis.detectors.policy import Drift, EntropyCollapse, EntropyExplosion, KLBlowUp
from grpobench.analysis.detectors.reward import Degeneration, LengthShift, RewardCollapse, RewardHacking

DETECTORS: Mapping[str, Detector] = {
    detector.kind: detector
    for detector in (
        AccuracyCollapse(),
        RewardCollapse(),
        EntropyCollapse(),
        EntropyExplosion(),
        KLBlowUp(),
        GradientInstability(),
        LengthShift(),
        Degeneration(),
        DiversityLoss(),
        RewardHacking(),
        SignalStarvation(),
        SignalSaturation(),
        CriticFailure(),
        SamplerGap(),
        Drift(),
        GraderFailure(),
        GraderSilent(),
        AllTruncated(),
        StaleWeights(),
    )
}
"""All detectors, in the order of reports."""


@dataclass(frozen=True)
class Findings:
    """The events of one run, and the detectors that could not be applied."""

    events: tuple[Event, ...]
    """Ordered by onset, then by detector."""
    not_applicable: Mapping[str, str]
    """Kind -> why the logs do not allow the detector to judge the run."""

    def of_family(self, family: str) -> list[Event]:
        """The events of a family of kinds."""
        return [event for event in self.events if DETECTORS[event.kind].family == family]

    def collapse(self) -> Event | None:
        """The first collapse that the run did not recover from."""
        lasting = [event for event in self.of_family("collapse") if event.recovered is None]
        return lasting[0] if lasting else None


def detect(history: History, detectors: Mapping[str, Detector] = DETECTORS) -> Findings:
    """All events of a run. Equal histories give equal findings, whatever other metrics were logged."""
    lacks = {kind: detector.lacks(history) for kind, detector in detectors.items()}
    events = [
        event for kind, detector in detectors.items() if not lacks[kind] for event in detector.find(history)
    ]
    events.sort(key=lambda event: event.onset)
    return Findings(tuple(events), {kind: why for kind, why in lacks.items() if why})


def is_read_by_detectors(name: str) -> bool:
    """Whether any detector may read a metric."""
    return name.startswith(PREFIXES)


PREFIXES = tuple(
    dict.fromkeys(
        [
            name.partition("<")[0]
            for detector in DETECTORS.values()
            for name in (*itertools.chain(*detector.needs), *detector.reads)
        ]
    )
)
"""Prefixes of the metrics that detectors read."""


def thresholds(detector: Detector) -> dict[str, float]:
    """The thresholds of a detector by name."""
    return {field.name: getattr(detector, field.name) for field in dataclasses.fields(detector)}
