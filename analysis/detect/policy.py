"""The policy itself: its entropy, and how far it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grpobench.analysis.detect.event import Detector, Event, baseline, sustained
from grpobench.analysis.detect.history import History

ENTROPY = "policy/entropy"
REFERENCE = ("policy/kl_reference_k3", "policy/kl_reference_k2", "policy/kl_reference_k1")
OLD = "trained/kl_old"


@dataclass(frozen=True)
class Entropy(Detector):
    """Entropy H against that of the run's start H₀: the median of the baseline, or the first step's where
    that is larger, for a policy that narrows at once."""

    needs: ClassVar[tuple[tuple[str, ...], ...]] = ((ENTROPY,),)

    floor: float = 1e-3
    """Nats per token below which a policy has no entropy to speak of at its start."""

    def start(self, history: History) -> float | None:
        """H₀; None before it is known."""
        begin = baseline(history, history.updates(ENTROPY))
        level = max(begin.median, begin.first) if begin else 0.0
        return level if level >= self.floor else None


@dataclass(frozen=True)
class EntropyCollapse(Entropy):
    """A policy that always writes the same."""

    kind = "entropy_collapse"
    rule = (
        "H/H₀ below .1 for 8 steps in a row, H₀ the entropy of the baseline (median) or of the first step, "
        "whichever is larger; severe below .025"
    )
    source = (
        "arXiv:2505.22617 (entropy is traded for reward until none is left); threshold set on healthy and "
        "broken runs (docs/calibration.md)"
    )

    share: float = 0.1
    """Share of H₀ below which entropy has collapsed."""

    def find(self, history: History) -> list[Event]:
        series, level = history.updates(ENTROPY), self.start(history)
        if level is None:
            return []
        begin = baseline(history, series)
        return sustained(self, history, series, self.share * level, False, begin, self.share * level / 4)


@dataclass(frozen=True)
class EntropyExplosion(Entropy):
    """A policy that writes at random."""

    kind = "entropy_explosion"
    rule = (
        "H/H₀ above 2 for 8 steps in a row, H₀ the entropy of the baseline (median) or of the first step, "
        "whichever is larger; severe above 4"
    )
    source = "ours; threshold set on runs with too large an entropy bonus (docs/calibration.md)"

    times: float = 2.0
    """Multiple of H₀ above which entropy has exploded."""

    def find(self, history: History) -> list[Event]:
        series, level = history.updates(ENTROPY), self.start(history)
        if level is None:
            return []
        begin = baseline(history, series)
        return sustained(self, history, series, self.times * level, True, begin, 2 * self.times * level)


@dataclass(frozen=True)
class KLBlowUp(Detector):
    """A policy that leaves its reference, or itself within a step, faster than it began to. A divergence
    from the reference begins at 0 and rises in every run, so that ratios alone would tell nothing: below a
    floor nothing is said."""

    kind = "kl_blowup"
    rule = (
        "KL to the old policy within a step, or to the reference, more than 6 robust standard deviations and "
        "more than 10 times the median of the baseline, for 8 steps in a row, and above .05 (old) or .5 "
        "(reference) nats per token"
    )
    source = "robust z: Iglewicz and Hoaglin, 1993; floors ours, to be calibrated"
    needs = ((OLD, *REFERENCE),)

    z: float = 6.0
    """Robust standard deviations, 1.4826 median absolute deviations each."""
    times: float = 10.0
    """Multiple of the baseline's median."""
    floor_old: float = 0.05
    """Nats per token within a step."""
    floor_reference: float = 0.5
    """Nats per token from the reference."""

    def find(self, history: History) -> list[Event]:
        found: list[Event] = []
        measured = [history.first(OLD), history.first(*REFERENCE)]
        for series, floor in zip(measured, (self.floor_old, self.floor_reference), strict=True):
            begin = baseline(history, history.updates(series.name)) if series is not None else None
            if series is None or begin is None:
                continue
            whole = history.updates(series.name)
            bound = max(begin.bound(1.4826 * self.z), self.times * abs(begin.median), floor)
            found += sustained(self, history, whole, float(np.float64(bound)), True, begin, 4 * bound)
        return sorted(found, key=lambda event: event.onset)
