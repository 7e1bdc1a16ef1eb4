"""A finding: a claim, and the tests that decide about it."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from grpobench.analysis.findings.outcomes import Outcome

Expected = Literal["higher", "lower", "same"]
DIGEST = 16
"""Number of hexadecimal characters of a digest."""


@dataclass(frozen=True)
class Test:
    """One question to the runs of an experiment, with one number per seed as the answer."""

    name: str
    """The expectation, as a short sentence."""
    outcome: str
    """What is measured in each run; see `outcomes.Outcome`."""
    expect: Expected
    """Where the contrast is if the claim is correct: above 0, below 0, or within `matters`."""
    matters: float
    """The smallest effect that matters, in the outcome's unit; with `ratio` a factor above 1."""
    contrast: Mapping[str, float] = field(default_factory=dict)
    """Weight by arm, or by ARM@TASK; an arm may be a pattern such as ``gspo+*``, which stands for the mean of
    what it matches. A name without a task is the mean over tasks."""
    ratio: bool = False
    """Compare logarithms, so that the effect is a factor."""
    unit: str = ""
    """Unit of the effect; `points` prints shares in points."""
    also: bool = False
    """The test is shown, has its own level of 5 %, and is not part of the verdict."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Traits of the problems that are counted; for accuracies only."""
    deals: int = 0
    """A/A: so many times the runs of the only arm are dealt to two arms of `seeds` runs, and the share of
    deals that are called different is judged; `matters` is still the margin of each."""
    seeds: int = 8
    """Runs of each dealt arm."""
    most: float = 0.07
    """Largest share of deals that may be called different."""

    def __post_init__(self) -> None:
        if not self.contrast:
            raise ValueError("contrast: needs at least one arm with its weight")
        if not all(math.isfinite(weight) and weight for weight in self.contrast.values()):
            raise ValueError("contrast: weights must be finite numbers other than 0")
        if not (math.isfinite(self.matters) and self.matters > (1 if self.ratio else 0)):
            raise ValueError(f"matters: must be above {1 if self.ratio else 0}, not {self.matters}")
        if self.deals and (len(self.contrast) > 1 or self.expect != "same"):
            raise ValueError("deals: needs one arm and expect = 'same'")
        if self.deals < 0 or self.seeds < 2 or not 0 < self.most < 1:
            raise ValueError("deals: must be at least 0, seeds at least 2 and most between 0 and 1")
        Outcome.read(self.outcome)
        if self.where and Outcome.read(self.outcome).kind not in ("accuracy", "gain"):
            raise ValueError("where: is for the outcomes accuracy and gain")

    @property
    def margin(self) -> float:
        """`matters` on the scale on which differences are taken."""
        return math.log(self.matters) if self.ratio else self.matters


@dataclass(frozen=True)
class Finding:
    """A claim and the rule by which it is judged. Nothing of it says with which settings: those are the
    recipes of its scales."""

    name: str
    claim: str
    """One sentence."""
    source: str
    test: tuple[Test, ...]
    """The tests. The first is the primary test, whose effect is shown."""
    published: str = ""
    """The result that the source reports."""
    stands_for: str = ""
    """How far the runs stand for the claim's own setting."""

    def __post_init__(self) -> None:
        if not self.test or self.test[0].also:
            raise ValueError("test: needs at least one, and the first decides, so that `also` is not for it")
        if not self.claim or not self.source:
            raise ValueError("claim: a finding needs a claim and its source")

    def plain(self) -> dict[str, Any]:
        """As JSON holds it, without what is as by default: what tests can say later changes no digest."""
        content = {**_set(self), "test": [_set(test) for test in self.test]}
        plain: dict[str, Any] = json.loads(json.dumps(content))
        return plain

    @property
    def digest(self) -> str:
        """Digest of claim and rule."""
        return digest(self.plain())


def _set(thing: Any) -> dict[str, Any]:
    """Fields that have no default or another value."""
    found = {}
    for one in fields(thing):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if getattr(thing, one.name) != default:
            found[one.name] = getattr(thing, one.name)
    return found


def covers(name: str, arm: str, task: str) -> bool:
    """Whether a contrast's name, an arm or pattern with or without its @TASK, stands for a run's cell."""
    pattern, _, place = name.partition("@")
    return fnmatch.fnmatchcase(arm, pattern) and place in ("", task)


def from_plain(content: Mapping[str, Any]) -> Finding:
    """The finding that `plain` wrote. Raises TypeError or ValueError where it is none."""
    tests = tuple(Test(**test) for test in content["test"])
    return Finding(**{**content, "test": tests})


def digest(content: Any) -> str:
    """Of data that JSON holds, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]
