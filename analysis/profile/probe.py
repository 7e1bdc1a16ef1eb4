"""A probe: one mechanism, a dose of it, and a score whose zero and one are stated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grpobench.analysis.measure import OF_STEPS, Measure


@dataclass(frozen=True)
class ProbeControl:
    """An arm that shows whether a probe can tell anything at all, on seeds of its own."""

    text: str
    """What it is, as the end of a sentence."""
    algorithm: str = "grpo"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What it changes in the probe's settings."""


@dataclass(frozen=True)
class Probe:
    """Score = (outcome − zero)/(one − zero) at the searched learning rate.

    With `against` the score is the share of the gain that is left under the dose: 1 − (clean gain −
    gain)/(mean clean gain over seeds), where the clean gain is that of the same algorithm, seed and rate on
    that probe. It exists only for algorithms that learn without the dose: robustness is trivially won by one
    that does not.
    """

    name: str
    title: str
    """In a figure: two words at most."""
    mechanism: str
    """What the probe isolates, in a sentence."""
    source: str
    """Where the mechanism is described."""
    dose: str
    score: str
    """What 0 and 1 mean, in words."""
    outcome: str
    """See `measure.KINDS`; one of training steps."""
    zero: float
    one: float
    rewards: tuple[float, float]
    """The least and the greatest reward possible, for algorithms that must know them."""
    expect: str
    """What theory expects of which algorithm."""
    high: tuple[str, ...] = ()
    """Algorithms that theory expects above the others."""
    low: tuple[str, ...] = ()
    good: str = ""
    """Ends the sentence "It …" about an algorithm with a high score."""
    bad: str = ""
    """The same about one with a low score."""
    against: str = ""
    """The probe without the dose."""
    runs: Literal["own", "learn", "ladder"] = "own"
    """`own`: runs of its own. `learn`: another outcome of the runs of that probe. `ladder`: of these at every
    rate of the search, averaged."""
    rate: float = 1.0
    """Factor of the searched learning rates. Tables name the searched ones."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Sections of a recipe, with `task` as of an arm, and `tasks`."""
    positive: ProbeControl | None = None
    """The control that must score higher than the negative one."""
    negative: ProbeControl | None = None

    def __post_init__(self) -> None:
        Measure.read(self.outcome, OF_STEPS)
        if not (math.isfinite(self.zero) and math.isfinite(self.one) and self.zero != self.one):
            raise ValueError("zero: zero and one must be different finite numbers")
        if not -math.inf < self.rewards[0] < self.rewards[1] < math.inf:
            raise ValueError("rewards: must be the least and the greatest reward, finite and different")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate: must be a positive factor, not {self.rate}")

    def normalize(self, outcome: float) -> float:
        """The score of an outcome."""
        return (outcome - self.zero) / (self.one - self.zero)
