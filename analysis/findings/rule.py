"""A finding: a claim, its tests, and the checks and controls that show what the tests could have found."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal

from grpobench.analysis.measure import Measure
from grpobench.analysis.tools.text import RATE_SUFFIX

Expected = Literal["higher", "lower", "same"]
DIGEST = 16
"""Number of hexadecimal characters of a digest."""


@dataclass(frozen=True)
class Test:
    """One question to the runs of an experiment, with one number per seed as the answer."""

    name: str
    """The expectation, as a short sentence."""
    outcome: str
    """What is measured in each run; see `measure.KINDS`."""
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
    best_rate: bool = False
    """Each of the two arms is taken at the best of its learning rates (`rates` of the recipe), that with the
    highest outcome."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Traits of the problems that are counted; for accuracies only."""
    deals: int = 0
    """A/A: so many times the runs of the only arm are dealt to two arms of `seeds` runs, and the share of
    deals that are called different is judged; `matters` is still the margin of each."""
    seeds: int = 8
    """Runs of each dealt arm."""
    most: float = 0.07
    """Largest share of deals that may be called different."""
    dose: float | None = None
    """Place of the test on the finding's dose axis."""
    series: str = ""
    """Tests with a dose that have the same series are compared with each other: do effects differ by dose?"""

    def __post_init__(self) -> None:
        _demand_weights(self.contrast)
        if not (math.isfinite(self.matters) and self.matters > (1 if self.ratio else 0)):
            raise ValueError(f"matters: must be above {1 if self.ratio else 0}, not {self.matters}")
        if self.deals and (len(self.contrast) > 1 or self.expect != "same"):
            raise ValueError("deals: needs one arm and expect = 'same'")
        if self.deals < 0 or self.seeds < 2 or not 0 < self.most < 1:
            raise ValueError("deals: must be at least 0, seeds at least 2 and most between 0 and 1")
        if self.dose is not None and (self.deals or not math.isfinite(self.dose)):
            raise ValueError("dose: must be a finite number, and not of a test with deals")
        if self.series and self.dose is None:
            raise ValueError("series: is for tests with a dose")
        if self.best_rate and (
            sorted(self.contrast.values()) != [-1, 1]
            or any(character in name for name in self.contrast for character in "*?[")
            or self.ratio
            or self.deals
            or self.dose is not None
            or Measure.read(self.outcome).kind == "rate"
        ):
            raise ValueError(
                "best_rate: needs two arms, not patterns, with the weights 1 and -1, no ratio, deals and "
                "dose, and an outcome of a single run"
            )
        _demand_traits(self.where, self.outcome)

    @property
    def margin(self) -> float:
        """`matters` on the scale on which differences are taken."""
        return math.log(self.matters) if self.ratio else self.matters


