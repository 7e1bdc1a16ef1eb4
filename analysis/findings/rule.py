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

from grpobench.analysis.measure import OF_RATES, SHARES, Measure
from grpobench.analysis.tools.text import RATE_SUFFIX

Expected = Literal["higher", "lower", "same", "not lower", "not higher"]
FREE: Mapping[str, str] = {"not lower": "higher", "not higher": "lower"}
"""Expectations of non-inferiority, with the side on which an effect may have any size."""
WHOLE = ("lasting", "reach", "base", "pass_base", *OF_RATES, *SHARES)
"""Kinds of outcomes that no collapse is mixed into: it is what they measure, or they come before it."""
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
    """Where the contrast is if the claim is correct: above 0, below 0, within `matters`, or not below or not
    above 0 by `matters` or more."""
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
    part: str = ""
    """The part of the claim that the test is about, if the claim has several, each with its conclusion."""
    two_part: str = ""
    """Which runs fail: `collapse`, those that collapse, or `at_most:X` and `at_least:X`, those whose outcome
    ends there. The test then compares the share that fails and the outcome of the others, not one mean."""

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
            len(self.contrast) != 2
            or not min(self.contrast.values()) < 0 < max(self.contrast.values())
            or max(map(abs, self.contrast.values())) != 1
            or any(character in name for name in self.contrast for character in "*?[")
            or self.ratio
            or self.deals
            or self.dose is not None
            or Measure.read(self.outcome).kind in OF_RATES
        ):
            raise ValueError(
                "best_rate: needs two arms, not patterns, with weights such as 1 and -1 or 1 and -0.9, no "
                "ratio, deals and dose, and an outcome of a single run"
            )
        _demand_traits(self.where, self.outcome)
        if self.two_part:
            self._demand_parts()

    def _demand_parts(self) -> None:
        limit_of(self.two_part)
        if self.deals or not math.isclose(sum(self.contrast.values()), 0, abs_tol=1e-9):
            raise ValueError("two_part: compares arms; the weights of the contrast must add up to 0")
        if Measure.read(self.outcome).kind in WHOLE:
            raise ValueError(f"two_part: no run fails in the outcome {self.outcome}; remove it")

    @property
    def margin(self) -> float:
        """`matters` on the scale on which differences are taken."""
        return math.log(self.matters) if self.ratio else self.matters

    @property
    def bounds(self) -> tuple[float, float]:
        """Between them an effect is smaller than what matters, on the same scale. A test of non-inferiority
        has one bound; the other is infinite."""
        free = FREE.get(self.expect)
        low = -math.inf if free == "lower" else -self.margin
        return low, math.inf if free == "higher" else self.margin


@dataclass(frozen=True)
class Control(Test):
    """A positive control: an exaggerated dose or an oracle arm, whose effect the testbed must show."""

    tests: tuple[str, ...] = ()
    """Names of the tests that it is the control of, which measure the same outcome; empty for all that
    do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tests", tuple(self.tests))  # JSON and TOML have lists
        directed = self.expect in ("higher", "lower")
        if not directed or self.deals or self.also or self.part or self.dose is not None:
            raise ValueError("control: must expect higher or lower, without deals, also, part and dose")


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
    """Names of the tests that it concerns; empty for all. A check for room (`attachment.is_room_check`)
    concerns tests of its outcome only."""

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
    bases: str = ""
    """Setting whose sweep values are the bases, such as `warm_start_seed` or `name` of the model. Names in
    contrasts are then those of arms without it, and intervals are over bases."""

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
        deciding = {test.part for test in self.test if not test.also}
        if self.parts and "" in deciding:
            raise ValueError("part: every test that decides must name its part if one does")
        if beside := sorted({test.part for test in self.test} - deciding - {""}):
            raise ValueError(f"part: no test of {beside[0]!r} decides; remove `also` from one of them")
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
            if len({(t.outcome, t.ratio, t.expect, t.also, t.part, t.two_part) for t in tests}) > 1:
                raise ValueError(f"dose: the tests {words} must measure and expect the same")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the claim, in the order of the tests; empty for a claim without parts."""
        return tuple(dict.fromkeys(test.part for test in self.test if test.part and not test.also))

    @property
    def measured(self) -> tuple[Test | Check, ...]:
        """All that is measured of the runs: tests, checks and controls."""
        return *self.test, *self.check, *self.control

    @property
    def outcomes(self) -> frozenset[tuple[str, frozenset[tuple[str, str]]]]:
        """The outcomes that are measured of the runs, each with its traits."""
        return frozenset(outcome_of(measured) for measured in self.measured)

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


def outcome_of(measured: Test | Check) -> tuple[str, frozenset[tuple[str, str]]]:
    """The outcome with the traits of the problems that are counted."""
    return measured.outcome, frozenset(measured.where.items())


def reads_rates(measurement: Test | Check) -> bool:
    """Whether it needs runs at other learning rates than the arms' own."""
    return measures_all_rates(measurement) or Measure.read(measurement.outcome).kind in OF_RATES


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


def limit_of(two_part: str) -> tuple[bool, float] | None:
    """Whether runs fail above a value, and the value; None for `collapse`. Raises ValueError."""
    kind, _, bound = two_part.partition(":")
    try:
        if two_part == "collapse":
            return None
        if kind in ("at_most", "at_least") and math.isfinite(float(bound)):
            return kind == "at_least", float(bound)
    except ValueError:
        pass
    raise ValueError(f"two_part: write collapse, at_most:NUMBER or at_least:NUMBER, not {two_part!r}")


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