@dataclass(frozen=True)
class Control(Test):
    """A positive control: an exaggerated dose or an oracle arm, whose effect the testbed must show."""

    tests: tuple[str, ...] = ()
    """Names of the tests that it is the control of; empty for all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tests", tuple(self.tests))  # JSON and TOML have lists
        if self.expect == "same" or self.deals or self.also or self.dose is not None:
            raise ValueError("control: must expect higher or lower, without deals, also and dose")


@dataclass(frozen=True)
class Check:
    """A manipulation check: a number that shows that the mechanism of the claim was active."""

    name: str
    """What holds if the check passes, as a short sentence."""
    outcome: str
    """What is measured in each run; see `measure.KINDS`."""
    contrast: Mapping[str, float]
    """Weight by arm, as in a test. The mean over seeds is held against the bounds."""
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = ()
    """Names of the tests that it concerns; empty for all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tests", tuple(self.tests))
        _demand_weights(self.contrast)
        bounds = [bound for bound in (self.at_least, self.at_most) if bound is not None]
        if not bounds or not all(map(math.isfinite, bounds)) or bounds != sorted(bounds):
            raise ValueError("at_least, at_most: one of them must be a number, and at_least the smaller one")
        _demand_traits(self.where, self.outcome)


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
    dose: str = ""
    """What the doses of tests are, such as `learning rate`."""
    check: tuple[Check, ...] = ()
    """Manipulation checks."""
    control: tuple[Control, ...] = ()
    """Positive controls."""

    def __post_init__(self) -> None:
        if not self.test or self.test[0].also:
            raise ValueError("test: needs at least one, and the first decides, so that `also` is not for it")
        if not self.claim or not self.source:
            raise ValueError("claim: a finding needs a claim and its source")
        names = [test.name for test in self.measured]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"name: two of the tests, checks and controls are called {repeated[0]!r}")
        concerned = [(check.name, check.tests) for check in self.check]
        concerned += [(control.name, control.tests) for control in self.control]
        for name, tests in concerned:
            if unknown := sorted(set(tests) - {test.name for test in self.test}):
                raise ValueError(f"tests: {name!r} names {unknown[0]!r}, which is no test of the finding")
        self._demand_doses()

    def _demand_doses(self) -> None:
        series: dict[str, list[Test]] = {}
        for test in self.test:
            if test.dose is not None:
                series.setdefault(test.series, []).append(test)
        if bool(self.dose) != bool(series):
            raise ValueError("dose: a finding names its axis if and only if tests have a dose")
        for name, tests in series.items():
            words = f"of series {name!r}" if name else "with a dose"
            if len(tests) < 2 or len({test.dose for test in tests}) < len(tests):
                raise ValueError(f"dose: the tests {words} must be two or more with different doses")
            if len({(test.outcome, test.ratio, test.expect, test.also) for test in tests}) > 1:
                raise ValueError(f"dose: the tests {words} must measure and expect the same")

    @property
    def measured(self) -> tuple[Test | Check, ...]:
        """All that is measured of the runs: tests, checks and controls."""
        return *self.test, *self.check, *self.control

    @property
    def over_rates(self) -> bool:
        """Whether anything is measured over all learning rates of an arm."""
        return any(reads_rates(measurement) for measurement in self.measured)

    def plain(self) -> dict[str, Any]:
        """As JSON holds it, without what is as by default: what tests can say later changes no digest."""
        content = _set(self)
        for kind in ("test", "check", "control"):
            if kind in content:
                content[kind] = [_set(part) for part in content[kind]]
        plain: dict[str, Any] = json.loads(json.dumps(content))
        return plain

    @property
    def digest(self) -> str:
        """Digest of claim and rule."""
        return digest(self.plain())


def reads_rates(measurement: Test | Check) -> bool:
    """Whether it needs runs at other learning rates than the arms' own."""
    return measures_all_rates(measurement) or Measure.read(measurement.outcome).kind == "rate"


def measures_all_rates(measurement: Test | Check) -> bool:
    """Whether its outcome is measured in the runs at all learning rates, and not at the arms' own alone: it
    compares best rates, or names an arm at another rate."""
    at_best = isinstance(measurement, Test) and measurement.best_rate
    return at_best or any(RATE_SUFFIX in name for name in measurement.contrast)


def _set(instance: Any) -> dict[str, Any]:
    """Fields that have no default or another value."""
    non_defaults = {}
    for attribute in fields(instance):
        default = attribute.default if attribute.default_factory is MISSING else attribute.default_factory()
        if getattr(instance, attribute.name) != default:
            non_defaults[attribute.name] = getattr(instance, attribute.name)
    return non_defaults


def _demand_weights(contrast: Mapping[str, float]) -> None:
    if not contrast:
        raise ValueError("contrast: needs at least one arm with its weight")
    if not all(math.isfinite(weight) and weight for weight in contrast.values()):
        raise ValueError("contrast: weights must be finite numbers other than 0")


def _demand_traits(where: Mapping[str, str], outcome: str) -> None:
    if where and Measure.read(outcome).kind not in ("accuracy", "gain", "base"):
        raise ValueError("where: is for the outcomes accuracy, gain and base")
    Measure.read(outcome)


@lru_cache(maxsize=4096)
def covers(name: str, arm: str, task: str) -> bool:
    """Whether a contrast's name, an arm or pattern with or without its @TASK, stands for a run's cell."""
    pattern, _, only_task = name.partition("@")
    return fnmatch.fnmatchcase(arm, pattern) and only_task in ("", task)


def from_plain(content: Mapping[str, Any]) -> Finding:
    """The finding that `plain` wrote. Raises TypeError or ValueError where it is none."""
    parts = {
        kind: tuple(of(**row) for row in content.get(kind, ()))
        for kind, of in (("test", Test), ("check", Check), ("control", Control))
    }
    return Finding(**{**content, **parts})


def digest(content: Any) -> str:
    """Of data that JSON holds, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]
